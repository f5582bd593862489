#!/usr/bin/env python3
"""Compares gradients with logits in bf16, and in bf16 relative to their mean over the vocabulary, with logits in fp32.

Reads a trained GPT-2 model of the trainer (`checkpoint export --format hf`) and tokens, computes gradients in fp64, and
with operands, activations and their gradients rounded to bf16 where the trainer has them in bf16 (sums, norms, softmax
and weight gradients are fp32). Prints the error of each variant relative to the error with fp32 logits: the largest ratio
of a parameter's gradient, and that of the head's dx. Softmax ignores a constant added to a row of logits. So "centred"
multiplies by E − mean(E), in which a shift that all tokens have in common is gone.

    tests/bench/bf16_logits.py --model exported --tokens RUN/tokens/train.bin
"""
import argparse
import json
import math
import struct
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

TOKEN_HEADER = 1024


class Round(torch.autograd.Function):
    """Rounds to bf16, and the gradient as well: a tensor that both passes keep in bf16."""

    @staticmethod
    def forward(ctx, x):
        return x.bfloat16().to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        return dy.bfloat16().to(dy.dtype)


class RoundWeight(Round):
    """Rounds to bf16, but not the gradient, which is summed in fp32."""

    @staticmethod
    def backward(ctx, dy):
        return dy


class Head(torch.autograd.Function):
    """Mean cross-entropy of x·eᵀ, whose values are rounded to bf16 if `round_logits`, and gradients if `rounding`."""

    @staticmethod
    def forward(ctx, x, e, targets, round_logits, rounding):
        z = x @ e.T
        z = z.bfloat16().to(z.dtype) if round_logits else z
        dz = F.softmax(z, -1)
        loss = F.cross_entropy(z, targets)
        dz[torch.arange(len(targets)), targets] -= 1
        dz /= len(targets)
        ctx.save_for_backward(x, e, dz.bfloat16().to(dz.dtype) if rounding else dz)
        return loss

    @staticmethod
    def backward(ctx, dloss):
        x, e, dz = ctx.saved_tensors
        return dz @ e, dz.T @ x, None, None, None


def read_safetensors(path):
    data = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(data[8 + length + begin : 8 + length + end], np.float32).reshape(entry["shape"])
            tensors[name.removeprefix("transformer.")] = torch.from_numpy(values.copy())
    return tensors


def gradients(weights, heads, ids, targets, e, rounding=True, round_logits=False, centre=False):
    """Returns the gradients of every parameter and of the head's input, and that input. `e`: the table as the head uses it."""
    same = lambda x: x
    r, rw = (Round.apply, RoundWeight.apply) if rounding else (same, same)
    p = {name: w.clone().requires_grad_() for name, w in weights.items()}
    e = e.clone().requires_grad_()

    def norm(x, name):
        return r(F.layer_norm(x, x.shape[-1:], p[name + ".weight"], p[name + ".bias"], 1e-5))

    def linear(x, name):
        return r(x @ rw(p[name + ".weight"]) + p[name + ".bias"])

    length = ids.shape[1]
    mask = torch.full((length, length), -math.inf, dtype=e.dtype).triu(1)
    x = r(rw(p["wte.weight"])[ids] + rw(p["wpe.weight"])[:length])
    for layer in range(sum(name.endswith("ln_1.weight") for name in p)):
        at = f"h.{layer}."
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in linear(norm(x, at + "ln_1"), at + "attn.c_attn").chunk(3, -1))
        shares = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask, -1)
        x = r(x + linear(r(r(shares) @ v).transpose(1, 2).flatten(2), at + "attn.c_proj"))
        x = r(x + linear(r(F.gelu(linear(norm(x, at + "ln_2"), at + "mlp.c_fc"), approximate="tanh")), at + "mlp.c_proj"))
    x = norm(x, "ln_f").flatten(0, 1)
    x.retain_grad()
    table = e - e.mean(0) if centre else e
    Head.apply(x, rw(table), targets.flatten(), round_logits, rounding).backward()
    return {**{name: w.grad for name, w in p.items()}, "head": e.grad, "head dx": x.grad}, x.detach()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of `checkpoint export --format hf`")
    parser.add_argument("--tokens", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--sequences", type=int, default=4)
    parser.add_argument("--scales", type=float, nargs="+", default=[1.0, 2.0, 3.0], help="multiply logits: a more certain model")
    parser.add_argument("--shifts", type=float, nargs="+", default=[0.0, -30.0, -60.0])
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = json.loads((args.model / "config.json").read_text())
    weights = read_safetensors(args.model / "model.safetensors")
    weights = {name: w for name, w in weights.items() if name != "lm_head.weight"}
    tokens = torch.from_numpy(np.fromfile(args.tokens, np.uint16, offset=TOKEN_HEADER).astype(np.int64))
    length, heads = shape["n_positions"], shape["n_head"]
    table = weights["wte.weight"][: shape["vocab_size"]]

    batches = []
    for i in range(args.batches):
        starts = [(i * args.sequences + s) * len(tokens) // (args.batches * args.sequences + 1) for s in range(args.sequences)]
        window = torch.stack([tokens[start : start + length + 1] for start in starts])
        batches.append((window[:, :-1], window[:, 1:]))
    doubles = {name: w.double() for name, w in weights.items()}
    _, x = gradients(doubles, heads, *batches[0], table.double(), rounding=False)
    mean = x.mean(0)
    print(f"loss {F.cross_entropy(x @ table.double().T, batches[0][1].flatten()):.2f}")
    print(f"{'logits':>8} {'shift':>6} {'mean':>7} {'top':>6} {'target':>7}   largest ratio and its parameter, head dx: bf16; centred bf16")
    for scale in args.scales:
        for shift in args.shifts:
            # A shift that all tokens have in common: a direction that the head's inputs have in common.
            e = (scale * table.double() + shift * mean / mean.square().sum()).float()
            z = x @ e.double().T
            top = (z.max(1).values - z.mean(1)).mean()
            target = (z.gather(1, batches[0][1].flatten()[:, None])[:, 0] - z.mean(1)).mean()
            variants = {"fp32": {}, "bf16": {"round_logits": True}, "centred": {"round_logits": True, "centre": True}}
            errors = {variant: {} for variant in variants}
            for ids, targets in batches:
                exact, _ = gradients(doubles, heads, ids, targets, e.double(), rounding=False)
                for variant, how in variants.items():
                    found, _ = gradients(weights, heads, ids, targets, e, **how)
                    for name, g in exact.items():
                        errors[variant][name] = errors[variant].get(name, 0.0) + (found[name] - g).square().sum().item()
            ratios = {variant: {name: math.sqrt(error / errors["fp32"][name]) for name, error in of.items()} for variant, of in errors.items()}
            dx = {variant: of.pop("head dx") for variant, of in ratios.items()}
            largest = {variant: max(of, key=of.get) for variant, of in ratios.items()}
            shown = [f"{ratios[v][largest[v]]:.2f} {largest[v]}, {dx[v]:.2f}" for v in ("bf16", "centred")]
            print(f"{scale:>7g}x {shift:>6g} {z.mean():>7.1f} {top:>6.1f} {target:>7.1f}   {'; '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
