#!/usr/bin/env python3
"""Fails on an include that violates the module order, on toml++ in a second file, on a strategy's name outside config/,
on code outside config/ and huggingface/ that reads a model's family instead of its facts, and if the folders listed in
src/README.md are not the modules.

The order is read from the trainer_module lines of CMakeLists.txt: a module may include itself and its
direct and indirect DEPS.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = re.compile(r"\bArch::|\b(m|model)\.arch\b(?!=)")
STRATEGIES = re.compile(r'"(megatron-1d|fsdp|optimus-2d|axonn-4d|autoddl)"|\bStrategyName::(?!automatic\b)')


def modules():
    direct = {}
    for name, rest in re.findall(r"^trainer_module\((\w+)([^)]*)\)", (ROOT / "CMakeLists.txt").read_text(), re.M):
        found = re.search(r"DEPS ([\w ]+?)(?: LIBS| EXECUTABLE| COLD|$)", rest.strip())
        direct[name] = found.group(1).split() if found else []
    reach = {}
    for name in direct:  # a module is listed after its dependencies
        reach[name] = {name}.union(*(reach[d] for d in direct[name])) if direct[name] else {name}
    return reach


def main():
    reach, problems = modules(), []
    for path in sorted((ROOT / "src").rglob("*")):
        if path.suffix not in {".cpp", ".h", ".cu", ".cuh"}:
            continue
        relative = path.relative_to(ROOT / "src")
        module = relative.parts[0]
        for number, line in enumerate(path.read_text().splitlines(), 1):
            include = re.match(r'\s*#include "(\w+)/', line)
            if include and include.group(1) not in reach.get(module, set()):
                problems.append(f"{path.relative_to(ROOT)}:{number}: {module} may not include {include.group(1)}")
            if "<toml++/" in line and "/version." not in line and relative != Path("config/toml_reader.cpp"):
                problems.append(f"{path.relative_to(ROOT)}:{number}: only config/toml_reader.cpp may use toml++, since it "
                                "changes macros of the library")
            if module != "config" and STRATEGIES.search(line):
                problems.append(f"{path.relative_to(ROOT)}:{number}: a strategy is named outside config/")
            if module not in {"config", "huggingface"} and FAMILIES.search(line):
                problems.append(f"{path.relative_to(ROOT)}:{number}: a family is read outside config/ and huggingface/; read "
                                "its facts (config::FamilyFacts)")
    rooms = re.findall(r"^\| `(\w+)/` \|", (ROOT / "src/README.md").read_text(), re.M)
    if rooms != list(reach):
        problems.append(f"src/README.md lists the folders {rooms}, CMakeLists.txt the modules {list(reach)}")
    print("\n".join(problems) or f"{len(reach)} modules, includes go downwards only")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
