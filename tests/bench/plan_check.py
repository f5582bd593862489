#!/usr/bin/env python3
"""Compares predicted and measured step times of ranks on emulated hosts with slow links (emulated_cluster.sh), or on
this machine only.

Measures a profile of the ranks, plans with it, and alternates runs of the fastest layouts, the best of every strategy
and some others. Prints a Markdown table, the median error and Kendall's tau. The layout that the planner chose, the
fastest one that was measured, and the fastest sharding spec and named layout then run again, alternating, to rule out
luck. These runs yield the regret (how much slower the chosen layout is than the fastest) and the ratio of sharding spec
to named layout.

    tests/bench/plan_check.py --hosts 4 --ranks 1 --rate 100mbit
"""
import argparse
import itertools
import json
import random
import statistics
import sys
import tempfile
from pathlib import Path

from runs import ROOT, SKIPPED, Skipped, add_arguments, in_turns, launcher, rate, run, train, write_tokens

# Most parameters of "table" are in the embedding, as in small models with the tokenizer of a large one.
VOCABULARY = {"narrow": 4096, "wide": 4096, "long": 4096, "table": 32000}
MODELS = {"narrow": ["model.n_layer=4", "model.d_model=256", "model.n_head=8", "model.seq_len=256"],
          "wide": ["model.n_layer=2", "model.d_model=768", "model.n_head=16", "model.seq_len=128"],
          "long": ["model.n_layer=2", "model.d_model=256", "model.n_head=16", "model.seq_len=1024"],
          "table": ["model.n_layer=4", "model.d_model=256", "model.n_head=4", "model.seq_len=256"]}


def launcher_of(args):
    return launcher(args.hosts * args.ranks, *((args.ranks, args.rate) if args.hosts > 1 else ()))


def settings_of(planned):
    """Returns the settings of a planned run, as in the file that the planner would write."""
    keys = {"data": planned["data"], "zero_stage": planned["zero_stage"]}
    return [f"train.micro_batch={planned['micro_batch']}", f'train.recompute="{planned["recompute"]}"',
            *(f"parallel.{key}={value}" for key, value in {**planned["keys"], **keys}.items())]


def chosen(runs, others):
    """Returns the three fastest runs, the best of every strategy, and a sample of all runs."""
    picked = runs[:3]
    for strategy in sorted({run["strategy"] for run in runs}):
        picked.append(next(run for run in runs if run["strategy"] == strategy))
    random.seed(7)
    picked += random.sample(runs, min(others, len(runs)))
    unique = {}
    for one in picked:
        unique.setdefault(f"{one['strategy']}: {one['layout']}, batch {one['micro_batch']}", one)
    return unique


def tau(pairs):
    agree = [((a[0] - b[0]) * (a[1] - b[1]) > 0) - ((a[0] - b[0]) * (a[1] - b[1]) < 0)
             for a, b in itertools.combinations(pairs, 2)]
    return sum(agree) / len(agree) if agree else 1


def check(args, folder, model):
    common = ["run.threads=1", f"precision.compute={args.compute}", f"train.global_batch={args.batch}",
              "model.vocab_multiple=256", *MODELS[model]]
    sets = [word for each in [*common, f"data.vocab_size={VOCABULARY[model]}", 'data.tokenizer=""'] for word in ("--set", each)]
    config = ROOT / "configs" / "gpt2-124m.toml"
    profile = folder / "profile.toml"
    if not profile.exists():
        run([*launcher_of(args), args.trainer, "bench", "all", "--write-profile", profile, "--compute", args.compute,
             "--repeats", "3", "--set", "run.threads=1"])
    plan = json.loads(run([args.trainer, "plan", "--config", config, "--profile", profile, "--devices",
                           str(args.hosts * args.ranks), "--free", "all", "--json", "--top", "1000", *sets]))
    unique = chosen(plan["runs"], args.others)

    def measure(name):
        return train(args, args.trainer, config, VOCABULARY[model], folder, launcher_of(args), [*common, *settings_of(unique[name])])

    measured = in_turns(args.rounds, unique, measure)
    pairs = {name: (unique[name]["step_seconds"] * 1e3, measured[name]["step"]) for name in unique}
    print(f"\n### {model}: {args.hosts} x {args.ranks} ranks, {args.rate} between hosts\n")
    print("| layout | predicted ms | measured ms | ratio |\n|---|---|---|---|")
    for name, (predicted, real) in sorted(pairs.items(), key=lambda item: item[1][0]):
        print(f"| {name} | {predicted:.0f} | {real:.0f} | {real / predicted:.2f} |")
    errors = [abs(predicted / real - 1) for predicted, real in pairs.values()]
    first = min(pairs, key=lambda name: pairs[name])

    def fastest(names):
        return min(names, key=lambda name: pairs[name][1], default=None)

    best, tags = fastest(pairs), fastest([name for name in pairs if name.startswith("autoddl")])
    named = fastest([name for name in pairs if not name.startswith("autoddl")])
    again = in_turns(args.final_rounds, list(dict.fromkeys(filter(None, [first, best, tags, named]))), measure)
    times = ", ".join(f"{name}: {run['step']:.0f} ms" for name, run in again.items())
    print(f"\nmedian error {statistics.median(errors):.1%}, tau {tau(list(pairs.values())):.2f}; again, {args.final_rounds} rounds: regret "
          f"{again[first]['step'] / min(run['step'] for run in again.values()) - 1:.1%}"
          + (f", best by tags over best named {again[tags]['step'] / again[named]['step']:.3f}" if tags and named else "")
          + f" ({times})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "build" / "trainer"))
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=1, help="of each host")
    parser.add_argument("--rate", type=rate, default="100mbit")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--others", type=int, default=3, help="layouts beside the fastest and the best of every strategy")
    parser.add_argument("--final-rounds", type=int, default=4, help="of the runs that the regret is from")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    add_arguments(parser, warmup=1, steps=3, rounds=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plan-check-") as name:
        folder = Path(name)
        write_tokens(folder, min(VOCABULARY.values()))
        try:
            for model in args.models:
                check(args, folder, model)
        except Skipped as why:
            print(why, file=sys.stderr)
            sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
