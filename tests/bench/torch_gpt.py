#!/usr/bin/env python3
"""The counterpart of `trainer bench step`: the same training step in plain PyTorch, on random tokens.

Reads a trainer configuration, builds that model from ordinary PyTorch modules (fused attention, fused AdamW) and times
whole optimizer steps: forward, backward, clipping, update. Without --serve it prints one JSON document; with --serve it
warms up, then answers every line "N" on standard input with the milliseconds of N more steps, so that a caller can
alternate with another program.
"""
import argparse
import json
import math
import os
import statistics
import sys
import time
import tomllib

import torch
import torch.nn.functional as F
from torch import nn


def read_config(path, overrides):
    """Returns the TOML file as nested dictionaries, after section.key=value overrides (values in TOML syntax)."""
    with open(path, "rb") as file:
        config = tomllib.load(file)
    for item in overrides:
        key, _, text = item.partition("=")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        section, _, name = key.partition(".")
        config.setdefault(section, {})[name] = value
    return config


class Shape:
    """The sizes that determine a step's cost, with the trainer's defaults for each model family."""

    def __init__(self, config):
        model, train = config.get("model", {}), config.get("train", {})
        self.llama = model.get("arch", "gpt2") == "llama"
        self.layers, self.heads, self.hidden = model["n_layer"], model["n_head"], model["d_model"]
        self.kv_heads = model.get("n_kv_head") or self.heads
        llama_ff = (self.hidden * 8 // 3 + 63) // 64 * 64
        self.ff = model.get("d_ff") or (llama_ff if self.llama else 4 * self.hidden)
        self.seq = model["seq_len"]
        self.vocab = config.get("data", {})["vocab_size"]
        self.tied = model.get("tie_embeddings", not self.llama)
        self.bias = model.get("bias", not self.llama)
        self.theta = model.get("rope_theta", 10000.0)
        self.micro_batch = train["micro_batch"]
        self.accumulation = train.get("global_batch", self.micro_batch) // self.micro_batch
        self.clip = config.get("optim", {}).get("grad_clip", 1.0)
        self.experts, self.chosen, self.expert_ff = (model.get(key, 0) for key in ("n_expert", "experts_per_token", "d_expert"))

    def tokens(self):
        return self.micro_batch * self.accumulation * self.seq


class Block(nn.Module):
    def __init__(self, s):
        super().__init__()
        norm = (lambda: nn.RMSNorm(s.hidden, eps=1e-5)) if s.llama else (lambda: nn.LayerNorm(s.hidden, bias=s.bias))
        self.heads, self.kv_heads, self.size = s.heads, s.kv_heads, s.hidden // s.heads
        self.llama, self.norm1, self.norm2 = s.llama, norm(), norm()
        self.qkv = nn.Linear(s.hidden, (s.heads + 2 * s.kv_heads) * self.size, bias=s.bias)
        self.out = nn.Linear(s.hidden, s.hidden, bias=s.bias)
        self.up = nn.Linear(s.hidden, s.ff * (2 if s.llama else 1), bias=s.bias)
        self.down = nn.Linear(s.ff, s.hidden, bias=s.bias)

    def forward(self, x, rope):
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(self.norm1(x)).split([n * self.size for n in (self.heads, self.kv_heads, self.kv_heads)], 2)
        q, k, v = (t.view(batch, seq, -1, self.size).transpose(1, 2) for t in (q, k, v))
        if rope is not None:
            q, k = rotate(q, rope), rotate(k, rope)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, seq, hidden))
        up = self.up(self.norm2(x))
        if self.llama:
            gate, up = up.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)
        return x + self.down(F.gelu(up, approximate="tanh"))


def rotate(x, rope):
    cos, sin = (t.to(x.dtype) for t in rope)
    low, high = x.chunk(2, -1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), -1)


class Gpt(nn.Module):
    """The model. Head and loss are two operators, or with `chunked_loss` the single one of PyTorch 2.15 and later,
    which never stores all logits (in bf16 if `reduced`). `loss_in_fp32`: logits are converted to fp32 before the
    loss."""

    def __init__(self, s, chunked_loss=False, reduced=False, loss_in_fp32=False):
        super().__init__()
        self.chunked_loss, self.reduced, self.loss_in_fp32 = chunked_loss, reduced, loss_in_fp32
        self.table = nn.Embedding(s.vocab, s.hidden)
        self.positions = None if s.llama else nn.Embedding(s.seq, s.hidden)
        self.blocks = nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = nn.RMSNorm(s.hidden, eps=1e-5) if s.llama else nn.LayerNorm(s.hidden, bias=s.bias)
        self.head = nn.Linear(s.hidden, s.vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)
        if s.tied:
            self.head.weight = self.table.weight
        self.rope = None
        if s.llama:
            size = s.hidden // s.heads
            angle = torch.outer(torch.arange(s.seq), s.theta ** (-torch.arange(0, size, 2) / size))
            self.register_buffer("cos", angle.cos(), persistent=False)
            self.register_buffer("sin", angle.sin(), persistent=False)
            self.rope = True

    def forward(self, ids, targets):
        x = self.table(ids)
        if self.positions is not None:
            x = x + self.positions.weight[: ids.shape[1]]
        rope = (self.cos, self.sin) if self.rope else None
        for block in self.blocks:
            x = block(x, rope)
        x = self.norm(x)
        if self.chunked_loss:
            x, weight = ((x.bfloat16(), self.head.weight.bfloat16()) if self.reduced else (x, self.head.weight))
            return F.linear_cross_entropy(x.flatten(0, 1), weight, targets.flatten(), options=nn.LinearCrossEntropyOptions())
        logits = self.head(x).flatten(0, 1)
        return F.cross_entropy(logits.float() if self.loss_in_fp32 else logits, targets.flatten())


class Mixture(nn.Module):
    """A mixture of experts: transformers' Mixtral with the trainer's loss."""

    def __init__(self, s, implementation):
        import transformers
        super().__init__()
        self.model = transformers.MixtralForCausalLM(transformers.MixtralConfig(
            vocab_size=s.vocab, hidden_size=s.hidden, intermediate_size=s.expert_ff, num_hidden_layers=s.layers,
            num_attention_heads=s.heads, num_key_value_heads=s.kv_heads, head_dim=s.hidden // s.heads, num_local_experts=s.experts,
            num_experts_per_tok=s.chosen, max_position_embeddings=s.seq, tie_word_embeddings=s.tied, use_cache=False,
            output_router_logits=True, experts_implementation=implementation, attn_implementation="sdpa"))

    def forward(self, ids, targets):
        out = self.model(ids)
        return F.cross_entropy(out.logits.flatten(0, 1), targets.flatten()) + 0.01 / self.model.num_experts_per_tok * out.aux_loss


class Stepper:
    """Runs optimizer steps. dtype: fp32; autocast (fp32 state, GEMMs in bf16); bf16 (weights, gradients and moments in
    bf16); master (weights and gradients in bf16, updated from fp32 copies, as the trainer does)."""

    def __init__(self, shape, dtype, use_compile, device, chunked_loss=False, experts="grouped_mm"):
        torch.manual_seed(1)
        self.shape, self.autocast, self.device = shape, dtype == "autocast", torch.device(device)
        with self.device:
            # On a CPU the loss keeps the type that PyTorch chooses, which is faster for PyTorch.
            self.model = (Mixture(shape, experts) if shape.experts else
                          Gpt(shape, chunked_loss, reduced=dtype != "fp32", loss_in_fp32=device == "cuda"))
        if dtype in ("bf16", "master"):
            self.model.bfloat16()
        self.weights = list(self.model.parameters())
        self.masters = [p.detach().float().requires_grad_() for p in self.weights] if dtype == "master" else self.weights
        decay = [p for p in self.masters if p.dim() > 1]
        plain = [p for p in self.masters if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
        self.loss_of = torch.compile(self.model) if use_compile else self.model

    def free_cache(self):
        """Frees cached memory that no tensor uses, for the program that alternates with this one."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def step(self):
        """Returns the seconds of one step, and its last loss."""
        size = (self.shape.micro_batch, self.shape.seq + 1)
        start = time.perf_counter()
        for _ in range(self.shape.accumulation):
            tokens = torch.randint(self.shape.vocab, size, device=self.device)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
                loss = self.loss_of(tokens[:, :-1], tokens[:, 1:])
            (loss / self.shape.accumulation).backward()
        if self.masters is not self.weights:
            for master, weight in zip(self.masters, self.weights):
                master.grad = weight.grad.float()
        if self.shape.clip:
            nn.utils.clip_grad_norm_(self.masters, self.shape.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.masters is not self.weights:
            with torch.no_grad():
                torch._foreach_copy_(self.weights, self.masters)
            self.model.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start, loss.item()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True, help="a trainer configuration (model, train.micro_batch, data.vocab_size)")
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--dtype", choices=["fp32", "bf16", "autocast", "master"], default="fp32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model (needs a C++ compiler)")
    parser.add_argument("--chunked-loss", action="store_true", help="head and loss as F.linear_cross_entropy")
    parser.add_argument("--experts", choices=["eager", "grouped_mm", "batched_mm"], default="grouped_mm",
                        help="how transformers computes a mixture of experts")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--warmup", type=int, default=2, help="steps not counted")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--max-seconds", type=float, default=math.inf, help="start no further step after this time")
    parser.add_argument("--serve", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    shape = Shape(read_config(args.config, args.set))
    stepper = Stepper(shape, args.dtype, args.compile, args.device, args.chunked_loss, args.experts)
    begin, loss = time.perf_counter(), 0.0
    for _ in range(args.warmup):
        seconds, loss = stepper.step()
        if time.perf_counter() - begin > args.max_seconds:
            break
    if args.serve:
        stepper.free_cache()
        print("ready", flush=True)
        for line in sys.stdin:
            if args.device == "cuda":
                stepper.step()  # fills the allocator's cache again; not timed
            print(json.dumps([1e3 * stepper.step()[0] for _ in range(int(line))]), flush=True)
            stepper.free_cache()
        return
    times = []
    while len(times) < args.steps and (not times or time.perf_counter() - begin < args.max_seconds):
        seconds, loss = stepper.step()
        times.append(1e3 * seconds)
    median = statistics.median(times)
    print(json.dumps({"torch": torch.__version__, "dtype": args.dtype, "compile": args.compile, "threads": args.threads,
                      "parameters": sum(p.numel() for p in stepper.model.parameters()), "step_ms": times,
                      "tokens_per_s": 1e3 * shape.tokens() / median, "loss": loss}))


if __name__ == "__main__":
    main()
