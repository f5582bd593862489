#!/usr/bin/env python3
"""Measures pipeline stages on CPUs: ratios of step times of two layouts in alternating runs, and the share of a step in
which ranks wait for other stages (bubble), measured and predicted.

A GPT-2 of 8 layers of width 384 with 256 tokens per sequence, and GPT-2 124M with an untied head on two emulated hosts
(emulated_cluster.sh). Tokens are random. Each stage is a process with one thread, so a machine with two idle cores is
needed. Prints a Markdown table; ratios are taken within rounds, since a machine's speed drifts.

    tests/bench/pipeline.py --trainer build/trainer
    tests/bench/pipeline.py --trainer build/trainer --only chunks --rounds 1 --steps 2      # whether it runs
"""
import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from runs import ROOT, Skipped, add_arguments, events_of_run, in_turns, launcher, ratio, rate, write_tokens

VOCABULARY = 1024
MODEL = ["model.n_layer=8", "model.d_model=384", "model.n_head=6", "model.seq_len=256", "model.tie_embeddings=false",
         "train.micro_batch=2"]
STAGES = ["parallel.stages=2", "run.threads=1"]
ZB_H1 = 'parallel.pipeline_schedule="zb-h1"'
HOSTS = ["run.threads=1", "model.seq_len=512", "model.tie_embeddings=false", "train.global_batch=4",
         'train.recompute="none"']


def micro_batches(m):
    return f"train.global_batch={2 * m}"


# By name: the variants that are compared, the first divided by the second, with their ranks and settings; the largest ratio.
CASES = {
    "threads": (("2 stages x 1 thread, m 16", 2, [*MODEL, *STAGES, micro_batches(16)]),
                ("1 rank x 2 threads", 1, [*MODEL, "run.threads=2", micro_batches(16)]), 1.12),
    "zb-h1": (("zb-h1, m 8", 2, [*MODEL, *STAGES, micro_batches(8), ZB_H1]),
              ("1f1b, m 8", 2, [*MODEL, *STAGES, micro_batches(8)]), 0.97),
    "chunks": (("2 chunks, m 4", 2, [*MODEL, *STAGES, micro_batches(4), "parallel.chunks=2"]),
               ("1 chunk, m 4", 2, [*MODEL, *STAGES, micro_batches(4)]), 0.95),
    "hosts": (("2 hosts, stages 2", 2, [*HOSTS, "parallel.stages=2", "train.micro_batch=1"]),
              ("2 hosts, data 2", 2, [*HOSTS, "parallel.data=2", "train.micro_batch=2"]), 0.5),
}


def bubble_of(events, warmup):
    """Returns a run's measured and predicted bubble; each is None if the run does not tell it."""
    start = next(event for event in events if event["event"] == "start")
    measured = [event["bubble"] for event in events if event["event"] == "step" and event.get("bubble") is not None]
    return statistics.median(measured[warmup:]) if measured[warmup:] else None, (start.get("predicted") or {}).get("bubble")


def percent(share):
    return "-" if share is None else f"{100 * share:.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", type=Path, default=ROOT / "build/trainer")
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--rate", type=rate, default="100mbit", help="of an emulated host")
    parser.add_argument("--steps-on-hosts", type=int, default=2, help="steps counted there, after one that is not")
    add_arguments(parser, warmup=3, steps=10, rounds=5)
    args = parser.parse_args()
    print(f"| {args.compute} | ms | divided by | ms | ratio (rounds) | at most | bubble | predicted |\n"
          "|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="pipeline-") as temporary:
        folder = Path(temporary)
        for name in args.only or CASES:
            above, below, most = CASES[name]
            on_hosts, bubbles = name == "hosts", {above[0]: [], below[0]: []}
            config, vocabulary = ("gpt2-124m", 50257) if on_hosts else ("quickstart", VOCABULARY)
            own = argparse.Namespace(**{**vars(args), "warmup": 1, "steps": args.steps_on_hosts}) if on_hosts else args
            write_tokens(folder, vocabulary)

            def measure(variant):
                _, ranks, settings = above if variant == above[0] else below
                start = [] if ranks == 1 else launcher(ranks, *((1, args.rate) if on_hosts else ()))
                events = events_of_run(own, args.trainer.resolve(), ROOT / "configs" / f"{config}.toml", vocabulary, folder,
                                       start, settings)
                bubbles[variant].append(bubble_of(events, own.warmup))
                return [event for event in events if event["event"] == "step"][own.warmup:]

            try:
                found = in_turns(args.rounds, bubbles, measure)
            except Skipped as why:
                print(f"{name}: {why}", file=sys.stderr)
                continue
            measured, predicted = ([value for value in values if value is not None] for values in zip(*bubbles[above[0]]))
            print(f"| {above[0]} | {found[above[0]]['step']:.1f} | {below[0]} | {found[below[0]]['step']:.1f} | "
                  f"{ratio(found[above[0]], found[below[0]], 3)} | {most} | "
                  f"{percent(statistics.median(measured) if measured else None)} | "
                  f"{percent(predicted[0] if predicted else None)} |", flush=True)


if __name__ == "__main__":
    main()
