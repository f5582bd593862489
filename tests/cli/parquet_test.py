#!/usr/bin/env python3
"""Parquet files: the rows of files that other libraries write, tokens of a table and of its JSON lines, messages."""
import itertools
import json
import os
import pathlib
import random
import subprocess

import parquet_peers
import rig

ROOT = pathlib.Path(__file__).resolve().parents[2]
ROWS = os.environ.get("ROWS", "build/rows")


def lines(columns, names):
    """Returns the JSON lines of a table as Python writes them."""
    return [json.dumps(dict(zip(names, row)), ensure_ascii=False, separators=(",", ":")) for row in zip(*(columns[name] for name in names))]


class Peers(rig.unittest.TestCase):
    """Every file must give the table's own JSON lines."""

    NAMES = ["text", "messages", "nested", "choices", "whole", "real", "flag", "id"]

    def setUp(self):
        self.path = pathlib.Path(self.enterContext(rig.tempfile.TemporaryDirectory())) / "a.parquet"
        self.columns = parquet_peers.table()

    def library(self, name):
        return parquet_peers.library(name) or self.skipTest(f"this Python has no {name}")

    def assert_rows(self, label, names=None):
        names = names or self.NAMES
        shown = subprocess.run([ROWS, self.path, *names], capture_output=True)
        self.assertEqual(shown.returncode, 0, (label, shown.stderr))
        ours = shown.stdout.decode().split("\n")
        self.assertEqual(ours.pop(), "")
        theirs = lines(self.columns, names)
        self.assertEqual(len(ours), len(theirs), label)
        for number, (mine, other) in enumerate(zip(ours, theirs)):
            if mine != other:
                self.assertEqual(json.loads(mine), json.loads(other), (label, number))

    def refusal(self, *names):
        shown = subprocess.run([ROWS, self.path, *names], capture_output=True, text=True)
        self.assertEqual(shown.returncode, 4, shown.stderr)
        return shown.stderr

    def test_pyarrow(self):
        arrow, parquet = self.library("pyarrow"), self.library("pyarrow.parquet")
        table = arrow.table(self.columns)
        texts = ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
        cases = [{}, {"use_content_defined_chunking": True, "write_page_index": True}, {"use_compliant_nested_type": False},
                 {"dictionary_pagesize_limit": 2000, "data_page_size": 1000}, {"write_page_checksum": True, "data_page_size": 5000},
                 {"use_dictionary": False, "column_encoding": {"whole": "DELTA_BINARY_PACKED", "id": "DELTA_BINARY_PACKED", "flag": "RLE"}}]
        cases += [{"compression": codec, "data_page_version": version, "row_group_size": group}
                  for codec, version, group in itertools.product(("none", "snappy", "gzip", "zstd"), ("1.0", "2.0"), (700, 10**6))]
        cases += [{"use_dictionary": False, "column_encoding": {"text": encoding}, "data_page_version": version, "data_page_size": 3000}
                  for encoding, version in itertools.product(texts, ("1.0", "2.0"))]
        for options in cases:
            parquet.write_table(table, self.path, **options)
            self.assert_rows(options)
        self.assert_rows("other order", ["id", "text"])
        parquet.write_table(table.slice(0, 0), self.path)
        self.columns = {name: [] for name in self.columns}
        self.assert_rows("no rows")
        types = [arrow.field("u8", arrow.uint8()), arrow.field("u32", arrow.uint32()), arrow.field("u64", arrow.uint64()),
                 arrow.field("f", arrow.float32(), nullable=False), arrow.field("t", arrow.large_string(), nullable=False),
                 arrow.field("n", arrow.null())]
        self.columns = {"u8": [0, 255], "u32": [2**32 - 1, None], "u64": [2**64 - 1, 2**63], "f": [0.5, float("nan")], "t": ["", "a"], "n": [None] * 2}
        parquet.write_table(arrow.table(self.columns, schema=arrow.schema(types)), self.path)
        self.columns["f"][1] = None
        self.assert_rows("types", list(self.columns))

    def test_what_is_not_supported_is_refused_by_name(self):
        arrow, parquet = self.library("pyarrow"), self.library("pyarrow.parquet")
        decimal, day = __import__("decimal").Decimal("1.50"), __import__("datetime").datetime(2024, 1, 2)
        table = arrow.table({"text": ["a"], "map": arrow.array([[("k", 1)]], arrow.map_(arrow.string(), arrow.int64())),
                             "fixed": arrow.array([b"abcd"], arrow.binary(4)), "decimal": [decimal], "time": arrow.array([day], arrow.timestamp("ns"))})
        parquet.write_table(table, self.path, use_deprecated_int96_timestamps=True)
        self.assertEqual(subprocess.run([ROWS, self.path, "text"], capture_output=True).stdout, b'{"text":"a"}\n')
        for name, words in (("map", "a map is"), ("fixed", "FIXED_LEN_BYTE_ARRAY"), ("decimal", "DECIMAL"), ("time", "INT96")):
            self.assertIn(f'a.parquet: column "{name}": {words}', self.refusal(name))
        for codec in ("brotli", "lz4"):
            parquet.write_table(table.select(["text"]), self.path, compression=codec)
            self.assertIn(f'column "text": {codec if codec == "brotli" else "LZ4"} compression is not supported; write the file with zstd, snappy or gzip',
                          self.refusal("text"))
        parquet.write_table(arrow.table({"n": [1, 2]}), self.path, use_dictionary=False, column_encoding={"n": "BYTE_STREAM_SPLIT"})
        self.assertIn('column "n", row group 0, page at byte 4: BYTE_STREAM_SPLIT encoding is not supported', self.refusal("n"))
        found = self.refusal("text")
        self.assertIn('no column "text"; it has n (int64): set data.text_key', found)

    def test_duckdb(self):
        duckdb, arrow = self.library("duckdb"), self.library("pyarrow")
        data = arrow.table(self.columns)
        for options in ("", ", parquet_version v2", ", compression zstd, row_group_size 2048", ", compression gzip, parquet_version v2",
                        ", compression uncompressed"):
            duckdb.sql(f"copy (select * from data) to '{self.path}' (format parquet{options})")
            self.assert_rows(options)

    def test_polars(self):
        polars, arrow = self.library("polars"), self.library("pyarrow")
        frame = polars.from_arrow(arrow.table(self.columns))
        for options in ({}, {"compression": "snappy"}, {"compression": "gzip", "row_group_size": 700}, {"compression": "uncompressed", "data_page_size": 2000}):
            frame.write_parquet(self.path, **options)
            self.assert_rows(options)


class Tokens(rig.Runs):
    def texts(self, count):
        rng = random.Random(3)
        words = (self.folder / "text.txt").read_text().split()
        return [" ".join(rng.choices(words, k=rng.randint(0, 60))) for _ in range(count)]

    def write(self, name, texts):
        (self.folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        parquet_peers.write_texts(self.folder / f"{name}.parquet", texts)

    def tokenize(self, *inputs, output):
        return self.trainer("tokenize", "--input", *inputs, "--output", output, "--tokenizer", "tokens/tokenizer.model")

    def assert_same_tokens(self, folder, reference):
        for name in ("tokens.bin", "tokens.docs"):
            self.assertTrue((self.folder / folder / name).read_bytes() == (self.folder / reference / name).read_bytes(), (folder, name))

    def test_a_table_has_the_tokens_of_its_lines(self):
        self.write("a", self.texts(3500))
        self.tokenize("a.jsonl", output="lines")
        self.tokenize("a.parquet", output="table")
        self.assert_same_tokens("table", "lines")
        self.tokenize("a.jsonl", "text.txt", output="lines2")
        self.tokenize("a.parquet", "text.txt", output="table2")
        self.assert_same_tokens("table2", "lines2")

    def test_null_and_empty_texts_are_skipped_and_counted(self):
        (self.folder / "lines.jsonl").write_text('{"text":null}\n{"text":""}\n{"text":"a b"}\n')
        (self.folder / "lines.parquet").write_bytes((ROOT / "tests/fuzz/corpus/parquet/plain").read_bytes())
        for name in ("lines.jsonl", "lines.parquet"):
            self.assertIn("1 line was skipped", self.tokenize(name, output="skipped"))

    def test_training_reads_a_table(self):
        self.write("a", self.texts(1500))
        for kind in ("jsonl", "parquet"):
            self.train(f"run.dir={kind}", f'data.train=["a.{kind}"]', max_steps=2)
        self.assert_same_run(2, "parquet", "jsonl")
        self.train("run.dir=trained", 'data.train=["a.parquet"]', "data.tokenizer=train", "data.vocab_size=320", max_steps=1)

    def test_mistakes(self):
        self.write("a", ["one", "two"])
        whole = (self.folder / "a.parquet").read_bytes()
        (self.folder / "cut.parquet").write_bytes(whole[:-10])
        (self.folder / "noise.parquet").write_bytes(b"x" * 100)
        (self.folder / "pipe.jsonl").write_bytes(whole)
        args = ["tokenize", "--output", "out", "--tokenizer", "tokens/tokenizer.model", "--input"]
        for name, words in (("cut.parquet", f"cut.parquet: does not end with PAR1; it is truncated or not a Parquet file ({len(whole) - 10} bytes)"),
                            ("noise.parquet", "does not end with PAR1"), ("pipe.jsonl", "a Parquet table; name it .parquet")):
            self.assertIn(words, self.trainer(*args, name, status=4))
        self.assertIn('a.parquet: no column "body"; it has text (string): set data.text_key', self.trainer(*args, "a.parquet", "--text-key", "body", status=4))
        piped = subprocess.run([rig.TRAINER, *args, "-", "--format", "jsonl"], cwd=self.folder, input=whole, capture_output=True)
        self.assertEqual(piped.returncode, 4)
        self.assertIn(b"a Parquet file has its index at the end and cannot be read from a pipe; use a file", piped.stderr)
        os.mkfifo(self.folder / "fifo.parquet")
        self.assertIn("cannot be read from a pipe", self.trainer(*args, "fifo.parquet", status=4))


if __name__ == "__main__":
    rig.main()
