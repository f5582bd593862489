"""Code shared by the benchmarks of whole steps: short training runs on random tokens, alternating variants, whole runs on a
text with their losses, and figures from their metrics.jsonl."""
import argparse
import array
import json
import math
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
DIVERGED = 6  # exit status of a run that diverged
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
    events = events_of_run(args, trainer, config, vocabulary, folder, launcher, settings)
    return [event for event in events if event["event"] == "step"][args.warmup:]


def events_of_run(args, trainer, config, vocabulary, folder, launcher, settings):
    """Returns all events of such a run."""
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
    return events


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


class Runs:
    """Results of whole training runs with configs/muon.toml on a text, by what determines them. One that was made before, or
    is in the file, is not repeated."""

    def __init__(self, trainer, data, vocabulary, folder, file=None):
        self.trainer, self.data, self.folder, self.file, self.done = trainer, data.resolve(), folder, file, {}
        self.about = run([trainer, "--version"]).splitlines()[0], data.name, vocabulary
        run([trainer, "tokenize", "--input", str(data), "--output", f"{folder}/tokens", "--train-vocab", str(vocabulary)])
        if file and file.exists():
            self.done = {tuple(key): tuple(value) for key, value in json.loads(file.read_text())}

    def result(self, lr, seed, steps, settings):
        """Returns (last validation loss, infinite if the run diverged; median step in ms) of one run."""
        key = (lr, seed, steps, " ".join(settings), *self.about)
        if key not in self.done:
            where = Path(self.folder) / "run"
            sets = [f"run.dir={where}", f"run.seed={seed}", f"data.train={self.data}", f"data.vocab_size={self.about[-1]}",
                    f"data.tokenizer={self.folder}/tokens/tokenizer.model", f"train.steps={steps}", f"train.eval_interval={steps}",
                    "train.sample_interval=0", "checkpoint.interval=0", "log.report=false", f"optim.lr={lr}", f"optim.min_lr={lr / 10}",
                    f"optim.warmup_steps={steps // 10}", *settings]
            ended = subprocess.run([self.trainer, "train", "--config", ROOT / "configs" / "muon.toml", "--resume", "never",
                                    "--set", *sets], capture_output=True, text=True)
            if ended.returncode not in (0, DIVERGED):
                sys.exit(f"{' '.join(sets)}: exit {ended.returncode}\n{ended.stderr}")
            events = [json.loads(line) for line in (where / "metrics.jsonl").read_text().splitlines()]
            losses = [event["loss"] for event in events if event["event"] == "eval"]
            loss = math.inf if ended.returncode == DIVERGED else losses[-1]
            step = statistics.median([event["step_ms"] for event in events if event["event"] == "step"] or [math.nan])
            self.done[key] = loss, step
            if self.file:
                self.file.write_text(json.dumps(list(self.done.items())))
            print(f"  lr {lr:g}, seed {seed}, {steps} steps, {' '.join(settings)}: {loss:.4f}, {step:.1f} ms a step",
                  file=sys.stderr, flush=True)
        return self.done[key]


def bracket(lr, loss):
    """Returns the learning rate with the smallest loss(lr), between two that are worse, and all losses by rate: from `lr` on
    the rate is doubled and halved."""
    tried, todo = {}, [lr / 2, lr, lr * 2]
    while todo:
        tried.update((each, loss(each)) for each in todo)
        best = min(tried, key=tried.get)
        todo = [each for each in (best / 2, best * 2) if each not in tried]
    return best, dict(sorted(tried.items()))
