#!/usr/bin/env python3
"""Builds and runs the fuzz targets (tests/fuzz); prints the inputs tried, edges covered and findings of each.

    scripts/fuzz.py                                            # every target, one minute each
    scripts/fuzz.py --seconds 600 safetensors hf_json          # two of them, ten minutes each
    scripts/fuzz.py --no-build --jobs 2                        # without building, two at a time

A target starts from the saved inputs in tests/fuzz/corpus/TARGET and from the inputs that earlier runs kept in
OUT/TARGET, and adds new ones there. Inputs that made it fail are in OUT/found, its log is OUT/TARGET.log. After a
failure it is started again for the remaining time. To reproduce a failure: BUILD/fuzz_TARGET OUT/found/TARGET-crash-…

Needs Clang 16 or newer (Debian: clang-16 and libclang-rt-16-dev). Exit status 0: no findings; 1: findings; 2: a target
could not be built or run.
"""
import argparse
import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FUZZ = ROOT / "tests" / "fuzz"
TARGETS = sorted(path.name.removesuffix("_fuzz.cpp") for path in FUZZ.glob("*_fuzz.cpp"))
OLDEST_CLANG = 16
# A target stops after this many findings, since most of them have the same cause.
ENOUGH = 10
# The exit status of a fuzzer stopped by Ctrl-C.
INTERRUPTED = 72


class Failed(Exception):
    pass


class Result:
    def __init__(self, target):
        self.target = target
        self.inputs = self.edges = self.kept = 0
        self.wall = self.cpu = 0.0
        self.findings = []  # (file, the fuzzer's message)
        self.problem = ""   # the reason why it could not be run

    def row(self):
        return [self.target, str(self.inputs), f"{self.wall:.0f}", f"{self.cpu:.0f}", str(self.edges), str(self.kept),
                str(len(self.findings))]


def find_clang():
    """Returns the oldest supported Clang that is installed; the preset names the oldest supported one."""
    found = {}
    for name in ["clang++", *(f"clang++-{version}" for version in range(OLDEST_CLANG, OLDEST_CLANG + 20))]:
        if shutil.which(name):
            text = subprocess.run([name, "--version"], capture_output=True, text=True).stdout
            version = re.search(r"clang version (\d+)", text)
            if version and int(version[1]) >= OLDEST_CLANG:
                found[int(version[1])] = name
    if not found:
        raise Failed(f"no Clang {OLDEST_CLANG} or newer; on Debian: apt-get install clang-16 libclang-rt-16-dev, or name one "
                     "with --compiler")
    return found[min(found)]


def compiler_of(args):
    """Returns the compiler of the build folder unless --compiler is given, as CMake starts from scratch if it changes."""
    cache = args.build / "CMakeCache.txt"
    kept = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.+)$", cache.read_text(), re.M) if cache.exists() else None
    return args.compiler or (kept[1] if kept else find_clang())


def build(args):
    programs = [f"fuzz_{name}" for name in args.targets]
    for command in (["cmake", "--preset", "fuzz", "-B", str(args.build), f"-DCMAKE_CXX_COMPILER={compiler_of(args)}"],
                    ["cmake", "--build", str(args.build), "--target", *programs]):
        print(shlex.join(command), file=sys.stderr)
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr).returncode != 0:
            raise Failed("the build failed, see above")


def run_once(args, result, seconds):
    """Runs one process of the fuzzer for at most this time. Returns False if a finding ended it early."""
    target, log = result.target, args.out / f"{result.target}.log"
    command = [str(args.build / f"fuzz_{target}"), f"-max_total_time={seconds}", "-print_final_stats=1",
               f"-timeout={args.timeout}", f"-rss_limit_mb={args.memory}", f"-artifact_prefix={args.out}/found/{target}-"]
    dictionary = FUZZ / f"{target}.dict"
    if dictionary.exists():
        command.append(f"-dict={dictionary}")
    command += [str(args.out / target), str(FUZZ / "corpus" / target)]
    begin, start = log.stat().st_size if log.exists() else 0, time.monotonic()
    with open(log, "ab") as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT,
                                       env={"UBSAN_OPTIONS": "print_stacktrace=1", **os.environ})
        except OSError as error:
            raise Failed(f"{command[0]}: {error.strerror}; build it first, without --no-build")
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    result.wall += time.monotonic() - start
    result.cpu += usage.ru_utime + usage.ru_stime
    text = log.read_bytes()[begin:].decode(errors="replace")

    def number(pattern):
        numbers = re.findall(pattern, text, re.M)
        return int(numbers[-1]) if numbers else 0

    result.inputs += number(r"^stat::number_of_executed_units:\s*(\d+)") or number(r"^#(\d+)\s")
    result.edges = max(result.edges, number(r"\bcov: (\d+)"))
    result.kept += number(r"^stat::new_units_added:\s*(\d+)")
    if process.returncode in (0, INTERRUPTED):
        return True
    files = re.findall(r"Test unit written to (\S+)", text)
    if not files:
        last = "\n".join(text.splitlines()[-10:])
        raise Failed(f"fuzz_{target} ended with status {process.returncode}, see {log}:\n{last}")
    says = re.findall(r"^SUMMARY: (.*)", text, re.M) or [f"status {process.returncode}"]
    result.findings += [(file, says[-1]) for file in files]
    return False


def fuzz(args, result):
    for folder in (args.out / result.target, args.out / "found"):
        folder.mkdir(parents=True, exist_ok=True)
    (args.out / f"{result.target}.log").unlink(missing_ok=True)
    end = time.monotonic() + args.seconds
    try:
        while (left := round(end - time.monotonic())) > 0 and len(result.findings) < ENOUGH:
            if run_once(args, result, left):
                break
    except Failed as problem:
        result.problem = str(problem)


def report(results):
    table = [["target", "inputs tried", "seconds", "CPU seconds", "edges", "inputs kept", "findings"],
             *(result.row() for result in results)]
    for i, row in enumerate(table):
        print("| " + " | ".join(row) + " |")
        if i == 0:
            print("|" + "---|" * len(row))
    for result in results:
        for file, says in result.findings:
            print(f"{result.target}: {file}: {says}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="one of " + ", ".join(TARGETS) + " (default: all)")
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="for each target (default: 60)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="targets at a time (default: 1)")
    parser.add_argument("--timeout", type=int, default=20, metavar="N", help="seconds for one input; exceeding it is a finding (default: 20)")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="memory limit; exceeding it is a finding (default: 2048)")
    parser.add_argument("--compiler", metavar="CLANG", help="a Clang for C++ (default: the oldest installed version from 16 on)")
    parser.add_argument("--no-build", action="store_true", help="run the existing build")
    parser.add_argument("--build", type=Path, default=ROOT / "build-fuzz", metavar="FOLDER")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="inputs, findings and logs (default: inputs in the build's folder)")
    args = parser.parse_args()
    args.targets = args.targets or TARGETS
    for target in args.targets:
        if target not in TARGETS:
            parser.error(f"there is no target {target}; there are {', '.join(TARGETS)}")
    for name in ("seconds", "jobs", "timeout", "memory"):
        if getattr(args, name) < 1:
            parser.error(f"--{name}: at least 1")
    args.build = args.build.resolve()
    args.out = (args.out or args.build / "inputs").resolve()
    try:
        if not args.no_build:
            build(args)
    except Failed as problem:
        print(f"fuzz.py: {problem}", file=sys.stderr)
        return 2
    results = [Result(target) for target in args.targets]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        tasks = [pool.submit(fuzz, args, result) for result in results]
        try:
            concurrent.futures.wait(tasks)
        except KeyboardInterrupt:  # the fuzzers receive it too
            for task in tasks:
                task.cancel()
    report(results)
    for result in results:
        if result.problem:
            print(f"fuzz.py: {result.problem}", file=sys.stderr)
    return 2 if any(result.problem for result in results) else 1 if any(result.findings for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
