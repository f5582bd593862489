#!/usr/bin/env python3
"""Compares AdamW with Muon: validation loss after equal tokens and after equal time.

The learning rate of each optimizer is bracketed first, with one seed: starting at --lr it is doubled and halved until
the best rate has a worse one on either side. A run that diverges has an infinite loss. Then all seeds run at the best
rate. "AdamW's time" is a Muon run with fewer steps and the same schedule that takes as long as AdamW's run; the ratio
of their step times comes from short alternating runs.

    tests/bench/optimizers.py --trainer build/trainer --data data/austen.txt
    tests/bench/optimizers.py --trainer build/trainer --data TEXT.txt --steps 600 --set data.vocab_size=4096
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
RULES = {"adamw": ["optim.name=adamw"], "muon": ["optim.name=muon"], "adamw-bf16": ["optim.name=adamw", "optim.moments=bf16"]}


class Runs:
    """Results of runs, keyed by what determines them. A run that was made before, or is in the file --runs, is not
    repeated."""

    def __init__(self, args, folder):
        self.args, self.folder, self.done = args, Path(folder), {}
        self.version = run([args.trainer, "--version"]).splitlines()[0]
        if args.runs and args.runs.exists():
            self.done = {tuple(key): tuple(value) for key, value in json.loads(args.runs.read_text())}

    def loss(self, rule, lr, seed, steps):
        """Returns (last validation loss, median step in ms) of one run."""
        key = rule, lr, seed, steps, self.args.data.name, self.args.vocabulary, " ".join(self.args.set), self.version
        if key not in self.done:
            where = self.folder / "run"
            sets = [f"run.dir={where}", f"run.seed={seed}", f"data.train={self.args.data.resolve()}",
                    f"data.tokenizer={self.folder}/tokens/tokenizer.model", f"train.steps={steps}", f"train.eval_interval={steps}",
                    "train.sample_interval=0", "checkpoint.interval=0", "log.report=false", f"optim.lr={lr}", f"optim.min_lr={lr / 10}",
                    f"optim.warmup_steps={steps // 10}", *self.args.set, *RULES[rule]]
            ended = subprocess.run([self.args.trainer, "train", "--config", ROOT / "configs" / "muon.toml", "--resume", "never",
                                    "--set", *sets], capture_output=True, text=True)
            if ended.returncode not in (0, DIVERGED):
                raise RuntimeError(f"{' '.join(sets)}: exit {ended.returncode}\n{ended.stderr}")
            events = [json.loads(line) for line in (where / "metrics.jsonl").read_text().splitlines()]
            losses = [event["loss"] for event in events if event["event"] == "eval"]
            loss = math.inf if ended.returncode == DIVERGED else losses[-1]
            step = statistics.median([event["step_ms"] for event in events if event["event"] == "step"] or [math.nan])
            self.done[key] = loss, step
            if self.args.runs:
                self.args.runs.write_text(json.dumps(list(self.done.items())))
            print(f"  {rule}, lr {lr:g}, seed {seed}, {steps} steps: {loss:.4f}, {step:.1f} ms a step", file=sys.stderr, flush=True)
        return self.done[key]

    def best_rate(self, rule, first):
        """Returns the rate with the lowest loss for seed 1, between two worse ones, and the losses of all rates
        tried."""
        tried = {}
        todo = [first / 2, first, first * 2]
        while todo:
            for lr in todo:
                tried[lr] = self.loss(rule, lr, 1, self.args.steps)[0]
            best = min(tried, key=tried.get)
            todo = [lr for lr in (best / 2, best * 2) if lr not in tried]
        return best, dict(sorted(tried.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True, type=Path)
    parser.add_argument("--data", required=True, type=Path, help="a text file; its last tenth is the validation text")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=4e-3, help="where both brackets begin")
    parser.add_argument("--runs", type=Path, metavar="FILE", help="keep the results of runs here, to continue an interrupted comparison")
    parser.add_argument("--set", nargs="+", default=[], metavar="SECTION.KEY=VALUE")
    args = parser.parse_args()
    args.trainer = args.trainer.resolve()
    print(f"{cpu()[2]}; {args.data.name}, {args.data.stat().st_size / 1e6:.1f} MB, {args.steps} steps, {args.seeds} seeds")
    with tempfile.TemporaryDirectory(prefix="optimizers-") as folder:
        run([args.trainer, "tokenize", "--input", args.data, "--output", f"{folder}/tokens", "--train-vocab", args.vocabulary])
        runs, seeds = Runs(args, folder), range(1, args.seeds + 1)
        rates = {rule: runs.best_rate(rule, args.lr) for rule in ("adamw", "muon")}
        rates["adamw-bf16"] = rates["adamw"]
        whole = {rule: [] for rule in rates}
        for seed in seeds:
            for rule in rates:
                whole[rule].append(runs.loss(rule, rates[rule][0], seed, args.steps))
        turns = [{rule: runs.loss(rule, rates[rule][0], turn, 20)[1] for rule in rates} for turn in range(101, 110)]
        slower = {rule: statistics.median(turn[rule] / turn["adamw"] for turn in turns) for rule in rates}
        fewer = round(args.steps / slower["muon"])
        rows = {f"{rule}, {args.steps} steps": (rule, whole[rule]) for rule in whole}
        rows[f"muon, {fewer} steps: AdamW's time"] = "muon", [runs.loss("muon", rates["muon"][0], seed, fewer) for seed in seeds]
    for rule in ("adamw", "muon"):
        print(f"learning rates of {rule}: " + ", ".join(f"{lr:g} → {loss:.3f}" for lr, loss in rates[rule][1].items()))
    print("| run | lr | validation loss, mean (each seed) | step / AdamW's |\n|---|---|---|---|")
    for name, (rule, of) in rows.items():
        print(f"| {name} | {rates[rule][0]:g} | **{statistics.mean(loss for loss, _ in of):.3f}** "
              f"({', '.join(f'{loss:.3f}' for loss, _ in of)}) | {slower[rule]:.2f} |")


if __name__ == "__main__":
    main()
