#!/usr/bin/env python3
"""Measures long sequences shared by two ranks on CPUs: ratios of step times of two layouts in alternating runs, and the time
for which a ring of keys and values is waited for, over its bytes on the link.

A Llama of width 384 with 6 heads on 2 of keys and values and 8192 tokens, with 2 layers to be quick; --set model.n_layer=6 is
slower and closer to a model. Ranks are threads of one process with one thread each, so a machine with two idle cores is
needed; on two emulated hosts (emulated_cluster.sh) they are processes. There the model is narrow, with as many heads of
keys as of queries: attention to a block takes several times as long as its hop, so only hops without attention to hide behind
should be exposed. Waits are those of rank 0, and include those for a slower rank 1: idle cores matter more there. Tokens are
random. Prints a Markdown table; ratios are taken within rounds, since a machine's speed drifts.

    tests/bench/context.py --trainer build/trainer
    tests/bench/context.py --trainer build/trainer --only ring --rounds 1 --steps 1 --set model.seq_len=512   # whether it runs
"""
import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from runs import ROOT, Skipped, add_arguments, in_turns, launcher, rate, ratio, train, write_tokens

VOCABULARY = 1024
CONFIG = ROOT / "configs/quickstart.toml"
SEQUENCE = ["model.arch=llama", "model.seq_len=8192", "train.global_batch=1", "train.micro_batch=1", "parallel.strategy=fsdp",
            "run.threads=1"]
MODEL = [*SEQUENCE, "model.n_layer=2", "model.d_model=384", "model.n_head=6", "model.n_kv_head=2"]
SHARED = ["parallel.shards=2", "parallel.context=2"]
TOKENS = [*SHARED, "parallel.context_heads=1"]
GATHER, RING = [*TOKENS, "parallel.context_kv=gather"], [*TOKENS, "parallel.context_kv=ring"]
THREADS = [*MODEL, "parallel.transport=threads"]
HEADS = ("heads", [*THREADS, *SHARED, "parallel.context_heads=2"])

# By name: the variants that are compared, the first divided by the second, with their settings; the largest ratio.
CASES = {
    "gather": (("gathered keys", [*THREADS, *GATHER]), HEADS, 1.03),
    "ring": (("ring", [*THREADS, *RING]), HEADS, 1.06),
    "one-rank": (("2 ranks, gathered keys", [*THREADS, *GATHER]), ("1 rank", MODEL), 0.56),
}
HOSTS = [*SEQUENCE, *RING, "model.n_layer=2", "model.d_model=128", "model.n_head=2", "model.n_kv_head=2"]
HOSTS_TARGET = 0.15


def bits_per_second(text):
    unit = text.lstrip("0123456789")
    return int(text.removesuffix(unit)) * {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}[unit]


def of_ring(event, key):
    """Returns the sum over axes of a step's hops: their bytes, or rank 0's waits in ms."""
    return sum(operations.get("shift", 0) for operations in event[key].values())


def compare(args, folder, name):
    *runs, most = CASES[name]
    settings = dict(runs)
    found = in_turns(args.rounds, settings,
                     lambda label: train(args, args.trainer, CONFIG, VOCABULARY, folder, [], settings[label]))
    (first, above), (second, below) = found.items()
    print(f"| {first} | {above['step']:.0f} | {second} | {below['step']:.0f} | {ratio(above, below, 3)} | ≤ {most} |", flush=True)


def hosts(args, folder):
    """Each host sends half of the bytes that all ranks send, at the same time as the other one."""
    rounds = []
    for number in range(args.rounds):
        rounds.append(train(args, args.trainer, CONFIG, VOCABULARY, folder, launcher(2, 1, args.rate), HOSTS))
        print(f"  round {number + 1}, hosts: {statistics.median(event['step_ms'] for event in rounds[-1]):.1f} ms", file=sys.stderr)
    steps = [event for events in rounds for event in events]
    sent = of_ring(steps[0], "comm_bytes") / 2
    link = sent * 8 / bits_per_second(args.rate) * 1e3
    exposed = [statistics.median(of_ring(event, "comm_wait_ms") for event in events) for events in rounds]
    step = statistics.median(event["step_ms"] for event in steps)
    print(f"| 2 hosts, ring, exposed in a step of {step:.0f} ms | {statistics.median(exposed):.1f} | {sent / 1e6:.1f} MB at "
          f"{args.rate}/s | {link:.1f} | {ratio({'rounds': exposed}, {'rounds': [link] * args.rounds}, 3)} | ≤ {HOSTS_TARGET} |",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", type=Path, default=ROOT / "build/trainer")
    parser.add_argument("--only", choices=[*CASES, "hosts"], nargs="+", default=[*CASES, "hosts"])
    parser.add_argument("--rate", type=rate, default="1gbit", help="of an emulated host")
    add_arguments(parser, warmup=1, steps=2, rounds=3)
    args = parser.parse_args()
    args.trainer = args.trainer.resolve()
    print(f"| {args.compute} | ms | divided by | ms | ratio (rounds) | target |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="context-") as temporary:
        folder = Path(temporary)
        write_tokens(folder, VOCABULARY)
        for name in args.only:
            try:
                hosts(args, folder) if name == "hosts" else compare(args, folder, name)
            except Skipped as why:
                print(f"{name}: {why}", file=sys.stderr)


if __name__ == "__main__":
    main()
