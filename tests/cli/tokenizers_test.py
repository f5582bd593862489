"""GPT-2's tokenizer through the program, compared with tiktoken and Hugging Face's tokenizers if a Python has both.

TRAINER_TORCH_PYTHON names such a Python.
"""
import array
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import unicodedata

import rig
import split_patterns

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
GPT2 = ROOT / "data/gpt2"
MIXED_BYTES = 5_000_000
# Tokenizes with both libraries; run in the Python that has them, with FOLDER, TEXT, OUTPUT.
PEER = r"""
import array, json, re, sys
import tiktoken, tokenizers
folder, text, output = sys.argv[1:]
with open(text, newline="", encoding="utf-8") as file:
    content = file.read()
vocab = json.load(open(folder + "/vocab.json", encoding="utf-8"))
printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = [byte for byte in range(256) if byte not in printing]
byte_of = {chr(byte): byte for byte in printing} | {chr(256 + i): byte for i, byte in enumerate(others)}
ranks = {bytes(byte_of[c] for c in name): rank for name, rank in vocab.items() if name != "<|endoftext|>"}
pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
first = tiktoken.Encoding("gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256})
second = tokenizers.Tokenizer.from_file(folder + "/tokenizer.json")
array.array("i", first.encode_ordinary(content)).tofile(open(output + ".tiktoken", "wb"))
second.encode_special_tokens = True  # special tokens in the text are plain text
# No match of the pattern has a space after a non-space, so cutting there does not change the tokens. The text is cut
# because this library's time grows faster than linearly with the length of a text.
cut, at, ids = re.compile(r"(?<=\S)(?= )"), 0, array.array("i")
while at < len(content):
    found = cut.search(content, at + 1000)
    end = found.start() if found else len(content)
    ids.extend(second.encode(content[at:end], add_special_tokens=False).ids)
    at = end
ids.tofile(open(output + ".tokenizers", "wb"))
"""

# Makes a small tokenizer with the fields of OLMo 2's files, and tokenizes; run with TEXT, MIXED, OUTPUT, FOLDER.
OLMO2 = r"""
import array, pathlib, sys
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
text, mixed, output, folder = map(pathlib.Path, sys.argv[1:])
pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
           r"|\s+(?!\S)|\s+")
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
    pre_tokenizers.Split(Regex(pattern), "removed", invert=True),
    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
tokenizer.decoder = decoders.ByteLevel()
tokenizer.train_from_iterator([text.read_text()], trainers.BpeTrainer(
    vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
tokenizer.add_tokens([AddedToken("<|extra_id_0|>", normalized=False)])
tokenizer.add_special_tokens(["<|endoftext|>", "<|fim_prefix|>", "<|im_start|>", "<|im_end|>"])
tokenizer.add_tokens([AddedToken("<|extra_id_1|>", normalized=False)])
tokenizer.add_special_tokens(["<|endofprompt|>", "<|pad|>"])
folder.mkdir()
tokenizer.save(str(folder / "tokenizer.json"))
tokenizer.encode_special_tokens = True  # special tokens in the text are plain text
ids = tokenizer.encode(mixed.read_bytes().decode(), add_special_tokens=False).ids
array.array("i", ids).tofile(output.open("wb"))
"""

# Makes a tokenizer for each list of patterns, with merges of all pairs of bytes in random order, so that nearly any wrong
# split changes a token, and a file of ranks for each vocabulary of tiktoken; tokenizes. Run with STEPS, TEXT.
SPLITS = r"""
import base64, json, pathlib, random, sys
import tiktoken
from tiktoken_ext import openai_public
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
steps, text = sys.argv[1:]
text = pathlib.Path(text).read_bytes().decode()
letters = sorted(pre_tokenizers.ByteLevel.alphabet())
merges = [(a, b) for a in letters for b in letters]
random.Random(3).shuffle(merges)
vocab = {name: id for id, name in enumerate([*letters, *(a + b for a, b in merges)])}
for index, patterns in enumerate(json.loads(pathlib.Path(steps).read_text())):
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    pathlib.Path(f"{index}").mkdir()
    tokenizer.save(f"{index}/tokenizer.json")
    pathlib.Path(f"{index}/ids.json").write_text(json.dumps(tokenizer.encode(text, add_special_tokens=False).ids))
cl100k = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
          r"|\s+(?!\S)|\s")
for name, pattern, size in (("r50k", openai_public.r50k_pat_str, 50256), ("cl100k", cl100k, 100256)):
    draw = random.Random(4)
    pairs = [bytes([a, b]) for a in range(256) for b in range(256)]
    draw.shuffle(pairs)
    tokens = dict.fromkeys([*(bytes([a]) for a in range(256)), *pairs])
    while len(tokens) < size:
        tokens[draw.choice(pairs) + bytes([draw.randrange(256)])] = None
    ranks = {token: rank for rank, token in enumerate([*tokens][:size])}
    pathlib.Path(name).mkdir()
    pathlib.Path(f"{name}/x.tiktoken").write_bytes(b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in ranks.items()))
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    pathlib.Path(f"{name}/ids.json").write_text(json.dumps(encoding.encode_ordinary(text)))
"""

EXPORTED = """
import json, pathlib, sys
from tokenizers import Tokenizer
file, text, ids = sys.argv[1:]
ours = Tokenizer.from_file(file).encode(pathlib.Path(text).read_bytes().decode(), add_special_tokens=False).ids
assert ours == json.loads(pathlib.Path(ids).read_text()), "the exported tokenizer gives other tokens"
"""


def find_python():
    for python in (os.environ.get("TRAINER_TORCH_PYTHON"), sys.executable, ROOT / "build/torch-python/bin/python"):
        if python and pathlib.Path(python).exists():
            if subprocess.run([python, "-c", "import tiktoken, tokenizers"], capture_output=True).returncode == 0:
                return python
    return None


def mixed_text():
    """Returns prose, source code, and all kinds of Unicode 14's characters: emoji, CJK, controls, marks, spaces."""
    draw = random.Random(14)
    code = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.cpp")))
    assigned = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]
    spaces = [c for c in assigned if c.isspace()] + ["\u180e", "\ufeff"]
    parts = [(ROOT / "data/austen.txt").read_text(), code]
    size = sum(map(len, parts))
    while size < MIXED_BYTES:
        kind = draw.randrange(6)
        if kind == 0:
            piece = "".join(draw.choices(assigned, k=draw.randrange(1, 30)))
        elif kind == 1:
            piece = "".join(chr(draw.randrange(0x4E00, 0x9FA0)) for _ in range(draw.randrange(1, 60))) + "。"
        elif kind == 2:
            piece = "".join(draw.choices(["🐈", "👩‍👩‍👧", "🏳️‍🌈", "é", "e\u0301", "ﷺ", "٣", "²", "Ⅷ"], k=draw.randrange(1, 9)))
        elif kind == 3:
            piece = "".join(draw.choices(spaces, k=draw.randrange(1, 8)))
        elif kind == 4:
            piece = "".join(chr(draw.randrange(32)) for _ in range(draw.randrange(1, 8)))
        else:
            piece = draw.choice(["don't I'LL they've", " 12345,678.90", "\r\n\r\n", "\n\n\n", "    indented", "x" * draw.randrange(200)])
        parts.append(piece)
        size += len(piece.encode())
    return "".join(parts)


class Tokenizers(rig.Runs):
    def tokens(self, folder):
        content = (self.folder / folder / "tokens.bin").read_bytes()[1024:]
        return array.array("H", content)

    def test_a_run_on_gpt2_tokens_keeps_and_exports_its_tokenizer(self):
        self.trainer("tokenize", "--input", "text.txt", "--output", "gpt2", "--tokenizer", GPT2)
        self.assertTrue((self.folder / "gpt2/tokenizer.json").exists())
        self.train('data.train=["gpt2/tokens.bin"]', "data.tokenizer=gpt2/tokenizer.json", "train.steps=3")
        self.train('data.train=["text.txt"]', f"data.tokenizer={GPT2}", "train.steps=3", "run.dir=text")
        self.assertEqual(self.losses("run"), self.losses("text"))
        self.assertIsNotNone(self.events("eval")[0]["bits_per_byte"])
        carried = (self.step_folder(3) / "tokenizer.json").read_bytes()
        self.assertEqual(carried, (self.folder / "gpt2/tokenizer.json").read_bytes())
        self.assertEqual(carried, (self.folder / "run/tokenizer.json").read_bytes())
        self.assert_whole(self.step_folder(3))
        self.trainer("checkpoint", "strip", "--checkpoint", "run", "--output", "small")
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "small", "--output", "hf")
        self.assertEqual((self.folder / "hf/tokenizer.json").read_bytes(), carried)
        self.assertEqual(json.loads((self.folder / "hf/config.json").read_text())["eos_token_id"], 50256)
        vocab = json.loads((self.folder / "hf/vocab.json").read_text())
        self.assertEqual(len(vocab), 50257)
        self.assertEqual((self.folder / "hf/merges.txt").read_bytes(), (GPT2 / "merges.txt").read_bytes())
        self.trainer("checkpoint", "import", "--format", "hf", "--input", "hf", "--output", "back")
        # The older pair of files gives the same model, if its class is known.
        (self.folder / "hf/tokenizer.json").unlink()
        older = ["checkpoint", "import", "--format", "hf", "--input", "hf", "--output", "older"]
        self.assertIn("tokenizer_class: PreTrainedTokenizer", self.trainer(*older, status=4))
        settings = json.loads((self.folder / "hf/tokenizer_config.json").read_text())
        (self.folder / "hf/tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "GPT2Tokenizer"}))
        self.trainer(*older)
        texts = [self.trainer("generate", "--checkpoint", checkpoint, "--prompt", "The cat", "--tokens", "5", "--seed", "1",
                              stdout=True) for checkpoint in ("run", "back", "older")]
        self.assertEqual(texts, texts[:1] * 3)
        # The run resumes, as the tokens are the same.
        self.train('data.train=["gpt2/tokens.bin"]', "data.tokenizer=gpt2", "train.steps=4")

    def manifest(self, folder):
        return json.loads((self.folder / folder / "manifest.json").read_text())

    def bos_word(self, path):
        """Returns header word [10] of a token file, and its first token."""
        content = (self.folder / path).read_bytes()
        return struct.unpack_from("<I", content, 40)[0], struct.unpack_from("<H", content, 1024)[0]

    def special_tokens(self, checkpoint):
        """Returns those of the manifest, without the fields that exports write back."""
        return {name: value for name, value in self.manifest(checkpoint)["special_tokens"].items() if name != "fields"}

    def test_documents_and_prompts_begin_with_bos(self):
        text = ['data.train=["text.txt"]', "data.document=line"]
        with_bos = {"bos": 1, "add_bos": True}  # <s> of a SentencePiece model
        self.train(*text, "train.steps=3")
        self.assertNotIn("special_tokens", self.manifest(self.step_folder(3)))
        self.assertEqual(self.bos_word("run/tokens/train.bin")[0], 0)
        self.train(*text, "data.bos=on", "run.dir=on")
        self.assertEqual(self.manifest(self.step_folder(8, "on"))["special_tokens"], with_bos)
        self.assertEqual(self.bos_word("on/tokens/train.bin"), (2, 1))
        self.assertRegex(self.trainer("checkpoint", "inspect", "--checkpoint", "on", stdout=True), r"\n  bos +1\n")
        # A resumed run keeps its choice, on other ranks too; a different choice counts as different data.
        self.train(*text, "data.bos=on", "run.dir=parts", max_steps=4)
        self.train(*text, "run.dir=parts", max_steps=6)
        self.train_on(2, *text, "run.dir=parts", "parallel.tensor=2")
        self.assertEqual(self.manifest(self.step_folder(8, "parts"))["special_tokens"], with_bos)
        for mine, others in zip(self.losses("parts")[0], self.losses("on")[0]):
            self.assertAlmostEqual(mine[2], others[2], delta=1e-5)
        self.train(*text, "data.bos=off", "run.dir=on", "train.steps=9", status=5)
        # Text and its tokens give the same loss if both begin with BOS.
        tokenize = ["tokenize", "--input", "text.txt", "--document", "line", "--tokenizer", "tokens/tokenizer.model"]
        for choice, bos in (("on", 1), ("auto", None)):
            made = json.loads(self.trainer(*tokenize, "--output", choice + "-tokens", "--bos", choice, "--json", stdout=True))
            self.assertEqual(made["bos"], bos)
        evaluate = ["eval", "--checkpoint", "on", "--json", "--data"]
        losses = [json.loads(self.trainer(*evaluate, name, "--set", "data.document=line", stdout=True))["loss"]
                  for name in ("text.txt", "on-tokens/tokens.bin")]
        self.assertEqual(*losses)
        self.assertIn("offset 40", self.trainer(*evaluate, "auto-tokens/tokens.bin", status=4))
        self.train('data.train=["on-tokens/tokens.bin"]', "run.dir=files", "train.steps=8")
        self.assertEqual(self.losses("files"), self.losses("on"))
        self.assertEqual(self.manifest(self.step_folder(8, "files"))["special_tokens"], with_bos)
        # Export and import keep the choice, and a run that starts from these weights adopts it.
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "on", "--output", "hf")
        settings = json.loads((self.folder / "hf/tokenizer_config.json").read_text())
        self.assertEqual((settings["bos_token"], settings["eos_token"], settings["add_bos_token"]), ("<s>", "</s>", True))
        for name in ("config.json", "generation_config.json"):
            ids = json.loads((self.folder / "hf" / name).read_text())
            self.assertEqual((ids["bos_token_id"], ids["eos_token_id"]), (1, 2))
        template = json.loads((self.folder / "hf/tokenizer.json").read_text())["post_processor"]
        self.assertEqual(template["single"][0], {"SpecialToken": {"id": "<s>", "type_id": 0}})
        self.assertEqual(template["special_tokens"], {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}})
        self.trainer("checkpoint", "import", "--format", "hf", "--input", "hf", "--output", "back")
        self.assertEqual(self.special_tokens("back"), {**with_bos, "eos": [2]})
        self.train(*text, "data.tokenizer=back/tokenizer.model", "model.init_from=back", "run.dir=next", "train.steps=3")
        self.assertEqual(self.bos_word("next/tokens/train.bin"), (2, 1))
        generate = ["generate", "--prompt", "The cat", "--tokens", "9", "--temperature", "0", "--checkpoint"]
        texts = [self.trainer(*generate, checkpoint, stdout=True) for checkpoint in ("on", "back")]
        self.assertEqual(*texts)

    def test_a_model_may_have_more_rows_than_the_tokenizer_has_tokens(self):
        rows = ["data.vocab_size=330", "data.tokenizer=tokens/tokenizer.model", 'data.train=["text.txt"]']
        self.train(*rows, "train.steps=3")
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "run", "--output", "hf")
        config = json.loads((self.folder / "hf/config.json").read_text())
        self.assertEqual(config["vocab_size"], 330)
        # An instruct model stops at more than one token; import keeps its ids, and export writes them back.
        ids = {"bos_token_id": 1, "eos_token_id": [2, 40, 41], "pad_token_id": 0}
        (self.folder / "hf/config.json").write_text(json.dumps({**config, **ids}))
        (self.folder / "hf/generation_config.json").write_text(json.dumps(ids))
        settings = json.loads((self.folder / "hf/tokenizer_config.json").read_text())
        settings |= {"bos_token": "<s>", "pad_token": "<unk>", "add_bos_token": False}
        (self.folder / "hf/tokenizer_config.json").write_text(json.dumps(settings))
        self.trainer("checkpoint", "import", "--format", "hf", "--input", "hf", "--output", "back")
        kept = {"bos": 1, "add_bos": False, "eos": [2, 40, 41], "pad": 0}
        self.assertEqual(self.special_tokens("back"), kept)
        for output in ("again", "twice"):
            self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "back", "--output", output)
            for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
                file = json.loads((self.folder / output / name).read_text())
                expected = settings if "tokenizer" in name else ids
                self.assertEqual({key: file[key] for key in expected}, expected)
            self.trainer("checkpoint", "import", "--format", "hf", "--input", output, "--output", "back" + output)
        for file in (self.folder / "again").iterdir():
            self.assertEqual(file.read_bytes(), (self.folder / "twice" / file.name).read_bytes(), file.name)
        # A run that starts from the folder has its number of embedding rows, and keeps its special tokens.
        start = ["model.init_from=hf", "data.tokenizer=hf", 'data.train=["text.txt"]', "run.dir=next", "train.steps=3"]
        self.train(*start)
        self.assertEqual(self.special_tokens(self.step_folder(3, "next")), kept)
        self.assertEqual(self.manifest(self.step_folder(3, "next"))["model"]["vocab_size"], "330")
        text = self.trainer("generate", "--checkpoint", "next", "--prompt", "The", "--tokens", "20", "--seed", "1", stdout=True)
        self.assertTrue(text.startswith("The"))

    def test_tokens_next_to_a_sentencepiece_model_are_kept(self):
        rows = ["data.vocab_size=330", "data.tokenizer=tokens/tokenizer.model", 'data.train=["text.txt"]']
        self.train(*rows, "train.steps=3")
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "run", "--output", "hf")
        hf = self.folder / "hf"
        fast = json.loads((hf / "tokenizer.json").read_text())
        pieces = len(fast["model"]["vocab"])
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
        chat = [{"id": pieces, "content": "<|im_start|>", **flags, "special": False},
                {"id": pieces + 1, "content": "<|im_end|>", **flags, "rstrip": True, "special": True}]
        fast["added_tokens"] += chat
        (hf / "tokenizer.json").write_text(json.dumps(fast))
        (hf / "added_tokens.json").write_text(json.dumps({token["content"]: token["id"] for token in chat}))
        settings = json.loads((hf / "tokenizer_config.json").read_text())
        (hf / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": "<|im_end|>"}))
        config = json.loads((hf / "config.json").read_text())
        for name in ("config.json", "generation_config.json"):
            ids = json.loads((hf / name).read_text())
            (hf / name).write_text(json.dumps({**ids, "eos_token_id": pieces + 1}))
        text = "The cat<|im_start|>user\n sat<|im_end|>\n"
        (self.folder / "chat.txt").write_text(text)
        self.trainer("tokenize", "--input", "chat.txt", "--output", "chat", "--tokenizer", "hf")
        tokens = list(self.tokens("chat"))
        self.assertEqual(tokens.count(pieces), 1)
        self.assertNotIn(pieces + 1, tokens[:-1])
        # Through import, training, another checkpoint and export.
        self.trainer("checkpoint", "import", "--format", "hf", "--input", "hf", "--output", "back")
        self.assertEqual(self.manifest("back")["special_tokens"]["eos"], [pieces + 1])
        self.train("data.tokenizer=back", "model.init_from=back", 'data.train=["text.txt"]', "data.vocab_size=330", "run.dir=next",
                   "train.steps=3")
        for checkpoint in ("back", "next"):
            self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", checkpoint, "--output", "hf-" + checkpoint)
            out = self.folder / ("hf-" + checkpoint)
            self.assertEqual((out / "tokenizer.model").read_bytes(), (hf / "tokenizer.model").read_bytes())
            self.assertEqual(json.loads((out / "tokenizer.json").read_text()), fast)
            self.assertEqual(json.loads((out / "added_tokens.json").read_text()), {"<|im_start|>": pieces, "<|im_end|>": pieces + 1})
            written = json.loads((out / "tokenizer_config.json").read_text())
            self.assertEqual(written["eos_token"], "<|im_end|>")
            self.assertEqual(written["added_tokens_decoder"],
                             {str(token["id"]): {key: value for key, value in token.items() if key != "id"} for token in chat})
            self.trainer("tokenize", "--input", "chat.txt", "--output", "chat-" + checkpoint, "--tokenizer", out)
            self.assertEqual(list(self.tokens("chat-" + checkpoint)), tokens)
        self.assertEqual(json.loads((self.folder / "hf-next/config.json").read_text())["vocab_size"], config["vocab_size"])

    def test_a_model_that_cannot_encode_is_refused(self):
        # treat_whitespace_as_suffix = true, as a second trainer_spec that overrides one field
        model = (self.folder / "tokens/tokenizer.model").read_bytes() + b"\x12\x03\xc0\x01\x01"
        (self.folder / "suffix.model").write_bytes(model)
        reported = self.trainer("tokenize", "--input", "text.txt", "--output", "o", "--tokenizer", "suffix.model", status=4)
        self.assertIn("suffix.model", reported)
        self.assertIn("treat_whitespace_as_suffix", reported)

    def test_bos_that_is_missing_is_a_mistake(self):
        reported = self.train('data.train=["text.txt"]', f"data.tokenizer={GPT2}", "data.bos=on", status=2)
        for part in ("data.bos", '"on"', str(GPT2), "no BOS token", '"off"'):
            self.assertIn(part, reported)
        reported = self.trainer("tokenize", "--input", "text.txt", "--output", "o", "--tokenizer", GPT2, "--bos", "on", status=2)
        self.assertIn("no BOS token", reported)
        self.assertFalse((self.folder / "o").exists())

    def test_broken_tokenizers_are_rejected(self):
        for name, content, part in (("tokenizer.json", b'{"model": 3}', "tokenizer.json: model: missing"),
                                    ("merges.txt", b"#version: 0.2\na\n", "merges.txt: line 2"),
                                    ("x.tiktoken", b"YQ== 0\nYQ== 1\n", "x.tiktoken: line 2"),
                                    ("tokenizer.model", b"\x0a\xff", "not a usable SentencePiece model")):
            with self.subTest(name):
                folder = self.folder / f"bad-{name}"
                folder.mkdir()
                (folder / name).write_bytes(content)
                reported = self.trainer("tokenize", "--input", "text.txt", "--output", "o", "--tokenizer", folder, status=4)
                self.assertIn(part, reported)
        (self.folder / "empty").mkdir()
        self.assertIn("no tokenizer found", self.trainer("tokenize", "--input", "text.txt", "--output", "o", "--tokenizer",
                                                         "empty", status=4))

    def test_mixed_text_has_the_tokens_of_tiktoken_and_tokenizers(self):
        python = find_python()
        if python is None:
            self.skipTest("no Python with tiktoken and tokenizers (TRAINER_TORCH_PYTHON)")
        text = mixed_text()
        (self.folder / "mixed.txt").write_text(text, newline="", encoding="utf-8")
        self.assertGreaterEqual((self.folder / "mixed.txt").stat().st_size, MIXED_BYTES)
        self.trainer("tokenize", "--input", "mixed.txt", "--output", "ours", "--tokenizer", GPT2)
        self.train('data.train=["ours/tokens.bin"]', f"data.tokenizer={GPT2}", "train.steps=3")
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "run", "--output", "hf")
        subprocess.run([python, "-c", PEER, "hf", "mixed.txt", "theirs"], cwd=self.folder, check=True, timeout=500)
        ours = list(self.tokens("ours"))
        self.assertEqual(ours.pop(), 50256)
        for library in ("tiktoken", "tokenizers"):
            theirs = array.array("i")
            theirs.frombytes((self.folder / f"theirs.{library}").read_bytes())
            theirs = list(theirs)
            place = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            self.assertEqual((len(ours), ours[place:place + 8]), (len(theirs), theirs[place:place + 8]), f"{library} at {place}")

    def test_published_patterns_split_hard_text_as_tokenizers_and_tiktoken(self):
        python = find_python()
        if python is None:
            self.skipTest("no Python with tiktoken and tokenizers (TRAINER_TORCH_PYTHON)")
        (self.folder / "hard.txt").write_text(split_patterns.hard_text(15, 60_000) + "\n \n\t ", newline="", encoding="utf-8")
        (self.folder / "steps.json").write_text(json.dumps([*split_patterns.PUBLISHED.values()]))
        subprocess.run([python, "-c", SPLITS, "steps.json", "hard.txt"], cwd=self.folder, check=True, timeout=300)
        names = [(name, str(index)) for index, name in enumerate(split_patterns.PUBLISHED)]
        for name, folder in [*names, ("r50k", "r50k/x.tiktoken"), ("cl100k", "cl100k/x.tiktoken")]:
            with self.subTest(name):
                output = pathlib.Path("ours" + folder.split("/")[0])
                self.trainer("tokenize", "--input", "hard.txt", "--output", output, "--tokenizer", folder)
                content = (self.folder / output / "tokens.bin").read_bytes()
                ours = array.array("H" if struct.unpack_from("<I", content)[0] == 20240520 else "I", content[1024:]).tolist()
                theirs = json.loads((self.folder / folder.split("/")[0] / "ids.json").read_text())
                place = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), len(theirs))
                self.assertEqual((len(ours) - 1, ours[place:-1][:8]), (len(theirs), theirs[place:place + 8]), f"at {place}")
        # An exported model of a file of ranks has the pattern that the run used.
        self.train('data.train=["hard.txt"]', "data.tokenizer=cl100k/x.tiktoken", "train.steps=1", "optim.warmup_steps=0")
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "run", "--output", "hf")
        subprocess.run([python, "-c", EXPORTED, "hf/tokenizer.json", "hard.txt", "cl100k/ids.json"], cwd=self.folder, check=True,
                       timeout=300)

    def test_added_tokens_are_found_as_by_tokenizers(self):
        python = find_python()
        if python is None:
            self.skipTest("no Python with tiktoken and tokenizers (TRAINER_TORCH_PYTHON)")
        # A second normalizer_spec overrides one field: a space is added before texts.
        (self.folder / "prefixed").mkdir()
        model = (self.folder / "tokens/tokenizer.model").read_bytes() + b"\x1a\x02\x18\x01"
        (self.folder / "prefixed/tokenizer.model").write_bytes(model)
        self.train("data.tokenizer=prefixed", 'data.train=["text.txt"]', "train.steps=1", "optim.warmup_steps=0")
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "run", "--output", "hf")
        peer = pathlib.Path(__file__).parent / "added_tokens_peer.py"
        subprocess.run([python, peer, "hf"], cwd=self.folder, check=True, timeout=300)
        for case in sorted(self.folder.glob("case*")):
            with self.subTest(case.name):
                made = json.loads(self.trainer("tokenize", "--input", case / "text.jsonl", "--output", case / "ours",
                                               "--tokenizer", case, "--json", stdout=True))
                ours = array.array("H", (case / "ours/tokens.bin").read_bytes()[1024:]).tolist()
                ends = array.array("Q", (case / "ours/tokens.docs").read_bytes()).tolist()[-made["documents"]:]
                theirs = json.loads((case / "ids.json").read_text())
                for begin, end, ids in zip([0, *ends], ends, theirs, strict=False):
                    self.assertEqual(ours[begin:end - 1], ids)
                self.assertEqual(len(ends), len(theirs))

    def test_a_tokenizer_with_the_fields_of_olmo2_has_the_tokens_of_tokenizers(self):
        python = find_python()
        if python is None:
            self.skipTest("no Python with tiktoken and tokenizers (TRAINER_TORCH_PYTHON)")
        draw = random.Random(2)
        pieces = ["don't I'LL they've WE'RE", " 1234567,89.0 ٣٣٣٣", "\r\n \n\n", "   three\t\ttabs", "e\u0301 naïve 日本語", " ¿¡!?\r\n",
                  "<|extra_id_0|>", "<|extra_id_1|>", "<|endoftext|>", "<|pad|>", "\u180e", "\x85", "🐈 end. "]
        prose = (self.folder / "text.txt").read_text()
        cuts = [draw.randrange(len(prose) - 100) for _ in range(400)]
        mixed = "".join(piece for cut in cuts for piece in (prose[cut:cut + 100], *draw.choices(pieces, k=3)))
        (self.folder / "mixed.txt").write_text(mixed, newline="", encoding="utf-8")
        subprocess.run([python, "-c", OLMO2, "text.txt", "mixed.txt", "theirs", "olmo2"], cwd=self.folder, check=True, timeout=300)
        self.trainer("tokenize", "--input", "mixed.txt", "--output", "ours", "--tokenizer", "olmo2")
        ours, theirs = self.tokens("ours"), array.array("i", (self.folder / "theirs").read_bytes())
        names = {token["content"]: token["id"] for token in
                 json.loads((self.folder / "olmo2/tokenizer.json").read_text())["added_tokens"]}
        self.assertEqual(ours.pop(), names["<|endoftext|>"])
        self.assertEqual(list(ours), list(theirs))
        for name, id in names.items():
            self.assertEqual(id in theirs, "extra_id" in name, name)
        # A model of this family exports the same file, and may have more embedding rows than tokens.
        self.train('data.train=["text.txt"]', "data.tokenizer=olmo2", "data.vocab_size=960", "train.steps=3", "model.arch=olmo2")
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "run", "--output", "hf")
        self.assertEqual((self.folder / "hf/tokenizer.json").read_bytes(), (self.folder / "olmo2/tokenizer.json").read_bytes())
        config = json.loads((self.folder / "hf/config.json").read_text())
        self.assertEqual((config["model_type"], config["vocab_size"], config["eos_token_id"]),
                         ("olmo2", 960, names["<|endoftext|>"]))
        self.trainer("checkpoint", "import", "--format", "hf", "--input", "hf", "--output", "back")
        texts = [self.trainer("generate", "--checkpoint", checkpoint, "--prompt", "The cat", "--tokens", "9", "--seed", "1",
                              stdout=True) for checkpoint in ("run", "back")]
        self.assertEqual(*texts)


if __name__ == "__main__":
    rig.main()
