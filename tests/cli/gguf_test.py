"""GGUF files: the gguf package reads them, and llama.cpp generates the same text from them as the program.

Skipped without a Python that has gguf and llama.cpp; TRAINER_GGUF_PYTHON names one (pip install gguf llama-cpp-python).
"""
import json
import os
import pathlib
import struct
import subprocess
import sys

import rig

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SKIPPED = 77
PROBE = "import gguf\ntry:\n import llama_cpp\nexcept ImportError:\n import llama_cpp_py_sync"
LLAMA = ['model.arch="llama"', "model.n_head=4", "model.n_kv_head=2"]
FAMILIES = {
    "gpt2": [],
    "llama": LLAMA,
    "linear": [*LLAMA, "model.head_dim=6", "model.rope_type=linear", "model.rope_factor=2", "model.tie_embeddings=true"],
    "llama3": [*LLAMA, "model.rope_type=llama3", "model.rope_factor=8", "model.rope_original=64"],
    "yarn": [*LLAMA, "model.rope_type=yarn", "model.rope_factor=4", "model.rope_original=16"],
    "attention": [*LLAMA, "model.rope_type=yarn", "model.rope_factor=4", "model.rope_original=16", "model.rope_attention=1.3"],
    "ramp": [*LLAMA, "model.rope_type=yarn", "model.rope_factor=4", "model.rope_original=16", "model.rope_beta_fast=4",
             "model.rope_beta_slow=2", "model.rope_truncate=false"],
    "untied": ["model.tie_embeddings=false"],
    "biases": [*LLAMA, "model.attn_bias=all", "model.mlp_bias=true"],
    "mistral": ["model.arch=mistral", "model.n_head=4", "model.n_kv_head=2", "model.head_dim=12"],
    "qwen2": ["model.arch=qwen2", "model.n_head=4", "model.n_kv_head=2", "model.tie_embeddings=true"],
    "qwen2-yarn": ["model.arch=qwen2", "model.n_head=4", "model.rope_type=yarn", "model.rope_factor=4", "model.rope_original=16",
                   "model.rope_attention=1.3"],
    "qwen3-linear": ["model.arch=qwen3", "model.n_head=4", "model.rope_type=linear", "model.rope_factor=2"],
    "qwen3": ["model.arch=qwen3", "model.n_head=4", "model.n_kv_head=2", "model.head_dim=10"],
}
PROMPT = "The cat"


def find_python():
    for python in (os.environ.get("TRAINER_GGUF_PYTHON"), sys.executable, ROOT / "build/gguf-python/bin/python"):
        if python and pathlib.Path(python).exists():
            if subprocess.run([python, "-c", PROBE], capture_output=True).returncode == 0:
                return python
    return None


PYTHON = find_python()


class Gguf(rig.Runs):
    def peer(self, *calls):
        """Makes all calls in one process of gguf_peer.py; returns their results."""
        result = subprocess.run([PYTHON, HERE / "gguf_peer.py", json.dumps(calls)], cwd=self.folder, capture_output=True,
                                text=True, errors="replace", timeout=300)
        self.assertEqual(result.returncode, 0, result.stderr[-3000:])
        return json.loads(result.stdout.splitlines()[-1])

    def export(self, run, file, dtype):
        self.trainer("checkpoint", "export", "--format", "gguf", "--checkpoint", run, "--output", file, "--dtype", dtype)

    def generate(self, run, tokens):
        reported = json.loads(self.trainer("generate", "--checkpoint", run, "--prompt", PROMPT, "--tokens", str(tokens),
                                       "--temperature", "0", "--json", "--set", "precision.compute=fp32", stdout=True))
        return reported["text"]

    def test_llama_cpp_generates_the_same_text(self):
        sets = ["train.steps=60", "optim.lr=5e-3", "model.seq_len=80", "model.dropout=0"]
        for name, keys in FAMILIES.items():
            self.train(f"run.dir={name}", *sets, *keys)
            self.export(name, f"{name}.gguf", "fp32")
        reported = self.peer(*(["run", f"{name}.gguf", PROMPT, 64] for name in FAMILIES))
        for name, result in zip(FAMILIES, reported):
            with self.subTest(name):
                self.assertEqual(result["text"], self.generate(name, 64))

    def test_llama_cpp_runs_the_tokenizer_of_gpt2(self):
        self.train('data.train=["text.txt"]', f"data.tokenizer={ROOT / 'data/gpt2'}", "data.vocab_size=50260",
                   "train.steps=20", "optim.lr=5e-3", "model.seq_len=80", "model.dropout=0", *LLAMA)
        self.export("run", "run.gguf", "fp32")
        (self.folder / "prompt.txt").write_text(PROMPT)
        self.trainer("tokenize", "--input", "prompt.txt", "--output", "prompt", "--tokenizer", ROOT / "data/gpt2")
        reported, = self.peer(["run", "run.gguf", PROMPT, 64])
        self.assertEqual(len(reported["ids"]), 2)
        self.assertEqual(reported["text"], self.generate("run", 64))

    def test_llama_cpp_tokenizes_as_the_program(self):
        """Every pattern that is exported, with the token that begins texts, on texts where patterns differ."""
        self.train('data.train=["text.txt"]', f"data.tokenizer={ROOT / 'data/gpt2'}", "train.steps=1", "optim.warmup_steps=0", *LLAMA)
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "run", "--output", "hf")
        plain = json.loads((self.folder / "hf/tokenizer.json").read_text())
        size = len(plain["model"]["vocab"])
        begin = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                          {"Sequence": {"id": "A", "type_id": 0}}],
                 "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [size], "tokens": ["<s>"]}}}

        def added(id, content, special):
            return {"id": id, "content": content, "special": special, "single_word": False, "lstrip": False, "rstrip": False,
                    "normalized": False}

        def split(*patterns):
            steps = [{"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False} for each in patterns]
            return {"type": "Sequence", "pretokenizers": [*steps, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}
        plain["added_tokens"] += [added(size, "<s>", True), added(size + 1, "<tool>", False)]
        digits = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True},
                                                        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}]}
        numbers = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                   r"|\s+(?!\S)|\s+")
        kinds = {"gpt-2": {}, "smollm": {"pre_tokenizer": digits}, "qwen2": {"pre_tokenizer": split(numbers % "")},
                 "qwen2-nfc": {"pre_tokenizer": split(numbers % ""), "normalizer": {"type": "NFC"}},
                 "dbrx": {"pre_tokenizer": split(numbers % "{1,3}"), "post_processor": begin},
                 "llama-bpe": {"pre_tokenizer": split(numbers % "{1,3}"), "model": {**plain["model"], "ignore_merges": True}}}
        texts = ["The cat's 12345 CATS'LL  run\n\n\t x <tool> y", " a\u0301b e\u0301\u0302 \u1100\u1161\u11a8", "naïve 日本語\r\n\r\n  !!! \u00a0\u2028x",
                 "<s> 1 22 333 4444", "<tool><tool>a"]
        calls, ours = [], {}
        for kind, changes in kinds.items():
            for choice in ("on", "off", "auto"):
                name = f"{kind}-{choice}"
                (self.folder / name).mkdir()
                (self.folder / name / "tokenizer.json").write_text(json.dumps({**plain, **changes}))
                (self.folder / name / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "<|endoftext|>"}')
                self.train(f"run.dir={name}-run", 'data.train=["text.txt"]', f"data.tokenizer={name}", f"data.bos={choice}", "train.steps=1",
                           "optim.warmup_steps=0", *LLAMA)
                self.export(f"{name}-run", f"{name}.gguf", "bf16")
                calls.append(["tokens", f"{name}.gguf", texts])
                ours[name] = [self.tokens(name, text, choice) for text in texts]
        for (name, mine), theirs in zip(ours.items(), self.peer(*calls), strict=True):
            for text, one, other in zip(texts, mine, theirs, strict=True):
                with self.subTest(name, text=text):
                    # Earlier versions of llama.cpp do not normalise text.
                    plain_name = name.replace("-nfc", "")
                    self.assertIn(other, [one, ours[plain_name][texts.index(text)]])

    def tokens(self, tokenizer, text, bos):
        """Returns the program's tokens of a text, with BOS but without the end of the document."""
        (self.folder / "prompt.txt").write_text(text, newline="")
        self.trainer("tokenize", "--input", "prompt.txt", "--output", "text-tokens", "--tokenizer", tokenizer, "--bos", bos)
        content = (self.folder / "text-tokens/tokens.bin").read_bytes()
        count, = struct.unpack("<i", content[8:12])
        return list(struct.unpack(f"<{count}{'H' if len(content) == 1024 + 2 * count else 'I'}", content[1024:]))[:-1]

    def test_gguf_reads_every_type(self):
        self.train("train.steps=4", *LLAMA)
        types = {"fp32": "F32", "bf16": "BF16", "fp16": "F16", "q8_0": "Q8_0"}
        for dtype in types:
            self.export("run", f"{dtype}.gguf", dtype)
        reported = dict(zip(types, self.peer(*(["read", f"{dtype}.gguf"] for dtype in types))))
        exact = reported["fp32"]["tensors"]
        for dtype, result in reported.items():
            self.assertEqual(result["keys"]["general.architecture"], "llama")
            self.assertEqual(len(result["keys"]["tokenizer.ggml.tokens"]), 320)
            self.assertEqual(result["tensors"].keys(), exact.keys())
            for name, (shape, kind, total, size) in result["tensors"].items():
                self.assertEqual(shape, exact[name][0])
                self.assertEqual(kind, types[dtype] if len(shape) > 1 else "F32", name)
                self.assertLessEqual(abs(size - exact[name][3]), 0.01 * exact[name][3], name)
        text = self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "run", "--output", "hf", "--dtype", "q8_0",
                            status=2)
        self.assertIn("--dtype q8_0", text)
        self.assertFalse((self.folder / "hf").exists())


if __name__ == "__main__":
    if PYTHON is None:
        print("skipped: no Python with gguf and llama.cpp (TRAINER_GGUF_PYTHON, build/gguf-python)")
        sys.exit(SKIPPED)
    rig.main()
