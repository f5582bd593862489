#!/usr/bin/env python3
"""What this CPU reaches: every figure of tests/bench/RESULTS.md about speed on one machine, in one go.

Products and attention as shares of the measured peak, AdamW as a share of its memory traffic, where a step goes, start-up,
two ranks beside two threads, tokenization, and whole steps beside PyTorch (compare_torch.py, which needs an interpreter
that has it). Other programs on the machine spoil every figure; differences below 5 % mean nothing.

    tests/bench/cpu_speed.py --trainer build/trainer --python /path/to/python-with-torch
"""
import argparse
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
STEP = ["--config", str(ROOT / "configs/gpt2-124m.toml"), "--set", "train.global_batch=4", "--set", "train.micro_batch=4",
        "--set", "train.recompute=\"none\"", "--set", "data.vocab_size=50304"]


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def bench(args, what, *more):
    return run([args.trainer, "bench", what, "--threads", str(args.threads), *more])


def random_tokens(path, count=300_000, vocabulary=50257):
    """A token file in llm.c's format."""
    draw = random.Random(1)
    header = [20240520, 1, count] + [0] * 253
    tokens = [draw.randrange(vocabulary) for _ in range(count)]
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{count}H", *tokens))


def training(args, folder, config, ranks, threads, sets):
    """(seconds from start to the start event, median ms of the steps but the first) of a run on random tokens."""
    target = folder / f"run-{time.time_ns()}"
    launch = ["mpirun", "-np", str(ranks), "--bind-to", "none"] if ranks > 1 else []
    command = launch + [args.trainer, "--config", str(ROOT / "configs" / config), "--set", f"run.dir=\"{target}\"",
                        "--set", f"data.train=[\"{folder / 'tokens.bin'}\"]", "--set", "data.tokenizer=\"\"",
                        "--set", f"run.threads={threads}", "--set", "train.eval_interval=0", "--set",
                        "train.sample_interval=0", "--set", "checkpoint.interval=0"]
    for value in sets:
        command += ["--set", value]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    metrics, began, started = target / "metrics.jsonl", time.time(), None
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    while process.poll() is None:
        if started is None and metrics.exists() and metrics.stat().st_size > 0:
            started = time.time() - began
        time.sleep(0.005)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit {process.returncode}\n{process.stderr.read()}")
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = [e["step_ms"] for e in events if e["event"] == "step"]
    return started, statistics.median(steps[1:] or steps)


def start_up(args, folder):
    tiny = ["data.vocab_size=50257", "model.seq_len=64", "train.global_batch=1", "train.micro_batch=1", "train.tokens=64",
            "optim.warmup_steps=0"]
    seconds = [training(args, folder, "gpt2-124m.toml", 1, args.threads, tiny)[0] for _ in range(5)]
    print(f"start-up of GPT-2 124M, tokens cached: {min(seconds):.2f} s at best, median {statistics.median(seconds):.2f} s "
          f"(the first time the system may have to find the memory: {max(seconds):.2f} s)")


def two_ranks(args, folder):
    sets = ["data.vocab_size=50257", "train.steps=25", "optim.warmup_steps=0", "model.seq_len=256"]
    one, two = [], []
    for _ in range(3):
        one.append(training(args, folder, "quickstart.toml", 1, 2, sets)[1])
        two.append(training(args, folder, "quickstart.toml", 2, 1, sets)[1])
    print(f"quickstart's model, 2 ranks of 1 thread beside 1 rank of 2 threads: {statistics.median(two):.0f} ms and "
          f"{statistics.median(one):.0f} ms a step: {statistics.median(two) / statistics.median(one):.2f}")


def tokenization(args, folder):
    text = (ROOT / "data/austen.txt").read_text() * 8
    (folder / "text.txt").write_text(text)
    run([args.trainer, "tokenize", "--input", ROOT / "data/austen.txt", "--output", folder / "model", "--train-vocab", "4096"])
    model = folder / "model/tokenizer.model"

    def ours(again):
        began = time.time()
        run([args.trainer, "tokenize", "--input", folder / "text.txt", "--output", folder / f"tokens-{again}", "--tokenizer",
             model])
        return time.time() - began

    seconds = statistics.median(ours(i) for i in range(5))
    print(f"tokenization: {len(text.encode()) / seconds / 1e6:.0f} MB/s")
    library = ("import sentencepiece, time\n"
               f"p = sentencepiece.SentencePieceProcessor(model_file='{model}')\n"
               f"lines = open('{folder / 'text.txt'}').read().split('\\n')\n"
               "times = []\n"
               "for _ in range(3):\n"
               f" t = time.time(); p.encode(lines, num_threads={args.threads}); times.append(time.time() - t)\n"
               "print(sorted(times)[1])")
    try:
        theirs = float(run([args.python, "-c", library]))
        print(f"  the SentencePiece library itself (from Python, {args.threads} threads) takes {theirs / seconds:.1f} times as long")
    except RuntimeError:
        print("  (no sentencepiece in that Python: not compared)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "build/trainer"))
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has PyTorch and sentencepiece")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compute", nargs="+", choices=["fp32", "bf16"], default=["fp32"])
    parts = ["products", "attention", "optimizer", "step", "start-up", "ranks", "tokenization", "torch"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    args = parser.parse_args()

    print(run([args.trainer, "--version"]).strip())
    for compute in args.compute:
        if "products" in args.only:
            print(bench(args, "gemm", "--compute", compute, "--repeats", "9"))
        if "attention" in args.only:
            print(bench(args, "attention", "--compute", compute, "--repeats", "9"))
        if "step" in args.only:
            print(bench(args, "step", *STEP, "--compute", compute, "--warmup", "1", "--repeats", "5"))
    if "optimizer" in args.only:
        print(bench(args, "optimizer", "--repeats", "15"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_tokens(folder / "tokens.bin")
        for part, measure in (("start-up", start_up), ("ranks", two_ranks), ("tokenization", tokenization)):
            if part in args.only:
                measure(args, folder)
    if "torch" in args.only:
        subprocess.run([sys.executable, str(HERE / "compare_torch.py"), "--trainer", args.trainer, "--python", args.python,
                        "--threads", str(args.threads), "--compute", *args.compute], check=True)


if __name__ == "__main__":
    main()
