#!/usr/bin/env python3
"""Step times of two builds of the trainer, in turns: what a change of the code cost.

The quick start's model and GPT-2 of 6 layers of 384 on one rank with all cores, and the quick start's on two ranks of
parallel.tensor = 2, on random tokens. Each pair of runs is a round; the ratio is taken round by round, because a machine's
speed drifts. Prints a Markdown table: median, smallest and largest ratio of the rounds' median steps, after / before.

    TRAINER_ISA=avx2 tests/bench/compare_steps.py BEFORE/trainer AFTER/trainer --compute fp32 --rounds 7
"""
import argparse
import array
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", "2"]
VOCABULARY = 2048
WIDER = ["model.n_layer=6", "model.d_model=384", "model.n_head=6", "train.global_batch=12", "train.micro_batch=12"]
CASES = {"quickstart": ([], []), "6×384, 12×256": ([], WIDER), "quickstart, tensor = 2": (MPIRUN, ["parallel.tensor=2"])}


def median_step(trainer, args, folder, launcher, settings):
    """Milliseconds of the median step of one run, those of the warm-up left out."""
    run = folder / "run"
    common = [f"run.dir={run}", f"data.train={folder}/tokens.bin", 'data.tokenizer=""', f"data.vocab_size={VOCABULARY}",
              "data.val_fraction=0", "train.eval_interval=0", "train.sample_interval=0", "checkpoint.interval=0",
              "log.report=false", "hardware.peak_tflops=1", f"precision.compute={args.compute}"]
    command = [*launcher, trainer, "train", "--config", str(ROOT / "configs" / "quickstart.toml"), "--resume", "never",
               "--max-steps", str(args.warmup + args.steps)]
    for setting in [*common, *settings, *args.set]:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
    metrics = run / "metrics.jsonl"
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.unlink()
    return statistics.median(event["step_ms"] for event in [event for event in events if event["event"] == "step"][args.warmup:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--compute", choices=["fp32", "bf16", "fp64"], default="fp32")
    parser.add_argument("--warmup", type=int, default=3, help="steps not counted, of each run")
    parser.add_argument("--steps", type=int, default=9, help="steps counted, of each run")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--only", choices=CASES, action="append", help="this case alone; may be repeated")
    args = parser.parse_args()
    print("| model | before, ms | after, ms | after / before (rounds) |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="compare-steps-") as temporary:
        folder = Path(temporary)
        random.seed(1)
        (folder / "tokens.bin").write_bytes(array.array("H", random.choices(range(VOCABULARY), k=200_000)).tobytes())
        for name, (launcher, settings) in CASES.items():
            if args.only and name not in args.only:
                continue
            before, after = [], []
            for number in range(args.rounds):
                pair = [(args.before, before), (args.after, after)]
                for trainer, times in pair if number % 2 == 0 else reversed(pair):
                    times.append(median_step(trainer, args, folder, launcher, settings))
                print(f"  round {number + 1}, {name}: {before[-1]:.1f}, {after[-1]:.1f} ms", file=sys.stderr)
            ratios = [late / early for early, late in zip(before, after)]
            print(f"| {name} | {statistics.median(before):.1f} | {statistics.median(after):.1f} | "
                  f"**{statistics.median(ratios):.3f}** ({min(ratios):.3f}–{max(ratios):.3f}) |", flush=True)


if __name__ == "__main__":
    main()
