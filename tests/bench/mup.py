#!/usr/bin/env python3
"""Compares how the best learning rate depends on the width of a model with and without muP (optim.mup_base_width).

Each width is trained with learning rates a factor of 2 apart, with the same seeds, data and steps; the smallest width is
the base model of muP, so its runs count for both. The best rate is the lowest point of a parabola through the three losses
around the smallest one, over the logarithm of the rate.

    tests/bench/mup.py --trainer build/trainer --data data/austen.txt
    tests/bench/mup.py --trainer build/trainer --data data/austen.txt --widths 64 128 256 512 --steps 400 --runs mup.json
"""
import argparse
import math
import statistics
import tempfile
from pathlib import Path

from machine import cpu
from runs import Runs, bracket


def best_rate(runs, args, width, base):
    """Returns the best rate, between two worse ones, and the mean losses of all rates tried."""
    sets = ["model.arch=llama", "model.n_layer=2", f"model.d_model={width}", f"model.n_head={width // args.head}",
            f"model.n_kv_head={width // args.head}", f"model.d_ff={4 * width}", "model.seq_len=64", "model.tie_embeddings=false",
            "optim.name=adamw", f"optim.mup_base_width={base}"]
    least, tried = bracket(args.lr, lambda lr: statistics.mean(runs.result(lr, seed, args.steps, sets)[0]
                                                               for seed in range(1, args.seeds + 1)))
    low, mid, high = tried[least / 2], tried[least], tried[least * 2]
    shift = 0 if math.isinf(low + high) or low + high == 2 * mid else (low - high) / (2 * (low + high - 2 * mid))
    return least * 2**shift, tried


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True, type=Path)
    parser.add_argument("--data", required=True, type=Path, help="a text file; its last tenth is the validation text")
    parser.add_argument("--widths", nargs="+", type=int, default=[32, 64, 128, 256], help="the first one is muP's base width")
    parser.add_argument("--head", type=int, default=16, help="the head size, equal at all widths")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--lr", type=float, default=8e-3, help="where every bracket begins")
    parser.add_argument("--runs", type=Path, metavar="FILE", help="keep the results of runs here, to continue an interrupted comparison")
    args = parser.parse_args()
    args.trainer = args.trainer.resolve()
    print(f"{cpu()[2]}; {args.data.name}, {args.steps} steps of 512 tokens, {args.seeds} seeds, 2 layers, head size {args.head}")
    with tempfile.TemporaryDirectory(prefix="mup-") as folder:
        runs, first = Runs(args.trainer, args.data, args.vocabulary, folder, args.runs), args.widths[0]
        found = {width: [best_rate(runs, args, width, base if width != first else 0) for base in (0, first)] for width in args.widths}
    print("| width | best lr | losses | best lr with muP | losses |\n|---|---|---|---|---|")
    for width, rows in found.items():
        cells = [f"{rate:.2g} | " + ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in tried.items()) for rate, tried in rows]
        print(f"| {width} | {cells[0]} | {cells[1]} |")
    for index, name in enumerate(("without", "with")):
        rates = [rows[index][0] for rows in found.values()]
        print(f"{name} muP the best rates are within a factor of {max(rates) / min(rates):.2f}")


if __name__ == "__main__":
    main()
