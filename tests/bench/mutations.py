#!/usr/bin/env python3
"""Mutation testing: does the suite detect injected faults? mutations.txt lists one-line faults. They are all built into
one set of programs, in which TRAINER_MUTANT=N enables fault N. Without it the tests must pass; with it the tests of
that fault must fail, crash or hang.

    tests/bench/mutations.py --work DIR

DIR keeps the copy of the tracked files and the build: a second run compiles only what changed. Exit status 1: a fault survived.
"""
import argparse
import collections
import concurrent.futures
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
Mutation = collections.namedtuple("Mutation", "number fault file original faulty test")

HEADER = """#pragma once
#include <cstdlib>
namespace {
const int trainer_mutant_chosen = [] {
  const char* number = std::getenv("TRAINER_MUTANT");
  return number == nullptr ? 0 : std::atoi(number);
}();
[[maybe_unused]] bool trainer_mutant(int number) { return number == trainer_mutant_chosen; }
}  // namespace
"""


def read_list(path):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    blocks = [block.strip().splitlines() for block in "\n".join(lines).split("\n\n") if block.strip()]
    mutations = []
    for number, block in enumerate(blocks, 1):
        if len(block) != 5 or not block[2].startswith("- ") or not block[3].startswith("+ "):
            sys.exit(f"{path}: expected fault, file, original, faulty and test, found {block}")
        mutations.append(Mutation(number, block[0], block[1], block[2][2:], block[3][2:], block[4]))
    return mutations


def with_choices(text, mutations):
    """Returns a file's text in which each original expression is replaced by a choice between it and its fault."""
    for m in mutations:
        if text.count(m.original) != 1:
            sys.exit(f"{m.file}: {text.count(m.original)} times, expected once: {m.original}")
        choice = f"(trainer_mutant({m.number}) ? ({m.faulty}) : ({m.original}))"
        if m.original.endswith(";"):
            choice = f"{{ if (trainer_mutant({m.number})) {{ {m.faulty} }} else {{ {m.original} }} }}"
        text = text.replace(m.original, choice)
    return '#include "trainer_mutant.h"\n' + text


def copy_tree(source, target, mutations):
    """Copies the tracked files; mutated files get a run-time switch per mutation. Unchanged files keep their modification time."""
    names = subprocess.run(["git", "-C", source, "ls-files", "-z"], check=True, stdout=subprocess.PIPE, text=True)
    contents = {name: (source / name).read_bytes() for name in names.stdout.split("\0") if (source / name).is_file()}
    for file in dict.fromkeys(m.file for m in mutations):
        if file not in contents:
            sys.exit(f"{file}: not found")
        contents[file] = with_choices(contents[file].decode(), [m for m in mutations if m.file == file]).encode()
    for old in [path for path in target.rglob("*") if path.is_file()]:
        if str(old.relative_to(target)) not in contents:
            old.unlink()
    contents["src/trainer_mutant.h"] = HEADER.encode()
    for name, content in contents.items():
        path = target / name
        if path.is_file() and path.read_bytes() == content:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if (source / name).exists():
            shutil.copymode(source / name, path)


def build(source, folder, programs):
    environment = dict(os.environ, CCACHE_BASEDIR=str(source), CCACHE_NOHASHDIR="1")
    configure = ["cmake", "--preset", "dev", "-DTRAINER_CUDA=OFF", "-B", folder]
    for command in configure, ["cmake", "--build", folder, "--target", *programs]:
        subprocess.run(command, cwd=source, env=environment, check=True)


def outcome(test, number, source, folder, timeout):
    """Returns 'passed' or how the test ended, and its seconds."""
    program, *arguments = shlex.split(test)
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        environment = dict(os.environ, TMPDIR=place, TRAINER=str(folder / "trainer"), PYTHONDONTWRITEBYTECODE="1")
        environment.pop("TRAINER_MUTANT", None)
        if number:
            environment["TRAINER_MUTANT"] = str(number)
        command = [folder / program, *(f"--gtest_filter={a}" for a in arguments)]
        if program.endswith(".py"):
            command = [sys.executable, source / program, *arguments]
        start = time.monotonic()
        process = subprocess.Popen(command, cwd=place, env=environment, start_new_session=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        try:
            said = process.communicate(timeout=timeout)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "hung", time.monotonic() - start
    seconds = time.monotonic() - start
    if "Running 0 tests" in said:
        return "found no test", seconds
    if process.returncode == 0:
        return "passed", seconds
    return "failed" if process.returncode > 0 else signal.Signals(-process.returncode).name, seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the copy and the build")
    parser.add_argument("--source", type=Path, default=HERE.parents[1], metavar="DIR", help="another checkout")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="some of the faults")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="of a test (default 120)")
    options = parser.parse_args()
    source, folder = options.work.resolve() / "source", options.work.resolve() / "build"
    all_mutations = read_list(HERE / "mutations.txt")
    copy_tree(options.source.resolve(), source, all_mutations)
    programs = {"trainer" if m.test.startswith("tests/") else m.test.split()[0] for m in all_mutations}
    build(source, folder, sorted(programs))
    if options.build_only:
        return 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    mutations = [m for m in all_mutations if not options.only or m.number in options.only]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        tests = list(dict.fromkeys(m.test for m in mutations))
        run = lambda test, number: outcome(test, number, source, folder, options.timeout)
        for test, (result, seconds) in zip(tests, pool.map(lambda test: run(test, 0), tests)):
            if result != "passed":
                sys.exit(f"without a fault: {test}: {result} after {seconds:.1f} s")
        survived = 0
        for m, (result, seconds) in zip(mutations, pool.map(lambda m: run(m.test, m.number), mutations)):
            survived += result == "passed"
            print(f"{m.number:2} {'SURVIVED' if result == 'passed' else result:9}{seconds:6.1f} s  {m.fault}", flush=True)
    print(f"{len(mutations) - survived} of {len(mutations)} caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
