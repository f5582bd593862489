#!/usr/bin/env python3
"""Runs scripts/gpu_check.sh to its end on the emulated device, with a fake nvidia-smi, and checks its report.

  gpu_check_test.py ROOT BUILD OUT
"""
import json
import os
import subprocess
import sys
from pathlib import Path

STAGES = """machine step-124m text-124m full-124m attention elementwise optimizer gemm step-1.5b full-1.5b tests cudnn sanitizer torch-compile
torch-full-124m torch-full-1.5b torch-124m torch-1.5b tuned train mpi collectives cpu torch-cpu profile""".split()
STEPS = "step-124m text-124m full-124m step-1.5b full-1.5b tuned".split()


def require(condition, text):
    if not condition:
        sys.exit(f"gpu_check_test.py: {text}")


def main():
    root, build, out = map(Path, sys.argv[1:4])
    environment = dict(os.environ, PATH=f"{root}/tests/cuda/fake_gpu:{os.environ['PATH']}", TRAINER_TORCH_CACHE=str(out / "cache"))
    run = subprocess.run([root / "scripts/gpu_check.sh", "--emulated", build, "--out", out], env=environment)
    require(run.returncode == 0, f"gpu_check.sh: exit {run.returncode}")
    report = json.loads((out / "gpu_check.json").read_text())
    stages = {stage["name"]: stage for stage in report["stages"]}
    require(sorted(stages) == sorted(STAGES), f"stages {list(stages)}")
    for stage in stages.values():
        require(stage["result"] in ("passed", "left out"), f"{stage['name']}: {stage['result']} {stage['line']}")
    for name in STEPS:  # idle samples are ignored; the median of two clocks is the lower
        require(stages[name]["result"] == "passed", f"{name}: {stages[name]['line']}")
        require(stages[name]["line"].startswith("median of "), f"{name}: {stages[name]['line']}")
        require(bool(stages[name]["document"]["data"]) == (name == "text-124m"), f"{name}: tokens of {stages[name]['document']['data']}")
        clocks = stages[name]["clocks"]
        require(clocks["sm_mhz"] in (1730, 1755) and clocks["least_sm_mhz"] == 1730, f"{name}: {clocks}")
        require(600 <= clocks["watts"] <= 701 and clocks["celsius"] in (61, 62), f"{name}: {clocks}")
        require(clocks["limited"] == clocks["samples"] > 0, f"{name}: {clocks}")
    for target in report["targets"]:
        require(target["verdict"] in ("an emulated device", "not run"), f"{target}")
    sys.path.insert(0, str(root / "tests/bench"))
    import compare_torch
    for name, (config, overrides) in compare_torch.CASES.items():  # in their true size: the stages ran a tiny one
        sets = [word for each in overrides for word in ("--set", each)]
        count = [build / "trainer_emulated", "bench", "step", "--dry-run", "--config", root / "configs" / config, *sets]
        if name.startswith("gpu-"):
            require(subprocess.run(count, stdout=subprocess.DEVNULL, cwd=root).returncode == 0, f"{name} of compare_torch.py")
    page = out / "GPU.md"
    command = [sys.executable, root / "tests/bench/gpu_page.py", "--out", page, out / "gpu_check.json"]
    subprocess.run(command, check=True)
    text = page.read_text()
    speed = f"{stages['full-124m']['document']['tokens_per_s']:.0f}"
    require(f"| {speed} |" in text and "no GPU yet" not in text, f"{speed} tokens/s are not in the page")
    kept = subprocess.run([*command[:2], out / "gpu_check.json"], stderr=subprocess.PIPE)  # must fail
    require(kept.returncode != 0, "results of an emulated device went into tests/bench/GPU.md")


if __name__ == "__main__":
    main()
