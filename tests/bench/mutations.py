#!/usr/bin/env python3
"""Mutation testing: does the suite detect injected faults? mutations.txt lists one-line faults. They are all built into
one set of programs, in which TRAINER_MUTANT=N enables fault N. Without it the tests must pass; with it the tests of
that fault must fail, crash or hang.

    tests/bench/mutations.py --work DIR
    tests/bench/mutations.py --work DIR --verify     # does `trainer verify` find the faults of layouts?

DIR keeps the copy of the tracked files and the build: a second run compiles only what changed. With --verify it also keeps
the results, so that a run that was interrupted continues. Exit status 1: a fault survived.
"""
import argparse
import collections
import concurrent.futures
import json
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

# Folders whose faults `trainer verify` should find, and the faults of mutations.txt in them that it cannot: they do not
# make a layout differ from one rank.
LAYOUT = tuple(f"src/{folder}/" for folder in ("parallel", "params", "comm", "mesh", "optim", "checkpoint", "data"))
ON_ONE_RANK_TOO = "one rank computes the same"
NOT_OF_LAYOUTS = {
    "model: attention with a cache sees only the newest keys": "generation",
    "optim: biases and norms decay": ON_ONE_RANK_TOO,
    "optim: gradients are not clipped": ON_ONE_RANK_TOO,
    "optim: plain and cautious decay are exchanged": ON_ONE_RANK_TOO,
    "optim: the second moment is corrected for the first update only": ON_ONE_RANK_TOO,
    "optim: a class keeps the decay of the schedule's learning rate": ON_ONE_RANK_TOO,
    "optim: muP scales the head's learning rate by the square of the width": ON_ONE_RANK_TOO,
    "data: every epoch has the order of the first": ON_ONE_RANK_TOO,
    "data: evaluation leaves out the last window": "evaluation",
    "data: training reads the validation tokens too": ON_ONE_RANK_TOO,
    "data: a phase of a mixture starts each source from scratch": ON_ONE_RANK_TOO,
    "data: a slot goes to the source whose last slot comes last": ON_ONE_RANK_TOO,
    "checkpoint: a chunk with a wrong checksum is taken": "acts only on a damaged file",
    "checkpoint: a shard is not synced": "acts only when a host dies",
    "checkpoint: one checkpoint too many is kept": "changes no number",
}
# What finds most faults is tried first, on its own; then all checks, which are what verify runs by default. Together the
# configurations have sharded and shared matrices, panels that move or are sent whole, replicas that share the optimizer or do
# not, activations that move between layers, shared key heads, biases, parts of odd sizes and both precisions.
CONFIGURATIONS = (
    ("parallel.strategy=axonn-4d", "parallel.grid=[2,2,2]", "parallel.vocab_axes=xy", "parallel.cache_layers=1", "model.n_kv_head=1",
     "optim.name=muon", "model.dropout=0.1", "precision.compute=bf16", "data.separate_documents=true"),
    ("parallel.strategy=optimus-2d", "parallel.mesh=[2,2]", "parallel.panels=ring", "parallel.data=2", "parallel.zero_stage=1",
     "model.arch=qwen3", "model.n_kv_head=1", "optim.name=muon", "model.dropout=0.1", "train.z_loss=1e-4"),
    ("parallel.strategy=megatron-1d", "parallel.tensor=2", "parallel.sequence_parallel=true", "parallel.data=2", "model.arch=qwen2",
     "model.n_kv_head=1", "train.recompute=selective"),
    ("parallel.strategy=fsdp", "parallel.shards=3", "parallel.data=2", "parallel.zero_stage=1", "model.dropout=0.1",
     "train.micro_batch=6", "train.global_batch=24", "precision.compute=bf16"),
    ("parallel.strategy=autoddl", "parallel.axes=[2,2]", "parallel.table=-h", "model.n_kv_head=1", "model.tie_embeddings=false",
     'parallel.layer=[{layers=1, stream="rc", attention="cc", hidden="cc", qkv="kc", out="ck", up="kc", down="ck"},'
     '{stream="cr", attention="rc", hidden="rc", qkv="rc", out="rk", up="fc", down="fk"}]'),
)
TRIES = [(only, settings) for only in (["--only", "gradients,norm,update"], []) for settings in CONFIGURATIONS]
DIFFERENCE = 8

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


def read_list(path, first=1):
    """Returns the mutations of a file, numbered from `first` on. Without a fifth line, verify should find the fault."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    blocks = [block.strip().splitlines() for block in "\n".join(lines).split("\n\n") if block.strip()]
    mutations = []
    for number, block in enumerate(blocks, first):
        if len(block) == 4:
            block.append("verify")
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


def run_verify(number, folder, only, settings, timeout):
    """Returns the exit status of verify with some checks or all, None if it hung, and the checks that failed or were not completed."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        (Path(place) / "t.txt").write_text("the cat sat on the mat\n" * 100)
        (Path(place) / "c.toml").write_text(
            '[run]\ndir = "run"\nthreads = 1\ndevice = "cpu"\n[model]\nn_layer = 2\nn_head = 4\nd_model = 64\nd_ff = 256\nseq_len = 64\n'
            '[data]\ntrain = ["t.txt"]\ntokenizer = "train"\nvocab_size = 500\n[train]\nmicro_batch = 8\nglobal_batch = 32\n')
        command = [folder / "trainer", "verify", "--config", "c.toml", "--json", *only, "--set", *settings]
        environment = dict(os.environ, TRAINER_MUTANT=str(number))
        try:
            result = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, errors="replace", timeout=timeout)
        except subprocess.TimeoutExpired:
            return None, []
    try:
        checks = json.loads(result.stdout)["checks"]
    except ValueError:
        return result.returncode, [result.stderr.strip()[-200:]]
    late = [c["check"] for c in checks if c["result"] == "skipped" and "time limit" in c["text"]]
    return result.returncode, [c["check"] for c in checks if c["result"] in ("failure", "error")] + [f"{c}: too late" for c in late]


def verify_all(mutations, folder, results, timeout):
    """Runs verify on each mutation that `results` does not have yet. A result is kept unless checks were skipped for lack of time."""
    done = {}
    if results.exists():
        done = {tuple(entry["fault"]): entry for entry in map(json.loads, results.read_text().splitlines())}
    for only, settings in (TRIES if len(done) < len(mutations) else ()):
        status, checks = run_verify(0, folder, only, settings, timeout)
        if status != 0 or any("too late" not in check for check in checks):
            sys.exit(f"without a fault verify ended with {status}: {checks} ({' '.join(settings)})")
    for m in mutations:
        key = (m.file, m.original, m.faulty)
        if key not in done:
            tried, begin = [], time.monotonic()
            for only, settings in TRIES:
                tried.append(run_verify(m.number, folder, only, settings, timeout))
                if tried[-1][0] == DIFFERENCE:
                    break
            done[key] = {"fault": key, "tried": tried, "seconds": round(time.monotonic() - begin, 1)}
            if tried[-1][0] == DIFFERENCE or "too late" not in str(tried):
                with results.open("a") as out:
                    out.write(json.dumps(done[key]) + "\n")
        status = done[key]["tried"][-1][0]
        end = "found" if status == DIFFERENCE else "NOT found" if status == 0 else f"ended with {status}"
        print(f"{m.number:3} {end:10}  {m.fault}  {done[key]['tried']}", flush=True)
    status = [done[m.file, m.original, m.faulty]["tried"][-1][0] for m in mutations]
    found, missed = status.count(DIFFERENCE), status.count(0)
    print(f"{len(status)} faults: {found} found, {missed} not found, {len(status) - found - missed} ended in other ways, not tried: {NOT_OF_LAYOUTS}")
    return 1 if missed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the copy and the build")
    parser.add_argument("--source", type=Path, default=HERE.parents[1], metavar="DIR", help="another checkout")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--verify", action="store_true", help="try `trainer verify` on the faults that change numbers in a layout")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="some of the faults")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="of a test (default 120)")
    options = parser.parse_args()
    source, folder = options.work.resolve() / "source", options.work.resolve() / "build"
    all_mutations = read_list(HERE / "mutations.txt")
    mutations = all_mutations
    if options.verify:
        all_mutations += read_list(HERE / "layout_mutations.txt", len(all_mutations) + 1)
        mutations = [m for m in all_mutations if m.file.startswith(LAYOUT) and m.fault not in NOT_OF_LAYOUTS]
    copy_tree(options.source.resolve(), source, all_mutations)
    programs = {"trainer" if options.verify or m.test.startswith("tests/") else m.test.split()[0] for m in mutations}
    build(source, folder, sorted(programs))
    if options.build_only:
        return 0
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    mutations = [m for m in mutations if not options.only or m.number in options.only]
    if options.verify:
        return verify_all(mutations, folder, options.work.resolve() / "verify.jsonl", options.timeout)
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
