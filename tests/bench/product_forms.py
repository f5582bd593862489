#!/usr/bin/env python3
"""Whether a product gains when one of its operands is transposed first: the linears of AxoNN-4D as ranks have them.

    tests/bench/product_forms.py build/trainer --compute fp32 bf16 --isa avx2 avx512 amx --model 6x384 124m

Takes `trainer bench gemm --forms` of every shape of the model's four linears with x and y in {1, 2, 4}, a pause between
calls, and prints for each product the range of gains (time as it is / time in that form, the least of the repeats each)
and those above 5 %. Shapes in which something seems to gain or lose more than 5 % without the copy, which on a shared
machine is mostly another program's doing, are measured again, `--again` times at most, and the least times count.
"""
import argparse
import json
import os
import statistics
import subprocess
import time

MODELS = {"6x384": (3072, 384), "124m": (1024, 768)}  # token rows, width
FORMS = ("left_first", "right_first")


def shapes(model):
    m, h = MODELS[model]
    found = set()
    for x in (1, 2, 4):
        for y in (1, 2, 4):
            found |= {(m, h // y, 3 * h // x), (m, h // x, h // y), (m, h // y, 4 * h // x), (m, 4 * h // x, h // y)}
    return sorted(found)


def call(args, todo, compute, isa):
    """The products of some shapes, by shape and product."""
    found = {}
    for first in range(0, len(todo), 4):
        command = [args.trainer, "bench", "gemm", "--forms", "--json", "--compute", compute, "--threads", str(args.threads),
                   "--repeats", str(args.repeats)]
        for shape in todo[first:first + 4]:
            command += ["--shape", ",".join(map(str, shape))]
        done = subprocess.run(command, env={**os.environ, "TRAINER_ISA": isa}, check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
        for f in json.loads(done.stdout)["forms"]:
            times = {form: (f["microseconds"] / f[form]["with_copy"], f["microseconds"] / f[form]["alone"])
                     for form in FORMS if f[form]["alone"] > 0}
            found[f["m"], f["k"], f["n"], f["product"]] = f["microseconds"], times
        time.sleep(args.pause)
    return found


def gains(entry):
    as_is, times = entry
    return {form: (as_is / with_copy, as_is / alone) for form, (with_copy, alone) in times.items()}


def measured(args, model, compute, isa):
    best = call(args, shapes(model), compute, isa)
    for _ in range(args.again):
        doubtful = sorted({key[:3] for key, entry in best.items()
                           if any(with_copy > 1.05 or abs(alone - 1) > 0.05 for with_copy, alone in gains(entry).values())})
        if not doubtful:
            break
        for key, (as_is, times) in call(args, doubtful, compute, isa).items():
            before, forms = best[key]
            best[key] = min(before, as_is), {form: tuple(map(min, forms[form], times[form])) for form in times}
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer")
    parser.add_argument("--compute", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--isa", nargs="+", default=["amx"])
    parser.add_argument("--model", nargs="+", default=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--again", type=int, default=4)
    parser.add_argument("--pause", type=float, default=5)
    args = parser.parse_args()
    print("| model | compute | set | product | form | gain with the copy: least, median, most | product alone | won by > 5 % |")
    print("|---|---|---|---|---|---|---|---|")
    for model in args.model:
        for compute in args.compute:
            for isa in args.isa:
                found = measured(args, model, compute, isa)
                for product in ("forward", "dX", "dW"):
                    for form in FORMS:
                        these = {key: gains(entry)[form] for key, entry in sorted(found.items())
                                 if key[3] == product and form in entry[1]}
                        if not these:
                            continue
                        spans = [", ".join(f"{f(gain[i] for gain in these.values()):.2f}" for f in (min, statistics.median, max))
                                 for i in (0, 1)]
                        won = [f"{m},{k},{n}: {gain[0]:.2f}" for (m, k, n, _), gain in these.items() if gain[0] > 1.05]
                        print(f"| {model} | {compute} | {isa} | {product} | {form.replace('_', ' ')} | {spans[0]} | {spans[1]} "
                              f"| {len(won)} of {len(these)} {'; '.join(won)} |", flush=True)


if __name__ == "__main__":
    main()
