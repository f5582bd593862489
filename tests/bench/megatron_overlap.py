#!/usr/bin/env python3
"""What overlap and sequence parallelism change in a step of Megatron-1D: ratios of step times and of exposed communication.

Two, then four ranks of one thread each, over this machine's shared memory and on emulated hosts, one rank each, whose links
are slow (emulated_cluster.sh). The four variants of a row take turns, and this for some rounds, so that a machine whose
speed drifts is fair to all. The model is three layers of GPT-2 124M on random tokens: at 400 Mbit/s its activations need
about as long on the link as its products on two cores. Prints a Markdown table.

    tests/bench/megatron_overlap.py --rate 400mbit --rounds 3
"""
import argparse
import array
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SHARED = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
CONFIG = ROOT / "configs" / "gpt2-124m.toml"
SKIPPED = 77
VOCABULARY = 4096
VARIANTS = [(sequence, overlap) for sequence in (True, False) for overlap in (True, False)]
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


class Skipped(Exception):
    pass


def toml(value):
    return str(value).lower()


def steps(args, folder, launcher, ranks, sequence, overlap):
    """Step events of one run, those of the warm-up left out."""
    run = folder / "run"
    settings = [f"run.dir={run}", "run.threads=1", "model.n_layer=3", "model.seq_len=256",
                f"data.train={folder}/tokens.bin", 'data.tokenizer=""', f"data.vocab_size={VOCABULARY}", "data.val_fraction=0",
                f"train.global_batch={args.batch}", f"train.micro_batch={args.batch}", 'train.recompute="none"',
                "train.eval_interval=0", "checkpoint.interval=0", "log.report=false", "hardware.peak_tflops=1",
                f"precision.compute={args.compute}", f"parallel.tensor={ranks}",
                f"parallel.sequence_parallel={toml(sequence)}", f"debug.overlap={toml(overlap)}"]
    command = [*launcher, args.trainer, "train", "--config", str(CONFIG), "--resume", "never", "--max-steps",
               str(args.warmup + args.steps)]
    for setting in [*settings, *args.set]:
        command += ["--set", setting]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode == SKIPPED:
        raise Skipped(done.stderr.strip())
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr}")
    metrics = run / "metrics.jsonl"
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    metrics.unlink()
    return [event for event in events if event["event"] == "step"][args.warmup:]


def measure(args, folder, launcher, ranks):
    """Of each variant: the median step of every round, the medians over all steps, and the bytes each rank sends in one."""
    rounds = {variant: [] for variant in VARIANTS}
    for number in range(args.rounds):
        for variant in VARIANTS:
            rounds[variant].append(steps(args, folder, launcher, ranks, *variant))
            median = statistics.median(event["step_ms"] for event in rounds[variant][-1])
            print(f"  round {number + 1}, sequence parallel {toml(variant[0])}, overlap {toml(variant[1])}: {median:.0f} ms",
                  file=sys.stderr)
    result = {}
    for variant, runs in rounds.items():
        events = [event for run in runs for event in run]
        result[variant] = {
            "rounds": [statistics.median(event["step_ms"] for event in run) for run in runs],
            "step": statistics.median(event["step_ms"] for event in events),
            "exposed": statistics.median(event["phase_ms"]["comm_exposed"] for event in events),
            "bytes": sum(sum(operations.values()) for operations in events[-1]["comm_bytes"].values()) / ranks,
        }
    return result


def ratio(above, below):
    """Of the medians, and between which bounds the rounds lie."""
    rounds = [a / b for a, b in zip(above["rounds"], below["rounds"])]
    return f"**{above['step'] / below['step']:.2f}** ({min(rounds):.2f}–{max(rounds):.2f})"


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
    parser.add_argument("--compute", choices=["fp32", "bf16", "fp64"], default="fp32")
    parser.add_argument("--batch", type=int, default=2, help="sequences a step, all in one micro-batch")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--networks", nargs="+", choices=["shared", "cluster"], default=["shared", "cluster"])
    parser.add_argument("--rate", default="400mbit", help="of the emulated hosts' links: number and kbit, mbit or gbit")
    parser.add_argument("--warmup", type=int, default=3, help="steps not counted, of each run")
    parser.add_argument("--steps", type=int, default=5, help="steps counted, of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    args = parser.parse_args()
    rate = re.fullmatch(r"(\d+)(kbit|mbit|gbit)", args.rate)
    if not rate:
        parser.error(f"--rate {args.rate}: a number and kbit, mbit or gbit")
    bits_per_second = int(rate[1]) * UNITS[rate[2]]

    table = ["| ranks | over | sequence parallel | step, overlap off / on (rounds) | exposed share, on / off "
             "| exposed, off / on | link busy, on | step, sequence parallel off / on |", "|---|---|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="megatron-overlap-") as temporary:
        folder = Path(temporary)
        random.seed(1)
        (folder / "tokens.bin").write_bytes(array.array("H", random.choices(range(VOCABULARY), k=200_000)).tobytes())
        for network in args.networks:
            for ranks in args.ranks:
                print(f"{ranks} ranks, {network}", file=sys.stderr)
                cluster = [str(HERE / "emulated_cluster.sh"), "--hosts", str(ranks), "--rate", args.rate, "--"]
                launcher = [*SHARED, "-np", str(ranks)] if network == "shared" else cluster
                try:
                    measured = measure(args, folder, launcher, ranks)
                except Skipped as why:
                    print(why, file=sys.stderr)
                    break
                over = "shared memory" if network == "shared" else args.rate
                table += rows(measured, ranks, over, bits_per_second if network == "cluster" else None)
    print("\n".join(table))


if __name__ == "__main__":
    main()
