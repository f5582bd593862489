#!/usr/bin/env python3
"""Compares strategies: plans published model sizes on 64 to 32 768 devices, as a table and a chart.

    scripts/scale_study.py --trainer build/trainer --cluster configs/clusters/perlmutter.toml --output tests/bench/scale-perlmutter

writes OUTPUT.md and OUTPUT.svg. It runs only `trainer plan`; the numbers are predictions for clusters that were not
measured.
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

# Published GPT sizes (Narayanan et al. 2021, table 1): layers, width, heads, sequences (of 2048 tokens) per batch.
MODELS = {"3.6B": (30, 3072, 32, 512), "18.4B": (40, 6144, 48, 1024), "76.1B": (60, 10240, 80, 2048),
          "310B": (96, 16384, 128, 4096)}
DEVICES = (64, 256, 1024, 4096, 32768)
STRATEGIES = ("megatron-1d", "fsdp", "optimus-2d", "axonn-4d", "autoddl")
COLOURS = {"megatron-1d": "#2563b0", "fsdp": "#6b6b6b", "optimus-2d": "#d1631a", "axonn-4d": "#1f8a70", "autoddl": "#a3417f"}
MOST = 0.8  # the top of the chart's utilisation axis
CONFIG = """[model]
n_layer = {layers}
n_head = {heads}
d_model = {width}
seq_len = 2048
[data]
vocab_size = 51200
[train]
global_batch = {batch}
[precision]
compute = "bf16"
"""


def plan(trainer, cluster, model, devices):
    """Returns each strategy's fastest run that fits in memory."""
    layers, width, heads, batch = MODELS[model]
    batch = max(batch, devices // 4)
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "config.toml"
        config.write_text(CONFIG.format(layers=layers, width=width, heads=heads, batch=batch))
        result = subprocess.run([trainer, "plan", "--config", config, "--cluster", cluster, "--devices", str(devices),
                                 "--top", "1000", "--json"], capture_output=True, text=True)
    if result.returncode == 3:
        return {}, 0
    if result.returncode != 0:
        raise SystemExit(result.stderr)
    document = json.loads(result.stdout)
    best = {}
    for run in document["runs"]:
        best.setdefault(run["strategy"], run)
    return best, document["seconds"]


def words(run):
    return f"{run['layout']}, batch {run['micro_batch']}, {run['recompute']}"


def picture(rows):
    """Returns a chart of utilisation over devices: a panel for each model, a line for each strategy."""
    width, height = 250, 200
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * len(MODELS)}" height="{height + 40}" '
           'font-family="sans-serif" font-size="11">']
    for panel, model in enumerate(MODELS):
        x0, y0 = panel * width + 40, height - 20
        place_x = {d: x0 + i * (width - 60) / (len(DEVICES) - 1) for i, d in enumerate(DEVICES)}
        out.append(f'<text x="{x0}" y="14" font-weight="bold">{model}</text>')
        for share in (0, 0.2, 0.4, 0.6, 0.8):
            y = y0 - share / MOST * (height - 50)
            out.append(f'<line x1="{x0}" x2="{x0 + width - 60}" y1="{y}" y2="{y}" stroke="#ddd"/>'
                       f'<text x="{x0 - 6}" y="{y + 4}" text-anchor="end">{share:.0%}</text>')
        for devices, x in place_x.items():
            out.append(f'<text x="{x}" y="{y0 + 14}" text-anchor="middle">{devices}</text>')
        for strategy in STRATEGIES:
            points = [(place_x[d], y0 - best[strategy]["mfu"] / MOST * (height - 50))
                      for (m, d), best in rows.items() if m == model and strategy in best]
            path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
            out.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[strategy]}" stroke-width="2"/>')
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[strategy]}"/>' for x, y in points]
    for i, strategy in enumerate(STRATEGIES):
        out.append(f'<text x="{40 + 140 * i}" y="{height + 24}" fill="{COLOURS[strategy]}">{strategy}</text>')
    out.append(f'<text x="{40 + 140 * len(STRATEGIES)}" y="{height + 24}">model FLOPs utilisation over devices</text></svg>')
    return "\n".join(out) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="build/trainer")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--devices", type=int, nargs="*", default=DEVICES)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    args = parser.parse_args()
    version = subprocess.run([args.trainer, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    rows, times = {}, {}
    for model in args.models:
        for devices in args.devices:
            rows[model, devices], times[model, devices] = plan(args.trainer, args.cluster, model, devices)
            print(model, devices, {s: round(r["step_seconds"], 3) for s, r in rows[model, devices].items()}, flush=True)
    lines = [f"# Which strategy wins where: {pathlib.Path(args.cluster).stem}", "",
             f"Predicted by `scripts/scale_study.py --cluster {args.cluster}` with {version}; the cluster was not measured. GPT of published "
             "sizes, sequences of 2048 tokens, bf16. Seconds per step of the fastest layout of each strategy that fits.", "",
             "| model | devices | " + " | ".join(STRATEGIES) + " | fastest | utilisation | planned in |",
             "|" + "---|" * (len(STRATEGIES) + 5)]
    for (model, devices), best in rows.items():
        if not best:
            lines.append(f"| {model} | {devices} |" + " |" * len(STRATEGIES) + " nothing fits | | |")
            continue
        first = min(best.values(), key=lambda run: run["step_seconds"])
        cells = [f"{best[s]['step_seconds']:.3g}" if s in best else "-" for s in STRATEGIES]
        lines.append(f"| {model} | {devices} | " + " | ".join(cells) + f" | {first['strategy']}: {words(first)} | "
                     f"{first['mfu']:.1%} | {times[model, devices]:.1f} s |")
    output = pathlib.Path(args.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.with_suffix(".md").write_text("\n".join(lines) + f"\n\n![utilisation]({output.name}.svg)\n")
    output.with_suffix(".svg").write_text(picture(rows))


if __name__ == "__main__":
    main()
