#!/usr/bin/env python3
"""Writes tests/bench/GPU.md from the results of scripts/gpu_check.sh. Cells without a measurement are empty.

    tests/bench/gpu_page.py                                                       # no results: every cell is empty
    tests/bench/gpu_page.py results/gpu_check.json results/2/gpu_check.json       # merges both; the last file wins
    tests/bench/gpu_page.py --check                                               # fails if the page is out of date
"""
import argparse
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHECK = HERE.parent.parent / "scripts" / "gpu_check.sh"
# model and batch: the stage that measures the trainer, and the one that alternates with PyTorch
STEPS = {"GPT-2 124M, 32×1024": ("step-124m", "torch-124m"),
         "GPT-2 124M, 32×1024, on text": ("text-124m", None),
         "GPT-2 124M, 64×1024, 0.5M tokens per step": ("full-124m", "torch-full-124m"),
         "GPT-2 124M, 32×1024, tuned GEMMs": ("tuned", None),
         "GPT-2 124M, a run on text with a vocabulary of 8192": ("train", None),
         "GPT-2 1.5B, 16×1024": ("step-1.5b", "torch-1.5b"),
         "GPT-2 1.5B, 16×1024, 0.5M tokens per step": ("full-1.5b", "torch-full-1.5b")}


def targets():
    """Returns (name, goal) of every target that the script declares."""
    return re.findall(r'^  target "([^"]+)" ([0-9.]+) ', CHECK.read_text(), re.M)


def row(cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def table(head, rows):
    return [row(head), "|" + "---|" * len(head), *map(row, rows)]


def shown(value, form="{:.0f}", scale=1.0):
    return "" if value is None else form.format(scale * value)


def operators(document):
    """Returns a function that maps an operator's name to its cell."""
    by_name = {each["name"]: each for each in document.get("operators", [])}

    def cell(name):
        each = by_name.get(name)
        return f"{each['ms']:.1f} ({100 * each['least_ms'] / each['ms']:.0f} %)" if each else ""
    return cell


def attention(ours, cudnn):
    """Returns a row for each shape that was measured."""
    rates = {}
    for column, document in enumerate((ours, cudnn)):
        for r in document.get("rates", []):
            shape = f"{r['batch']} × {r['seq_len']}, {r['heads']} × {r['head_dim']}"
            rates.setdefault(shape, ["", ""])[column] = f"{r['forward_gflops'] / 1e3:.0f}, {r['backward_gflops'] / 1e3:.0f}"
    return [[shape, *cells] for shape, cells in rates.items()]


def page(results):
    """Returns the page for these JSON documents of gpu_check.sh."""
    stages, measured, runs = {}, {}, []
    for result in results:
        runs.append(f"{result['gpu']}, commit {result['commit']}, {result['date'][:10]}")
        stages.update({s["name"]: s for s in result["stages"] if s["result"] == "passed"})
        measured.update({t["name"]: t for t in result["targets"] if t["measured"] is not None})

    def document(stage):
        return (stages.get(stage) or {}).get("document") or {}

    def step(name, stages_of_it):
        trainer, torch = (document(stage) for stage in stages_of_it)
        clocks = (stages.get(stages_of_it[0]) or {}).get("clocks") or {}
        pair = (torch.get("rows") or [{}])[0]
        theirs = 1e3 * pair["tokens"] / pair["torch_ms"] if pair else None
        return [name, shown(trainer.get("median_ms"), "{:.1f}"), shown(trainer.get("tokens_per_s")), shown(trainer.get("mfu"), "{:.1f} %", 100),
                shown(clocks.get("sm_mhz")), shown(clocks.get("watts")), shown(theirs), pair.get("peer", ""),
                shown(pair.get("ratio"), "{:.2f}")]

    lines = ["# On a GPU", "",
             "Output of `tests/bench/gpu_page.py`: what `scripts/gpu_check.sh` measured. An empty cell was not measured. Nothing here is written by "
             "hand.", "", *(f"- {run}" for run in runs or ["no GPU yet"]), "", "## Targets", ""]
    lines += table(["metric", "target", "measured", "verdict"],
                   ([name, goal, shown((measured.get(name) or {}).get("measured"), "{:.4g}"), (measured.get(name) or {}).get("verdict", "")]
                    for name, goal in targets()))
    lines += ["", "## Steps", "", "bf16, one GPU. Clock and power are those of samples in which the GPU was busy. Ratios are those of alternating runs on one card; the other "
              "columns may come from different cards.", ""]
    lines += table(["step", "ms", "tokens/s", "mfu", "SM MHz", "W", "PyTorch tokens/s", "its variant", "trainer / PyTorch"],
                   (step(name, which) for name, which in STEPS.items()))
    lines += ["", "## Operators of a step", "", "Milliseconds, and in brackets the share of the least time: at the data sheet's FLOP/s and the rate of a copy.", ""]
    names = ("gemm", "attention", "loss", "norm", "column_sum", "optimizer")
    lines += table(["step", *names], ([name, *map(operators(document(stage)), names)] for name, (stage, _) in STEPS.items() if stage != "train"))
    lines += ["", "## Attention", "", "TFLOP/s of the causal half, forward and backward.", ""]
    lines += table(["batch × length, heads × size", "built-in", "cuDNN"], attention(document("attention"), document("cudnn")))
    lines += ["", "## Elementwise operators", "", "bf16; share of the rate of a copy.", ""]
    lines += table(["operator", "GB/s", "share"], ([r["name"], shown(r["gb_per_s"]), shown(r["share_of_copy"], "{:.0f} %", 100)]
                                                   for r in document("elementwise").get("rates", [])))
    lines += ["", "## Tests", ""]
    lines += table(["stage", "result"], ([name, (stages.get(name) or {}).get("line", "")] for name in ("tests", "cudnn", "sanitizer", "mpi")))
    return "\n".join(lines) + "\n"


def rows_of(text):
    """Returns the rows that a page without results has too."""
    measured = re.search(r"^## Attention.*?(?=^## Tests)", text, re.M | re.S)
    return re.findall(r"^\| ([^|]+) \|", text.replace(measured[0], "") if measured else text, re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path, metavar="gpu_check.json")
    parser.add_argument("--out", type=Path, default=HERE / "GPU.md")
    parser.add_argument("--check", action="store_true", help="compare the page, or its rows once it has results, and write nothing")
    args = parser.parse_args()
    results = [json.loads(path.read_text()) for path in args.results]
    if any(result["emulated"] for result in results) and args.out == HERE / "GPU.md":
        sys.exit("gpu_page.py: results of an emulated device are not for this page; use --out")
    text = page(results)
    if args.check:
        kept = args.out.read_text()
        same = rows_of(kept) == rows_of(text) if "no GPU yet" not in kept else kept == text
        sys.exit(0 if same else f"gpu_page.py: {args.out} is not what this program writes; run it again")
    args.out.write_text(text)


if __name__ == "__main__":
    main()
