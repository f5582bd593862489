#!/usr/bin/env python3
"""Compares step times of two builds of the trainer in alternating runs, to measure the cost of a code change.

The quick start's model, a GPT-2 of 6 layers of width 384 and GPT-2 124M run on one rank with all cores; the first two
also run on two ranks with parallel.tensor = 2. Tokens are random. Each pair of runs is a round; ratios (after / before)
are taken within rounds, because a machine's speed drifts. Prints a Markdown table: median, smallest and largest ratio
of the rounds' median steps, and the ratio of the fastest steps of all rounds, which other users of the machine disturb
least.

    TRAINER_ISA=avx2 tests/bench/compare_steps.py BEFORE/trainer AFTER/trainer --compute fp32 --rounds 7

With --features: the Llama of configs/llama-style.toml (batches of 8×256), first without, then with each feature of
other model families. BEFORE and AFTER are then usually the same build.
"""
import argparse
import tempfile
from pathlib import Path

from runs import MPIRUN, ROOT, add_arguments, in_turns, ratio, train, write_tokens

VOCABULARY = 2048
WIDER = ["model.n_layer=6", "model.d_model=384", "model.n_head=6", "train.global_batch=12", "train.micro_batch=12"]
SHORT = ["model.seq_len=256", "train.global_batch=2", "train.micro_batch=2"]
TWO = [*MPIRUN, "-np", "2"]
CASES = {"quickstart": ([], "quickstart", VOCABULARY, []),
         "quickstart, tensor = 2": (TWO, "quickstart", VOCABULARY, ["parallel.tensor=2"]),
         "6×384, 12×256": ([], "quickstart", VOCABULARY, WIDER),
         "6×384, 12×256, tensor = 2": (TWO, "quickstart", VOCABULARY, [*WIDER, "parallel.tensor=2"]),
         "124M, 2×256": ([], "gpt2-124m", 50257, SHORT)}
# The window hides only one key of the last row: it costs the masking and saves no work.
FEATURES = {"QK-norm of each head": ["model.qk_norm=head"], "QK-norm of all heads": ["model.qk_norm=full"],
            "norms after attention and MLP": ["model.norm_place=post"], "biases of q, k, v": ["model.attn_bias=qkv"],
            "window of 255": ["model.window=255"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    add_arguments(parser, warmup=3, steps=9, rounds=7)
    parser.add_argument("--only", choices=[*CASES, *FEATURES], action="append", help="run only this case; may be repeated")
    parser.add_argument("--features", action="store_true", help="compare each feature's cost, without and with it")
    args = parser.parse_args()
    print("| model | before, ms | after, ms | after / before (rounds) | of the fastest steps |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="compare-steps-") as temporary:
        folder = Path(temporary)
        write_tokens(folder, VOCABULARY)
        for name in args.only or (FEATURES if args.features else CASES):
            launcher, config, vocabulary, settings = CASES.get(name) or ([], "llama-style", VOCABULARY, FEATURES[name])
            measured = in_turns(args.rounds, ["before", "after"], lambda side: train(
                args, getattr(args, side), ROOT / "configs" / f"{config}.toml", vocabulary, folder, launcher,
                [] if args.features and side == "before" else settings))
            before, after = measured["before"], measured["after"]
            fastest = [min(event["step_ms"] for event in side["events"]) for side in (before, after)]
            print(f"| {name} | {before['step']:.1f} | {after['step']:.1f} | {ratio(after, before, 3)} | "
                  f"{fastest[1] / fastest[0]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
