#!/usr/bin/env python3
"""Measures training steps of the trainer beside PyTorch on the same shapes, threads and machine, in one go.

The two programs take turns (A B A B …), so that a machine whose speed drifts is fair to both; medians over all steps are
compared. PyTorch is given its best chance: the fastest of its variants (eager or compiled; bf16 as pure bf16 or by
autocast) is found first, with huge pages and an allocator that keeps its memory.

    tests/bench/compare_torch.py --trainer build/trainer --python /path/to/python-with-torch --json out.json
    tests/bench/compare_torch.py --device cuda --cases gpu-124m --compute bf16
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parent.parent / "configs"
# name: (configuration, overrides). Vocabularies are given, so neither program reads data.
CASES = {
    "124m-4x1024": ("gpt2-124m.toml", ["train.global_batch=4", "train.micro_batch=4", "train.recompute=\"none\"",
                                       "data.vocab_size=50304"]),
    # PyTorch's bf16 without matrix units takes a quarter of an hour for the step above; its rate hardly depends on the batch.
    "124m-1x256": ("gpt2-124m.toml", ["train.global_batch=1", "train.micro_batch=1", "train.recompute=\"none\"",
                                      "model.seq_len=256", "data.vocab_size=50304"]),
    "6x384-12x256": ("gpt2-6x384.toml", ["model.dropout=0.0", "data.vocab_size=50304"]),
    "6x384-12x256-v4096": ("gpt2-6x384.toml", ["model.dropout=0.0", "data.vocab_size=4096"]),
    "gpu-124m": ("gpt2-124m.toml", ["train.global_batch=32", "train.micro_batch=32", "train.recompute=\"none\"",
                                    "data.vocab_size=50304"]),
    "gpu-1.5b": ("gpt2-1.5b.toml", ["train.global_batch=16", "train.micro_batch=16", "train.recompute=\"none\"",
                                    "data.vocab_size=50304"]),
    "llama-8x256-v2048": ("llama-style.toml", ["data.vocab_size=2048"]),
    "llama-124m-2x512": ("llama-style.toml", ["model.n_layer=12", "model.n_head=12", "model.n_kv_head=4", "model.d_model=768",
                                              "model.d_ff=2048", "model.seq_len=512", "train.global_batch=2",
                                              "train.micro_batch=2", "data.vocab_size=32000"]),
}
PEER_ENVIRONMENT = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1", "MALLOC_MMAP_THRESHOLD_": str(1 << 34),
                    "MALLOC_TRIM_THRESHOLD_": str(1 << 35), "MALLOC_TOP_PAD_": str(1 << 28)}


class Peer:
    """A PyTorch process that runs steps when asked."""

    def __init__(self, args, case, variant):
        config, overrides = CASES[case]
        dtype, use_compile = variant
        command = [args.python, str(HERE / "torch_gpt.py"), "--config", str(CONFIGS / config), "--serve", "--dtype", dtype,
                   "--device", args.device, "--threads", str(args.threads), "--warmup", str(args.warmup),
                   "--max-seconds", str(args.max_seconds)] + ["--compile"] * use_compile
        for override in overrides:
            command += ["--set", override]
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        if args.device == "cpu":
            environment.update(PEER_ENVIRONMENT)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True, env=environment)
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the PyTorch peer did not start: {' '.join(command)}")

    def steps(self, count):
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def fastest_variant(args, case, compute):
    """(dtype, compiled) of PyTorch's quickest step; a variant that does not start is left out."""
    best = None
    # bf16 state would not train as the trainer does; beside a slow CPU it is given as an advantage.
    reduced = ["autocast", "bf16"] if args.device == "cpu" else ["autocast", "master"]
    compiled = [False] if not args.compile else [True] if args.device == "cuda" else [False, True]
    for dtype in ["fp32"] if compute == "fp32" else [args.variant] if args.variant else reduced:
        for use_compile in compiled:
            try:
                peer = Peer(args, case, (dtype, use_compile))
            except RuntimeError as error:
                print(f"  left out: {error}", file=sys.stderr)
                continue
            ms = min(peer.steps(1 if args.device == "cpu" else 5))
            peer.close()
            print(f"  PyTorch {dtype}{' compiled' if use_compile else ''}: {ms:.0f} ms", file=sys.stderr)
            if best is None or ms < best[0]:
                best = (ms, (dtype, use_compile))
    if best is None:
        raise RuntimeError("no variant of PyTorch runs")
    return best[1]


def trainer_steps(args, case, compute):
    config, overrides = CASES[case]
    command = [args.trainer, "bench", "step", "--config", str(CONFIGS / config), "--compute", compute,
               "--threads", str(args.threads), "--warmup", str(args.warmup), "--repeats", str(args.steps), "--json"]
    for override in [*overrides, f"run.device={args.device}"]:
        command += ["--set", override]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def compare(args, case, compute):
    print(f"{case} {compute}", file=sys.stderr)
    dtype, use_compile = fastest_variant(args, case, compute)
    peer = Peer(args, case, (dtype, use_compile))
    ours, theirs, last = [], [], {}
    for _ in range(args.rounds):
        last = trainer_steps(args, case, compute)
        ours += last["step_ms"]
        theirs += peer.steps(args.steps)
    peer.close()
    row = {"case": case, "compute": compute, "tokens": last["tokens"], "peer": dtype + (" compiled" if use_compile else ""),
           "trainer_ms": statistics.median(ours), "torch_ms": statistics.median(theirs), "trainer_all_ms": ours,
           "torch_all_ms": theirs, "path": last["path"], "mfu": last["mfu"], "operators": last["operators"]}
    row["ratio"] = row["torch_ms"] / row["trainer_ms"]
    print(f"  trainer {row['trainer_ms']:.1f} ms, PyTorch {row['torch_ms']:.1f} ms", file=sys.stderr)
    return row


def table(rows):
    lines = ["| model | compute | trainer tokens/s | mfu | PyTorch tokens/s | PyTorch variant | trainer / PyTorch |",
             "|---|---|---|---|---|---|---|"]
    for r in rows:
        speed = {side: f"{1e3 * r['tokens'] / r[side + '_ms']:.0f}" for side in ("trainer", "torch")}
        lines.append(f"| {r['case']} | {r['compute']} | {speed['trainer']} | {100 * (r['mfu'] or 0):.0f} % | {speed['torch']} "
                     f"| {r['peer']} | **{r['ratio']:.2f}** |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(HERE.parent.parent / "build" / "trainer"))
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--cases", nargs="+", choices=CASES, help="default: all of the device")
    parser.add_argument("--compute", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--variant", choices=["autocast", "bf16", "master"], help="PyTorch's way of bf16 (default: its fastest)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--warmup", type=int, default=2, help="steps not counted, per start of a program")
    parser.add_argument("--steps", type=int, default=3, help="timed steps per round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="leave torch.compile out")
    parser.add_argument("--max-seconds", type=float, default=180, help="no further PyTorch warm-up step after this")
    parser.add_argument("--json", type=Path, help="write everything measured to this file")
    args = parser.parse_args()
    args.cases = args.cases or [case for case in CASES if case.startswith("gpu-") == (args.device == "cuda")]

    rows = [compare(args, case, compute) for case in args.cases for compute in args.compute]
    print(table(rows))
    if args.json:
        args.json.write_text(json.dumps({"machine": platform.processor() or platform.machine(), "threads": args.threads,
                                         "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
