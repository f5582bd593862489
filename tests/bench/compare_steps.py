#!/usr/bin/env python3
"""Step times of two builds of the trainer, in turns: what a change of the code cost.

The quick start's model and GPT-2 of 6 layers of 384 on one rank with all cores, and the quick start's on two ranks of
parallel.tensor = 2, on random tokens. Each pair of runs is a round; the ratio is taken round by round, because a machine's
speed drifts. Prints a Markdown table: median, smallest and largest ratio of the rounds' median steps, after / before.

    TRAINER_ISA=avx2 tests/bench/compare_steps.py BEFORE/trainer AFTER/trainer --compute fp32 --rounds 7
"""
import argparse
import statistics
import tempfile
from pathlib import Path

from runs import MPIRUN, ROOT, add_arguments, in_turns, train, write_tokens

VOCABULARY = 2048
WIDER = ["model.n_layer=6", "model.d_model=384", "model.n_head=6", "train.global_batch=12", "train.micro_batch=12"]
CASES = {"quickstart": ([], []), "6×384, 12×256": ([], WIDER),
         "quickstart, tensor = 2": ([*MPIRUN, "-np", "2"], ["parallel.tensor=2"])}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    add_arguments(parser, warmup=3, steps=9, rounds=7)
    parser.add_argument("--only", choices=CASES, action="append", help="this case alone; may be repeated")
    args = parser.parse_args()
    print("| model | before, ms | after, ms | after / before (rounds) |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="compare-steps-") as temporary:
        folder = Path(temporary)
        write_tokens(folder, VOCABULARY)
        for name in args.only or CASES:
            launcher, settings = CASES[name]
            measured = in_turns(args.rounds, ["before", "after"], lambda side: train(
                args, getattr(args, side), ROOT / "configs" / "quickstart.toml", VOCABULARY, folder, launcher, settings))
            before, after = measured["before"]["rounds"], measured["after"]["rounds"]
            ratios = [late / early for early, late in zip(before, after)]
            print(f"| {name} | {statistics.median(before):.1f} | {statistics.median(after):.1f} | "
                  f"**{statistics.median(ratios):.3f}** ({min(ratios):.3f}–{max(ratios):.3f}) |", flush=True)


if __name__ == "__main__":
    main()
