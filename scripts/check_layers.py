#!/usr/bin/env python3
"""Fails on an include against the module order, and on a strategy's name outside its own file, the factory and config/.

The order is read from the trainer_module lines of CMakeLists.txt: a module may include itself and what its DEPS reach.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STRATEGY_FILES = {"megatron-1d": "megatron1d", "optimus-2d": "optimus2d", "axonn-4d": "axonn4d",
                  "autoddl": "tagged"}


def modules():
    direct = {}
    for name, rest in re.findall(r"^trainer_module\((\w+)([^)]*)\)", (ROOT / "CMakeLists.txt").read_text(), re.M):
        found = re.search(r"DEPS ([\w ]+?)(?: LIBS| EXECUTABLE| COLD|$)", rest.strip())
        direct[name] = found.group(1).split() if found else []
    reach = {}
    for name in direct:  # listed bottom-up
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
            for strategy, stem in STRATEGY_FILES.items():
                allowed = module == "config" or (module == "parallel" and path.stem in {stem, "strategy"})
                if f'"{strategy}"' in line and not allowed:
                    problems.append(f"{path.relative_to(ROOT)}:{number}: strategy {strategy} named outside its file")
    print("\n".join(problems) or f"{len(reach)} modules, includes go downwards only")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
