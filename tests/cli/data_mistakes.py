"""Data and tokenizers: exit status 4, naming file and offset."""
import os
import bz2
import gzip
import struct

from mistakes import TINY, tiny_text

TOKENS = "[data]\ntrain = [\"tokens.bin\"]\n"
TOKENS_TOML = TINY[:TINY.index("[data]")] + TOKENS + TINY[TINY.index("val_fraction"):]


def llmc(tokens, count=None, magic=20240520, version=1):
    """The llm.c layout: 256 little-endian int32 of header, then uint16 tokens."""
    header = [magic, version, len(tokens) if count is None else count] + [0] * 253
    return struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}H", *tokens)


GOOD = [i % 299 for i in range(600)]


def data(name, files, *expect, toml=TINY, sets=(), args=None, status=4, **more):
    args = args or ["--config", "x.toml"] + [part for each in sets for part in ("--set", each)]
    files = {"x.toml": toml, "text.txt": tiny_text(), **files}
    return {"name": name, "args": args, "status": status, "expect": list(expect), "files": files, **more}


def tokens(name, content, *expect, **more):
    return data(name, {"tokens.bin": content}, "tokens.bin", *expect, toml=TOKENS_TOML, **more)


def own_tokenizer(place, source="text.txt"):
    """SOURCE/tokenizer.model and SOURCE/tokens.bin, without .txt."""
    made = place.run(["tokenize", "--input", source, "--output", source[:-4], "--train-vocab", "320"])
    assert made.returncode == 0, made.stderr


def two_tokenizers(place):
    own_tokenizer(place)
    place.write("other.txt", tiny_text().upper())
    own_tokenizer(place, "other.txt")


def nothing_tokenized(place):
    assert not list(place.folder.glob("out/*.bin")), "tokens were published"


CASES = [
    data("missing file", {}, 'x.toml:7:9: data.train: "nosuch.txt" not found', toml=TINY.replace("text.txt", "nosuch.txt")),
    data("glob without a match", {}, '"texts/*.txt" not found', sets=["data.train=texts/*.txt"]),
    data("missing tokenizer", {}, '"my.model" not found', sets=["data.tokenizer=my.model"]),
    data("empty text", {"text.txt": ""}, "text.txt: offset 0: the file is empty"),
    data("folder for a file", {"folder/a.txt": "a"}, "folder", sets=["data.train=folder"]),
    data("too little text", {"text.txt": "A cat sat.\n"}, "data.vocab_size = 320", status=4),
    data("text shorter than a window", {"val.txt": "A cat.\n"}, "fewer than one window of seq_len + 1 = 17",
         sets=["data.val=val.txt", "data.val_fraction=0"]),
    data("vocabulary too large", {}, "data.vocab_size = 30000 is too large", sets=["data.vocab_size=30000"]),
    data("vocabulary too small", {}, "data.vocab_size = 100 is too small", sets=["data.vocab_size=100"]),
    data("bad UTF-8 when strict", {"text.txt": tiny_text().encode() + b"caf\xe9 au lait\n"}, "text.txt: offset",
         "byte 0xe9 is not valid UTF-8", sets=["data.strict=true"]),
    data("garbage as a tokenizer", {"my.model": b"\x07garbage" * 99}, "my.model: not a usable SentencePiece model",
         sets=["data.tokenizer=my.model"]),
    data("garbage as a tuning table", {"table.json": "no table"},
         'hardware.gemm_tuning = "table.json": tuning table: the file: expected a JSON object; `trainer bench gemm '
         '--write-tuning` makes one', sets=["hardware.gemm_tuning=table.json"], status=2),
    data("empty tokenizer", {"my.model": b""}, "my.model", sets=["data.tokenizer=my.model"]),
    *[data(f"data in {name}", {name: content}, f'"{name}": {kind} are not read: there are .txt, .text, .md (text), .jsonl, .ndjson',
           remedy, 'insist with data.format = "text", "jsonl" or "tokens"', sets=[f"data.train={name}"])
      for name, content, kind, remedy in (
          ("books.txt.gz", gzip.compress(b"a"), ".gz files", "gunzip"), ("t.parquet", b"PAR1", ".parquet files", "as .jsonl"),
          ("t.csv", "a,b\n", ".csv files", "as .jsonl"), ("t.TSV", "a\tb\n", ".tsv files", "as .jsonl"),
          ("t.json", "[]", ".json files", "one object a line"), ("t.zip", b"PK\3\4", ".zip files", "unzip"),
          ("t.idx", b"MMIDIDX\0\0", ".idx files", ".bin file beside it"), ("enwik8", "a b\n", "files without an extension", "rename"),
          ("t.npy", b"\x93NUMPY", ".npy files", "uint16"))],
    data("pattern that matches other files too", {"d/a.txt": tiny_text(), "d/b.csv": "a,b\n"}, '"d/b.csv": .csv files are not read',
         sets=["data.train=d/*"]),
    *[data(f"text that is {what}", {"a.txt": content}, "a.txt: offset 0: expected text, found", what, remedy,
           sets=["data.train=a.txt"])
      for content, what, remedy in (
          (gzip.compress(b"a b c\n" * 99), "gzip-compressed data", "gunzip"), (b"\x28\xb5\x2f\xfd....", "Zstandard", "unzstd"),
          (b"\xfd7zXZ\0....", "xz-compressed", "unxz"), (bz2.compress(b"a b c\n"), "bzip2-compressed", "bunzip2"),
          (b"PK\3\4....", "a ZIP archive", "unzip"), (b"PAR1....", "a Parquet table", ".jsonl"),
          (tiny_text().encode("utf-16"), "text in UTF-16", "iconv -f UTF-16 -t UTF-8"))],
    data("file of nothing but a byte-order mark", {"a.txt": b"\xef\xbb\xbf"}, "a.txt: offset 3: the file is empty", sets=["data.train=a.txt"]),
    data("pipe as text", {}, "f.txt: not a regular file", sets=["data.train=f.txt"],
         prepare=lambda place: os.mkfifo(place.folder / "f.txt")),
    data("JSON lines: a comma too many", {"a.jsonl": '{"text": "a", }\n'}, "a.jsonl: offset 0 (line 1)",
         "at column 15: syntax error while parsing object key", sets=["data.train=a.jsonl"]),
    data("JSON lines: half a surrogate pair when strict", {"a.jsonl": '{"text": "a\\ud83d"}\n'}, "a.jsonl: offset 0 (line 1)",
         "half of a surrogate pair", sets=["data.train=a.jsonl", "data.strict=true"]),
    data("no folder for temporary files", {}, "TMPDIR", env={"TMPDIR": "/nonexistent"}, prepare=lambda place: {"step": place.tiny_run()},
         args=["eval", "--checkpoint", "{step}", "--data", "text.txt"], status=5),
    data("folder as text", {"d/a.txt": "a b c"}, '"d" is a folder: name its files, such as "d/*.txt"', sets=["data.train=d"]),
    data("folder among what is tokenized", {"d/e/a.txt": "a b c"}, '"d/e" is a folder', "d/e/*.txt",
         args=["tokenize", "--input", "d/*", "--output", "out", "--train-vocab", "320"], after=nothing_tokenized),
    data("tokenize a table", {"a.csv": "a,b\n"}, '"a.csv": .csv files are not read', "insist with --format",
         args=["tokenize", "--input", "a.csv", "--output", "out", "--train-vocab", "320"], after=nothing_tokenized),
    data("tokenize in no known format", {}, "--format", "jsonl",
         args=["tokenize", "--input", "text.txt", "--output", "out", "--train-vocab", "320", "--format", "csv"], status=2),
    data("unknown data format", {}, "--set data.format=csv", "expected one of auto, text, jsonl, tokens", sets=["data.format=csv"],
         status=2),
    data("text that is taken for tokens", {"text.txt": tiny_text() + "x"}, "text.txt", "no whole number of 16-bit tokens",
         sets=["data.format=tokens", 'data.tokenizer=""', "data.vocab_size=320"]),
    data("text that is taken for JSON lines", {}, "text.txt: offset 0 (line 1): expected a JSON object on each line",
         sets=["data.format=jsonl"]),
    data("JSON lines: an array", {"a.jsonl": '{"text": "a b c"}\n["a"]\n'}, "a.jsonl: offset 18 (line 2): expected a JSON object",
         sets=["data.train=a.jsonl"]),
    data("JSON lines: a number as the text", {"a.JSONL": '{"text": "a"}\n\n{"text": 7}\n'}, "a.JSONL: offset 15 (line 3)",
         '"text" is a number, expected a string', sets=["data.train=a.JSONL"]),
    data("JSON lines: bad UTF-8 when strict", {"a.jsonl": b'{"text": "a b"}\n{"text": "caf\xe9"}\n'}, "a.jsonl: offset 29 (line 2)",
         "byte 0xe9 is not valid UTF-8", sets=["data.train=a.jsonl", "data.strict=true"]),
    data("validation share of next to nothing", {}, "--set data.val_fraction=1e-6", "leaves", "for validation, fewer than one window",
         "seq_len + 1 = 17", sets=["data.val_fraction=1e-6"]),
    data("validation share of nearly everything", {}, "x.toml:", "data.val_fraction: 0.9999", "for training, fewer than one window",
         toml=TINY.replace("val_fraction = 0.1", "val_fraction = 0.9999")),
    data("training text shorter than two windows", {"text.txt": tiny_text()[:700]}, "data.val_fraction",
         "add data or choose a smaller model.seq_len", sets=["model.seq_len=500", "data.vocab_size=290"]),
    data("broken line of JSON", {"a.jsonl": '{"text": "a b c"}\n{"text": \n'}, "a.jsonl: offset 18 (line 2)",
         sets=["data.train=a.jsonl"]),
    data("JSON without the text", {"a.jsonl": '{"body": "a b c"}\n'}, "a.jsonl: offset 0 (line 1)", "text", sets=["data.train=a.jsonl"]),
    data("text and tokens together", {"tokens.bin": llmc(GOOD)}, "token files and text cannot be mixed", prepare=own_tokenizer,
         sets=['data.train=["text.txt", "tokens.bin"]', "data.tokenizer=text/tokenizer.model"]),
    tokens("empty token file", b""),
    tokens("truncated token file", llmc(GOOD, count=5000), "5000"),
    tokens("half a header", llmc(GOOD)[:600]),
    tokens("odd number of bytes", llmc(GOOD) + b"\x01"),
    tokens("unknown version", llmc(GOOD, version=77), "77"),
    tokens("token outside the vocabulary", llmc(GOOD[:100] + [60000] + GOOD[:100]), "token 60000", "offset 1224",
           "outside the vocabulary of 50257"),
    tokens("smaller vocabulary than the tokens imply", llmc(GOOD), "--set data.vocab_size=300: 300",
           "has a vocabulary of 50257: leave data.vocab_size out", sets=["data.vocab_size=300"], status=2),
    tokens("padded vocabulary, seen by a dry run", llmc(GOOD), "--set data.vocab_size=50304: 50304", "model.vocab_multiple",
           args=["train", "--config", "x.toml", "--dry-run", "--set", "data.vocab_size=50304"], status=2),
    data("vocabulary that the tokenizer has not", {}, "x.toml:9:14: data.vocab_size: 300",
         "tokenizer.model has a vocabulary of 320", prepare=own_tokenizer,
         toml=TINY.replace("vocab_size = 320", "vocab_size = 300"), sets=["data.tokenizer=text/tokenizer.model"], status=2),
    tokens("fewer tokens than a window", llmc(GOOD[:9]), "fewer than one window"),
    data("tokens of another tokenizer", {}, "tokenizer", prepare=two_tokenizers,
         args=["--config", "x.toml", "--set", "data.train=text/tokens.bin", "--set", "data.tokenizer=other/tokenizer.model"]),
    data("tokenize a missing file", {}, "nosuch.txt", after=nothing_tokenized,
         args=["tokenize", "--input", "nosuch.txt", "--output", "out", "--train-vocab", "300"]),
    data("tokenize an empty file", {"empty.txt": ""}, "empty.txt: offset 0: the file is empty", after=nothing_tokenized,
         args=["tokenize", "--input", "empty.txt", "--output", "out", "--train-vocab", "300"]),
    data("tokenize into a file", {"out": "kept"}, "out", status=5,
         args=["tokenize", "--input", "text.txt", "--output", "out", "--train-vocab", "320"]),
    data("tokenize without a tokenizer", {}, "--tokenizer MODEL or --train-vocab N", status=2,
         args=["tokenize", "--input", "text.txt", "--output", "out"]),
]
