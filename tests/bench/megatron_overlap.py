#!/usr/bin/env python3
"""Measures the effect of overlap and sequence parallelism on a step of Megatron-1D: ratios of step times and of exposed
communication.

Two, then four ranks with one thread each run over this machine's shared memory, and on emulated hosts with one rank
each and slow links (emulated_cluster.sh). The four variants of a row alternate for several rounds, so that drifts of
the machine's speed affect all of them. The model is three layers of GPT-2 124M on random tokens: at 400 Mbit/s its
activations take about as long on the link as its GEMMs on two cores. Prints a Markdown table.

    tests/bench/megatron_overlap.py --rate 400mbit --rounds 3
"""
import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from runs import (ROOT, Skipped, add_arguments, add_network_arguments, in_turns, launcher, ratio, toml, train,
                  write_tokens)

VOCABULARY = 4096
VARIANTS = [(sequence, overlap) for sequence in (True, False) for overlap in (True, False)]
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def measure(args, folder, start, ranks):
    """Measures each variant (sequence parallel, overlap): step times, median exposed communication, bytes per rank and
    step."""
    def run(variant):
        sequence, overlap = variant
        settings = ["run.threads=1", "model.n_layer=3", "model.seq_len=256", f"train.global_batch={args.batch}",
                    f"train.micro_batch={args.batch}", 'train.recompute="none"', f"parallel.tensor={ranks}",
                    f"parallel.sequence_parallel={toml(sequence)}", f"debug.overlap={toml(overlap)}"]
        return train(args, args.trainer, ROOT / "configs" / "gpt2-124m.toml", VOCABULARY, folder, start, settings)

    measured = in_turns(args.rounds, VARIANTS, run)
    for one in measured.values():
        one["exposed"] = statistics.median(event["phase_ms"]["comm_exposed"] for event in one["events"])
        one["bytes"] = sum(sum(operations.values()) for operations in one["events"][-1]["comm_bytes"].values()) / ranks
    return measured


def rows(measured, ranks, network, bits_per_second):
    lines = []
    for sequence in (True, False):
        on, off = measured[sequence, True], measured[sequence, False]
        link = f"{8e3 * on['bytes'] / bits_per_second / on['step']:.2f}" if bits_per_second else ""
        exposed = f"{on['exposed'] / on['step']:.2f} / {off['exposed'] / off['step']:.2f}"
        other = ratio(measured[False, True], on) if sequence else ""
        lines.append(f"| {ranks} | {network} | {'on' if sequence else 'off'} | {ratio(off, on)} | {exposed} "
                     f"| {off['exposed'] / max(on['exposed'], 1e-6):.2f} | {link} | {other} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "build" / "trainer"))
    parser.add_argument("--batch", type=int, default=2, help="sequences a step, all in one micro-batch")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    add_network_arguments(parser)
    add_arguments(parser, warmup=3, steps=5, rounds=3)
    args = parser.parse_args()
    bits_per_second = int(args.rate[:-4]) * UNITS[args.rate[-4:]]

    table = ["| ranks | over | sequence parallel | step, overlap off / on (rounds) | exposed share, on / off "
             "| exposed, off / on | link busy, on | step, sequence parallel off / on |", "|---|---|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="megatron-overlap-") as temporary:
        folder = Path(temporary)
        write_tokens(folder, VOCABULARY)
        for network in args.networks:
            for ranks in args.ranks:
                print(f"{ranks} ranks, {network}", file=sys.stderr)
                hosts = () if network == "shared" else (1, args.rate)
                try:
                    measured = measure(args, folder, launcher(ranks, *hosts), ranks)
                except Skipped as why:
                    print(why, file=sys.stderr)
                    break
                over = "shared memory" if network == "shared" else args.rate
                table += rows(measured, ranks, over, bits_per_second if network == "cluster" else None)
    print("\n".join(table))


if __name__ == "__main__":
    main()
