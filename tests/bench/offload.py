#!/usr/bin/env python3
"""Measures optimizer offload: a ladder of ever faster updates on an emulated device, by its virtual clock, and the rate
of AdamW on this CPU compared with its memory traffic and with PyTorch's fused AdamW.

    tests/bench/offload.py --trainer build/trainer
    tests/bench/offload.py --trainer build/trainer --python build/torch-python/bin/python   # and PyTorch, in alternating runs

The virtual clock is a model, not a measurement of a device. Every ratio names the rung that it is relative to. Exit
status 1 if a target is missed.
"""
import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import machine

HERE = Path(__file__).resolve().parent


class Promises:
    def __init__(self):
        self.kept = True

    def check(self, text, value, least=None, most=None):
        good = (least is None or value >= least) and (most is None or value <= most)
        bound = f">= {least:g}" if least is not None else f"<= {most:g}"
        print(f"  {'kept  ' if good else 'BROKEN'}  {text}: {value:.3f} ({bound})")
        self.kept &= good


def ladder(args, device, promises):
    """Prints the rungs of the ladder on one device, and checks the targets for their ratios."""
    result = json.loads(machine.run([args.trainer, "bench", "offload", "--json", "--set", f"debug.emulate_device={device}",
                                     "--set", "run.device=cpu", "--compute", "bf16"]))
    rungs = {rung["name"]: rung for rung in result["rungs"]}
    print(f"emulated {device}, {result['parameters'] / 1e9:.2f}e9 parameters a rank, from the end of the backward pass until all "
          "weights are new")
    for rung in result["rungs"]:
        predicted = f", {rung['predicted_ms']:.0f} predicted" if rung["predicted_ms"] else ""
        print(f"  {rung['rung']:4} {rung['played_ms']:8.0f} ms{predicted}  {rung['name']} "
              f"(streamed {rung['gpu_fraction']}, resident {rung['resident']})")
    best = rungs["interleaved, best share"]
    asynchronous = rungs["asynchronous, all on the host"]["played_ms"]
    promises.check("B1, blocking with pageable gradients, over B4", least=2.5,
                   value=rungs["blocking, all on the host, pageable gradients"]["played_ms"] / best["played_ms"])
    print(f"          B1p, blocking with pinned gradients, over B4: "
          f"{rungs['blocking, all on the host, pinned gradients']['played_ms'] / best['played_ms']:.3f}")
    print(f"          B2, asynchronous, over B4: {asynchronous / best['played_ms']:.3f}")
    promises.check("B4 over B2, asynchronous", best["played_ms"] / asynchronous, most=1)
    promises.check("B4 over the best share of a sweep", most=1.02,
                   value=best["played_ms"] / min(rung["played_ms"] for rung in result["sweep"]))
    for rung in result["rungs"] + result["sweep"]:
        if rung["predicted_ms"] and abs(rung["predicted_ms"] / rung["played_ms"] - 1) > 0.05:
            promises.check(f"predicted over played, streamed {rung['gpu_fraction']}", most=0.05,
                           value=abs(rung["predicted_ms"] / rung["played_ms"] - 1))
    promises.check("B4, predicted over played, off by", abs(best["predicted_ms"] / best["played_ms"] - 1), most=0.05)


class Torch:
    def __init__(self, args, sizes):
        command = [args.python, str(HERE / "torch_adamw.py"), "--threads", str(args.threads), "--sizes", *map(str, sizes)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        self.process = machine.start_served(command, env=environment)
        word, _, self.version = self.process.stdout.readline().strip().partition(" ")
        if word != "ready":
            sys.exit(f"{' '.join(command)} did not start")

    def rates(self, work, count, parameters):
        return [parameters / seconds for seconds in machine.times_of(self.process, count, work)]

    def close(self):
        machine.close_served(self.process)


def gpt2_124m():
    """Returns the sizes of GPT-2 124M's tensors, as PyTorch stores them."""
    width, layers, block = 768, 12, []
    for inner, outer in ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)):
        block += [inner * outer, outer]
    return [50304 * width, 1024 * width] + (block + [width] * 4) * layers + [width] * 2


# Kinds of updates: a name, our rate in `bench optimizer --json`, and the WORK of torch_adamw.py.
WORKS = (("the step alone", "parameters_per_s", "step"),
         ("scaled gradients", "parameters_per_s", "scaled"),
         ("scaled gradients and a bf16 copy", "copying_parameters_per_s", "whole"))


def adamw(args, promises):
    """Measures updates of one array and of all tensors of a model on this CPU, alternating with PyTorch's."""
    model = ["--config", HERE.parent.parent / "configs/gpt2-124m.toml", "--set", "data.vocab_size=50304"]
    for name, sizes, ours in ((f"one array of {args.parameters / 1e6:.0f} million", [args.parameters], ["--size", 4 * args.parameters]),
                              ("GPT-2 124M", gpt2_124m(), model)):
        adamw_of(args, promises, name, sizes, ours)


def adamw_of(args, promises, name, sizes, ours):
    torch = Torch(args, sizes) if args.python else None
    here, theirs = [], {work: [] for _, _, work in WORKS}
    for _ in range(args.rounds):
        here.append(json.loads(machine.run([args.trainer, "bench", "optimizer", "--json", "--threads", args.threads, "--repeats",
                                            args.repeats, "--set", "run.device=cpu", *ours])))
        for work, rates in theirs.items():
            if torch:
                rates += torch.rates(work, args.repeats, sum(sizes))
    median = lambda key: statistics.median(result[key] for result in here)
    copying, moved = median("copying_parameters_per_s"), median("traffic_parameters_per_s")
    print(f"AdamW of {name} parameters in {here[0]['pieces']} pieces, {args.threads} threads, medians of {args.rounds} rounds, "
          "in 1e9 parameters/s:")
    print(f"  {median('parameters_per_s') / 1e9:.3f}, and {copying / 1e9:.3f} with a bf16 copy; moving the same 28 bytes "
          f"{moved / 1e9:.3f}; reading the 16 bytes alone {median('read_parameters_per_s') / 1e9:.3f}")
    promises.check("share of the traffic loop", median("share_of_traffic"), least=0.9)
    promises.check("share of the traffic loop, with the copy", median("copying_share_of_traffic"), least=0.9)
    if not torch:
        return
    torch.close()
    for text, key, work in WORKS:
        rate = statistics.median(theirs[work])
        print(f"  PyTorch {torch.version}, fused AdamW, {text}: {rate / 1e9:.3f}, {rate / moved:.2f} of the traffic loop's")
        promises.check(f"times PyTorch's rate, {text}", median(key) / rate, least=1.5)
    print(f"          an update in place at the rate of reading alone: {median('read_parameters_per_s') / statistics.median(theirs['step']):.2f} "
          "times PyTorch's step alone")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="build/trainer", type=Path)
    parser.add_argument("--python", help="a Python that has PyTorch")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--parameters", type=int, default=32 << 20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["ladder", "adamw"])
    args = parser.parse_args()
    promises = Promises()
    if args.only != "adamw":
        ladder(args, "h100", promises)
    if args.only != "ladder":
        adamw(args, promises)
    return 0 if promises.kept else 1


if __name__ == "__main__":
    sys.exit(main())
