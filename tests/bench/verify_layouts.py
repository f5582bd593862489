#!/usr/bin/env python3
"""Draws random layouts and models, runs `trainer verify` on each, and reports every check that fails: on intact machines all
of them are false alarms. Slow: some seconds per layout.

TRAINER=build/trainer tests/bench/verify_layouts.py [--count 200] [--seed 1] [--experts 0.3] [--mpi]
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import tempfile

CHECKS = "gradients,norm,update,bytes,repeat"
REPLICAS = {1: [1], 2: [1, 2], 4: [1, 2, 4], 6: [1, 2, 3], 8: [1, 2, 4]}


def strategy(draw, ranks):
    """Returns settings for replicas of this number of ranks."""
    split = lambda n: draw.choice([(a, n // a) for a in range(1, n + 1) if n % a == 0])
    kind = draw.choice(["megatron-1d", "fsdp", "axonn-4d", "optimus-2d"])
    if kind == "megatron-1d":
        return [f"tensor={ranks}", f"sequence_parallel={draw.choice(['true', 'false'])}"], kind
    if kind == "fsdp":
        return [f"shards={ranks}", f"cache_layers={draw.choice([0, 0, 6])}"], kind
    if kind == "axonn-4d":
        x, rest = split(ranks)
        y, z = split(rest)
        return [f"grid=[{x},{y},{z}]", f"order={draw.choice(['yxzd', 'xyzd', 'zxyd'])}"], kind
    rows, rest = split(ranks)
    return [f"mesh=[{rows},{rest}]", f"panels={draw.choice(['auto', 'gather'])}"], kind


def settings(draw, experts):
    """Returns the settings of a random layout and model, and its number of ranks. `experts`: the share of models with experts."""
    world = draw.choice(list(REPLICAS))
    data = draw.choice(REPLICAS[world])
    keys, kind = strategy(draw, world // data)
    sets = [f"parallel.strategy={kind}", f"parallel.data={data}", f"parallel.zero_stage={draw.choice([0, 1])}",
            *(f"parallel.{key}" for key in keys)]
    sets += [f"model.arch={draw.choice(['gpt2', 'llama', 'qwen2', 'qwen3', 'olmo2'])}",
             f"model.n_kv_head={draw.choice([24, 6, 2])}", f"model.dropout={draw.choice([0, 0.1])}",
             f"train.recompute={draw.choice(['none', 'selective', 'full'])}", f"train.z_loss={draw.choice([0, 1e-4])}",
             f"optim.name={draw.choice(['adamw', 'adamw', 'muon'])}", f"precision.compute={draw.choice(['fp32', 'bf16'])}",
             f"train.global_batch={draw.choice([48, 96])}", f"run.seed={draw.randrange(1000)}"]
    if draw.random() < 0.2:
        sets.append("data.separate_documents=true")
    if draw.random() < experts:  # the last of two settings of a key counts
        sets += [f"model.arch={draw.choice(['mixtral', 'olmoe', 'qwen2_moe', 'qwen3_moe'])}", "model.n_expert=12", "model.moe_every=2",
                 f"model.experts_per_token={draw.choice([1, 2, 4])}", "model.d_expert=704",
                 f"train.balance={draw.choice(['batch', 'sequence'])}", f"train.router_z_loss={draw.choice([0, 1e-3])}"]
        if kind in ("fsdp", "megatron-1d") and draw.random() < 0.7:
            sets += [f"parallel.experts={draw.choice([2, 4])}", f"parallel.expert_buffer={draw.choice([1, 1.5])}"]
    return sets, world


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--experts", type=float, default=0.3, help="the share of models with experts")
    parser.add_argument("--mpi", action="store_true", help="ranks are processes of mpirun")
    options = parser.parse_args()
    trainer = pathlib.Path(os.environ.get("TRAINER", "build/trainer")).resolve()
    draw, passed, rejected, alarms = random.Random(options.seed), 0, 0, []
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "c.toml"
        tokens = pathlib.Path(folder) / "t.txt"
        tokens.write_text("the cat sat on the mat\n" * 100)
        config.write_text(f'[run]\ndir = "{folder}/run"\nthreads = 1\n[model]\nn_layer = 6\nn_head = 24\nd_model = 1536\nd_ff = 5760\n'
                          f'seq_len = 512\n[data]\ntrain = ["{tokens}"]\ntokenizer = "train"\nvocab_size = 500\n'
                          "[train]\nmicro_batch = 24\n")
        while passed + len(alarms) < options.count:
            sets, world = settings(draw, options.experts)
            launcher = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", str(world)]
            command = [*(launcher if options.mpi else []), trainer, "verify", "--config", config, "--only", CHECKS, "--json",
                       "--set", *sets]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode == 2:  # not a legal combination
                rejected += 1
                continue
            if result.returncode == 0 and json.loads(result.stdout)["complete"]:
                passed += 1
                continue
            try:
                found = [check for check in json.loads(result.stdout)["checks"] if check["result"] != "pass"]
            except ValueError:
                found = result.stderr[-500:]
            alarms.append((sets, found))
            print(result.returncode, " ".join(sets), found, sep="\n  ", flush=True)
    print(f"{passed} layouts passed, {len(alarms)} alarms ({rejected} settings are not legal)")
    return 1 if alarms else 0


if __name__ == "__main__":
    raise SystemExit(main())
