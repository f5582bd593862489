#!/usr/bin/env python3
"""PyTorch's fused AdamW on a CPU, for comparison in tests/bench/offload.py. Reads lines "WORK COUNT", makes COUNT
updates and writes their seconds as JSON. WORK is what an update does:

    step    only the fused step
    scaled  gradients divided by a scale in the fused step, as mixed precision and clipping require
    whole   the same, and then a bf16 copy of the weights for the next forward pass
"""
import argparse
import json
import sys
import time

import torch

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--sizes", type=int, nargs="+", required=True, help="parameters of each tensor")
parser.add_argument("--threads", type=int, required=True)
args = parser.parse_args()
torch.set_num_threads(args.threads)
weights = [torch.nn.Parameter(torch.randn(size)) for size in args.sizes]
copies = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights]
for weight in weights:
    weight.grad = torch.randn_like(weight) * 1e-3
optimizer = torch.optim.AdamW(weights, lr=1e-6, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


def update(work):
    if work != "step":  # torch.amp.GradScaler sets these
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(1.0), torch.tensor(0.0)
    optimizer.step()
    if work != "step":
        del optimizer.grad_scale, optimizer.found_inf
    if work == "whole":
        with torch.no_grad():
            torch._foreach_copy_(copies, weights)


for kind in ("step", "scaled", "whole"):
    update(kind)
print(f"ready {torch.__version__}", flush=True)
for line in sys.stdin:
    kind, _, count = line.strip().partition(" ")
    seconds = []
    for _ in range(int(count)):
        start = time.perf_counter()
        update(kind)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds), flush=True)
