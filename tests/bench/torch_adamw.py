#!/usr/bin/env python3
"""PyTorch's fused AdamW on a CPU. Reads a number of updates from a line, does them and writes their seconds as JSON; the
peer of tests/bench/offload.py."""
import argparse
import json
import sys
import time

import torch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--parameters", type=int, required=True)
parser.add_argument("--threads", type=int, required=True)
args = parser.parse_args()
torch.set_num_threads(args.threads)
weights = torch.nn.Parameter(torch.randn(args.parameters))
weights.grad = torch.randn(args.parameters) * 1e-3
optimizer = torch.optim.AdamW([weights], lr=1e-6, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
optimizer.step()
print(f"ready {torch.__version__}", flush=True)
for line in sys.stdin:
    seconds = []
    for _ in range(int(line)):
        start = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds), flush=True)
