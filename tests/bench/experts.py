#!/usr/bin/env python3
"""Measures mixtures of experts on CPUs: ratios of times of two runs in alternating turns.

A Mixtral with 8 experts, 2 of which compute a token, over a Llama with an MLP as wide as two experts, which has the same
active FLOPs: steps, and decoding one text; on two ranks, divided experts over gathered ones. Then grouped GEMMs over one
GEMM, and the share of a layer with experts that is not in GEMMs (`trainer bench experts`). Tokens are random. Prints a Markdown
table; ratios are taken within rounds, since a machine's speed drifts.

    tests/bench/experts.py --trainer build/trainer
    tests/bench/experts.py --trainer build/trainer --compute bf16 --only wide decoding
"""
import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path

from generation import differences, generate
from runs import ROOT, add_arguments, in_turns, launcher, ratio, run, train, write_tokens

VOCABULARY, TOKENS = 2048, 128
CONFIG = ROOT / "configs/quickstart.toml"
SIZES = ["model.n_layer=6", "model.n_head=8", "model.n_kv_head=2", "model.d_model=256", "train.micro_batch=8"]
WIDE = ["model.n_layer=4", "model.d_model=512", "model.seq_len=512"]
DENSE = ["model.arch=llama"]
FSDP = ["parallel.strategy=fsdp", "parallel.shards=2", "run.threads=1"]
BALANCED = ["debug.balanced_routing=true"]


def experts(width):
    return [*SIZES, "model.arch=mixtral", "model.n_expert=8", "model.experts_per_token=2", f"model.d_expert={width}"]


WIDE_EXPERTS, WIDE_DENSE = [*experts(704), *WIDE], [*SIZES, *DENSE, *WIDE, "model.d_ff=1408"]
# By name: the runs that are compared, the first divided by the second, with their ranks and settings; the largest ratio.
# On random tokens a router sends one of two ranks up to 10 % more rows than the other, which waits for it; "uneven" has
# no bound, as this is not the layout's cost.
CASES = {
    "narrow": (("6 layers of 256, 2 of 8 experts of 352", 1, experts(352)),
               ("dense, MLP of 704", 1, [*SIZES, *DENSE, "model.d_ff=704"]), 1.35),
    "wide": (("4 layers of 512, 2 of 8 experts of 704", 1, WIDE_EXPERTS), ("dense, MLP of 1408", 1, WIDE_DENSE), 1.35),
    "ranks": (("2 ranks, 4 experts on each", 2, [*experts(704), *FSDP, *BALANCED, "parallel.experts=2"]),
              ("2 ranks, experts gathered", 2, [*experts(704), *FSDP, *BALANCED]), 1.0),
    "uneven": (("2 ranks, 4 experts on each, uneven loads", 2, [*experts(704), *FSDP, "parallel.experts=2"]),
               ("2 ranks, experts gathered, uneven loads", 2, [*experts(704), *FSDP]), ""),
    "decoding": (("a token, 4 layers of 512, 2 of 8 experts of 704", 1, WIDE_EXPERTS), ("dense, MLP of 1408", 1, WIDE_DENSE), 1.25),
}
PARTS = [*CASES, "operators"]


def make_checkpoint(args, folder, settings):
    """Trains for a step, on text: decoding requires a tokenizer."""
    run([args.trainer, "train", "--config", CONFIG, "--resume", "never", "--max-steps", "1", "--set", f"run.dir={folder}",
         f"checkpoint.dir={folder}/checkpoints", f"data.train={ROOT}/data/austen.txt", "train.eval_interval=0",
         "train.sample_interval=0", "log.report=false", *settings])


def compare(args, folder, name):
    *runs, most = CASES[name]
    settings = {label: (ranks, sets) for label, ranks, sets in runs}
    folders = {label: folder / f"{name}-{number}" for number, label in enumerate(settings)}
    if name == "decoding":
        for label, where in folders.items():
            make_checkpoint(args, where, settings[label][1])

    def measure(label):
        if name == "decoding":
            marks = generate(args, folders[label] / "checkpoints", args.compute, "--prompt", "She had", "--tokens", TOKENS)
            return [{"step_ms": 1e3 * seconds} for seconds in differences(marks)[1:-1]]
        ranks, sets = settings[label]
        return train(args, args.trainer, CONFIG, VOCABULARY, folder, launcher(ranks) if ranks > 1 else [], sets)

    found = in_turns(args.rounds, settings, measure)
    (first, above), (second, below) = found.items()
    print(f"| {first} | {above['step']:.2f} | {second} | {below['step']:.2f} | {ratio(above, below)} | {most and f'≤ {most}'} |", flush=True)


def operators(args):
    rounds = [json.loads(run([args.trainer, "bench", "experts", "--compute", args.compute, "--threads", str(args.threads), "--json",
                              "--set", "run.device=cpu"])) for _ in range(args.rounds)]

    def middle(values):
        return f"**{statistics.median(values):.2f}** ({min(values):.2f}–{max(values):.2f})"

    for number, shape in enumerate(rounds[0]["grouped"]):
        each = shape["m"] // shape["groups"]
        for gemm in ("forward", "dx", "dw"):
            print(f"| rate of grouped GEMMs, {shape['groups']} × {each} rows, {shape['k']} → {shape['n']}, {gemm} | | one GEMM | | "
                  f"{middle([found['grouped'][number][gemm] for found in rounds])} | ≥ {0.85 if each >= 256 else 0.6} |")
    layer = statistics.median(found["layer_ms"] for found in rounds)
    outside = statistics.median(found["layer_ms"] - found["gemm_ms"] for found in rounds)
    print(f"| a layer outside its GEMMs, {rounds[0]['rows']} rows | {outside:.2f} | the layer | {layer:.2f} | "
          f"{middle([found['outside_gemms'] for found in rounds])} | ≤ 0.15 |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", type=Path, default=ROOT / "build/trainer")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of decoding and operators")
    add_arguments(parser, warmup=2, steps=5, rounds=5)
    args = parser.parse_args()
    args.trainer = args.trainer.resolve()
    print(f"| {args.compute} | ms | divided by | ms | ratio (rounds) | target |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="experts-") as temporary:
        folder = Path(temporary)
        write_tokens(folder, VOCABULARY)
        for name in CASES:
            if name in args.only:
                compare(args, folder, name)
    if "operators" in args.only:
        operators(args)


if __name__ == "__main__":
    main()
