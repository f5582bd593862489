#!/usr/bin/env python3
"""Compares Optimus-2D with Megatron-1D and AxoNN-4D: times of steps and of forward passes, exposed communication and
bytes sent; and the largest batches that fit into a device.

Each rank has one thread. Ranks run over this machine's shared memory and on emulated hosts with slow links
(emulated_cluster.sh). The layouts of a table alternate for several rounds, so that drifts of the machine's speed affect
all of them. The model has two layers of width 768 with 16 heads; tokens are random. A forward pass covers all layers
without the head, like the published inference times. Batches come from dry runs of the published sizes. Prints Markdown
tables.

    tests/bench/optimus.py --rate 400mbit --rounds 3
    tests/bench/optimus.py --ranks --networks shared --devices 4 16 64        # only batches
"""
import argparse
import re
import statistics
import sys
import tempfile
from pathlib import Path

from runs import (ROOT, Skipped, add_arguments, add_network_arguments, in_turns, launcher, ratio, run, toml, train,
                  waits_by_axis, write_tokens)

VOCABULARY = 4096
CONFIG = ROOT / "configs" / "gpt2-124m.toml"
PANELS = ("ring", "gather")
AXONN = {4: [2, 1, 2], 8: [2, 2, 2], 16: [2, 2, 4]}
# Devices per replica: width and heads of the published models, which have 24 layers and sequences of 512 tokens.
PUBLISHED = {4: (2048, 32), 16: (4096, 64), 64: (8192, 128)}


class Layout:
    """A layout's settings, and its number of ranks along each axis."""

    def __init__(self, settings, **sizes):
        self.settings, self.sizes = settings, sizes


def megatron(ranks, sequence_parallel=True):
    return Layout(["parallel.strategy=megatron-1d", f"parallel.tensor={ranks}",
                   f"parallel.sequence_parallel={toml(sequence_parallel)}"], tensor=ranks)


def optimus(mesh, panels, stationary="auto", *more, data=1):
    depth = mesh[2] if len(mesh) > 2 else 1
    return Layout(["parallel.strategy=optimus-2d", f"parallel.mesh={mesh}", f"parallel.panels={panels}",
                   f"parallel.stationary={stationary}", *more], row=mesh[0], col=mesh[1], data=data * depth)


def axonn(grid):
    return Layout(["parallel.strategy=axonn-4d", f"parallel.grid={grid}"], **dict(zip("xyz", grid)))


def layouts_of(args, ranks):
    """Returns the layouts for this number of ranks, by name."""
    layouts = {"1D": megatron(ranks), "1D, whole rows": megatron(ranks, False)}
    side, rest = int(ranks ** 0.5), ranks // 4
    for panels in PANELS:
        if side * side == ranks:
            for stationary in ("auto", "paper"):
                layouts[f"2D [{side}, {side}], {stationary}, {panels}"] = optimus([side, side], panels, stationary)
        if rest > 1:
            layouts[f"2D [2, 2] x {rest} replicas, {panels}"] = optimus(
                [2, 2], panels, "auto", f"train.micro_batch={args.batch // rest}", data=rest)
            layouts[f"2.5D [2, 2, {rest}], {panels}"] = optimus([2, 2, rest], panels)
    if side * side == ranks:
        layouts[f"2D [{side}, {side}], auto, ring, waiting at once"] = optimus([side, side], "ring", "auto",
                                                                               "debug.overlap=false")
    layouts[f"AxoNN-4D {AXONN[ranks]}"] = axonn(AXONN[ranks])
    return layouts


def measure(args, folder, start, layouts):
    """Measures each layout: step and forward times, and by axis rank 0's waiting time and the bytes sent per rank."""
    def one_run(name):
        settings = ["run.threads=1", "model.n_layer=2", "model.n_head=16", "model.seq_len=128",
                    f"train.global_batch={args.batch}", f"train.micro_batch={args.batch}",
                    'train.recompute="none"']
        return train(args, args.trainer, CONFIG, VOCABULARY, folder, start, [*settings, *layouts[name].settings])

    measured = in_turns(args.rounds, layouts, one_run)
    for name, one in measured.items():
        events = one["events"]
        one["waits"] = waits_by_axis(events)
        one["forward"] = statistics.median(event["phase_ms"]["forward"] for event in events)
        one["bytes"] = {axis: sum(operations.values()) / layouts[name].sizes[axis]
                        for axis, operations in events[-1]["comm_bytes"].items()}
    return measured


def memory_of(args, devices, layout, batch):
    """Returns the MiB that a rank of such a run requires, from a dry run."""
    width, heads = PUBLISHED[devices]
    common = ["model.n_layer=24", f"model.n_head={heads}", f"model.d_model={width}", "model.seq_len=512",
              "model.dropout=0", "optim.warmup_steps=0", "train.recompute=full", f"train.global_batch={batch}",
              f"train.micro_batch={batch}", "train.sample_interval=0", "parallel.data=1",
              f"precision.compute={args.compute}", 'data.tokenizer=""', f"data.vocab_size={VOCABULARY}",
              f"data.train={args.folder}/tokens.bin", f"run.dir={args.folder}/dry", "data.val_fraction=0",
              "hardware.memory_limit=100000"]
    command = [args.trainer, "train", "--config", str(CONFIG), "--dry-run"]
    for setting in [*common, *layout.settings]:
        command += ["--set", setting]
    number, unit = re.search(r"^  total +([0-9.]+) ([KMGT]iB)", run(command), re.MULTILINE).groups()
    return float(number) * {"KiB": 1 / 1024, "MiB": 1, "GiB": 1024, "TiB": 1024 * 1024}[unit]


def largest_batch(args, devices, layout, unit):
    """Returns the most sequences per replica, a multiple of `unit`, that fit into a device."""
    fits = lambda count: memory_of(args, devices, layout, unit * count) <= args.memory * 1024
    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return unit * low


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "build" / "trainer"))
    parser.add_argument("--batch", type=int, default=16, help="sequences a step, all in one micro-batch")
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 8, 16], choices=sorted(AXONN))
    add_network_arguments(parser)
    parser.add_argument("--per-host", type=int, default=2, help="ranks on an emulated host")
    parser.add_argument("--devices", type=int, nargs="*", default=[4, 16, 64], choices=sorted(PUBLISHED),
                        help="of the table of largest batches; nothing: none")
    parser.add_argument("--memory", type=float, default=16, help="of such a device, GiB")
    add_arguments(parser, warmup=2, steps=5, rounds=3)
    args = parser.parse_args()

    steps = ["| ranks | layout | over | step, this / 1D (rounds) | forward, this / 1D | waiting, share of the step | "
             "MB a rank sends in a step, by axis |", "|---|---|---|---|---|---|---|"]
    batches = ["| devices | width | 1D, whole rows | 1D | 2D, gathered | 2D | 2D / 1D, whole rows | 2D / 1D |",
               "|---|---|---|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory(prefix="optimus-") as temporary:
        args.folder = Path(temporary)
        write_tokens(args.folder, VOCABULARY)
        for devices in args.devices:
            side = int(devices ** 0.5)
            print(f"largest batches of {devices} devices", file=sys.stderr)
            whole, rows = (largest_batch(args, devices, megatron(devices, split), 1) for split in (False, True))
            square, gathered = (largest_batch(args, devices, optimus([side, side], panels), side) for panels in PANELS)
            over = [f"{square / one:.1f}" if one else "–" for one in (whole, rows)]
            batches.append(f"| {devices} | {PUBLISHED[devices][0]} | {whole} | {rows} | {gathered} | {square} | "
                           f"{' | '.join(over)} |")
        for network in args.networks if args.ranks else []:
            over = "shared memory" if network == "shared" else f"hosts of {args.per_host}, {args.rate}"
            try:
                for ranks in args.ranks:
                    print(f"{ranks} ranks, {network}", file=sys.stderr)
                    hosts = () if network == "shared" else (args.per_host, args.rate)
                    measured = measure(args, args.folder, launcher(ranks, *hosts), layouts_of(args, ranks))
                    base = measured["1D"]
                    for name, one in measured.items():
                        waits = ", ".join(f"{axis} {wait / one['step']:.2f}" for axis, wait in sorted(one["waits"].items()))
                        sent = ", ".join(f"{axis} {count / 1e6:.1f}" for axis, count in sorted(one["bytes"].items()))
                        beside = ("", "") if one is base else (ratio(one, base), f"{one['forward'] / base['forward']:.2f}")
                        steps.append(f"| {ranks} | {name} | {over} | {beside[0]} | {beside[1]} | {waits} | {sent} |")
            except Skipped as why:
                print(why, file=sys.stderr)
    print("\n\n".join("\n".join(table) for table, requested in ((steps, args.ranks), (batches, args.devices)) if requested))


if __name__ == "__main__":
    main()
