"""Mistakes in data and tokenizers, one case of each kind: exit status 4, and a message with file and offset.
tests/unit/data and tests/unit/config/file_kind_test.cpp have the tables of all."""
import gzip
import os
import struct

from mistakes import TINY, tiny_text

TOKENS = "[data]\ntrain = [\"tokens.bin\"]\n"
TOKENS_TOML = TINY[:TINY.index("[data]")] + TOKENS + TINY[TINY.index("val_fraction"):]


def llmc(tokens, count=None):
    """Returns a token file in llm.c's format: a header of 256 little-endian int32, then uint16 tokens."""
    header = [20240520, 1, len(tokens) if count is None else count] + [0] * 253
    return struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}H", *tokens)


GOOD = [i % 299 for i in range(600)]


def data(name, files, *expect, toml=TINY, sets=(), args=None, status=4, **more):
    args = args or ["--config", "x.toml"] + [part for each in sets for part in ("--set", each)]
    files = {"x.toml": toml, "text.txt": tiny_text(), **files}
    return {"name": name, "args": args, "status": status, "expect": list(expect), "files": files, **more}


def tokens(name, content, *expect, **more):
    return data(name, {"tokens.bin": content}, "tokens.bin", *expect, toml=TOKENS_TOML, **more)


def own_tokenizer(place, source="text.txt"):
    """Tokenizes NAME.txt into NAME/tokenizer.model and NAME/tokens.bin."""
    made = place.run(["tokenize", "--input", source, "--output", source[:-4], "--train-vocab", "320"])
    assert made.returncode == 0, made.stderr


def two_tokenizers(place):
    own_tokenizer(place)
    place.write("other.txt", tiny_text().upper())
    own_tokenizer(place, "other.txt")


def nothing_tokenized(place):
    assert not list(place.folder.glob("out/*.bin")), "tokens were published"


TOKENIZE = ["tokenize", "--output", "out", "--train-vocab", "320", "--input"]

CASES = [
    data("missing file", {}, "x.toml:7:9: data.train", '"nosuch.txt"', toml=TINY.replace("text.txt", "nosuch.txt")),
    data("glob without a match", {}, '"texts/*.txt"', sets=["data.train=texts/*.txt"]),
    data("missing tokenizer", {}, '"my.model"', sets=["data.tokenizer=my.model"]),
    data("garbage as a tokenizer", {"my.model": b"\x07garbage" * 99}, "my.model", "SentencePiece", sets=["data.tokenizer=my.model"]),
    data("empty tokenizer", {"my.model": b""}, "my.model", sets=["data.tokenizer=my.model"]),
    data("garbage as a tuning table", {"table.json": "no table"}, "hardware.gemm_tuning", "table.json", "--write-tuning",
         sets=["hardware.gemm_tuning=table.json"], status=2),
    data("unknown data format", {}, "data.format=csv", "auto, text, jsonl, tokens", sets=["data.format=csv"], status=2),
    # kinds of files
    data("empty text", {"text.txt": ""}, "text.txt: the file is empty"),
    *[data(f"data in {name}", {name: content}, f'"{name}"', remedy, "data.format", sets=[f"data.train={name}"])
      for name, content, remedy in (("books.tar.gz", gzip.compress(b"a"), "tar"), ("t.csv", "a,b\n", "to .jsonl"),
                                    ("t.idx", b"MMIDIDX\0\0", ".bin file"), ("t.npy", b"\x93NUMPY", "uint16"), ("enwik8", "a b\n", "rename"))],
    data("text that is gzip-compressed data", {"a.txt": gzip.compress(b"a b c\n" * 99)}, "a.txt: offset 0", "gunzip",
         sets=["data.train=a.txt", "data.format=text"]),
    data("text that is UTF-16", {"a.txt": tiny_text().encode("utf-16")}, "a.txt: offset 0", "iconv", sets=["data.train=a.txt"]),
    data("text in a different encoding", {"a.txt": "Все счастливые семьи похожи".encode("cp1251") * 9}, "a.txt: offset 0", "UTF-8",
         "iconv", sets=["data.train=a.txt", "data.format=text"]),
    data("pattern that matches other files too", {"d/a.txt": tiny_text(), "d/b.csv": "a,b\n"}, '"d/b.csv"', sets=["data.train=d/*"]),
    data("folder as text", {"d/a.txt": "a b c"}, '"d" is a folder', '"d/*.txt"', sets=["data.train=d"]),
    data("gzip file that is cut short", {"a.txt.gz": gzip.compress(tiny_text().encode())[:-9]}, "a.txt.gz: after byte", "truncated",
         sets=["data.train=a.txt.gz"]),
    data("standard input as text", {}, "x.toml:7:9: data.train", "trainer tokenize --input -", toml=TINY.replace("text.txt", "-")),
    data("pipe as text", {}, "f.txt", "trainer tokenize --input -", sets=["data.train=f.txt"], prepare=lambda place: os.mkfifo(place.folder / "f.txt")),
    data("text that is taken for tokens", {"text.txt": tiny_text() + "x"}, "text.txt", "16-bit",
         sets=["data.format=tokens", 'data.tokenizer=""', "data.vocab_size=320"]),
    data("text that is taken for JSON lines", {}, "text.txt: offset 0 (line 1)", "JSON object", sets=["data.format=jsonl"]),
    data("broken line of JSON", {"a.jsonl": '{"text": "a b c"}\n{"text": \n'}, "a.jsonl: offset 18 (line 2)", sets=["data.train=a.jsonl"]),
    data("JSON lines: bad UTF-8 when strict", {"a.jsonl": b'{"text": "a b"}\n{"text": "caf\xe9"}\n'}, "a.jsonl: offset 29 (line 2)",
         "0xe9", sets=["data.train=a.jsonl", "data.strict=true"]),
    data("JSON lines: null text when strict", {"a.jsonl": '{"text": "a b"}\n{"text": null}\n'}, "a.jsonl: offset 16 (line 2)",
         '"text" is null', "data.strict = false", sets=["data.train=a.jsonl", "data.strict=true"]),
    data("JSON lines: no text when strict", {"a.jsonl": '{"text": "a b"}\n{"body": "a"}\n'}, "a.jsonl: offset 16 (line 2)",
         'no member "text"', "data.strict = false", sets=["data.train=a.jsonl", "data.strict=true"]),
    data("JSON lines: text of another name", {"a.jsonl": '{"body": "a b"}\n' * 9}, "a.jsonl: offset 0 (line 1)",
         'no member "text"', "data.text_key", sets=["data.train=a.jsonl"]),
    data("JSON lines: null texts only", {"a.jsonl": '{"text": null}\n' * 9}, "a.jsonl", "no text",
         sets=["data.train=a.jsonl"]),
    data("empty file among texts when strict", {"d/a.txt": tiny_text(), "d/b.txt": ""}, "d/b.txt: the file is empty",
         sets=["data.train=d/*.txt", "data.strict=true"]),
    data("empty gzip file among texts when strict", {"d/a.txt": tiny_text(), "d/b.txt.gz": gzip.compress(b"")}, "d/b.txt.gz: the file is empty",
         sets=["data.train=d/*", "data.strict=true"]),
    data("empty files only", {"d/a.txt": "", "d/b.txt.gz": gzip.compress(b"\xef\xbb\xbf")}, "d/a.txt", "no text",
         sets=["data.train=d/*"]),
    data("bad UTF-8 when strict", {"text.txt": tiny_text().encode() + b"caf\xe9 au lait\n"}, "text.txt: offset", "0xe9",
         sets=["data.strict=true"]),
    # too much or too little data
    data("too little text", {"text.txt": "A cat sat.\n"}, "data.vocab_size = 320"),
    data("vocabulary too large", {}, "data.vocab_size = 30000", sets=["data.vocab_size=30000"]),
    data("vocabulary too small", {}, "data.vocab_size = 100", sets=["data.vocab_size=100"]),
    data("text shorter than a window", {"val.txt": "A cat.\n"}, "seq_len + 1 = 17", sets=["data.val=val.txt", "data.val_fraction=0"]),
    data("validation share of next to nothing", {}, "data.val_fraction=1e-6", "seq_len + 1 = 17", sets=["data.val_fraction=1e-6"]),
    data("training text shorter than two windows", {"text.txt": tiny_text()[:700]}, "data.val_fraction", "model.seq_len",
         sets=["model.seq_len=500", "data.vocab_size=290"]),
    # tokens
    data("text and tokens together", {"tokens.bin": llmc(GOOD)}, "mixed", prepare=own_tokenizer,
         sets=['data.train=["text.txt", "tokens.bin"]', "data.tokenizer=text/tokenizer.model"]),
    tokens("truncated token file", llmc(GOOD, count=5000), "5000"),
    tokens("token outside the vocabulary", llmc(GOOD[:100] + [60000] + GOOD[:100]), "token 60000", "offset 1224", "50257"),
    tokens("fewer tokens than a window", llmc(GOOD[:9]), "fewer than one window"),
    tokens("vocabulary too small, seen by a dry run", llmc(GOOD), "data.vocab_size=50000", "50257",
           args=["train", "--config", "x.toml", "--dry-run", "--set", "data.vocab_size=50000"], status=2),
    data("vocabulary that the tokenizer has not", {}, "x.toml:9:14: data.vocab_size: 300", "320", prepare=own_tokenizer,
         toml=TINY.replace("vocab_size = 320", "vocab_size = 300"), sets=["data.tokenizer=text/tokenizer.model"], status=2),
    data("tokens of another tokenizer", {}, "tokenizer", prepare=two_tokenizers,
         args=["--config", "x.toml", "--set", "data.train=text/tokens.bin", "--set", "data.tokenizer=other/tokenizer.model"]),
    # verbs other than train
    data("tokenize a missing file", {}, "nosuch.txt", after=nothing_tokenized, args=[*TOKENIZE, "nosuch.txt"]),
    data("folder among what is tokenized", {"d/e/a.txt": "a b c"}, '"d/e"', "d/e/*.txt", args=[*TOKENIZE, "d/*"], after=nothing_tokenized),
    data("tokenize a table", {"a.csv": "a,b\n"}, '"a.csv"', "--format", args=[*TOKENIZE, "a.csv"], after=nothing_tokenized),
    data("tokenize in no known format", {}, "--format", "jsonl", args=[*TOKENIZE, "text.txt", "--format", "csv"], status=2),
    data("tokenize without a tokenizer", {}, "--tokenizer PATH", "--train-vocab N", status=2,
         args=["tokenize", "--input", "text.txt", "--output", "out"]),
    data("tokenize standard input twice over", {}, "--input", "only input", args=[*TOKENIZE, "-", "text.txt"], status=2),
    data("tokenizer to train on standard input", {}, "--train-vocab", "--input -", "--tokenizer", args=[*TOKENIZE, "-"], status=2),
    data("tokenize standard input in no stated format", {}, "--input -", "--format text or --format jsonl", status=2, prepare=own_tokenizer,
         args=["tokenize", "--output", "out", "--tokenizer", "text", "--input", "-"]),
    data("tokenize into a file", {"out": "kept"}, "out", status=5, args=[*TOKENIZE, "text.txt"]),
    data("evaluation on a text that is too short", {"short.txt": "a b c"}, "short.txt: ", "seq_len + 1 = ", "more text",
         args=["eval", "--checkpoint", "{step}", "--data", "short.txt"], prepare=lambda place: {"step": place.tiny_run()}),
    data("no folder for temporary files", {}, "TMPDIR", env={"TMPDIR": "/nonexistent"}, prepare=lambda place: {"step": place.tiny_run()},
         args=["eval", "--checkpoint", "{step}", "--data", "text.txt"], status=5),
]
