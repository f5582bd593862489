#!/usr/bin/env python3
"""Measures the cost of saving checkpoints: wall times of runs that save in the background and of runs that do not, alternating.

Each pair of runs is a round; the cost is taken within each round. Both runs save their last step. On a shared machine
the cost within a run is less disturbed: the time that training waited for a save, plus the extra time of steps made
while it was written (relative to the median step after it), as a share of the time between two saves. The median over
all saves is printed. `--synchronous` also measures saves for which training waits.

    tests/bench/saves.py --trainer build/trainer                                     # the quick start on two ranks
    tests/bench/saves.py --trainer build/trainer --config gpt2-124m --ranks 1 --steps 100 --every 50 \\
      --set train.global_batch=2 train.micro_batch=2 model.seq_len=256
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from runs import MPIRUN, ROOT, write_tokens


def measure(args, folder, every, background):
    """Returns a run's wall time including saves in ms, its median step, its checkpoint events, and the cost of each
    save."""
    run = folder / "run"
    sets = [f"run.dir={run}", "train.eval_interval=0", "train.sample_interval=0", f"checkpoint.interval={every}",
            f"checkpoint.async={str(background).lower()}", "log.report=false", "hardware.peak_tflops=1",
            f"data.train={folder}/tokens.bin", 'data.tokenizer=""', "data.val_fraction=0", *args.set]
    command = [*([*MPIRUN, "-np", str(args.ranks)] if args.ranks > 1 else []), args.trainer, "train", "--config",
               ROOT / "configs" / f"{args.config}.toml", "--resume", "never", "--max-steps", args.steps, "--set", *sets]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stderr}")
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [event["step_ms"] for event in events if event["event"] == "step"]
    saves = [event for event in events if event["event"] == "checkpoint"]
    return 1e3 * events[-1]["wall_s"], statistics.median(steps[2:]), saves, costs_within(events, every) if every else []


def costs_within(events, every):
    """Returns each save's cost as a share of the steps up to the next save, for all saves but the first and the
    last."""
    costs, steps = [], [event for event in events if event["event"] == "step"]
    for position, save in enumerate(events):
        if save["event"] != "checkpoint" or save["step"] <= every:
            continue
        during = [event["step_ms"] for event in events[:position] if event["event"] == "step" and event["step"] > save["step"]]
        after = [event["step_ms"] for event in steps if save["step"] + len(during) < event["step"] <= save["step"] + every]
        if after:
            free = statistics.median(after)
            costs.append((1e3 * save["wait_seconds"] + sum(during) - len(during) * free) / (every * free))
    return costs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--set", nargs="+", default=[], metavar="SECTION.KEY=VALUE")
    args = parser.parse_args()
    ways = {"none": (0, False), "background": (args.every, True)}
    if args.synchronous:
        ways["waiting"] = (args.every, False)
    runs = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="saves-") as temporary:
        folder = Path(temporary)
        write_tokens(folder, 2048)
        for number in range(args.rounds):
            for way in list(ways)[::1 if number % 2 == 0 else -1]:
                runs[way].append(measure(args, folder, *ways[way]))
                print(f"  round {number + 1}, {way}: {runs[way][-1][0]:.0f} ms", file=sys.stderr)
    print("| saves | 1 run, ms | step, ms | a save, ms | training waited, ms | cost (rounds) | cost within runs (quartiles) |\n|---|---|---|---|---|---|---|")
    for way, measured in runs.items():
        saves = [save for run in measured for save in run[2]]
        costs = [100 * (run[0] / bare[0] - 1) for run, bare in zip(measured, runs["none"])]
        within = [100 * cost for run in measured for cost in run[3]]
        low, middle, high = statistics.quantiles(within, n=4) if len(within) > 1 else (0, 0, 0)
        print(f"| {way} | {statistics.median(run[0] for run in measured):.0f} | "
              f"{statistics.median(run[1] for run in measured):.2f} | "
              f"{1e3 * statistics.median(save['seconds'] for save in saves):.0f} | "
              f"{1e3 * statistics.median(save['wait_seconds'] for save in saves):.1f} | "
              f"**{statistics.median(costs):.1f} %** ({min(costs):.1f}–{max(costs):.1f}) | "
              f"**{middle:.1f} %** ({low:.1f}–{high:.1f}) |")


if __name__ == "__main__":
    main()
