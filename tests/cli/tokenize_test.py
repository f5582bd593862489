#!/usr/bin/env python3
"""`trainer tokenize`, and training from every format of tokens."""
import array
import fcntl
import gzip
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import subprocess
import sys

import rig

HEADER_BYTES = 1024
CORPUS = pathlib.Path(__file__).resolve().parent.parent / "fuzz/corpus"


class Tokenize(rig.Runs):
    def tokenize(self, *inputs, output, status=0, **options):
        args = ["tokenize", "--input", *inputs, "--output", output, "--tokenizer", "tokens/tokenizer.model"]
        for name, value in options.items():
            args += ["--" + name.replace("_", "-"), value]
        return self.trainer(*args, status=status)

    def long_text(self, copies):
        """Writes copies of 15 kB each, never all in memory, as a child's ru_maxrss starts at its parent's."""
        text = (self.folder / "text.txt").read_text()
        with open(self.folder / "long.txt", "w") as file:
            for i in range(copies):
                file.write(f"{i} {text}")
        return "long.txt"

    def assert_same_tokens(self, folder, reference):
        for name in ("tokens.bin", "tokens.docs", "tokenizer.model"):
            self.assertTrue((self.folder / folder / name).read_bytes() == (self.folder / reference / name).read_bytes(),
                            f"{name} of {folder} and {reference} differ")
        self.assertFalse((self.folder / folder / "tokens.work").exists(), "work was left behind")

    def ids(self, folder="tokens"):
        ids = array.array("H")
        ids.frombytes((self.folder / folder / "tokens.bin").read_bytes()[HEADER_BYTES:])
        return ids

    def test_a_trained_tokenizer_gives_the_same_tokens_when_it_is_given(self):
        self.tokenize("text.txt", output="again")
        self.assert_same_tokens("again", "tokens")

    def test_a_text_that_the_tokenizer_cannot_encode_is_rejected(self):
        """In this tokenizer a control symbol is SentencePiece's space marker."""
        (self.folder / "odd.model").write_bytes((CORPUS / "tokenizer/control_symbol_is_a_space").read_bytes())
        for arguments in (("tokenize", "--input", "text.txt", "--output", "odd", "--tokenizer", "odd.model"),
                          ("train", "--config", "config.toml", "--set", "data.tokenizer=odd.model", "--set", 'data.train=["text.txt"]',
                           "--set", "run.dir=odd-run")):
            self.assertRegex(self.trainer(*arguments, status=4), r"odd\.model: this tokenizer cannot encode the text: .*; train a different one")

    def test_a_tokenizer_changes_with_its_tokens_only(self):
        self.tokenize("text.txt", output="busy")
        tokenizer = (self.folder / "busy/tokenizer.model").read_bytes()
        other = ["tokenize", "--input", "text.txt", "--output", "busy", "--train-vocab", "300"]
        work = self.folder / "busy/tokens.work"
        work.mkdir()
        with open(work / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertIn("another process is tokenizing here", self.trainer(*other, status=5))
        self.assertEqual((self.folder / "busy/tokenizer.model").read_bytes(), tokenizer)
        stderr = self.trainer(*other)
        self.assertRegex(stderr, "busy/tokens.bin: .* different text.* choose a different --output")
        self.assertNotIn("busy/tokens.bin", self.trainer(*other), "they are up to date")
        self.assertNotEqual((self.folder / "busy/tokenizer.model").read_bytes(), tokenizer)

    def test_the_number_of_threads_leaves_no_trace(self):
        text = self.long_text(300)
        self.tokenize(text, output="all", document="line")
        one = sorted(os.sched_getaffinity(0))[:1]
        subprocess.run([rig.TRAINER, "tokenize", "--input", text, "--output", "one", "--tokenizer", "tokens/tokenizer.model",
                        "--document", "line"], cwd=self.folder, check=True, capture_output=True,
                       preexec_fn=lambda: os.sched_setaffinity(0, one))
        self.assert_same_tokens("one", "all")

    def test_interrupted_work_gives_the_same_bytes(self):
        text = self.long_text(2000)
        self.tokenize(text, output="whole", document="line")
        args = ["tokenize", "--input", text, "--output", "parts", "--tokenizer", "tokens/tokenizer.model", "--document", "line"]
        work = self.folder / "parts/tokens.work"

        def written():
            """Returns the file's size and the time of its last write."""
            try:
                status = (work / "tokens").stat()
            except FileNotFoundError:
                return 0, 0
            return status.st_size, status.st_mtime_ns

        reached = [1024]  # the header
        for which, status in ((signal.SIGTERM, rig.SAVED_AFTER_SIGNAL), (signal.SIGKILL, -signal.SIGKILL),
                              (signal.SIGTERM, rig.SAVED_AFTER_SIGNAL), (signal.SIGKILL, -signal.SIGKILL)):
            before = written()
            process = self.start(*args)
            self.wait_until(lambda: written()[0] > reached[-1] and written() != before, process, "tokens", pause=0)
            stderr = self.stop(process, which, status)
            if which == signal.SIGTERM:
                self.assertIn("stopped; run the same command again to resume", stderr)
                reached.append(written()[0])
                self.assertGreaterEqual(reached[-1], reached[-2], "work that was saved is lost")
            self.assertEqual(list(self.folder.glob("parts/tokens.bin")), [], "published too early")
        self.trainer(*args)
        self.assert_same_tokens("parts", "whole")

    def peak_memory(self, name, *tokenizer):
        """Returns the peak memory in bytes of tokenizing a file."""
        process = subprocess.Popen([rig.TRAINER, "tokenize", "--input", name, "--output", f"out-{name}", *tokenizer],
                                   cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        return usage.ru_maxrss * 1024

    @rig.counts_memory
    def test_training_on_a_single_word_is_bounded(self):
        letters = random.Random(5)
        for megabytes in (4, 9):
            with open(self.folder / f"{megabytes}.txt", "w") as file:
                for _ in range(16 * megabytes):
                    file.write("".join(letters.choices("acgt", k=1 << 16)))
        small, large = (self.peak_memory(f"{megabytes}.txt", "--train-vocab", "300") for megabytes in (4, 9))
        self.assertLess(large - small, 64 << 20, f"{small} bytes for 4 MB, {large} for 9 MB")

    @rig.counts_memory
    def test_memory_does_not_grow_with_the_text(self):
        def peak(copies, compress=False):
            name = self.long_text(copies)
            if compress:
                subprocess.run(["gzip", "-f", name], cwd=self.folder, check=True)
                name += ".gz"
            return self.peak_memory(name, "--tokenizer", "tokens/tokenizer.model")
        small, large = peak(800), peak(3200)  # 12 and 48 MB of text
        self.assertLess(large - small, 12 << 20, f"{small} bytes for 12 MB, {large} for 48 MB")
        packed = peak(3200, compress=True)
        self.assertLess(packed - small, 16 << 20, f"{small} bytes for 12 MB, {packed} for 48 MB in a .gz file")

    def test_documents_of_every_kind(self):
        lines = ["the cat sat", "on a mat", "and saw"]
        (self.folder / "lines.txt").write_text("\n".join(lines) + "\n")
        (self.folder / "blocks.txt").write_text("\n\n".join(lines) + "\n")
        (self.folder / "lines.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in lines))
        for index, line in enumerate(lines):
            (self.folder / f"file{index}.txt").write_text(line)
        self.tokenize("lines.txt", output="line", document="line")
        self.tokenize("blocks.txt", output="block", document="block")
        self.tokenize("lines.jsonl", output="jsonl", text_key="body")
        self.tokenize("file*.txt", output="file")
        for folder in ("block", "jsonl", "file"):
            self.assert_same_tokens(folder, "line")
        end = self.ids("line")[-1]
        self.assertEqual(self.ids("line").count(end), 3)

    def test_compressed_files_and_pipes_give_the_tokens_of_the_text(self):
        name = self.long_text(300)
        text = (self.folder / name).read_bytes()
        self.tokenize(name, output="plain", document="line")
        (self.folder / "long.txt.gz").write_bytes(gzip.compress(text[:1 << 20]) + gzip.compress(text[1 << 20:]))
        self.tokenize("long.txt.gz", output="gz", document="line")
        self.assert_same_tokens("gz", "plain")
        with open(self.folder / "long.txt.gz", "ab") as file:  # padding, as on tapes; longer than a block of the reader
            file.write(bytes(300_001))
        self.tokenize("long.txt.gz", output="padded", document="line")
        self.assert_same_tokens("padded", "plain")
        (self.folder / "zeros.txt.gz").write_bytes(bytes(1024))
        self.assertIn("not gzip data", self.tokenize("zeros.txt.gz", output="zeros", status=4))
        if zstd := shutil.which("zstd"):
            subprocess.run([zstd, "-q", name], cwd=self.folder, check=True)
            self.tokenize("long.txt.zst", output="zst", document="line")
            self.assert_same_tokens("zst", "plain")
        args = ["tokenize", "--input", "-", "--format", "text", "--document", "line", "--tokenizer", "tokens/tokenizer.model"]
        subprocess.run([rig.TRAINER, *args, "--output", "piped"], cwd=self.folder, check=True, capture_output=True, input=text)
        self.assert_same_tokens("piped", "plain")
        manifest = json.loads((self.folder / "piped/tokens.json").read_text())
        self.assertEqual([each["path"] for each in manifest["inputs"]], ["stdin"])
        self.assertIn("up to date", self.trainer(*args[:2], name, *args[3:], "--output", "piped", stdout=True))
        with open(self.folder / name, "rb") as file:  # a file as standard input is read like a pipe
            subprocess.run([rig.TRAINER, *args, "--output", "redirected"], cwd=self.folder, check=True, capture_output=True, stdin=file)
        self.assert_same_tokens("redirected", "plain")

    def test_standard_input_stops_and_leaves_nothing(self):
        process = subprocess.Popen([rig.TRAINER, "tokenize", "--input", "-", "--format", "text", "--output", "out", "--tokenizer",
                                    "tokens/tokenizer.model"], cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        process.stdin.write("a few words\n")
        process.stdin.flush()
        self.wait_until((self.folder / "out/tokens.work").exists, process, "the folder of the work", pause=0)
        reported = self.stop(process, signal.SIGTERM, rig.SAVED_AFTER_SIGNAL)
        self.assertIn("cannot be resumed", reported)
        self.assertEqual(list(self.folder.glob("out/tokens*")), [])

    def test_an_error_leaves_nothing_that_cannot_be_resumed(self):
        (self.folder / "empty.txt").touch()
        (self.folder / "long.txt.gz").write_bytes(gzip.compress((self.folder / self.long_text(300)).read_bytes())[:-9])
        for text, message in (("-", "the file is empty"), ("empty.txt", "the file is empty"), ("long.txt.gz", "truncated")):
            args = ["tokenize", "--input", text, "--format", "text", "--output", "out", "--tokenizer", "tokens/tokenizer.model"]
            result = subprocess.run([rig.TRAINER, *args], cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            self.assertIn(message, result.stderr)
            self.assertEqual(result.returncode, 4)
            self.assertEqual(list(self.folder.glob("out/tokens*")), [], text)

    def test_lines_without_a_text_and_empty_files_are_skipped_and_counted(self):
        lines = ['{"text": "the cat sat"}', '{"text": null, "id": 1e999}', '{"id": 3}', '{"text": "on a mat", "score": -1E+400, "n": [1e999]}']
        (self.folder / "d").mkdir()
        (self.folder / "d/b.jsonl").write_text("\n".join(lines))
        (self.folder / "d/e.jsonl").write_text('{"text": null}\n{"text": "naïve"}\n')
        (self.folder / "plain.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ("the cat sat", "on a mat", "naïve")))
        for name, content in (("a.jsonl", b""), ("c.jsonl.gz", gzip.compress(b"")), ("d.txt", b"\xef\xbb\xbf")):
            (self.folder / "d" / name).write_bytes(content)
        args = ["tokenize", "--tokenizer", "tokens/tokenizer.model", "--output"]
        result = subprocess.run([rig.TRAINER, *args, "out", "--json", "--input", "d/*"], cwd=self.folder, capture_output=True, text=True, check=True)
        self.assertIn('3 lines were skipped, in which "text" is null or missing, the first at d/b.jsonl: offset 24', result.stderr)
        self.assertIn("3 files are empty and were skipped, the first: d/a.jsonl", result.stderr)
        counts = json.loads(result.stdout)
        self.assertEqual((counts["documents"], counts["lines_without_text"], counts["empty_files"]), (3, 3, 3))
        self.trainer(*args, "plain", "--input", "plain.jsonl")
        self.assert_same_tokens("out", "plain")
        self.assertIn("3 lines were skipped", self.trainer(*args, "out", "--input", "d/*"))  # also of tokens that exist
        # From a pipe, and as training data, whose tokenizer is trained on them.
        piped = subprocess.run([rig.TRAINER, *args, "piped", "--input", "-", "--format", "jsonl"], cwd=self.folder, capture_output=True, text=True,
                               check=True, input=(self.folder / "d/b.jsonl").read_text())
        self.assertIn("2 lines were skipped", piped.stderr)
        (self.folder / "many.jsonl").write_text('{"text": null}\n' + (json.dumps({"text": (self.folder / "text.txt").read_text()}) + "\n") * 2)
        (self.folder / "none.jsonl").touch()
        sets = ['data.train=["none.jsonl","many.jsonl"]', "data.tokenizer=train", "data.vocab_size=320"]
        stderr = self.train(*sets, max_steps=2)
        self.assertIn("1 line was skipped", stderr)
        self.assertIn("1 file is empty and was skipped, the first: none.jsonl", stderr)
        self.train("run.dir=one", *sets, "data.train=many.jsonl", max_steps=2)
        self.assert_same_run(2, "run", "one")

    def test_every_format_of_tokens_trains_the_same_model(self):
        ids = self.ids()
        llmc = (self.folder / "tokens/tokens.bin").read_bytes()
        self.assertEqual(struct.unpack_from("<2i", llmc), (20240520, 1))
        wide = array.array("I", ids)
        files = {
            "llmc32.bin": struct.pack("<256i", 20240801, 7, len(ids), *[0] * 253) + wide.tobytes(),
            "llmc16.bin": struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + ids.tobytes(),
            "nanogpt.bin": ids.tobytes(),
            "megatron.bin": ids.tobytes(),
            "megatron.idx": b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<i", len(ids))
                            + struct.pack("<q", 0) + struct.pack("<2q", 0, 1),
        }
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
        sets = ["data.val_fraction=0", "train.steps=3"]
        single = ['data.tokenizer=""', "data.vocab_size=320"]
        self.train("run.dir=own", *sets)
        for name, more in (("llmc32", []), ("llmc16", []), ("nanogpt", []), ("megatron", []), ("nanogpt", single)):
            self.train(f"run.dir={name}", f"data.train={name}.bin", *sets, *more, resume="never")
            self.assertTrue(self.tensors(3, name) == self.tensors(3, "own"), name)
            self.assertEqual(self.losses(name), self.losses("own"))
        # Without .bin, as in Megatron's options.
        reported = self.train("run.dir=prefix", "data.train=megatron", *sets, status=4)
        self.assertIn('use "megatron.bin"', reported)


if __name__ == "__main__":
    rig.main()
