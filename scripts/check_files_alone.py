#!/usr/bin/env python3
"""Compiles every source file on its own, without writing objects. Builds compile files in batches (unity builds), where
a file may rely on the includes of other files; this script finds the missing includes.

  check_files_alone.py [--jobs N] [--build DIR]     DIR: a separate build folder (default: build-alone)
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def compiles(entry):
    command = re.sub(r" -o \S+", "", entry["command"]).replace(" -c ", " -fsyntax-only ")
    done = subprocess.run(command, shell=True, cwd=entry["directory"], capture_output=True, text=True)
    return done.returncode == 0, done.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="files at a time (default: one per core)")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build-alone", help="build folder, whose configuration is changed")
    arguments = parser.parse_args()
    subprocess.run(["cmake", "-S", ROOT, "-B", arguments.build, "-G", "Ninja", "-DCMAKE_UNITY_BUILD=OFF", "-DTRAINER_CUDA=OFF",
                    "-DTRAINER_WERROR=ON", "-DCMAKE_CXX_COMPILER_LAUNCHER="], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", arguments.build, "--target", "trainer_version"], check=True, stdout=subprocess.DEVNULL)
    entries = json.loads((arguments.build / "compile_commands.json").read_text())
    entries = list({entry["file"]: entry for entry in entries}.values())  # one entry per file
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(zip(entries, pool.map(compiles, entries)))
    bad = [(entry["file"], errors) for entry, (good, errors) in results if not good]
    for file, errors in bad:
        print(f"{os.path.relpath(file, ROOT)} does not compile on its own:\n{errors}")
    print(f"{len(results) - len(bad)} of {len(results)} files compile on their own")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
