#!/usr/bin/env python3
"""Measures the gain of each overlap of AxoNN-4D, and compares its grids with Megatron-1D: ratios of step times, and
exposed communication time by axis.

Each rank has one thread. Ranks run over this machine's shared memory and on emulated hosts with slow links
(emulated_cluster.sh). The variants of a table alternate for several rounds, so that drifts of the machine's speed
affect all of them. The model has two layers of width 768 with 16 heads; tokens are random. Prints Markdown tables.

    tests/bench/axonn_overlap.py --rate 400mbit --rounds 3
"""
import argparse
import sys
import tempfile
from pathlib import Path

from runs import (ROOT, Skipped, add_arguments, add_network_arguments, in_turns, launcher, ratio, toml, train,
                  waits_by_axis, write_tokens)

VOCABULARY = 4096
OVERLAPS = {"none": (False, False, False), "all_reduce": (True, False, False), "reduce_scatter": (False, True, False),
            "all_gather": (False, False, True), "all": (True, True, True)}
GRIDS = {2: (1, 1, 2), 4: (2, 1, 2), 8: (2, 2, 2), 16: (2, 2, 4)}


def grids_of(ranks):
    return [(x, y, ranks // (x * y)) for x in (1, 2, 4, 8) for y in (1, 2, 4, 8) if x * y <= ranks and ranks % (x * y) == 0]


def axonn(grid, overlap="all"):
    switches = zip(("all_reduce", "reduce_scatter", "all_gather"), OVERLAPS[overlap])
    return ["parallel.strategy=axonn-4d", f"parallel.grid={list(grid)}",
            *(f"parallel.overlap.{name}={toml(on)}" for name, on in switches)]


def measure(args, folder, start, variants):
    """Measures each variant (name: settings): step times, and by axis the median waiting time and the bytes sent per
    step."""
    def run(name):
        settings = ["run.threads=1", "model.n_layer=2", "model.n_head=16", "model.seq_len=128",
                    f"train.global_batch={args.batch}", f"train.micro_batch={args.batch}", 'train.recompute="none"']
        return train(args, args.trainer, ROOT / "configs" / "gpt2-124m.toml", VOCABULARY, folder, start,
                     [*settings, *variants[name]])

    measured = in_turns(args.rounds, variants, run)
    for one in measured.values():
        one["waits"] = waits_by_axis(one["events"])
        one["bytes"] = {axis: sum(operations.values())
                        for axis, operations in one["events"][-1]["comm_bytes"].items()}
    return measured


def waiting(measured):
    shares = {axis: wait / measured["step"] for axis, wait in measured["waits"].items()}
    return ", ".join(f"{axis} {share:.2f}" for axis, share in sorted(shares.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "build" / "trainer"))
    parser.add_argument("--batch", type=int, default=8, help="sequences a step, all in one micro-batch")
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 8, 16], choices=sorted(GRIDS))
    parser.add_argument("--grids", type=int, default=8, help="ranks of the table of grids; 0: none")
    add_network_arguments(parser)
    parser.add_argument("--per-host", type=int, default=2, help="ranks on an emulated host")
    add_arguments(parser, warmup=2, steps=5, rounds=3)
    args = parser.parse_args()

    overlaps = ["| ranks | grid | over | overlap | step, none / this (rounds) | waiting, share of the step |",
                "|---|---|---|---|---|---|"]
    grids = ["| layout | over | step, this / Megatron-1D (rounds) | waiting, share of the step | MB sent a step, by axis |",
             "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="axonn-overlap-") as temporary:
        folder = Path(temporary)
        write_tokens(folder, VOCABULARY)
        for network in args.networks:
            over = "shared memory" if network == "shared" else f"hosts of {args.per_host}, {args.rate}"
            hosts = () if network == "shared" else (args.per_host, args.rate)
            try:
                for ranks in args.ranks:
                    grid = GRIDS[ranks]
                    print(f"{ranks} ranks, {network}", file=sys.stderr)
                    measured = measure(args, folder, launcher(ranks, *hosts), {name: axonn(grid, name) for name in OVERLAPS})
                    for name, one in measured.items():
                        gain = "" if name == "none" else ratio(measured["none"], one)
                        overlaps.append(f"| {ranks} | {list(grid)} | {over} | {name} | {gain} | {waiting(one)} |")
                if args.grids:
                    print(f"grids of {args.grids}, {network}", file=sys.stderr)
                    variants = {"megatron-1d": ["parallel.strategy=megatron-1d", f"parallel.tensor={args.grids}"]}
                    variants |= {str(list(grid)): axonn(grid) for grid in grids_of(args.grids)}
                    measured = measure(args, folder, launcher(args.grids, *hosts), variants)
                    for name, one in measured.items():
                        sent = ", ".join(f"{axis} {count / 1e6:.1f}" for axis, count in sorted(one["bytes"].items()))
                        beside = "" if name == "megatron-1d" else ratio(one, measured["megatron-1d"])
                        grids.append(f"| {name} | {over} | {beside} | {waiting(one)} | {sent} |")
            except Skipped as why:
                print(why, file=sys.stderr)
    print("\n".join(overlaps))
    if args.grids:
        print("\n" + "\n".join(grids))


if __name__ == "__main__":
    main()
