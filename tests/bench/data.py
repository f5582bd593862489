#!/usr/bin/env python3
"""Measures how fast data is opened and tokenized: the start of a run with many sources and files, tokenization of
compressed files compared with plain ones and of Parquet tables with their JSON lines (`--only tables`, with pyarrow), and training a tokenizer compared with SentencePiece's own program
(`spm_train`, on the PATH; only with `--only training`). Calls alternate (A B A B); medians and their ratios are printed.

    tests/bench/data.py --trainer build/trainer
"""
import argparse
import collections
import gzip
import json
import os
import random
import re
import shutil
import statistics
import string
import subprocess
import tempfile
import time
from pathlib import Path

from machine import ROOT, cpu, run

CONFIG = """[run]
dir = "{name}"
[model]
n_layer = 1
n_head = 1
d_model = 16
seq_len = 32
[data]
tokenizer = "tokens/tokenizer.model"
val_fraction = 0
{sources}[train]
steps = 1
global_batch = 1
micro_batch = 1
sample_prompt = ""
[checkpoint]
interval = 0
[log]
report = false
[hardware]
peak_tflops = 1.0
"""


def seconds(*command, **options):
    began = time.monotonic()
    run(command, **options)
    return time.monotonic() - began


def turns(count, calls):
    """Returns the median seconds of each call and its median ratio to the first call of the same turn, after a
    warm-up."""
    times = {name: [] for name in calls}
    for turn in range(count + 1):
        for name, call in calls.items():
            spent = call()
            if turn > 0:
                times[name].append(spent)
    first = next(iter(times.values()))
    return {name: (statistics.median(each), statistics.median(a / b for a, b in zip(each, first))) for name, each in times.items()}


def start(args, folder):
    """Times one step of a tiny model on one source of 100 files, and on 100 sources of 100 files each."""
    text = (ROOT / "data/austen.txt").read_text()
    (folder / "all.txt").write_text(text)
    run([args.trainer, "tokenize", "--input", "all.txt", "--train-vocab", "2048", "--output", "tokens"], cwd=folder)
    calls = {}
    for kind, extension in (("text, tokens cached", "txt"), ("token files", "bin")):
        made = folder / extension
        for source in range(args.sources):
            (made / f"s{source:03}").mkdir(parents=True)
            for number in range(100):
                at = (source * 100 + number) * 60
                (made / f"s{source:03}/{number:03}.txt").write_text(text[at:at + 3000])
        if extension == "bin":  # tokenizes one file and copies its tokens
            run([args.trainer, "tokenize", "--input", made / "s000/000.txt", "--tokenizer", "tokens", "--output", "one"], cwd=folder)
            for path in sorted(made.glob("*/*.txt")):
                for part in ("bin", "docs", "json"):
                    shutil.copy(folder / "one" / f"tokens.{part}", path.with_suffix("." + part))
        for sources in (1, args.sources):
            name = f"{extension}{sources}"
            tables = "".join(f'[[data.source]]\nname = "s{i:03}"\nfiles = ["{extension}/s{i:03}/*.{extension}"]\n' for i in range(sources))
            (folder / f"{name}.toml").write_text(CONFIG.format(name=name, sources=tables))

            def call(name=name):
                shutil.rmtree(folder / name / "checkpoints", ignore_errors=True)
                return seconds(args.trainer, "--config", f"{name}.toml", cwd=folder)
            calls[f"{kind}, {sources} sources, {100 * sources} files"] = call
    for name, (median, _) in turns(args.turns, calls).items():
        print(f"start with {name}: {median:.2f} s")


def many_words(text, size):
    """Returns copies of the text with other letters in their rare words, so that words are as diverse as in web
    pages."""
    counts = collections.Counter(re.findall(r"[a-z]+", text))
    draw, copies, length = random.Random(2026), [], 0
    while length < size:
        letters = list(string.ascii_lowercase)
        draw.shuffle(letters)
        table = str.maketrans(string.ascii_lowercase, "".join(letters))
        copies.append(re.sub(r"[a-z]+", lambda word: word[0].translate(table) if counts[word[0]] <= 20 else word[0], text))
        length += len(copies[-1])
    return "".join(copies)


def packed(args, folder):
    """Times the tokenization of 60 MB of plain, .gz and .zst text by GPT-2's tokenizer on two threads."""
    novel = (ROOT / "data/austen.txt").read_text()
    for what, text in (("many words", many_words(novel, 60_000_000)), ("a novel 50 times", novel * 50)):
        plain = folder / "text.txt"
        plain.write_text(text)
        names = ["text.txt", "text.txt.gz"]
        with open(folder / names[1], "wb") as file:
            file.write(gzip.compress(plain.read_bytes(), 6))
        if shutil.which("zstd"):
            subprocess.run(["zstd", "-q", "-f", "-3", plain], check=True)
            names.append("text.txt.zst")

        def call(name):
            shutil.rmtree(folder / "out", ignore_errors=True)
            return seconds(args.trainer, "tokenize", "--input", name, "--output", "out", "--tokenizer", ROOT / "data/gpt2",
                           cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "2"})
        for name, (median, ratio) in turns(args.turns, {name: lambda name=name: call(name) for name in names}).items():
            print(f"{what}, {name}: {median:.2f} s, {ratio:.3f} of the time of plain text")


def tables(args, folder):
    """Times the tokenization of 60 MB of texts of about 3 kB, as JSON lines and as tables of pyarrow's defaults (snappy) and
    with zstd, by GPT-2's tokenizer on one thread and on all."""
    import pyarrow
    import pyarrow.parquet
    text = many_words((ROOT / "data/austen.txt").read_text(), 60_000_000)
    texts = [text[at:at + 3000] for at in range(0, len(text), 3000)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": each}, ensure_ascii=False) + "\n" for each in texts))
    names = ["text.jsonl"]
    for codec in ("snappy", "zstd"):
        names.append(f"{codec}.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), folder / names[-1], compression=codec)
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        def call(name):
            shutil.rmtree(folder / "out", ignore_errors=True)
            return seconds(args.trainer, "tokenize", "--input", name, "--output", "out", "--tokenizer", ROOT / "data/gpt2",
                           cwd=folder, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
        for name, (median, ratio) in turns(args.turns, {name: lambda name=name: call(name) for name in names}).items():
            print(f"{threads} threads, {name}: {median:.2f} s, {1 / ratio:.3f} of the speed of JSON lines")


def training(args, folder):
    """Times the training of a tokenizer of 32 000 tokens on 60 MB, on one thread. The trainer also tokenizes the text."""
    if shutil.which("spm_train") is None:
        raise SystemExit("spm_train was not found: install SentencePiece's programs (Debian: sentencepiece)")
    text = many_words((ROOT / "data/austen.txt").read_text(), 6_000_000)
    (folder / "text.txt").write_text((text * 10)[:60_000_000])
    library = ["spm_train", "--input=text.txt", "--model_prefix=m", "--vocab_size=32000", "--model_type=bpe",
               "--byte_fallback", "--character_coverage=1.0", "--split_digits", "--normalization_rule_name=identity",
               "--remove_extra_whitespaces=false", "--add_dummy_prefix=false", "--user_defined_symbols=\n",
               "--hard_vocab_limit=false", "--num_threads=1", "--minloglevel=2"]
    ours = [args.trainer, "tokenize", "--input", "text.txt", "--train-vocab", "32000", "--output", "out"]

    def train():
        shutil.rmtree(folder / "out", ignore_errors=True)
        return seconds(*ours, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
    calls = {"spm_train": lambda: seconds(*library, cwd=folder), "trainer tokenize --train-vocab": train}
    for name, (median, ratio) in turns(args.turns, calls).items():
        print(f"60 MB, {name}: {median:.1f} s, {ratio:.2f} of the time of spm_train")


PARTS = {"start": start, "packed": packed, "tables": tables, "training": training}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default=str(ROOT / "build/trainer"))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--sources", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=["start", "packed"])
    args = parser.parse_args()
    args.trainer = str(Path(args.trainer).resolve())
    print(f"{cpu()[2]}, {len(os.sched_getaffinity(0))} CPUs")
    for name, part in PARTS.items():
        if name in args.only:
            with tempfile.TemporaryDirectory() as folder:
                part(args, Path(folder))


if __name__ == "__main__":
    main()
