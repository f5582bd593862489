#!/usr/bin/env python3
"""A rule of elementwise updates is one header and one row: with a rule added to copies of the list and of the table, the
kernels of every device and the tests compile, and no other source names a rule of the list.

  rules_test.py COMPILER INCLUDES      INCLUDES: folders, with ":" between them
"""
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
COMPILER, INCLUDES = sys.argv.pop(1), [f"-I{folder}" for folder in sys.argv.pop(1).split(":") if folder]
HEADER = """#pragma once
#include "ops/rules/rule.h"
namespace trainer::ops::rules {
struct Lag {
  static constexpr const char* name = "lag";
  static constexpr double flops = 8;
  static constexpr std::array<StateRule, 3> states{{
      {"a", Narrow::nearest}, {"b", Narrow::stochastic}, {"c", Narrow::nearest}}};
  enum : int { mu, nstep, nwd, floor, scalars };
  template <typename M, typename T>
  TRAINER_ELEMENTWISE static T element(const T* k, T p, T* s, T g) {
    s[0] = M::fused(k[mu], s[0], g);
    s[1] = M::fused(k[mu], s[1], s[0]);
    s[2] = M::fused(k[mu], s[2], s[1] * s[1]);
    const T u = -s[1] / M::square_root(s[2]);
    return M::fused(k[nstep], u, M::fused(M::where_at_least(u * p, k[floor], k[nwd]), p, p));
  }
};
}  // namespace trainer::ops::rules
"""
ROW = """    {ops::RuleId::Lag, "lag", [](const Settings&) { return false; }, none_agreed,
     [](const Settings& settings, const Update&, const Step& step, double* k) {
       using K = ops::rules::Lag;
       k[K::mu] = settings.optim.beta1;
       k[K::nstep] = -step.lr;
       k[K::nwd] = step.negative_decay;
       k[K::floor] = step.floor;
     }},
"""
# What is compiled for a rule, with further options.
SOURCES = {"src/ops/update.cpp": [], "src/ops/cpu/update.isa.cpp": ["-DTRAINER_ISA=plain"],
           "src/ops/cuda/update.cu": ["-xc++", f"-I{ROOT}/tests/cuda/emulation"], "tests/unit/ops/update_test.cpp": [f"-I{ROOT}/tests"]}
# Sources that use a certain rule, and do not know how it is computed.
USERS = {"bench/optimizer.cpp": {"AdamW"}, "optim/muon.cpp": {"Sgd"}}


def names():
    return set(re.findall(r"X\((\w+)\)", (SRC / "ops/rules/list.h").read_text(encoding="utf-8").split("#define", 1)[1])) - {"X"}


class Rules(unittest.TestCase):
    def test_need_one_header_and_one_row(self):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder)
            for name in ("ops/rules", "optim"):
                (copy / name).mkdir(parents=True)
            listed = (SRC / "ops/rules/list.h").read_text(encoding="utf-8")
            self.assertIn("#define TRAINER_RULES(X) ", listed)
            (copy / "ops/rules/lag.h").write_text(HEADER, encoding="utf-8")
            (copy / "ops/rules/list.h").write_text(
                listed.replace("#pragma once", '#pragma once\n#include "ops/rules/lag.h"').replace("RULES(X) ", "RULES(X) X(Lag) "),
                encoding="utf-8")
            table = (SRC / "optim/rows.cpp").read_text(encoding="utf-8")
            self.assertIn("kRows[] = {\n", table)
            (copy / "optim/rows.cpp").write_text(table.replace("kRows[] = {\n", "kRows[] = {\n" + ROW), encoding="utf-8")
            for source, options in {**SOURCES, str(copy / "optim/rows.cpp"): []}.items():
                with self.subTest(source):
                    done = subprocess.run([COMPILER, "-std=c++20", "-fsyntax-only", f"-I{copy}", *options, *INCLUDES, ROOT / source],
                                          capture_output=True, text=True)
                    self.assertEqual(done.returncode, 0, done.stderr[:4000])

    def test_are_named_in_their_header_the_list_and_the_table_only(self):
        self.assertGreaterEqual(names(), {"AdamW", "Sgd"})
        found = {}
        for file in [*SRC.rglob("*.cpp"), *SRC.rglob("*.h"), *SRC.rglob("*.cu"), *SRC.rglob("*.cuh")]:
            path = str(file.relative_to(SRC))
            code = re.sub(r"//.*|\"[^\"\n]*\"", "", file.read_text(encoding="utf-8"))
            used = {name for name in names() if re.search(rf"\b(?:RuleId|rules)::{name}\b", code)}
            if used and path != "optim/rows.cpp":
                found[path] = used
        self.assertEqual(found, USERS)


if __name__ == "__main__":
    unittest.main()
