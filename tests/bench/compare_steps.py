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

With --rate: three layers of GPT-2 124M with 16 heads on 2, 4 and 8 ranks with one thread each, on emulated hosts with
links of this rate (emulated_cluster.sh).
"""
import argparse
import sys
import tempfile
from pathlib import Path

from runs import ROOT, Skipped, add_arguments, in_turns, launcher, ratio, train, write_tokens

VOCABULARY = 2048
WIDER = ["model.n_layer=6", "model.d_model=384", "model.n_head=6", "train.global_batch=12", "train.micro_batch=12"]
SHORT = ["model.seq_len=256", "train.global_batch=2", "train.micro_batch=2"]
TWO = launcher(2)
CASES = {"quickstart": ([], "quickstart", VOCABULARY, []),
         "quickstart, tensor = 2": (TWO, "quickstart", VOCABULARY, ["parallel.tensor=2"]),
         "6×384, 12×256": ([], "quickstart", VOCABULARY, WIDER),
         "6×384, 12×256, tensor = 2": (TWO, "quickstart", VOCABULARY, [*WIDER, "parallel.tensor=2"]),
         "124M, 2×256": ([], "gpt2-124m", 50257, SHORT)}
THREE_LAYERS = ["run.threads=1", "model.n_layer=3", "model.n_head=16", "model.seq_len=256", "train.global_batch=4",
                "train.micro_batch=4", 'train.recompute="none"']
# Hosts, ranks on each, layout.
ON_HOSTS = {"Megatron-1D, 2 hosts": (2, 1, ["parallel.tensor=2"]), "Megatron-1D, 4 hosts": (4, 1, ["parallel.tensor=4"]),
            "Megatron-1D, 4 hosts of 2 ranks": (4, 2, ["parallel.tensor=8"]),
            "AxoNN-4D 2×2×2, 4 hosts of 2 ranks": (4, 2, ["parallel.strategy=axonn-4d", "parallel.grid=[2, 2, 2]"])}
# The window hides only one key of the last row: it costs the masking and saves no work.
FEATURES = {"QK-norm of each head": ["model.qk_norm=head"], "QK-norm of all heads": ["model.qk_norm=full"],
            "norms after attention and MLP": ["model.norm_place=post"], "biases of q, k, v": ["model.attn_bias=qkv"],
            "window of 255": ["model.window=255"]}


def on_hosts(name, rate):
    hosts, ranks, layout = ON_HOSTS[name]
    return launcher(hosts * ranks, ranks, rate), "gpt2-124m", VOCABULARY, [*THREE_LAYERS, *layout]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    add_arguments(parser, warmup=3, steps=9, rounds=7)
    parser.add_argument("--only", choices=[*CASES, *FEATURES, *ON_HOSTS], action="append", help="run only this case; may be repeated")
    parser.add_argument("--features", action="store_true", help="compare each feature's cost, without and with it")
    parser.add_argument("--rate", help="compare on emulated hosts: a number and kbit, mbit or gbit")
    args = parser.parse_args()
    print("| model | before, ms | after, ms | after / before (rounds) | of the fastest steps |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="compare-steps-") as temporary:
        folder = Path(temporary)
        write_tokens(folder, VOCABULARY)
        for name in args.only or (FEATURES if args.features else ON_HOSTS if args.rate else CASES):
            start, config, vocabulary, settings = (
                on_hosts(name, args.rate) if args.rate else
                CASES.get(name) or ([], "llama-style", VOCABULARY, FEATURES[name]))
            try:
                measured = in_turns(args.rounds, ["before", "after"], lambda side: train(
                    args, getattr(args, side), ROOT / "configs" / f"{config}.toml", vocabulary, folder, start,
                    [] if args.features and side == "before" else settings))
            except Skipped as why:
                sys.exit(str(why))
            before, after = measured["before"], measured["after"]
            fastest = [min(event["step_ms"] for event in side["events"]) for side in (before, after)]
            print(f"| {name} | {before['step']:.1f} | {after['step']:.1f} | {ratio(after, before, 3)} | "
                  f"{fastest[1] / fastest[0]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
