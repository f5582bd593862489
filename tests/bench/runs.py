"""Code shared by the benchmarks of whole steps: short training runs on random tokens, alternating variants, and figures
from their metrics.jsonl."""
import argparse
import array
import json
import random
import re
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Containers run as root, and a machine has fewer cores than ranks.
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
SKIPPED = 77  # status of emulated_cluster.sh where networks cannot be emulated


class Skipped(Exception):
    pass


def add_arguments(parser, warmup, steps, rounds):
    parser.add_argument("--compute", choices=["fp32", "bf16", "fp64"], default="fp32")
    parser.add_argument("--warmup", type=int, default=warmup, help="steps not counted, of each run")
    parser.add_argument("--steps", type=int, default=steps, help="steps counted, of each run")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")


def rate(text):
    if not re.fullmatch(r"\d+(kbit|mbit|gbit)", text):
        raise argparse.ArgumentTypeError(f"{text}: a number and kbit, mbit or gbit")
    return text


def launcher(ranks, per_host=None, rate=None):
    """Returns the command that starts ranks on this machine, or on emulated hosts."""
    if per_host is None:
        return [*MPIRUN, "-np", str(ranks)]
    return [str(HERE / "emulated_cluster.sh"), "--hosts", str(ranks // per_host), "--ranks", str(per_host), "--rate", rate, "--"]


def run(command):
    """Returns the command's stdout; exits if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode == SKIPPED:
        raise Skipped(done.stderr.strip())
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stderr}")
    return done.stdout


def write_tokens(folder, vocabulary):
    random.seed(1)
    (folder / "tokens.bin").write_bytes(array.array("H", random.choices(range(vocabulary), k=200_000)).tobytes())


def train(args, trainer, config, vocabulary, folder, launcher, settings):
    """Returns the step events of one run on folder/tokens.bin after the warm-up; exits if the run fails."""
    folder_of_run = folder / "run"
    common = [f"run.dir={folder_of_run}", f"data.train={folder}/tokens.bin", 'data.tokenizer=""', f"data.vocab_size={vocabulary}",
              "data.val_fraction=0", "train.eval_interval=0", "train.sample_interval=0", "checkpoint.interval=0",
              "log.report=false", "hardware.peak_tflops=1", f"precision.compute={args.compute}"]
    command = [*launcher, trainer, "train", "--config", str(config), "--resume", "never", "--max-steps",
               str(args.warmup + args.steps)]
    for setting in [*common, *settings, *args.set]:
        command += ["--set", setting]
    run(command)
    metrics = folder_of_run / "metrics.jsonl"
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.unlink()
    return [event for event in events if event["event"] == "step"][args.warmup:]


def in_turns(rounds, variants, measure):
    """Returns {variant: its step events, the median step of each round and over all, in ms}; measure(variant) makes
    one run. Every other round is in reverse order, so that a drift within a round affects all variants."""
    runs = {variant: [] for variant in variants}
    for number in range(rounds):
        for variant in list(variants)[::1 if number % 2 == 0 else -1]:
            runs[variant].append(measure(variant))
            median = statistics.median(event["step_ms"] for event in runs[variant][-1])
            print(f"  round {number + 1}, {variant}: {median:.1f} ms", file=sys.stderr)
    return {variant: {"events": [event for events in of for event in events],
                      "rounds": [statistics.median(event["step_ms"] for event in events) for events in of],
                      "step": statistics.median(event["step_ms"] for events in of for event in events)}
            for variant, of in runs.items()}


def ratio(above, below, digits=2):
    """Returns the median ratio of the rounds' medians, with the smallest and the largest."""
    rounds = [a / b for a, b in zip(above["rounds"], below["rounds"])]
    return f"**{statistics.median(rounds):.{digits}f}** ({min(rounds):.{digits}f}–{max(rounds):.{digits}f})"
