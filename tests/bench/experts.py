#!/usr/bin/env python3
"""Measures mixtures of experts on CPUs: ratios of step times of two runs in alternating turns.

A Mixtral with 8 experts, 2 of which compute a token, over a Llama with an MLP as wide as two experts, which has the same
active FLOPs; and on two ranks, divided experts over gathered ones. Tokens are random. Prints a Markdown table; ratios are
taken within rounds, since a machine's speed drifts.

    tests/bench/experts.py --trainer build/trainer
    tests/bench/experts.py --trainer build/trainer --compute bf16 --only wide
"""
import argparse
import tempfile
from pathlib import Path

from runs import ROOT, add_arguments, in_turns, launcher, ratio, train, write_tokens

VOCABULARY = 2048
SIZES = ["model.n_layer=6", "model.n_head=8", "model.n_kv_head=2", "model.d_model=256", "train.micro_batch=8"]
WIDE = ["model.n_layer=4", "model.d_model=512", "model.seq_len=512"]
DENSE = ["model.arch=llama"]
FSDP = ["parallel.strategy=fsdp", "parallel.shards=2", "run.threads=1"]
BALANCED = ["debug.balanced_routing=true"]


def experts(width):
    return [*SIZES, "model.arch=mixtral", "model.n_expert=8", "model.experts_per_token=2", f"model.d_expert={width}"]


# By name: the runs that are compared, the first divided by the second, with their ranks and settings; the largest ratio.
# On random tokens a router sends one of two ranks up to 10 % more rows than the other, which waits for it; "uneven" has
# no bound, as this is not the layout's cost.
CASES = {
    "narrow": (("6 layers of 256, 2 of 8 experts of 352", 1, experts(352)),
               ("dense, MLP of 704", 1, [*SIZES, *DENSE, "model.d_ff=704"]), 1.35),
    "wide": (("4 layers of 512, 2 of 8 experts of 704", 1, [*experts(704), *WIDE]),
             ("dense, MLP of 1408", 1, [*SIZES, *DENSE, *WIDE, "model.d_ff=1408"]), 1.35),
    "ranks": (("2 ranks, 4 experts on each", 2, [*experts(704), *FSDP, *BALANCED, "parallel.experts=2"]),
              ("2 ranks, experts gathered", 2, [*experts(704), *FSDP, *BALANCED]), 1.0),
    "uneven": (("2 ranks, 4 experts on each, uneven loads", 2, [*experts(704), *FSDP, "parallel.experts=2"]),
               ("2 ranks, experts gathered, uneven loads", 2, [*experts(704), *FSDP]), ""),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", type=Path, default=ROOT / "build/trainer")
    parser.add_argument("--only", choices=CASES, action="append")
    add_arguments(parser, warmup=2, steps=5, rounds=5)
    args = parser.parse_args()
    print(f"| {args.compute} | ms | divided by | ms | ratio (rounds) | at most |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="experts-") as temporary:
        folder = Path(temporary)
        write_tokens(folder, VOCABULARY)
        for name in args.only or CASES:
            *runs, most = CASES[name]
            settings = {label: (ranks, sets) for label, ranks, sets in runs}

            def measure(label):
                ranks, sets = settings[label]
                return train(args, args.trainer.resolve(), ROOT / "configs/quickstart.toml", VOCABULARY, folder,
                             launcher(ranks) if ranks > 1 else [], sets)

            found = in_turns(args.rounds, settings, measure)
            above, below = (found[label] for label in settings)
            (first, _, _), (second, _, _) = runs
            print(f"| {first} | {above['step']:.1f} | {second} | {below['step']:.1f} | {ratio(above, below)} | {most} |", flush=True)


if __name__ == "__main__":
    main()
