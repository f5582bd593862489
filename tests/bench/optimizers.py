#!/usr/bin/env python3
"""Compares AdamW and Muon, with plain and cautious decay: validation loss after equal tokens and after equal time.

The learning rate of each optimizer is bracketed first, with one seed: starting at --lr it is doubled and halved until
the best rate has a worse one on either side. A run that diverges has an infinite loss. Then all seeds run at the best
rate. "AdamW's time" is a Muon run with fewer steps and the same schedule that takes as long as AdamW's run; the ratio
of their step times comes from short alternating runs.

    tests/bench/optimizers.py --trainer build/trainer --data data/austen.txt
    tests/bench/optimizers.py --trainer build/trainer --data TEXT.txt --steps 600 --set data.vocab_size=4096
"""
import argparse
import statistics
import tempfile
from pathlib import Path

from machine import cpu
from runs import Runs, bracket

RULES = {"adamw": ["optim.name=adamw"], "muon": ["optim.name=muon"], "adamw-bf16": ["optim.name=adamw", "optim.moments=bf16"],
         "adamw-cautious": ["optim.name=adamw", "optim.decay=cautious"], "muon-cautious": ["optim.name=muon", "optim.decay=cautious"]}


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
        runs, seeds = Runs(args.trainer, args.data, args.vocabulary, folder, args.runs), range(1, args.seeds + 1)
        result = lambda rule, lr, seed, steps: runs.result(lr, seed, steps, [*args.set, *RULES[rule]])
        rates = {rule: bracket(args.lr, lambda lr: result(rule, lr, 1, args.steps)[0]) for rule in ("adamw", "muon")}
        rates = {rule: rates[rule.split("-")[0]] for rule in RULES}
        whole = {rule: [] for rule in rates}
        for seed in seeds:
            for rule in rates:
                whole[rule].append(result(rule, rates[rule][0], seed, args.steps))
        turns = [{rule: result(rule, rates[rule][0], turn, 20)[1] for rule in rates} for turn in range(101, 110)]
        slower = {rule: statistics.median(turn[rule] / turn["adamw"] for turn in turns) for rule in rates}
        fewer = round(args.steps / slower["muon"])
        rows = {f"{rule}, {args.steps} steps": (rule, whole[rule]) for rule in whole}
        rows[f"muon, {fewer} steps: AdamW's time"] = "muon", [result("muon", rates["muon"][0], seed, fewer) for seed in seeds]
    for rule in ("adamw", "muon"):
        print(f"learning rates of {rule}: " + ", ".join(f"{lr:g} → {loss:.3f}" for lr, loss in rates[rule][1].items()))
    print("| run | lr | validation loss, mean (each seed) | step / AdamW's |\n|---|---|---|---|")
    for name, (rule, of) in rows.items():
        print(f"| {name} | {rates[rule][0]:g} | **{statistics.mean(loss for loss, _ in of):.3f}** "
              f"({', '.join(f'{loss:.3f}' for loss, _ in of)}) | {slower[rule]:.2f} |")


if __name__ == "__main__":
    main()
