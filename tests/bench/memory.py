#!/usr/bin/env python3
"""Measures the largest resident memory of steps of GPT-2 124M at 4x1024 with each setting of recomputation, compared with
PyTorch, and their price in time, in alternating runs. Prints Markdown. PyTorch makes three steps: it
allocates the moments at the end of the first, so that the second takes more memory; the trainer has them from the start.

    tests/bench/memory.py --trainer build/trainer --python build/torch-python/bin/python
"""
import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent
CONFIG = HERE.parents[1] / "configs/gpt2-124m.toml"
SETS = ["train.global_batch=4", "train.micro_batch=4", "data.vocab_size=50304", "run.device=cpu"]
TORCH = {"fp32": ["fp32"], "bf16": ["autocast", "master"]}


def trainer_step(args, compute, mode, layers):
    """Returns the median time of a step in ms and the largest resident memory in bytes."""
    text, peak = machine.run_with_peak([
        args.trainer, "bench", "step", "--config", CONFIG, "--json", "--compute", compute, "--threads", str(args.threads),
        "--warmup", "1", "--repeats", str(args.steps), "--set", *SETS, f"train.recompute={mode}",
        f"train.recompute_layers={layers}"])
    return json.loads(text)["median_ms"], peak


def torch_peak(args, variant):
    command = [args.python, HERE / "torch_gpt.py", "--config", CONFIG, "--dtype", variant, "--threads", str(args.threads),
               "--warmup", "0", "--steps", "3"]
    return machine.run_with_peak(command + [part for each in SETS for part in ("--set", each)])[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--python", help="an interpreter with PyTorch; without it, only the trainer is measured")
    parser.add_argument("--compute", nargs="+", choices=sorted(TORCH), default=["bf16", "fp32"])
    parser.add_argument("--layers", nargs="+", type=int, default=[3], help="values of train.recompute_layers to try")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="steps of a run")
    args = parser.parse_args()
    settings = [("none", 0), ("selective", 0), *(("selective", layers) for layers in args.layers), ("full", 0)]
    print(*machine.cpu())
    for compute in args.compute:
        peaks = {variant: torch_peak(args, variant) for variant in TORCH[compute] if args.python}
        runs = [{s: trainer_step(args, compute, *s) for s in settings} for _ in range(args.rounds)]
        print("\n" + ", ".join([compute, *(f"PyTorch ({name}) {peak / 2**30:.2f} GiB" for name, peak in peaks.items())]))
        print("| `train.recompute` | " + "".join(f"of {name} | " for name in peaks) + "GiB | time | of none |")
        print("|---" * (4 + len(peaks)) + "|")
        for setting in settings:
            peak = max(run[setting][1] for run in runs)
            ms = statistics.median(run[setting][0] for run in runs)
            price = statistics.median(run[setting][0] / run[settings[0]][0] for run in runs)
            name = f'"{setting[0]}"' + (f", {setting[1]} layers fully" if setting[1] else "")
            print(f"| {name} | " + "".join(f"**{peak / other:.3f}** | " for other in peaks.values()) +
                  f"{peak / 2**30:.2f} | {ms / 1e3:.2f} s | {price:.3f} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
