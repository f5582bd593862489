#!/usr/bin/env python3
"""Writes the roofline page: a lower bound on the time of a GPT-2 step on a GPU, by kind of operator.

The FLOPs and bytes are those that the operators report, counted by `trainer bench step --dry-run`. Each kind of
operator takes at least its FLOPs at the data sheet's GEMM rate, or its bytes at the data sheet's memory bandwidth,
whichever is longer. No GPU is needed. Steps measured by scripts/gpu_check.sh are shown next to these bounds.

    tests/bench/roofline.py --trainer build-dev/trainer_emulated                        # writes tests/bench/ROOFLINE.md
    tests/bench/roofline.py --trainer build/trainer --measured results/gpu_check.json   # with steps measured on a GPU
"""
import argparse
import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONFIGS = HERE.parent.parent / "configs"
# Data sheets of NVIDIA's SXM parts: dense bf16 TFLOP/s, memory TB/s.
DEVICES = {"A100 80 GB": (312.0, 2.039), "H100": (989.4, 3.35), "H200": (989.4, 4.8)}
# name: (configuration, sequences per step, the stage of gpu_check.sh that measures it)
CASES = {"GPT-2 124M, 32×1024": ("gpt2-124m.toml", 32, "step-124m"), "GPT-2 1.5B, 8×1024": ("gpt2-1.5b.toml", 8, None),
         "GPT-2 1.5B, 16×1024": ("gpt2-1.5b.toml", 16, "step-1.5b")}


def count(trainer, config, sequences):
    overrides = [f"train.global_batch={sequences}", f"train.micro_batch={sequences}", "train.recompute=\"none\"",
                 "data.vocab_size=50304"]
    command = [trainer, "bench", "step", "--dry-run", "--compute", "bf16", "--config", str(CONFIGS / config), "--json"]
    for override in overrides:
        command += ["--set", override]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"roofline.py: {' '.join(command)}\n{run.stderr}")
    return json.loads(run.stdout)


def least_ms(operator, device):
    """Returns the lower bound in ms: GFLOP per TFLOP/s and GB per TB/s are both milliseconds."""
    tflops, terabytes = DEVICES[device]
    return max(operator["gflop"] / tflops, operator["gb"] / terabytes)


def section(name, counted, measured):
    """Returns the table of a case's operators; `measured`: the JSON document of `bench step` on a GPU, or None."""
    devices = list(DEVICES)
    lines = [f"## {name}", "", f"{counted['tokens']} tokens per step, {counted['parameters'] / 1e6:.0f} M parameters.", "",
             "| operator | calls | GFLOP | GB | " + " | ".join(f"{d}, ms" for d in devices) + (" | measured ms |" if measured else " |"),
             "|---" * (4 + len(devices) + bool(measured)) + "|"]
    times = {op["name"]: op["ms"] for op in measured["operators"]} if measured else {}
    for op in sorted(counted["operators"], key=lambda op: -least_ms(op, devices[-1])):
        cells = [op["name"], str(op["calls"]), f"{op['gflop']:.1f}", f"{op['gb']:.2f}"] + [f"{least_ms(op, d):.2f}" for d in devices]
        lines.append("| " + " | ".join(cells + ([f"{times[op['name']]:.2f}" if op["name"] in times else ""] if measured else [])) + " |")
    totals = [sum(least_ms(op, d) for op in counted["operators"]) for d in devices]
    flops = counted["model_flops_per_token"] * counted["tokens"]
    rows = {"all": [f"{t:.2f}" for t in totals], "tokens/s at most": [f"{1e3 * counted['tokens'] / t:.0f}" for t in totals],
            "mfu at most": [f"{100 * flops / (t * 1e-3) / (DEVICES[d][0] * 1e12):.1f} %" for t, d in zip(totals, devices)]}
    if measured:
        rows["all"].append(f"{measured['median_ms']:.2f}")
        rows["tokens/s at most"].append(f"{measured['tokens_per_s']:.0f}")
        rows["mfu at most"].append(f"{100 * measured['mfu']:.1f} %")
    lines += [f"| **{title}** | | | | " + " | ".join(cells) + " |" for title, cells in rows.items()]
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(HERE.parent.parent / "build" / "trainer"),
                        help="trainer_emulated of a build with tests counts what the CUDA backend does")
    parser.add_argument("--measured", type=Path, help="gpu_check.json of scripts/gpu_check.sh")
    parser.add_argument("--output", type=Path, default=HERE / "ROOFLINE.md")
    args = parser.parse_args()
    measured, gpu = {}, ""
    if args.measured:
        document = json.loads(args.measured.read_text())
        gpu = document["gpu"]
        measured = {stage["name"]: stage["document"] for stage in document["stages"]}
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    parts = ["# Roofline of training steps\n", f"Output of `tests/bench/roofline.py` at commit {commit or 'unknown'}: a lower bound on the time of each kind of operator in a step, "
             "from the FLOPs and bytes\nthat the operators report and the rates in data sheets. These are bounds, not predictions of "
             "a run: nothing\nhere was measured" + (f", but the column of the {gpu}.\n" if gpu else ".\n"),
             "| device | bf16 TFLOP/s | memory TB/s |\n|---|---|---|\n" +
             "\n".join(f"| {name} | {rate:g} | {memory:g} |" for name, (rate, memory) in DEVICES.items()) + "\n"]
    for name, (config, sequences, stage) in CASES.items():
        parts.append(section(name, count(args.trainer, config, sequences), measured.get(stage)))
    args.output.write_text("\n".join(parts))
    print(args.output)


if __name__ == "__main__":
    main()
