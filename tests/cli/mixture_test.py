#!/usr/bin/env python3
"""Mixtures of weighted sources: which samples are drawn, in any layout, across resumes, and after weights change."""
import collections
import gzip
import json
import pathlib
import re
import struct

import rig

GPT2 = pathlib.Path(__file__).resolve().parents[2] / "data/gpt2"
# No two sources have a token in common, so that the loss reveals the source of a batch.
SOURCES = """[[data.source]]
name = "web"
files = ["web.bin"]
weight = 0.7
[[data.source]]
name = "code"
files = ["code.bin"]
weight = 0.2
[[data.source]]
name = "math"
files = ["math.bin"]
weight = 0.1
"""
SLOTS = {"web": 70000, "code": 20000, "math": 10000}


def token_file(tokens):
    """Returns a token file in llm.c's format, with the vocabulary size in the header."""
    return struct.pack("<256i", 20240520, 1, len(tokens), 0, 320, *[0] * 251) + struct.pack(f"<{len(tokens)}H", *tokens)


class Mixtures(rig.Runs):
    def setUp(self):
        super().setUp()
        for i, (name, windows) in enumerate((("web", 60), ("code", 11), ("math", 7))):
            tokens = [100 * i + (j * j + j // 7) % 97 for j in range(32 * windows + 1)]
            (self.folder / f"{name}.bin").write_bytes(token_file(tokens))
        config = self.folder / "config.toml"
        text = config.read_text().replace('train = ["tokens/tokens.bin"]\ntokenizer = "tokens/tokenizer.model"\n', "")
        config.write_text(text.replace("val_fraction = 0.1", "val_fraction = 0") + SOURCES)

    def manifest(self, step, run="run"):
        return json.loads((self.step_folder(step, run) / "manifest.json").read_text())

    def test_every_step_has_its_share(self):
        stderr = self.train()
        steps = self.events("step")
        for event in steps:
            taken = event["sources"]
            self.assertEqual(sum(taken.values()), event["data_position"])
            self.assertIsNone(event["epoch"])
            for name, slots in SLOTS.items():
                self.assertLess(abs(taken[name] - event["data_position"] * slots / 100000), 1)
        self.assertNotIn("  epoch ", stderr)
        self.assertIn("3 sources", stderr)
        self.assertRegex(stderr, r"source +tokens +share +slots +samples +epochs\n.*code ")
        self.assertRegex(stderr, r"math +225 +10\.0 % +10000 +3 +0\.43")
        mixture = self.manifest(8)["mixture"]
        self.assertEqual(mixture["parts"], 100000)
        self.assertEqual(mixture["phases"], [{"first_sample": 0, "slots": SLOTS, "start": {}}])
        self.assertEqual({name: source["windows"] for name, source in mixture["sources"].items()},
                         {"web": 60, "code": 11, "math": 7})
        self.assertEqual(self.events("start")[0]["sources"], {"web": 1921, "code": 353, "math": 225})

    def test_layouts_draw_the_same_samples(self):
        sets = ["precision.compute=fp64", "model.dropout=0"]
        self.train(*sets, "run.dir=alone")
        self.train_on(2, *sets, "parallel.data=2", "run.threads=1")
        self.assert_follows("run", "alone")
        self.train(*sets, "run.dir=small", "train.micro_batch=1")
        self.assert_follows("small", "alone")
        self.train(*sets, "run.dir=large", "train.global_batch=8", "train.steps=4")
        self.assertEqual([e["sources"] for e in self.events("step", "large")], [e["sources"] for e in self.events("step", "alone")][1::2])

    def test_the_order_of_the_file_does_not_count(self):
        self.train("run.dir=first")
        config = self.folder / "config.toml"
        tables = SOURCES.split("[[data.source]]\n")[1:]
        config.write_text(config.read_text().replace(SOURCES, "".join("[[data.source]]\n" + table for table in reversed(tables))))
        self.train()
        self.assert_same_run(8, "run", "first")

    def test_stopped_and_resumed_it_has_the_same_bits(self):
        (self.folder / "config.toml").write_text((self.folder / "config.toml").read_text() +
                                                 "[[data.phase]]\nfrom_tokens = 500\nweights = { web = 0.5, math = 0.5 }\n")
        self.train("run.dir=whole")
        for steps in (3, 1, 2):  # the second phase begins with sample 16, after step 4
            self.train(max_steps=steps)
        self.train()
        self.assert_same_run(8, "run", "whole")
        self.assertEqual(self.manifest(8)["mixture"], self.manifest(8, "whole")["mixture"])
        phases = self.manifest(8)["mixture"]["phases"]
        self.assertEqual([phase["first_sample"] for phase in phases], [0, 16])
        self.assertEqual(phases[1]["slots"], {"math": 50000, "web": 50000})
        self.assertEqual(sum(phases[1]["start"].values()), 16)
        self.assertEqual(self.events("step")[-1]["sources"]["code"], phases[1]["start"]["code"])
        # Checkpoints saved in the background record the same mixture.
        self.train("run.dir=background", "checkpoint.async=true", "checkpoint.interval=3")
        self.assert_same_run(8, "background", "whole")
        for step in (3, 6):
            self.assertEqual(self.manifest(step, "background")["mixture"], self.manifest(8)["mixture"])

    def test_a_longer_run_leaves_earlier_samples(self):
        self.train("run.dir=short", "optim.schedule=constant")
        self.train("optim.schedule=constant", "train.steps=12")
        self.assertEqual(self.losses()[0][:8], self.losses("short")[0])

    def test_weights_change_on_resume(self):
        stderr = self.train(max_steps=4)
        stderr = self.train("data.source.math.weight=0.5")
        self.assertIn("changed since the checkpoint: data.source.math.weight: 0.1 -> 0.5, starting at sample 16", stderr)
        phases = self.manifest(8)["mixture"]["phases"]
        self.assertEqual([phase["first_sample"] for phase in phases], [0, 16])
        self.assertEqual(phases[1]["start"], self.events("step")[3]["sources"])
        self.assertEqual(phases[1]["slots"], {"code": 14286, "math": 35714, "web": 50000})
        taken = collections.Counter(self.events("step")[-1]["sources"])
        taken.subtract(phases[1]["start"])
        for name, slots in phases[1]["slots"].items():
            self.assertLess(abs(taken[name] - 16 * slots / 100000), 1)
        shown = self.trainer("checkpoint", "inspect", "--checkpoint", "run", stdout=True)
        self.assertIn("from sample 0: slots", shown)
        self.assertIn("from sample 16: slots", shown)
        # Unchanged weights do not begin a new phase.
        self.train("data.source.math.weight=0.5", "train.steps=12")
        self.assertEqual(len(self.manifest(12)["mixture"]["phases"]), 2)

    def samples_of(self, step, run="run"):
        """Parses `report --step`: each sample's source, number, file, first and last token, and first token ids."""
        out = self.trainer("report", run, "--step", str(step), stdout=True)
        rows = [re.fullmatch(r"(\w+) +(\d+)  (\S+) (\d+)-(\d+) +-  ([\d ]+)\n?", line) for line in out.splitlines()[2:]]
        self.assertTrue(rows and all(rows), out)
        return [(row[1], int(row[2]), row[3], int(row[4]), int(row[5]), row[6].strip()) for row in rows]

    def test_the_samples_of_each_step_are_printed(self):
        """Covers steps before and after weights change on a resume. No window is used twice within an epoch."""
        self.train("train.global_batch=2", max_steps=5)
        self.train("train.global_batch=2", "data.source.math.weight=0.5", "train.steps=16")
        used, seen = collections.Counter(), collections.Counter()
        for event in self.events("step"):
            samples = self.samples_of(event["step"])
            self.assertEqual(len(samples), 2)
            for source, number, file, first, last, ids in samples:
                self.assertEqual(number, seen[source])
                seen[source] += 1
                tokens = struct.unpack_from("<33H", (self.folder / f"{source}.bin").read_bytes(), 1024 + 2 * first)
                self.assertEqual((pathlib.Path(file).name, first % 32, last - first), (f"{source}.bin", 0, 32))
                self.assertTrue(" ".join(map(str, tokens)).startswith(ids), ids)
                windows = {"web": 60, "code": 11, "math": 7}[source]
                used[source, number // windows, first] += 1
            self.assertEqual({name: count for name, count in event["sources"].items() if count}, dict(seen))
        self.assertGreater(seen["math"], 7)  # more than one epoch of it
        self.assertEqual(set(used.values()), {1})
        self.assertIn("does not record step 17; expected one of 1 to 16", self.trainer("report", "run", "--step", "17", status=2))
        # A branch records the steps before it, and data that have changed are rejected.
        self.train("train.global_batch=2", "data.source.math.weight=0.5", "run.dir=branch", "train.steps=16", max_steps=1,
                   resume=str(self.step_folder(5)))
        self.assertEqual(self.samples_of(6, "branch"), self.samples_of(6))
        (self.folder / "math.bin").write_bytes(token_file([201] * 300))
        self.assertIn("math.bin: 300 training tokens, but 225 when the step was trained",
                      self.trainer("report", "run", "--step", "6", status=4))

    def test_sources_come_and_go(self):
        self.train(max_steps=4)
        config = self.folder / "config.toml"
        text = config.read_text()
        (self.folder / "extra.bin").write_bytes((self.folder / "web.bin").read_bytes())
        config.write_text(text + '[[data.source]]\nname = "extra"\nfiles = ["extra.bin"]\nweight = 1\n')
        self.train(max_steps=2)
        self.assertEqual(self.events("step")[-1]["sources"]["extra"], 4)  # half of the 8 samples of two steps
        self.assertIn("extra", [sample[0] for sample in self.samples_of(6)])
        self.assertNotIn("extra", [sample[0] for sample in self.samples_of(4)])  # a step before the source came
        config.write_text(text)
        self.assertIn('data.source "extra"', self.train(status=5))
        self.train("checkpoint.allow_other_data=true")
        self.assertEqual(self.events("step")[-1]["sources"]["extra"], 4)
        (self.folder / "math.bin").write_bytes(token_file([j % 90 for j in range(300)]))
        self.assertIn('data.source "math" differs', self.train("train.steps=10", status=5))
        self.train("train.steps=10", "checkpoint.allow_other_data=true")

    def test_without_weights_all_have_as_many_epochs(self):
        config = self.folder / "config.toml"
        config.write_text("\n".join(line for line in config.read_text().splitlines() if not line.startswith("weight")) + "\n")
        self.train("train.steps=39", "train.global_batch=2")  # 78 samples: the windows of all sources
        self.assertEqual(self.events("step")[-1]["sources"], {"web": 60, "code": 11, "math": 7})

    def test_limits_of_epochs(self):
        for resume in ("auto", "never"):
            stderr = self.train("data.source.math.max_epochs=2", "train.steps=60", "checkpoint.resume=" + resume, status=4)
            self.assertRegex(stderr, 'data.source "math": .* 3.43 epochs .* max_epochs = 2; set its weight to 0[.]0')
        stderr = self.train("data.source.math.max_epochs=2", "train.steps=60", "data.source.math.weight=0.05", max_steps=1)
        self.assertNotIn("max_epochs", stderr)

    def test_a_phase_after_the_end_is_a_warning(self):
        config = self.folder / "config.toml"
        config.write_text(config.read_text() + "[[data.phase]]\nfrom_tokens = 99_999\nweights = { web = 1 }\n")
        self.assertIn("has no effect: the run ends at token 1024", self.train())

    def test_tails_of_sources_are_validation_sets(self):
        self.train("data.val_fraction=0.3", "checkpoint.best=code")
        event = self.events("eval")[-1]
        self.assertEqual((event["set"], list(event["sets"])), ("code", ["web", "code", "math"]))
        evaluated = json.loads(self.trainer("eval", "--checkpoint", "run", "--json", stdout=True))
        self.assertEqual(sorted(evaluated["sets"]), ["code", "math", "web"])

    def test_a_single_list_of_files_is_as_it_was(self):
        self.train("data.source=[]", "data.train=web.bin")
        self.assertNotIn("mixture", self.manifest(8))
        self.assertNotIn("sources", self.events("step")[0])
        self.assertIsNotNone(self.events("step")[0]["epoch"])
        self.assertIn("training data differs", self.train("train.steps=9", status=5))

    def test_runs_of_earlier_versions_keep_their_bits(self):
        """Hashes and fp64 losses are those of commit f23f634, which had neither sources, nor
        validation sets, nor BOS tokens."""
        (self.folder / "val.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in rig.tiny_text()[:4000].splitlines()
                                                       if line))
        sets = ["data.source=[]", "data.train=text.txt", f"data.tokenizer={GPT2}", "data.vocab_size=50257", "precision.compute=fp64",
                "train.steps=3"]
        own = ["data.val=val.jsonl", "data.text_key=body", "data.document=line"]
        for run, more, hashes, steps, evaluated in (
                ("a", ["data.val_fraction=0.1"], ["32f72bb47d681386e34ffa43bec742f2"] * 2,
                 [10.806570111829952, 10.812645380771976, 10.769152989437533], 10.722802730430129),
                ("b", own, ["d9abedc331c4f56f26e7f94d6524dcf0", "26882f67d60d19f27bdaed4a8d9acb74"],
                 [10.805809822612328, 10.816537324953032, 10.783717048211056], 10.7281681677383)):
            with self.subTest(run):
                self.train(*sets, *more, f"run.dir={run}")
                manifest = self.manifest(3, run)
                self.assertEqual([manifest["data_hash"], manifest["val_hash"]], hashes)
                self.assertFalse(manifest.keys() & {"mixture", "special_tokens"})
                events = self.events("step", run), self.events("eval", run)
                for event, loss in zip([*events[0], *events[1]], [*steps, evaluated], strict=True):
                    self.assertAlmostEqual(event["loss"], loss, delta=1e-12)

    def test_text_is_tokenized_by_source(self):
        text = (self.folder / "text.txt").read_text()
        for name in ("web", "code", "math"):
            (self.folder / f"{name}.txt").write_text(text.replace("cat", name))
        sets = [f"data.source.{name}.files={name}.txt" for name in ("web", "code", "math")]
        self.train(*sets, "data.tokenizer=train", "data.vocab_size=320", max_steps=2)
        self.assertEqual(sorted(path.name for path in (self.folder / "run/tokens").glob("*.bin")), ["code.bin", "math.bin", "web.bin"])
        self.assertNotIn("tokenizer: trained", self.train(*sets, "data.tokenizer=train", "data.vocab_size=320"))
        # Compressed text gives the same tokens.
        (self.folder / "web.txt.gz").write_bytes(gzip.compress((self.folder / "web.txt").read_bytes()))
        self.train(*sets, "data.source.web.files=web.txt.gz", "data.tokenizer=train", "data.vocab_size=320", "run.dir=packed", max_steps=2)
        for name in ("web", "code"):
            self.assertEqual((self.folder / f"packed/tokens/{name}.bin").read_bytes(), (self.folder / f"run/tokens/{name}.bin").read_bytes())

    def test_mistakes_in_the_files(self):
        (self.folder / "math.bin").write_bytes(token_file([1] * 20))
        self.assertIn('data.source "math": math.bin: 20 tokens', self.train(status=4))
        tokens = token_file([1] * 400)
        (self.folder / "math.bin").write_bytes(tokens[:16] + struct.pack("<i", 400) + tokens[20:])
        stderr = self.train(status=4)
        self.assertIn('data.source "math": math.bin: its vocabulary (400)', stderr)
        self.assertIn('data.source "web": web.bin', stderr)


if __name__ == "__main__":
    rig.main()
