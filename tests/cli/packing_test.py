#!/usr/bin/env python3
"""Documents and conversations packed into windows: data.packing."""
import json
import struct
import unittest

import rig

SEQ_LEN = 32
STATUS_USAGE, STATUS_CHECKPOINT = 2, 5


def index_of(path):
    """Returns the windows of an index of packed windows: lists of (begin, length, continues)."""
    content = path.read_bytes()
    magic, version, windows, excerpts, seq_len = struct.unpack_from("<8s4q", content)
    assert (magic, version, seq_len) == (b"trnpack1", 1, SEQ_LEN), (magic, version, seq_len)
    firsts = [struct.unpack_from("<2q", content, 96 + 16 * w)[0] for w in range(windows + 1)]
    stored = [struct.unpack_from("<qII", content, 96 + 16 * (windows + 1 + e)) for e in range(excerpts)]
    return [stored[a:b] for a, b in zip(firsts, firsts[1:])]


class Packing(rig.Runs):
    def setUp(self):
        super().setUp()
        text = (self.folder / "text.txt").read_text()
        pieces, at = [], 0
        while at < 12000:
            length = 5 + at * 7919 % 90
            pieces.append(text[at % 6000:at % 6000 + length])
            at += length
        (self.folder / "pages.jsonl").write_text("".join(json.dumps({"text": piece}) + "\n" for piece in pieces))
        (self.folder / "chats.jsonl").write_text("".join(
            json.dumps({"messages": [{"role": "user", "content": a[:30]}, {"role": "assistant", "content": b[:40]}]}) + "\n"
            for a, b in zip(pieces, pieces[1:])))
        config = self.folder / "config.toml"
        config.write_text(config.read_text().replace('train = ["tokens/tokens.bin"]', 'train = ["pages.jsonl"]\npacking = "best-fit"'))

    def evaluate(self, *args, status=0, stdout=True):
        return self.trainer("eval", "--checkpoint", "run", *args, status=status, stdout=stdout)

    def test_a_run_says_what_it_packs_and_keeps_the_index(self):
        stderr = self.train(max_steps=3)
        windows = index_of(self.folder / "run/tokens/train.pack")
        self.assertRegex(stderr, rf"data\.train: best-fit: {len(windows)} windows of {SEQ_LEN} tokens, [0-9.]+ % padding")
        self.assertTrue(any(continues for window in windows for _, _, continues in window))
        for window in windows:
            self.assertLessEqual(sum(length for _, length, _ in window), SEQ_LEN + 1)
        made = (self.folder / "run/tokens/train.pack").stat().st_mtime_ns
        self.train()  # resumes within the epoch
        self.assertEqual((self.folder / "run/tokens/train.pack").stat().st_mtime_ns, made)
        self.train("run.dir=whole")
        self.assertEqual(self.losses(), self.losses("whole"))
        ranks = self.train_on(2, "run.dir=ranks", "parallel.data=2", "model.dropout=0")
        self.assertIn(f"{len(windows)} windows", ranks)
        self.train("run.dir=one", "model.dropout=0")
        for a, b in zip(self.events("step", "ranks"), self.events("step", "one")):
            self.assertAlmostEqual(a["loss"], b["loss"], delta=1e-5)
            self.assertEqual(a.get("loss_tokens"), b.get("loss_tokens"))
        self.assertEqual((self.folder / "ranks/tokens/train.pack").read_bytes(),
                         (self.folder / "run/tokens/train.pack").read_bytes())
        for step in self.events("step"):  # padding, first tokens of windows and repeated ones do not count
            self.assertLess(step.get("loss_tokens", 4 * SEQ_LEN), 4 * SEQ_LEN + 1)

    def test_a_run_does_not_continue_with_other_windows(self):
        self.train(max_steps=3)
        stderr = self.train("data.packing=stream", status=STATUS_CHECKPOINT)
        self.assertIn("data.packing", stderr)

    def test_the_samples_of_a_step_are_listed_by_excerpt(self):
        self.train(max_steps=3)
        found = {}
        for step in (1, 2, 3):
            for line in self.trainer("report", "run", "--step", str(step), stdout=True).splitlines()[2:]:
                sample, _, tokens = line.split()[:3]
                begin, last = tokens.split("-")
                found.setdefault(int(sample), []).append((int(begin), int(last) + 1 - int(begin)))
        self.assertEqual(sorted(found), list(range(12)))
        windows = [[(begin, length) for begin, length, _ in window] for window in index_of(self.folder / "run/tokens/train.pack")]
        for excerpts in found.values():
            self.assertIn(excerpts, windows)
        self.assertGreater(max(map(len, found.values())), 1)

    def test_a_set_is_evaluated_as_it_is_packed_or_as_a_stream(self):
        self.train()
        packed = json.loads(self.evaluate("--json"))
        stderr = self.evaluate("--stride", "8", status=STATUS_USAGE, stdout=False)
        self.assertIn("--packing stream", stderr)
        sliding = json.loads(self.evaluate("--json", "--packing", "stream", "--stride", "8"))
        self.assertGreater(sliding["tokens"], packed["tokens"])
        self.assertNotEqual(sliding["data"], packed["data"])

    def test_conversations_are_packed_and_only_answers_count(self):
        chats = ["data.train=chats.jsonl", "data.document=chat", "data.packing=auto"]
        stderr = self.train(*chats)
        self.assertRegex(stderr, r"data\.train: best-fit: .* windows .* % of the tokens trained")
        self.assertIn("data.train: one epoch is", stderr)
        for step in self.events("step"):
            self.assertGreater(step["loss_tokens"], 0)
            self.assertLess(step["loss_tokens"], 4 * SEQ_LEN)
        for event in self.events("eval"):
            self.assertGreater(event["tokens"], 0)
            self.assertIsNone(event.get("bits_per_byte"))
        stderr = self.train(*chats[:2], "data.packing=stream", "run.dir=other", status=STATUS_USAGE)
        self.assertIn("would cut conversations", stderr)
        self.assertIn("see those before", self.train(*chats, "data.separate_documents=false", "run.dir=joined"))

    def test_a_mixture_has_packed_and_consecutive_windows(self):
        config = self.folder / "config.toml"
        config.write_text(config.read_text().replace('train = ["pages.jsonl"]\npacking = "best-fit"\n', "") +
                          '[[data.source]]\nname = "pages"\nfiles = ["pages.jsonl"]\nweight = 1\n'
                          '[[data.source]]\nname = "chats"\nfiles = ["chats.jsonl"]\ndocument = "chat"\nweight = 1\n')
        stderr = self.train()
        self.assertIn('data.source "chats": best-fit', stderr)
        self.assertNotIn('data.source "pages": best-fit', stderr)
        for step in self.events("step"):  # two of four samples are text
            self.assertGreater(step["loss_tokens"], 2 * SEQ_LEN)
            self.assertLess(step["loss_tokens"], 4 * SEQ_LEN)


if __name__ == "__main__":
    unittest.main()
