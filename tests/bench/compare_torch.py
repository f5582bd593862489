#!/usr/bin/env python3
"""Compares training steps of the trainer with PyTorch on the same shapes, threads and machine, in one call.

The two programs alternate (A B A B …), so that drifts of the machine's speed affect both; medians over all steps and
the best steps are compared, and on a CPU the largest resident memory of the two processes. There, a round in which the
trainer's peak microbenchmark differs by more than 15 % before and after is repeated, at most --tries times; shares are
relative to the best peak of the whole call. The fastest of PyTorch's variants (eager or compiled; bf16 as pure bf16 or
by autocast; head and loss as two operators or as one; its threads free or pinned to cores) is found first, with huge
pages and an allocator that keeps its memory.

    tests/bench/compare_torch.py --make-python                  # once: a Python with the newest PyTorch, in build/
    tests/bench/compare_torch.py --trainer build/trainer --json out.json
    tests/bench/compare_torch.py --device cuda --cases gpu-124m --compute bf16
"""
import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import machine

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parent.parent / "configs"
# name: (configuration, overrides). Vocabularies are given, so neither program reads data.
CASES = {
    "124m-4x1024": ("gpt2-124m.toml", ["train.global_batch=4", "train.micro_batch=4", "train.recompute=\"none\"",
                                       "data.vocab_size=50304"]),
    # Without matrix units, PyTorch's bf16 takes 15 minutes for the step above; its tokens/s hardly depend on the batch.
    "124m-1x256": ("gpt2-124m.toml", ["train.global_batch=1", "train.micro_batch=1", "train.recompute=\"none\"",
                                      "model.seq_len=256", "data.vocab_size=50304"]),
    "6x384-12x256": ("gpt2-6x384.toml", ["model.dropout=0.0", "data.vocab_size=50304"]),
    "6x384-12x256-v4096": ("gpt2-6x384.toml", ["model.dropout=0.0", "data.vocab_size=4096"]),
    "gpu-124m": ("gpt2-124m.toml", ["train.global_batch=32", "train.micro_batch=32", "train.recompute=\"none\"",
                                    "data.vocab_size=50304"]),
    "gpu-1.5b": ("gpt2-1.5b.toml", ["train.global_batch=16", "train.micro_batch=16", "train.recompute=\"none\"",
                                    "data.vocab_size=50304"]),
    "gpu-124m-full": ("gpt2-124m.toml", ["train.global_batch=512", "train.micro_batch=64", "train.recompute=\"none\"",
                                         "data.vocab_size=50304", "optim.warmup_steps=1"]),
    "gpu-1.5b-full": ("gpt2-1.5b.toml", ["train.global_batch=512", "train.micro_batch=16", "train.recompute=\"none\"",
                                         "data.vocab_size=50304"]),
    "llama-8x256-v2048": ("llama-style.toml", ["data.vocab_size=2048"]),
    "llama-124m-2x512": ("llama-style.toml", ["model.n_layer=12", "model.n_head=12", "model.n_kv_head=4", "model.d_model=768",
                                              "model.d_ff=2048", "model.seq_len=512", "train.global_batch=2",
                                              "train.micro_batch=2", "data.vocab_size=32000"]),
    "mixtral-8x256": ("quickstart.toml", ["model.arch=mixtral", "model.n_layer=6", "model.n_head=8", "model.n_kv_head=2",
                                          "train.micro_batch=8", "model.tie_embeddings=false", "model.n_expert=8",
                                          "model.experts_per_token=2", "model.d_expert=352", "data.vocab_size=2048"]),
}
PEER_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_MMAP_THRESHOLD_": str(1 << 34),
                    "MALLOC_TRIM_THRESHOLD_": str(1 << 35), "MALLOC_TOP_PAD_": str(1 << 28)}


class Variant(NamedTuple):
    """A way to run the step in PyTorch."""
    dtype: str
    compiled: bool
    tied: bool = False  # each of its threads is pinned to one processor
    chunked: bool = False  # head and loss in one operator

    def __str__(self):
        return self.dtype + " compiled" * self.compiled + ", tied threads" * self.tied + ", chunked loss" * self.chunked


class Peer:
    """A PyTorch process that runs steps on request."""

    def __init__(self, args, case, variant):
        config, overrides = CASES[case]
        command = [args.python, str(HERE / "torch_gpt.py"), "--config", str(CONFIGS / config), "--serve", "--dtype",
                   variant.dtype, "--device", args.device, "--threads", str(args.threads), "--warmup", str(args.warmup),
                   "--max-seconds", str(args.max_seconds)] + ["--compile"] * variant.compiled
        command += ["--chunked-loss"] * variant.chunked
        for override in [*overrides, *args.set]:
            command += ["--set", override]
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        if args.device == "cpu":
            environment.update(PEER_ENVIRONMENT)
        if variant.tied:
            environment.update({"OMP_PROC_BIND": "true", "OMP_PLACES": "threads"})
        with open(args.log, "a+", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            self.process = machine.start_served(command, stderr=log, env=environment)
        if self.process.stdout.readline().strip() != "ready":
            self.process.wait()
            said = Path(args.log).read_text(errors="replace").strip().splitlines() if args.log != os.devnull else []
            raise RuntimeError(f"the PyTorch peer did not start ({said[-1] if said else 'see --log'}): {' '.join(command)}")

    def steps(self, count):
        return machine.times_of(self.process, count)

    def close(self):
        machine.close_served(self.process)


def fastest_variant(args, case, compute):
    """Returns PyTorch's fastest variant; variants that do not start are left out."""
    best = None
    # Pure bf16 trains less accurately than the trainer does; a CPU may use it all the same, to PyTorch's advantage.
    reduced = ["autocast", "bf16"] if args.device == "cpu" else ["autocast", "master"]
    compiled = [False] if not args.compile else [True] if args.device == "cuda" else [False, True]
    dtypes = ["fp32"] if compute == "fp32" else [args.variant] if args.variant else reduced
    if not args.race or args.device == "cuda" and len(dtypes) == len(compiled) == 1:
        return Variant(dtypes[0], compiled[0])  # the only candidate; a race would compile it twice

    def race(variant):
        nonlocal best
        try:
            peer = Peer(args, case, variant)
        except RuntimeError as error:
            print(f"  left out: {error}", file=sys.stderr)
            return
        ms = min(peer.steps(1 if args.device == "cpu" else 5))
        if ms < 3000 and args.device == "cpu":  # a single step may have been disturbed
            ms = min([ms, *peer.steps(3)])
        peer.close()
        print(f"  PyTorch {variant}: {ms:.0f} ms", file=sys.stderr)
        if best is None or ms < best[0]:
            best = (ms, variant)

    for dtype in dtypes:
        for use_compile in compiled:
            race(Variant(dtype, use_compile))
    if best is None:
        raise RuntimeError("no variant of PyTorch runs")
    if args.device == "cpu":
        race(best[1]._replace(chunked=True))
        if args.threads >= len(os.sched_getaffinity(0)):
            race(best[1]._replace(tied=True))
    return best[1]


def trainer_steps(args, case, compute):
    config, overrides = CASES[case]
    command = [args.trainer, "bench", "step", "--config", str(CONFIGS / config), "--compute", compute,
               "--threads", str(args.threads), "--warmup", str(args.warmup), "--repeats", str(args.steps), "--json"]
    for override in [*overrides, *args.set, f"run.device={args.device}"]:
        command += ["--set", override]
    out, peak = machine.run_with_peak(command)
    return json.loads(out) | {"peak_bytes": peak}


def compare(args, case, compute, rounds):
    print(f"{case} {compute}", file=sys.stderr)
    variant = fastest_variant(args, case, compute)
    peer = Peer(args, case, variant)

    def turn():
        return trainer_steps(args, case, compute), peer.steps(args.steps)

    disturbed = rounds.disturbed if rounds else 0
    turns = rounds.each(compute, turn) if rounds else [turn() for _ in range(args.rounds)]
    peer_peak = machine.peak_of(peer.process)
    peer.close()
    ours, theirs = ([ms for each in sides for ms in each] for sides in
                    ([mine["step_ms"] for mine, _ in turns], [its for _, its in turns]))
    last = turns[-1][0]
    row = {"case": case, "compute": compute, "tokens": last["tokens"], "peer": str(variant), "path": last["path"],
           "operators": last["operators"], "trainer_all_ms": ours, "torch_all_ms": theirs,
           "trainer_ms": statistics.median(ours), "torch_ms": statistics.median(theirs),
           "trainer_best_ms": min(ours), "torch_best_ms": min(theirs),
           "trainer_peak_bytes": max(mine["peak_bytes"] for mine, _ in turns), "torch_peak_bytes": peer_peak,
           "model_flop": last["model_tflops"] * last["median_ms"] * 1e9, "peak_tflops": last["peak_tflops"],
           "disturbed": rounds.disturbed > disturbed if rounds else False}
    row["ratio"], row["best_ratio"] = (row[f"torch_{which}ms"] / row[f"trainer_{which}ms"] for which in ("", "best_"))
    if rounds:
        for mine, _ in turns:
            rounds.peak.saw(compute, mine["peak_tflops"])
    print(f"  trainer {row['trainer_ms']:.1f} ms (best {row['trainer_best_ms']:.1f}), PyTorch {row['torch_ms']:.1f} ms (best "
          f"{row['torch_best_ms']:.1f})", file=sys.stderr)
    return row


def table(rows):
    """Returns the table: medians, and in brackets the best steps."""
    lines = ["| model | compute | trainer tokens/s | mfu | PyTorch tokens/s | its mfu | PyTorch variant | trainer / PyTorch | "
             "resident GiB; PyTorch's | memory / PyTorch's |", "|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        cells = [r["case"] + " (disturbed)" * r["disturbed"], r["compute"]]
        for side in ("trainer", "torch"):
            cells += [f"{1e3 * r['tokens'] / r[side + '_ms']:.0f} ({1e3 * r['tokens'] / r[side + '_best_ms']:.0f})",
                      f"{100 * r[side + '_mfu']:.0f} %"]
        memory = [r[side + "_peak_bytes"] for side in ("trainer", "torch")]
        lines.append(f"| {' | '.join(cells)} | {r['peer']} | **{r['ratio']:.2f}** ({r['best_ratio']:.2f}) | "
                     f"{memory[0] / 2**30:.2f}; {memory[1] / 2**30:.2f} | **{memory[0] / memory[1]:.2f}** |")
    return "\n".join(lines)


def write(args, peak, rows):
    """Recomputes the MFU of all rows from the best peak measured so far, and writes these rows."""
    for row in rows:
        row["peak_tflops"] = max(row["peak_tflops"], peak.best.get(row["compute"], 0))
        for side in ("trainer", "torch"):
            row[side + "_mfu"] = row["model_flop"] / (row[side + "_ms"] * 1e-3) / (row["peak_tflops"] * 1e12)
        row["mfu"] = row["trainer_mfu"]
    if args.json:
        kind, flags, model = machine.cpu()
        args.json.write_text(json.dumps({"machine": model, "class": kind, "flags": flags, "threads": args.threads,
                                         "peak_tflops": peak.best, "units": peak.unit, "rows": rows}, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(HERE.parent.parent / "build" / "trainer"))
    parser.add_argument("--python", help="an interpreter that has PyTorch (default: this one, that of TRAINER_TORCH_PYTHON, or "
                        "what --make-python made)")
    parser.add_argument("--make-python", type=Path, nargs="?", const=machine.TORCH_FOLDER, metavar="FOLDER",
                        help="create a Python environment with the newest PyTorch there (default: in build/; some GB, less where pip's "
                        "settings name an index of builds for CPUs), and do nothing else")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--cases", nargs="+", choices=CASES, help="default: all of the device")
    parser.add_argument("--compute", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--variant", choices=["autocast", "bf16", "master"], help="PyTorch's bf16 (default: its fastest)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--warmup", type=int, default=2, help="steps not counted, per start of a program")
    parser.add_argument("--steps", type=int, default=3, help="timed steps per round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tries", type=int, default=3, help="repetitions of a round during which the peak changes")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="do not use torch.compile")
    parser.add_argument("--no-race", dest="race", action="store_false", help="use PyTorch's first variant instead of its fastest")
    parser.add_argument("--max-seconds", type=float, default=180, help="no further PyTorch warm-up step after this")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help="of all cases, for both programs")
    parser.add_argument("--log", default=os.devnull, metavar="FILE", help="append what PyTorch says on standard error")
    parser.add_argument("--json", type=Path, help="write everything measured to this file, after each case")
    args = parser.parse_args()
    if args.make_python:
        return machine.make_torch_python(args.make_python.resolve())
    args.python = machine.torch_python(args.python)
    args.cases = args.cases or [case for case in CASES if case.startswith("gpu-") == (args.device == "cuda")]

    peak = machine.Peak(args.trainer, args.threads)
    rounds = machine.Rounds(peak, args.rounds, args.tries) if args.device == "cpu" else None
    if rounds:
        print(peak.describe(args.compute))
    rows, failed = [], False
    for case in args.cases:
        for compute in args.compute:
            try:
                rows.append(compare(args, case, compute, rounds))
            except RuntimeError as error:  # keeps the rows measured so far
                print(f"{case} {compute}: {error}", file=sys.stderr)
                failed = True
            write(args, peak, rows)
    if rounds:
        print("; ".join(f"best peak {compute}: {peak.best[compute]:.3g} TFLOP/s" for compute in args.compute))
        print(rounds.verdict())
    print("medians (best steps)\n" + table(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
