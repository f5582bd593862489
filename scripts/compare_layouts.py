#!/usr/bin/env python3
"""Checks that a layout trains as one rank does: runs a configuration both ways and compares losses and gradient norms.

    scripts/compare_layouts.py --config configs/quickstart.toml --steps 20 --set parallel.tensor=2
    scripts/compare_layouts.py --config configs/quickstart.toml --set parallel.tensor=2 --launcher "mpirun -np 4"

Overrides of [parallel] and [debug] define the layout and apply only to its run; all others apply to both runs. Without
--launcher the layout's ranks are threads of one process. Runs are written to a temporary folder, or to the folder of
--keep, which is not removed.

The layout adds the same numbers in a different order, so the runs round differently. Healthy differences from one rank:
  fp64  loss 1e-10 and gradient norm 1e-9 up to step 20
  fp32  loss 1e-6 up to step 10, then growing exponentially to 1e-5 at step 50 (with lr <= 1e-3 and a warm-up)
  bf16  loss 2e-3 up to step 10
Later steps are shown but not judged: in the long run, training amplifies any difference.
Exit status 0: healthy; 1: not healthy; 2: a run failed.
"""
import argparse
import json
import math
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

# These settings make the runs shorter and change no step.
BARE = ["train.eval_interval=0", "train.eval_batches=1", "train.sample_interval=0", "checkpoint.interval=0",
        "log.jsonl=true", "log.report=false"]
# Overrides the configuration's layout.
ONE_RANK = ["parallel.strategy=megatron-1d", "parallel.tensor=1", "parallel.data=1", "parallel.transport=auto"]
LAYOUT_SECTIONS = ("parallel.", "debug.")


def fp32_loss(step):
    return 1e-6 * 10 ** max(0.0, (step - 10) / 40)


# compute type: last step judged, and the bound of each quantity at a step
BOUNDS = {
    "fp64": (20, {"loss": lambda step: 1e-10, "grad_norm": lambda step: 1e-9}),
    "fp32": (50, {"loss": fp32_loss}),
    "bf16": (10, {"loss": lambda step: 2e-3}),
}


class Failed(Exception):
    pass


def train(args, folder, launcher, overrides):
    """Runs the program; returns its start event and its steps by number."""
    command = [*launcher, args.trainer, "train", "--config", args.config, "--resume", "never"]
    command += ["--max-steps", str(args.steps)]
    for override in [*overrides, *BARE, f"run.dir={folder}", f"checkpoint.dir={folder}/checkpoints"]:
        command += ["--set", override]
    print("running", shlex.join(command), file=sys.stderr)
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}")
    if done.returncode != 0:
        raise Failed(f"the run ended with status {done.returncode}:\n{done.stderr.rstrip()}")
    start, steps = None, {}
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "start":
            start = event
        elif event["event"] == "step":
            steps[event["step"]] = event
    return start, steps


def deviation(value, reference):
    """Returns the relative difference; infinite for null, which represents a number that is not finite."""
    if value is None or reference is None:
        return math.inf
    return abs(value - reference) / abs(reference) if value != reference else 0.0


def compare(single, layout, compute):
    """Returns the lines of the table, one for each quantity, and whether all are within their bounds."""
    last_judged, bounds = BOUNDS[compute]
    rows, healthy = [], True
    for name in ("loss", "grad_norm"):
        deviations = {step: deviation(layout[step][name], single[step][name]) for step in single}
        worst = max(deviations, key=deviations.get)
        row = [name, f"{deviations[worst]:.1e}", str(worst), "-", "not judged"]
        judged = {step: value / bounds[name](step) for step, value in deviations.items()
                  if name in bounds and step <= last_judged}
        if judged:
            # Bounds grow with the step, so the step that is closest to its bound decides.
            closest = max(judged, key=judged.get)
            bound = f"{bounds[name](closest):.1e} at step {closest}"
            row[3:] = [bound, f"{judged[closest]:.2g} of it"]
            healthy &= judged[closest] <= 1
        rows.append(row)
    return rows, healthy


def report(args, single, layout):
    (start, steps_single), (layout_start, steps_layout) = single, layout
    compute, ranks = start["compute"], layout_start["environment"]["ranks"]
    if ranks == 1:
        raise Failed("the layout has only one rank: use --set parallel.tensor=…, parallel.data=…, or --launcher")
    if steps_single.keys() != steps_layout.keys():
        raise Failed(f"the runs took different steps: {len(steps_single)} on one rank, {len(steps_layout)} on {ranks}")
    rows, healthy = compare(steps_single, steps_layout, compute)
    last_judged = BOUNDS[compute][0]
    judged = f", judged up to step {last_judged}" if len(steps_single) > last_judged else ""
    layout_text = " ".join(override for override in args.set if override.startswith(LAYOUT_SECTIONS))
    print(f"{compute}, {len(steps_single)} steps{judged}, {ranks} ranks compared with one: {layout_text}")
    table = [["", "largest deviation", "at step", "healthy bound", "closest to it"], *rows]
    widths = [max(len(row[column]) for row in table) for column in range(5)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    print("PASS" if healthy else "FAIL")
    return 0 if healthy else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--launcher", default="", metavar="COMMAND",
                        help='command that starts the ranks of the layout as processes: "mpirun -np 4 --bind-to none"')
    parser.add_argument("--trainer", default=str(Path(__file__).resolve().parent.parent / "build" / "trainer"))
    parser.add_argument("--keep", metavar="FOLDER", help="keep the two runs there; the folder must not exist or be empty")
    args = parser.parse_args()
    if args.steps < 1:
        parser.error("--steps: at least 1")
    common = [override for override in args.set if not override.startswith(LAYOUT_SECTIONS)]
    launcher = shlex.split(args.launcher)
    threads = [] if launcher else ["parallel.transport=threads"]
    try:
        with tempfile.TemporaryDirectory(prefix="compare-layouts-") as temporary:
            folder = Path(args.keep or temporary).resolve()
            if args.keep and folder.exists() and any(folder.iterdir()):
                raise Failed(f"{folder} is not empty")
            single = train(args, folder / "single", [], [*common, *ONE_RANK])
            layout = train(args, folder / "layout", launcher, [*threads, *args.set])
            return report(args, single, layout)
    except Failed as problem:
        print(f"compare_layouts.py: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
