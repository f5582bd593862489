#!/usr/bin/env python3
"""Measures generation on this CPU, compared with Hugging Face transformers and llama.cpp: tokens/s of GPT-2 124M and of a Llama
of 1.2 billion parameters with random weights, and of reading many prompts; and the memory of a process.

Every program decodes greedily after the same prompt. A turn is one text; the programs take turns, and the time of a token
is the median over the tokens after the first. The bound is the time to read all weights and the KV cache once, at the
rate of the trainer's read loop (`bench optimizer`) before and after the turn; the share is the median over the rounds.
Decoding several texts together, and reading prompts, are compared with the rate of the model's GEMMs on as many rows.

    tests/bench/generation.py --trainer build/trainer --python PYTHON     # a Python with torch, transformers, llama.cpp
    tests/bench/generation.py --trainer build/trainer --python PYTHON --folder /tmp/models --only gpt2     # keeps the models
"""
import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import machine
from machine import ROOT, run

SEQ_LEN, PROMPT = 1024, "The first of them was a small grey house at the end of the lane, and"
GPT2 = {"layers": 12, "d": 768, "kv": 768, "ff": 3072, "vocab": 50257, "gates": 1, "tokens": 64, "prompts": 16}
LLAMA = {"layers": 16, "d": 2048, "kv": 512, "ff": 8192, "vocab": 50257, "gates": 2, "tokens": 24, "prompts": 6}
MODELS = {"gpt2": GPT2, "llama": LLAMA}
PARTS = ["one", "together", "prompts", "memory"]
TOGETHER = [1, 8, 32]  # texts
PROMPT_ROWS = 256  # tokens of a prompt: one pass
MOST_SECONDS = 8   # of a turn of another program, some of which take seconds for a token of bf16


def differences(marks):
    return [later - earlier for earlier, later in zip(marks, marks[1:])]


# --- the parts that run in the Python with the other programs

def timed(tokens):
    """Returns the times between tokens."""
    marks = []
    for _ in tokens:
        marks.append(time.perf_counter())
        if marks[-1] - marks[0] > MOST_SECONDS:
            break
    return differences(marks)


def make_llama(folder):
    import torch
    import transformers
    config = transformers.LlamaConfig(
        vocab_size=LLAMA["vocab"], hidden_size=LLAMA["d"], intermediate_size=LLAMA["ff"], num_hidden_layers=LLAMA["layers"],
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=SEQ_LEN, tie_word_embeddings=False)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)


def transformers_tokens(path, compute, threads, texts=1):
    import torch
    import transformers
    torch.set_num_threads(threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[compute]
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()
    prompt = transformers.AutoTokenizer.from_pretrained(path)(PROMPT, return_tensors="pt").input_ids.expand(texts, -1)

    @torch.inference_mode()
    def decode(count):
        ids, cache = prompt, None
        for _ in range(count):
            result = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids, cache = result.logits[:, -1].argmax(-1, keepdim=True), result.past_key_values
            yield ids
    return decode


def llama_cpp_tokens(path, compute, threads):
    try:
        import llama_cpp
        model = llama_cpp.Llama(path, n_ctx=SEQ_LEN, n_threads=threads, n_threads_batch=threads, verbose=False)
        return lambda count: model(PROMPT, max_tokens=count, temperature=0, repeat_penalty=1, stream=True)
    except ImportError:
        from llama_cpp_py_sync import Llama
        model = Llama(path, n_ctx=SEQ_LEN, n_threads=threads)
        return lambda count: model.generate(PROMPT, max_tokens=count, temperature=0, top_k=1, top_p=1, min_p=0,
                                            repeat_penalty=1, stream=True)


def serve(program, path, compute, *numbers):
    """Answers every number of tokens on stdin with the times of the tokens after the first."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print
    programs = {"transformers": transformers_tokens, "llama.cpp": llama_cpp_tokens}
    tokens = programs[program](path, compute, *map(int, numbers))
    for line in sys.stdin:
        print(json.dumps(timed(tokens(int(line)))), file=answers, flush=True)


# --- models

def make_model(args, name, folder):
    """Makes folder/checkpoint, and the same weights for the other programs: hf/ and fp32.gguf, bf16.gguf."""
    if (folder / "bf16.gguf").exists():
        return
    print(f"making {name}", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint"
    if name == "gpt2":
        sets = [f"run.dir={folder}/run", f"checkpoint.dir={checkpoint}", f"data.train={ROOT}/data/austen.txt",
                f"data.tokenizer={ROOT}/data/gpt2", f"data.vocab_size={GPT2['vocab']}", f"model.seq_len={SEQ_LEN}",
                "data.val_fraction=0", "train.global_batch=1", "train.micro_batch=1", "train.eval_interval=0",
                "train.sample_interval=0", "log.report=false", "run.device=cpu"]
        run([args.trainer, "train", "--config", ROOT / "configs/gpt2-124m.toml", "--resume", "never", "--max-steps", 1,
             "--set", *sets])
        export(args, checkpoint, "hf", folder / "hf", "fp32")
    else:
        run([args.python, __file__, "--make", folder / "hf"])
        for file in (args.folder / "gpt2/hf").iterdir():
            if not file.name.endswith(("config.json", "safetensors")) or file.name == "tokenizer_config.json":
                shutil.copy(file, folder / "hf")
        run([args.trainer, "checkpoint", "import", "--format", "hf", "--input", folder / "hf", "--output", checkpoint])
    for compute in ("fp32", "bf16"):
        export(args, checkpoint, "gguf", folder / f"{compute}.gguf", compute)


def export(args, checkpoint, form, output, dtype):
    run([args.trainer, "checkpoint", "export", "--checkpoint", checkpoint, "--format", form, "--dtype", dtype, "--output",
         output])


def weights(model):
    """Returns the weights that every token reads: all matrices, and the table as the head."""
    d = model["d"]
    return model["layers"] * (2 * d * d + 2 * d * model["kv"] + (1 + model["gates"]) * d * model["ff"]) + model["vocab"] * d


# --- measurements

def generate(args, checkpoint, compute, *more):
    """Returns when each write of `trainer generate` arrived."""
    command = [args.trainer, "generate", "--checkpoint", checkpoint, "--temperature", 0, *more, "--set", "run.device=cpu",
               f"precision.compute={compute}", f"run.threads={args.threads}"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    marks = []
    while os.read(process.stdout.fileno(), 1 << 16):
        marks.append(time.perf_counter())
    if process.wait() != 0:
        sys.exit(process.stderr.read().decode())
    return marks


def read_rate(args):
    """Returns bytes/s of reading memory on all threads."""
    return 16 * json.loads(run([args.trainer, "bench", "optimizer", "--size", 128 << 20, "--repeats", 3, "--threads",
                                args.threads, "--json", "--set", "run.device=cpu"]))["read_parameters_per_s"]


def per_second(seconds):
    """Returns the median, and what one token in twenty exceeds: a token takes no time if the one before was read late."""
    return f"{1 / statistics.median(seconds):.1f} ({1 / statistics.quantiles(seconds, n=20)[0]:.1f})"


def start(args, program, folder, compute, *texts):
    path = folder / ("hf" if program == "transformers" else f"{compute}.gguf")
    process = machine.start_served([args.python, __file__, "--serve", program, path, compute, *map(str, (args.threads, *texts))],
                                   stderr=subprocess.DEVNULL)
    machine.times_of(process, 2)
    return process


def decoding(args, name, folder, compute):
    """One text at a time, compared with the bound and with the other programs."""
    model = MODELS[name]
    tokens = model["tokens"]
    served = {program: start(args, program, folder, compute) for program in args.compare}
    # The first writes are the prompt and the first token, the last one ends the line.
    turns = {"trainer": lambda: differences(generate(args, folder / "checkpoint", compute, "--prompt", PROMPT, "--tokens",
                                                     tokens)[1:-1]),
             **{program: lambda process=process: machine.times_of(process, tokens) for program, process in served.items()}}
    size, context = {"fp32": 4, "bf16": 2}[compute], 16 + tokens / 2
    read = size * (weights(model) + 2 * context * model["layers"] * model["kv"])
    times, rates, shares = {program: [] for program in turns}, [], []
    for _ in range(args.rounds):
        rate = [read_rate(args)]
        for program, turn in turns.items():
            seconds = turn()
            if len(seconds) < 2:
                sys.exit(f"{program}: no times of tokens: the text ended early, or its tokens have no text")
            times[program] += seconds
            if program == "trainer":
                rate.append(read_rate(args))
                rates.append(statistics.mean(rate))
                shares.append(read / rates[-1] / statistics.median(seconds))
            print(f"  {name} {compute}, {program}: {per_second(seconds)} tokens/s", file=sys.stderr)
    for process in served.values():
        machine.close_served(process)
    middle = {program: statistics.median(seconds) for program, seconds in times.items()}
    rate = statistics.median(rates)
    print(f"| {name} | {compute} | {per_second(times['trainer'])} | {rate / read:.1f} at {1e-9 * rate:.1f} GB/s | "
          f"**{statistics.median(shares):.2f}** ({min(shares):.2f}–{max(shares):.2f}) | " +
          " | ".join(f"{per_second(times[other])} | **{middle[other] / middle['trainer']:.2f}**" for other in served) + " |")
    sys.stdout.flush()


def gemm_rate(args, model, compute, rows):
    """Returns FLOPs of the model's linears on `rows` rows, and their rate."""
    d, ff = model["d"], model["ff"]
    shapes = [(d, d + 2 * model["kv"]), (d, d), (d, model["gates"] * ff), (ff, d)]
    report = json.loads(run([args.trainer, "bench", "gemm", "--shape", *(f"{rows},{k},{n}" for k, n in shapes),
                             "--compute", compute, "--threads", args.threads, "--json", "--set", "run.device=cpu"]))
    each = sum(k * n for k, n in shapes)
    rate = each / sum(k * n / (1e9 * rate["forward_gflops"]) for (k, n), rate in zip(shapes, report["rates"]))
    return 2 * rows * model["layers"] * each, rate


def seconds_of(args, checkpoint, compute, *more):
    """Returns the time that `trainer generate --prompts` reports."""
    command = [args.trainer, "generate", "--checkpoint", checkpoint, "--temperature", 0, *more, "--set", "run.device=cpu",
               f"precision.compute={compute}", f"run.threads={args.threads}"]
    report = subprocess.run(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=True)
    return float(re.search(r"prompts in ([0-9.]+) s", report.stderr)[1])


def together(args, name, folder, compute):
    """Several texts in one pass: the time of a step is that of a long run less that of a run over the prompts only."""
    model = MODELS[name]
    lines, tokens = folder / "together.jsonl", model["tokens"]
    for texts in TOGETHER:
        lines.write_text((json.dumps({"prompt": PROMPT}) + "\n") * texts)
        other = start(args, "transformers", folder, compute, texts) if compute == "fp32" else None
        steps, rates, theirs = [], [], []
        for _ in range(args.rounds):
            rates.append(gemm_rate(args, model, compute, texts)[1])
            long, short = (seconds_of(args, folder / "checkpoint", compute, "--prompts", lines, "--tokens", count,
                                      "--batch-size", texts, "--output", folder / "together.out") for count in (tokens + 1, 1))
            steps.append((long - short) / tokens)
            if other:
                theirs += machine.times_of(other, 8)
        if other:
            machine.close_served(other)
        step, rate = statistics.median(steps), statistics.median(rates)
        reached = 2 * texts * weights(model) / step
        ratio = f"{texts / statistics.median(theirs):.0f} | **{statistics.median(theirs) / step:.2f}**" if theirs else "|"
        print(f"| {name} | {compute} | {texts} | {texts / step:.0f} ({texts / min(steps):.0f}) | {1e-9 * reached:.0f} of "
              f"{1e-9 * rate:.0f} GFLOP/s | {reached / rate:.2f} | {ratio} |")
        sys.stdout.flush()


def prompts(args, name, folder, compute):
    """Times prompts of PROMPT_ROWS tokens in one process: a line arrives whenever a prompt has been read."""
    model, word = MODELS[name], " the"  # one token of GPT-2's vocabulary
    lines = folder / "prompts.jsonl"
    lines.write_text((json.dumps({"prompt": word * PROMPT_ROWS}) + "\n") * model["prompts"])
    times, rates = [], []
    for _ in range(args.rounds if name == "gpt2" else 1):
        flops, rate = gemm_rate(args, model, compute, PROMPT_ROWS)
        rates.append(rate)
        times += differences(generate(args, folder / "checkpoint", compute, "--prompts", lines, "--tokens", 1,
                                      "--batch-size", 1))
    reached = flops / statistics.median(times)
    print(f"| {name} | {compute} | {PROMPT_ROWS / statistics.median(times):.0f} ({PROMPT_ROWS / min(times):.0f}) | "
          f"{1e-9 * reached:.0f} of {1e-9 * statistics.median(rates):.0f} GFLOP/s | **{reached / statistics.median(rates):.2f}** "
          f"({flops / min(times) / max(rates):.2f}) |")
    sys.stdout.flush()


def memory(args, name, folder, compute):
    """The most memory of a process that decodes one text, relative to its weights."""
    model = MODELS[name]
    stored = {"fp32": 4, "bf16": 2}[compute] * (weights(model) + (model["vocab"] * model["d"] if name == "llama" else 0))
    command = [args.trainer, "generate", "--checkpoint", folder / "checkpoint", "--temperature", 0, "--prompt", PROMPT,
               "--tokens", model["tokens"], "--set", "run.device=cpu", f"precision.compute={compute}"]
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {status}")
    peaks = [1024 * usage.ru_maxrss]
    for program in args.compare:
        process = start(args, program, folder, compute)
        machine.times_of(process, model["tokens"])
        peaks.append(1024 * int(re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1]))
        machine.close_served(process)
    print(f"| {name} | {compute} | {stored / 2**30:.2f} | " +
          " | ".join(f"{peak / 2**30:.2f} | **{peak / stored:.2f}**" for peak in peaks) + " |")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "build/trainer"))
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has torch, transformers and llama.cpp")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--compute", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compare", nargs="+", default=["transformers", "llama.cpp"], help="the other programs")
    parser.add_argument("--folder", type=Path, help="keep the models here, 15 GB (default: a temporary folder)")
    parser.add_argument("--only", nargs="+", choices=[*MODELS, *PARTS], default=[*MODELS, *PARTS])
    parser.add_argument("--make", help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.make:
        return make_llama(args.make)
    if args.serve:
        return serve(*args.serve)
    os.environ["HF_HUB_OFFLINE"] = "1"
    print(run([args.trainer, "--version"]).strip())
    print(f"{', '.join(machine.cpu()[::2])}, {args.threads} threads; {args.rounds} rounds; medians, and in brackets what one token in twenty exceeds")
    with tempfile.TemporaryDirectory(prefix="generation-") as temporary:
        args.folder = args.folder or Path(temporary)
        names = [name for name in MODELS if name in args.only] or list(MODELS)
        parts = [part for part in PARTS if part in args.only] or PARTS
        for name in dict.fromkeys(["gpt2", *names]):  # the Llama has GPT-2's tokenizer
            make_model(args, name, args.folder / name)
        if "one" in parts:
            print("| model | precision | trainer tokens/s | bound | share of the bound | " +
                  " | ".join(f"{program} tokens/s | ratio" for program in args.compare) + " |\n|---|---|---|---|---|" +
                  "---|---|" * len(args.compare))
            for name in names:
                for compute in args.compute:
                    decoding(args, name, args.folder / name, compute)
        if "together" in parts:
            print("| model | precision | texts | tokens/s | reached of the GEMM rate | share | transformers tokens/s | ratio |\n"
                  "|---|---|---|---|---|---|---|---|")
            for name in names:
                for compute in args.compute:
                    together(args, name, args.folder / name, compute)
        if "prompts" in parts:
            print(f"| prompts of {PROMPT_ROWS} tokens | precision | tokens/s | reached of the GEMM rate | share |\n"
                  "|---|---|---|---|---|")
            for name in names:
                for compute in args.compute:
                    prompts(args, name, args.folder / name, compute)
        if "memory" in parts:
            print("| model | precision | weights, GiB | " + " | ".join(f"{program}, GiB | / weights" for program in
                                                                       ["trainer", *args.compare]) +
                  " |\n|---|---|---|" + "---|---|" * (1 + len(args.compare)))
            for name in names:
                for compute in args.compute:
                    memory(args, name, args.folder / name, compute)


if __name__ == "__main__":
    main()
