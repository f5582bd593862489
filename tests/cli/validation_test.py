#!/usr/bin/env python3
"""Several validation sets: their names in logs, reports and checkpoints, and in `trainer eval`."""
import csv
import io
import json
import shutil
import unittest

import rig
from logs_test import scalars, single

SETS = """[[data.validation]]
name = "web"
files = ["web.txt"]
[[data.validation]]
name = "math"
files = ["math.jsonl"]
text_key = "body"
"""


class Validation(rig.Runs):
    def setUp(self):
        super().setUp()
        text = (self.folder / "text.txt").read_text()
        (self.folder / "web.txt").write_text(text[:6000].upper())
        (self.folder / "math.jsonl").write_text("".join(json.dumps({"body": line}) + "\n" for line in text[6000:9000].splitlines()))
        config = self.folder / "config.toml"
        config.write_text(config.read_text().replace("val_fraction = 0.1\n", "") + SETS)

    def state(self, step, run="run"):
        return json.loads((self.step_folder(step, run) / "manifest.json").read_text())["state"]

    def evaluated(self, *args, status=0):
        return json.loads(self.trainer("eval", "--checkpoint", "run", "--json", *args, stdout=True, status=status))

    def test_each_set_is_what_it_is_on_its_own(self):
        stderr = self.train()
        evals = self.events("eval")
        self.assertEqual([e["step"] for e in evals], [3, 6, 8])
        for event in evals:
            self.assertEqual(event["set"], "web")
            self.assertEqual(list(event["sets"]), ["web", "math"])
            for key in ("loss", "perplexity", "bits_per_byte", "tokens"):
                self.assertEqual(event[key], event["sets"]["web"][key])
        last = evals[-1]["sets"]
        self.assertIn(f"step 8: validation web {last['web']['loss']:.4f} ({last['web']['bits_per_byte']:.4f} bits per byte), "
                      f"math {last['math']['loss']:.4f}", stderr)
        self.train("run.dir=alone", "data.validation=[]", "data.val=math.jsonl", "data.text_key=body")
        single = self.events("eval", "alone")
        self.assertEqual([e["loss"] for e in single], [e["sets"]["math"]["loss"] for e in evals])
        self.assertEqual([e["tokens"] for e in single], [e["sets"]["math"]["tokens"] for e in evals])
        self.assertNotIn("set", single[0])
        self.assertEqual(self.state(8, "alone")["best_set"], "")
        self.assertEqual(self.losses("alone")[0], self.losses()[0])  # training does not depend on validation sets

    def test_names_are_in_all_logs(self):
        self.train("log.tensorboard=true", "log.report=true")
        evals = self.events("eval")
        found, _ = scalars(sorted((self.folder / "run").glob("events.out.tfevents.*")))
        for name in ("web", "math"):
            for key in ("loss", "perplexity", "bits_per_byte"):
                self.assertEqual(found[f"validation/{name}/{key}"], {e["step"]: single(e["sets"][name][key]) for e in evals})
        self.assertEqual(found["loss/validation"], {e["step"]: single(e["loss"]) for e in evals})
        rows = list(csv.DictReader(io.StringIO(self.trainer("report", "run", "--csv", stdout=True))))
        for row in rows:
            event = next((e for e in evals if e["step"] == int(row["step"])), None)
            for name in ("web", "math"):
                self.assertEqual(row[f"validation.{name}.loss"], repr(event["sets"][name]["loss"]) if event else "")
        page = (self.folder / "run/report.html").read_text()
        self.assertIn("Validation sets", page)
        self.assertIn('<th scope="row">math</th>', page)
        report = json.loads((self.folder / "run/report.json").read_text())
        self.assertEqual(report["evals"][-1]["sets"], evals[-1]["sets"])

    def test_the_best_checkpoint_follows_one_set(self):
        sets = ["train.eval_interval=2", "checkpoint.interval=2", "checkpoint.keep=0"]
        self.train("checkpoint.best=math", *sets, max_steps=6)
        losses = {e["step"]: e["sets"]["math"]["loss"] for e in self.events("eval")}
        self.assertEqual([e["set"] for e in self.events("eval")], ["math"] * 3)
        state = self.state(6)
        self.assertEqual((state["best_set"], state["best_step"]), ("math", min(losses, key=losses.get)))
        self.assertEqual(state["best_val_loss"], min(losses.values()))
        self.assertIn("different validation set", self.train(*sets))
        state = self.state(8)
        self.assertEqual((state["best_set"], state["best_step"]), ("web", 8))  # web was not chosen before
        self.assertEqual(state["best_val_loss"], self.events("eval")[-1]["sets"]["web"]["loss"])

    def test_losses_on_other_data_windows_or_batches_do_not_choose_the_best_checkpoint(self):
        """The first tokens of web.txt are like the training text, later ones are not, so fewer windows give lower losses."""
        text = (self.folder / "text.txt").read_text()
        (self.folder / "web.txt").write_text(text[:900] + text[2000:8000].upper())
        (self.folder / "hard.txt").write_text(text[:6000].upper())
        (self.folder / "same.txt").write_text((self.folder / "web.txt").read_text())
        sets = ["optim.lr=1e-2", "optim.warmup_steps=0", "train.eval_interval=2", "checkpoint.interval=2", "checkpoint.keep=1",
                "checkpoint.keep_best=true"]
        few = [*sets, "train.eval_batches=1", "run.dir=run"]
        self.train(*few, max_steps=4)
        first = {e["step"]: e["loss"] for e in self.events("eval")}
        best = min(first, key=first.get)
        for name, changes in (("data", ["data.validation.web.files=hard.txt"]), ("windows", ["train.eval_batches=0"]),
                              ("batches", ["train.global_batch=32"]),
                              ("layout", ["train.micro_batch=1", "data.validation.web.files=same.txt"])):
            with self.subTest(name):
                shutil.copytree(self.folder / "run", self.folder / name)
                stderr = self.train(*few, f"run.dir={name}", *changes)
                later = {e["step"]: e["loss"] for e in self.events("eval", name) if e["step"] > 4}
                state = self.state(8, name)
                if name == "layout":  # nothing that the losses depend on
                    self.assertNotIn("checkpoint.best: ", stderr)
                    every = {**first, **later}
                    self.assertEqual(state["best_step"], min(every, key=every.get))
                    continue
                self.assertLess(first[best], min(later.values()))  # else this test would show nothing
                self.assertIn(f"checkpoint.best: the best checkpoint so far (step {best}, validation loss {first[best]:.4f}) was selected "
                              "with different validation data or windows", stderr)
                self.assertEqual((state["best_step"], state["best_val_loss"]), min(later.items(), key=lambda item: item[1]))
                self.assertEqual(set(self.saved_steps(name)), {8, state["best_step"], state["proven_step"]})
                # The report compares with the last evaluation, too, and runs are not compared with each other.
                self.train(*few, f"run.dir={name}", *changes, "log.report=true", "train.steps=9")
                self.trainer("report", name)
                report = json.loads((self.folder / name / "report.json").read_text())
                self.assertGreater(report["best_validation"]["step"], 4)
                self.assertIn("not comparable", self.trainer("report", "run", name, stdout=True))

    def test_a_run_that_stops_validating_keeps_its_best_checkpoint(self):
        sets = ["train.eval_interval=2", "checkpoint.interval=2"]
        self.train(*sets, max_steps=4)
        best = self.state(4)["best_step"]
        self.assertNotIn("checkpoint.best", self.train(*sets, "data.validation=[]", "data.val_fraction=0", max_steps=2))
        self.assertEqual(self.state(6)["best_step"], best)
        self.assertNotIn("checkpoint.best", self.train(*sets))

    def test_spikes_are_not_measured_by_losses_on_other_data_or_batches(self):
        sets = ["train.skip_sigma=3", "train.steps=100", "checkpoint.interval=1000"]
        text = self.folder / "text.txt"
        (self.folder / "other.txt").write_text(text.read_text().upper())
        own = ["data.tokenizer=tokens/tokenizer.model", "data.train=text.txt"]
        self.train(*sets, *own, max_steps=5)
        for name, changes, kept in (("same", [], 7), ("batch", ["train.global_batch=8"], 2),
                                    ("data", ["data.train=other.txt", "checkpoint.allow_other_data=true"], 2)):
            shutil.copytree(self.folder / "run", self.folder / name)
            stderr = self.train(*sets, *own, f"run.dir={name}", *changes, max_steps=2)
            self.assertEqual("train.skip_sigma: the losses and gradient norms of earlier steps" in stderr, kept == 2)
            for values in self.state(7, name)["history"].values():
                self.assertEqual(len(values), kept, name)

    def test_a_resumed_run_has_the_same_bits(self):
        self.train("run.dir=whole")
        self.train(max_steps=5)
        self.assertNotIn("different validation set", self.train())
        self.assert_same_run(8, "run", "whole")
        self.assertEqual([e["sets"] for e in self.events("eval")], [e["sets"] for e in self.events("eval", "whole")])

    def test_eval_takes_all_or_some(self):
        self.train("train.eval_batches=0")
        logged = self.events("eval")[-1]
        every, some = self.evaluated(), self.evaluated("--set-name", "math")
        # This verb's JSON is sorted by key.
        self.assertEqual((every["set"], list(every["sets"])), ("web", ["math", "web"]))
        for name in ("web", "math"):
            self.assertEqual(every["sets"][name]["tokens"], logged["sets"][name]["tokens"])
            self.assertAlmostEqual(every["sets"][name]["loss"], logged["sets"][name]["loss"], places=5)
        self.assertEqual((some["set"], list(some["sets"]), some["loss"]), ("math", ["math"], every["sets"]["math"]["loss"]))
        self.assertNotIn("sets", self.evaluated("--data", "web.txt"))
        text = self.trainer("eval", "--checkpoint", "run", stdout=True)
        self.assertIn(f"math           {every['sets']['math']['loss']:.6f}", text)
        self.assertIn("unknown validation set; expected one of web, math",
                      self.trainer("eval", "--checkpoint", "run", "--set-name", "code", status=2))
        self.assertIn("excludes", self.trainer("eval", "--checkpoint", "run", "--set-name", "web", "--data", "web.txt", status=2))

    def test_other_files_under_the_same_name_are_noticed(self):
        self.train(max_steps=4)
        (self.folder / "web.txt").write_text((self.folder / "text.txt").read_text()[9000:14000])
        self.assertIn("changed since the checkpoint: the validation data", self.train(max_steps=1))

    def test_training_text_as_validation_is_noticed(self):
        text = (self.folder / "text.txt").read_text()
        (self.folder / "web.txt").write_text(text)
        stderr = self.train(max_steps=1)
        self.assertIn('data.validation "web": validation text is part of the training text', stderr)


if __name__ == "__main__":
    rig.main()
