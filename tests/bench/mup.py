#!/usr/bin/env python3
"""Compares how the best learning rate depends on the width of a model with and without muP (optim.mup_base_width).

Each width is trained with learning rates a factor of 2 apart, with the same seeds, data and steps; the smallest width is
the base model of muP, so its runs count for both. The best rate is the lowest point of a parabola through the three losses
around the smallest one, over the logarithm of the rate.

    tests/bench/mup.py --trainer build/trainer --data data/austen.txt
    tests/bench/mup.py --trainer build/trainer --data data/austen.txt --widths 64 128 256 512 --steps 400 --runs mup.json
"""
import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import ROOT, cpu, run

DIVERGED = 6  # exit status of a run that diverged


class Runs:
    """Validation losses of runs. One that was made before, or is in the file --runs, is not repeated."""

    def __init__(self, args, folder):
        self.args, self.folder, self.done = args, Path(folder), {}
        if args.runs and args.runs.exists():
            self.done = {tuple(key): value for key, value in json.loads(args.runs.read_text())}

    def loss(self, width, base, lr, seed):
        key = width, base, lr, seed, self.args.steps, self.args.data.name
        if key not in self.done:
            where = self.folder / "run"
            sets = [f"run.dir={where}", f"run.seed={seed}", f"data.train={self.args.data.resolve()}",
                    f"data.tokenizer={self.folder}/tokens/tokenizer.model", f"data.vocab_size={self.args.vocabulary}",
                    "model.arch=llama", "model.n_layer=2", f"model.d_model={width}", f"model.n_head={width // self.args.head}",
                    f"model.n_kv_head={width // self.args.head}", f"model.d_ff={4 * width}", "model.seq_len=64",
                    "model.tie_embeddings=false", "optim.name=adamw", f"optim.lr={lr}", f"optim.min_lr={lr / 10}",
                    f"optim.warmup_steps={self.args.steps // 10}", f"optim.mup_base_width={base}", f"train.steps={self.args.steps}",
                    f"train.eval_interval={self.args.steps}", "train.sample_interval=0", "checkpoint.interval=0", "log.report=false"]
            ended = subprocess.run([self.args.trainer, "train", "--config", ROOT / "configs" / "muon.toml", "--resume", "never",
                                    "--set", *sets], capture_output=True, text=True)
            if ended.returncode not in (0, DIVERGED):
                raise RuntimeError(f"{' '.join(sets)}: exit {ended.returncode}\n{ended.stderr}")
            events = [json.loads(line) for line in (where / "metrics.jsonl").read_text().splitlines()]
            losses = [event["loss"] for event in events if event["event"] == "eval"]
            self.done[key] = math.inf if ended.returncode == DIVERGED else losses[-1]
            if self.args.runs:
                self.args.runs.write_text(json.dumps(list(self.done.items())))
            print(f"  width {width}, base {base}, lr {lr:g}, seed {seed}: {self.done[key]:.4f}", file=sys.stderr, flush=True)
        return self.done[key]

    def best_rate(self, width, base):
        """Returns the best rate, between two worse ones, and the mean losses of all rates tried."""
        tried, todo = {}, [self.args.lr / 2, self.args.lr, self.args.lr * 2]
        while todo:
            for lr in todo:
                tried[lr] = statistics.mean(self.loss(width, base, lr, seed) for seed in range(1, self.args.seeds + 1))
            least = min(tried, key=tried.get)
            todo = [lr for lr in (least / 2, least * 2) if lr not in tried]
        low, mid, high = tried[least / 2], tried[least], tried[least * 2]
        shift = 0 if math.isinf(low + high) or low + high == 2 * mid else (low - high) / (2 * (low + high - 2 * mid))
        return least * 2**shift, dict(sorted(tried.items()))


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
        run([args.trainer, "tokenize", "--input", args.data, "--output", f"{folder}/tokens", "--train-vocab", args.vocabulary])
        runs, first = Runs(args, folder), args.widths[0]
        found = {width: [runs.best_rate(width, base if width != first else 0) for base in (0, first)] for width in args.widths}
    print("| width | best lr | losses | best lr with muP | losses |\n|---|---|---|---|---|")
    for width, rows in found.items():
        cells = [f"{rate:.2g} | " + ", ".join(f"{lr:g}: {loss:.3f}" for lr, loss in tried.items()) for rate, tried in rows]
        print(f"| {width} | {cells[0]} | {cells[1]} |")
    for index, name in enumerate(("without", "with")):
        rates = [rows[index][0] for rows in found.values()]
        print(f"{name} muP the best rates are within a factor of {max(rates) / min(rates):.2f}")


if __name__ == "__main__":
    main()
