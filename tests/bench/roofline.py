#!/usr/bin/env python3
"""Writes the roofline page: a lower bound on the time of a GPT-2 step on a GPU, by kind of operator.

The FLOPs and bytes are those that the operators report, counted by `trainer bench step --dry-run`. Each kind of
operator takes at least its FLOPs at the GEMM rate, or its bytes at the memory bandwidth, whichever is longer: once at
the rates in the data sheet, and once at the rates that others have measured. No GPU is needed. Steps measured by
scripts/gpu_check.sh are shown next to these bounds.

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
# NVIDIA's SXM parts: dense bf16 TFLOP/s and memory TB/s in the data sheet, and the most that others measured.
DEVICES = {"A100 80 GB": ((312.0, 2.039), (271.2, 1.794)), "H100": ((989.4, 3.35), (794.5, 3.01)),
           "H200": ((989.4, 4.8), (794.5, 4.31))}
SOURCES = """Attainable GEMM rates are the fastest of many shapes of `torch.matmul` in bf16, in the table of maximum achievable matmul FLOPS of
[stas00/ml-engineering](https://github.com/stas00/ml-engineering/tree/744d01e1/compute/accelerator) at commit 744d01e1, which says
that an H200 is as fast as an H100. Attainable bandwidths are those of STREAM's triad in
[RRZE-HPC/gpu-benches](https://github.com/RRZE-HPC/gpu-benches/tree/1038c5d/gpu-stream) at commit 1038c5d: 1.794 TB/s on an A100
80 GB. It has no SXM5 part: for H100 and H200 the data sheet's bandwidth is multiplied by the 0.90 that an H100 PCIe reached there
(1.832 of 2.039 TB/s). `mfu` is relative to the data sheet's rate in all columns.
"""
# name: (configuration, sequences per micro-step and per step, the stage of gpu_check.sh that measures it)
CASES = {"GPT-2 124M, 32×1024": ("gpt2-124m.toml", 32, 32, "step-124m"),
         "GPT-2 124M, 64×1024, 0.5M tokens per step": ("gpt2-124m.toml", 64, 512, "full-124m"),
         "GPT-2 1.5B, 16×1024": ("gpt2-1.5b.toml", 16, 16, "step-1.5b"),
         "GPT-2 1.5B, 16×1024, 0.5M tokens per step": ("gpt2-1.5b.toml", 16, 512, "full-1.5b")}


def count(trainer, config, micro_batch, global_batch):
    overrides = [f"train.global_batch={global_batch}", f"train.micro_batch={micro_batch}", "train.recompute=\"none\"",
                 "data.vocab_size=50304", "optim.warmup_steps=1"]
    command = [trainer, "bench", "step", "--dry-run", "--compute", "bf16", "--config", str(CONFIGS / config), "--json"]
    for override in overrides:
        command += ["--set", override]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"roofline.py: {' '.join(command)}\n{run.stderr}")
    return json.loads(run.stdout)


def least_ms(operator, rates):
    """Returns the lower bound in ms: GFLOP per TFLOP/s and GB per TB/s are both milliseconds."""
    tflops, terabytes = rates
    return max(operator["gflop"] / tflops, operator["gb"] / terabytes)


def section(name, counted, measured):
    """Returns the table of a case's operators; `measured`: the JSON document of `bench step` on a GPU, or None."""
    columns = {f"{device}, ms{note}": (rates, sheet) for device, (sheet, attainable) in DEVICES.items()
               for note, rates in (("", sheet), (" at attainable rates", attainable))}
    lines = [f"## {name}", "", f"{counted['tokens']} tokens per step, {counted['parameters'] / 1e6:.0f} M parameters.", "",
             "| operator | calls | GFLOP | GB | " + " | ".join(columns) + (" | measured ms |" if measured else " |"),
             "|---" * (4 + len(columns) + bool(measured)) + "|"]
    times = {op["name"]: op["ms"] for op in measured["operators"]} if measured else {}
    for op in sorted(counted["operators"], key=lambda op: -least_ms(op, DEVICES["H200"][0])):
        cells = [op["name"], str(op["calls"]), f"{op['gflop']:.1f}", f"{op['gb']:.2f}"]
        cells += [f"{least_ms(op, rates):.2f}" for rates, _ in columns.values()]
        lines.append("| " + " | ".join(cells + ([f"{times[op['name']]:.2f}" if op["name"] in times else ""] if measured else [])) + " |")
    totals = [sum(least_ms(op, rates) for op in counted["operators"]) for rates, _ in columns.values()]
    flops = counted["model_flops_per_token"] * counted["tokens"]
    rows = {"all": [f"{t:.2f}" for t in totals], "tokens/s at most": [f"{1e3 * counted['tokens'] / t:.0f}" for t in totals],
            "mfu at most": [f"{100 * flops / (t * 1e-3) / (sheet[0] * 1e12):.1f} %" for t, (_, sheet) in zip(totals, columns.values())]}
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
        gpu = document["gpu"].split(",")[0]
        measured = {stage["name"]: stage["document"] for stage in document["stages"]}
    commit = subprocess.run(["git", "-C", HERE, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    parts = ["# Roofline of training steps\n", f"Output of `tests/bench/roofline.py` at commit {commit or 'unknown'}: a lower bound on the time of each kind of operator in a step, "
             "from the FLOPs and bytes\nthat the operators report, at the rates in data sheets and at attainable rates. These are bounds, "
             "not predictions of a run: nothing\nhere was measured with the trainer" + (f", except the last column: one {gpu}.\n" if gpu else ".\n"),
             "| device | bf16 TFLOP/s | attainable | memory TB/s | attainable |\n|---|---|---|---|---|\n" +
             "\n".join(f"| {name} | {sheet[0]:g} | {attainable[0]:g} | {sheet[1]:g} | {attainable[1]:g} |"
                       for name, (sheet, attainable) in DEVICES.items()) + "\n", SOURCES]
    for name, (config, micro_batch, global_batch, stage) in CASES.items():
        parts.append(section(name, count(args.trainer, config, micro_batch, global_batch), measured.get(stage)))
    args.output.write_text("\n".join(parts))
    print(args.output)


if __name__ == "__main__":
    main()
