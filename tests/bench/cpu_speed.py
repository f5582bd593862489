#!/usr/bin/env python3
"""Measures the speed of this CPU: every figure of tests/bench/RESULTS.md about speed on one machine, in one call.

GEMMs and attention relative to the peak, AdamW relative to its memory traffic, the operators of a step, start-up, two
ranks compared with two threads, tokenization, and whole steps compared with PyTorch (compare_torch.py finds or creates
an interpreter that has it). Everything is measured in alternating rounds, and reported as medians with the best in
brackets; a round in which the peak microbenchmark differs by more than 15 % before and after is repeated, at most
--tries times. Shares are relative to the best peak measured in the whole call. Differences below 5 % mean nothing.

    tests/bench/cpu_speed.py --trainer build/trainer
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

import machine
from machine import ROOT, run

HERE = Path(__file__).resolve().parent
STEP = ["--config", str(ROOT / "configs/gpt2-124m.toml"), "--set", "train.global_batch=4", "--set", "train.micro_batch=4",
        "--set", "train.recompute=\"none\"", "--set", "data.vocab_size=50304"]


def bench(args, what, *more):
    return json.loads(run([args.trainer, "bench", what, "--threads", args.threads, "--json", "--set", "run.device=cpu", *more]))


def cell(values, scale, digits=0):
    """Returns "412 (87 %; best 430, 91 %)" from GFLOP/s and the peak."""
    middle, best = statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({100 * middle / scale:.0f} %; best {best:.{digits}f}, {100 * best / scale:.0f} %)"


def operators(args, compute, rounds):
    """Measures GEMMs, attention and a step in rounds; prints their tables once the best peak is known."""
    more = ["--compute", compute, "--repeats", "5"]
    calls = {"products": ["gemm", *more], "attention": ["attention", *more], "step": ["step", *STEP, *more, "--warmup", "1"]}
    requested = [part for part in calls if part in args.only]
    if not requested:
        return
    results = rounds.each(compute, lambda: {part: bench(args, *calls[part]) for part in requested})
    for result in results:
        for part in result.values():
            rounds.peak.saw(compute, part["peak"]["tflops"])
    peak = 1e3 * rounds.peak.best[compute]
    print(f"\n{compute}: GFLOP/s and share of the best peak, {peak:.1f}: medians of {len(results)} rounds, and the best")
    if "products" in requested:
        for i, shape in enumerate(results[0]["products"]["rates"]):
            rates = [result["products"]["rates"][i] for result in results]
            cells = [f"{name} {cell([rate[key] for rate in rates], peak)}" for name, key in
                     (("forward", "forward_gflops"), ("dX", "dx_gflops"), ("dW", "dw_gflops"))]
            print(f"product {shape['m']}, {shape['k']}, {shape['n']}: {'; '.join(cells)}")
    if "attention" in requested:
        for i, shape in enumerate(results[0]["attention"]["rates"]):
            rates = [result["attention"]["rates"][i] for result in results]
            forward, backward = (cell([rate[f"{way}_gflops"] for rate in rates], peak) for way in ("forward", "backward"))
            print(f"attention b {shape['batch']}, s {shape['seq_len']}, heads {shape['heads']} x {shape['head_dim']}: "
                  f"forward {forward}; backward {backward}")
    if "step" in requested:
        where_a_step_goes([result["step"] for result in results], peak)


def where_a_step_goes(steps, peak):
    all_ms = [ms for step in steps for ms in step["step_ms"]]
    gflop = steps[0]["model_tflops"] * steps[0]["median_ms"]
    rates = [1e3 * gflop / ms for ms in all_ms]
    middle = statistics.median(all_ms)
    print(f"step of GPT-2 124M at 4×1024, products by {steps[0]['path']}: {middle:.0f} ms (best {min(all_ms):.0f}), "
          f"{1e3 * steps[0]['tokens'] / middle:.0f} tokens/s; model GFLOP/s {cell(rates, peak)}")
    calmest = min(steps, key=lambda step: step["median_ms"])
    print(f"of its calmest round, {calmest['median_ms']:.0f} ms: operator, ms, share of the step, of the peak, GB/s")
    for each in calmest["operators"]:
        gflops = each["gflop"] / each["ms"] * 1e3 if each["ms"] > 0 else 0
        print(f"  {each['name']:<14}{each['ms']:>10.2f}{100 * each['ms'] / calmest['median_ms']:>8.1f} %"
              + (f"{100 * gflops / peak:>8.1f} %" if gflops else " " * 10)
              + (f"{each['gb'] / each['ms'] * 1e3:>9.1f}" if each["gb"] and each["ms"] > 0 else ""))


def optimizer(args, rounds):
    results = rounds.each("fp32", lambda: bench(args, "optimizer", "--repeats", "9"))
    shares = [100 * result["share_of_traffic"] for result in results]
    print(f"AdamW fp32: {statistics.median(r['gb_per_s'] for r in results):.1f} GB/s, "
          f"{statistics.median(shares):.0f} % of moving the same 28 bytes a parameter (best {max(shares):.0f} %)")


def random_tokens(path, count=300_000, vocabulary=50257):
    """Writes a token file in llm.c's format."""
    draw = random.Random(1)
    header = [20240520, 1, count] + [0] * 253
    tokens = [draw.randrange(vocabulary) for _ in range(count)]
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{count}H", *tokens))


def training(args, folder, config, ranks, threads, sets):
    """Trains on random tokens; returns (seconds until the start event, median ms of the steps except the first)."""
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
    parser.add_argument("--python", help="an interpreter that has PyTorch and sentencepiece (default: as compare_torch.py)")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compute", nargs="+", choices=["fp32", "bf16"], default=["fp32"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tries", type=int, default=3, help="of a round beside which the peak changes")
    parts = ["products", "attention", "optimizer", "step", "start-up", "ranks", "tokenization", "torch"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    args = parser.parse_args()

    args.only = set(args.only)
    if args.only & {"tokenization", "torch"}:
        args.python = machine.torch_python(args.python)
    peak = machine.Peak(args.trainer, args.threads)
    rounds = machine.Rounds(peak, args.rounds, args.tries)
    print(run([args.trainer, "--version"]).strip())
    print(peak.describe(args.compute))
    for compute in args.compute:
        operators(args, compute, rounds)
    if "optimizer" in args.only:
        optimizer(args, rounds)
    if args.only & {"products", "attention", "step", "optimizer"}:
        print(rounds.verdict())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random_tokens(folder / "tokens.bin")
        for part, measure in (("start-up", start_up), ("ranks", two_ranks), ("tokenization", tokenization)):
            if part in args.only:
                measure(args, folder)
    if "torch" in args.only:
        sys.stdout.flush()
        subprocess.run([sys.executable, str(HERE / "compare_torch.py"), "--trainer", args.trainer, "--python", args.python,
                        "--threads", str(args.threads), "--tries", str(args.tries), "--compute", *args.compute], check=True)


if __name__ == "__main__":
    main()
