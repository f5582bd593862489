#!/usr/bin/env python3
"""Tables and reports of runs agree with metrics.jsonl."""
import csv
import io
import json
import math
import re
import shutil

import rig


class Reports(rig.Runs):
    def test_a_table_has_every_number_of_the_log(self):
        self.train()
        self.train("run.dir=other", "optim.lr=1e-4", max_steps=4)
        text = self.trainer("report", "run", "other/", "--csv", stdout=True)
        rows = list(csv.DictReader(io.StringIO(text)))
        for run in ("run", "other"):
            mine = [row for row in rows if row["run"] == run]
            steps, evals = self.events("step", run), {e["step"]: e for e in self.events("eval", run)}
            self.assertEqual(len(mine), len(steps))
            for row, event in zip(mine, steps):
                for name in ("step", "tokens", "loss", "lr", "grad_norm", "step_ms", "mfu"):
                    self.assertEqual(json.loads(row[name]), event[name])
                self.assertEqual(float(row["phase_ms.forward"]), event["phase_ms"]["forward"])
                evaluated = evals.get(event["step"])
                self.assertEqual(row["validation.loss"], "" if evaluated is None else json.dumps(evaluated["loss"]))
        self.trainer("report", "run", "other", "--csv", "--output", "both.csv")
        self.assertEqual((self.folder / "both.csv").read_text(), text)
        self.assertTrue(all(math.isfinite(float(row["loss"])) for row in rows))

    def test_a_report_is_regenerated(self):
        self.train(max_steps=3)
        self.assertFalse((self.folder / "run/report.html").exists())
        out = self.trainer("report", "run", stdout=True)
        self.assertIn("stopped after --max-steps at step 3 of 8", out)
        self.assertIn("</html>", (self.folder / "run/report.html").read_text())

    def test_a_finished_run_writes_a_missing_report(self):
        """The run may have been killed between its last checkpoint and its report."""
        self.train("log.report=true", "train.sample_interval=4", "train.sample_prompt=the")
        report, html, metrics = (self.folder / "run" / name for name in ("report.json", "report.html", "metrics.jsonl"))
        lines = metrics.read_text()
        kept, killed = json.loads(report.read_text()), "".join(lines.splitlines(keepends=True)[:-1])
        self.assertTrue(kept["samples"])
        html.unlink()
        self.assertIn("its report was missing and has been written", self.train("log.report=true"))
        self.assertEqual(json.loads(report.read_text()), kept)
        self.assertIn("</html>", html.read_text())
        self.assertIn("no files were changed", self.train("log.report=true"))
        # The report of an earlier stop, and no end event.
        report.write_text(json.dumps({**kept, "step": 4}))
        metrics.write_text(killed)
        self.assertIn("has been written", self.train("log.report=true"))
        written = json.loads(report.read_text())
        self.assertEqual((written["outcome"], written["step"]), ("finished", 8))
        html.unlink()
        html.mkdir()
        report.unlink()
        stderr = self.train("log.report=true")
        self.assertIn("the report was not written", stderr)
        self.assertIn("no files were changed", stderr)
        self.assertEqual(metrics.read_text(), killed)

    def test_lines_that_are_not_events_are_reported(self):
        self.train(max_steps=3)
        log = self.folder / "run/metrics.jsonl"
        log.write_text(log.read_text() + 'garbage\n{"event":"step","step":-9223372036854775808}\n')
        lines = len(log.read_text().splitlines())
        message = f"run/metrics.jsonl: ignoring 2 lines without a valid event, the first at line {lines - 1};"
        self.assertIn(message, self.trainer("report", "run"))
        self.assertIn("at step 3 of 8", self.trainer("report", "run", stdout=True))
        shutil.copytree(self.folder / "run", self.folder / "other")
        self.assertIn("other/metrics.jsonl: ignoring 2 lines", self.trainer("report", "run", "other"))
        self.assertIn(message, self.train(max_steps=1))

    def test_the_samples_of_a_spike_are_found(self):
        """The text repeats one line except for an odd one, which is in two samples. The steps with them have large
        losses."""
        lines = ["the cat sat on the mat.\n"] * 1000
        lines[500] = "XQ!7 zzkp 4&%# wJ9 ~~ 0x3F qqq; [[[]]] Zw: 88 kjh\n" * 2
        (self.folder / "text.txt").write_text("".join(lines))
        sets = ["data.train=text.txt", "data.tokenizer=train", "data.vocab_size=330", "data.val_fraction=0",
                "train.sample_interval=0", "train.steps=80", "optim.lr=1e-2", "model.dropout=0"]
        self.train(*sets)
        losses = {event["step"]: event["loss"] for event in self.events("step")}
        def is_odd(step, run="run"):
            rows = self.trainer("report", run, "--step", str(step), stdout=True).splitlines()[2:]
            return any(re.search("[XQ%#~Z&;]", row.split("  ")[-1]) for row in rows)
        spikes = [step for step in range(41, 81) if losses[step] > 0.5]
        self.assertEqual([step for step in range(41, 81) if is_odd(step)], spikes)
        self.assertEqual(len(spikes), 2, losses)
        spike = spikes[0]
        shown = self.trainer("report", "run", "--step", str(spike), stdout=True)
        self.assertRegex(shown, rf"^step {spike}: loss \d+\.\d+, grad_norm \d+\.\d+; 4 samples of 33 tokens")
        self.assertRegex(shown, r"run/tokens/train\.bin \d+-\d+  0 of /\S+/text\.txt +")
        # A run that skips a spike prints the command that shows its samples.
        stderr = self.train(*sets, "run.dir=skips", "train.steps=190", "train.skip_sigma=3", "train.skip_window=64")
        commands = re.findall(r"warning: step (\d+): .*; `trainer (report skips --step \1)` prints its samples", stderr)
        self.assertTrue(commands, stderr)
        for step, command in commands:
            self.assertIn("update skipped; 4 samples", self.trainer(*command.split(), stdout=True))
            self.assertTrue(is_odd(step, "skips"), step)
        self.assertIn("report --step: expected one run", self.trainer("report", "run", "skips", "--step", "3", status=2))
        config = self.folder / "run/config.toml"
        config.write_text("")
        self.assertIn("config.toml: names no training data", self.trainer("report", "run", "--step", "3", status=2))
        metrics = self.folder / "skips/metrics.jsonl"
        metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[1:]))
        self.assertIn("metrics.jsonl: the start of the process that trained step 3 is not recorded",
                      self.trainer("report", "skips", "--step", "3", status=4))

    def test_an_output_that_cannot_be_written_is_refused_before_the_logs_are_read(self):
        """Logs may have gigabytes."""
        self.train(max_steps=1)
        shutil.copytree(self.folder / "run", self.folder / "other")
        with rig.Watched(self.folder / "run/metrics.jsonl") as watched:
            for args, named in ((["run", "--csv", "--output", "no/such.csv"], "no/such.csv"), (["run", "--csv", "--output", "tokens"], "tokens"),
                                (["run", "other", "--output", "no/such.html"], "no/such.html")):
                self.assertIn(named, self.trainer("report", *args, status=5))
                self.assertEqual(watched.reads(), 0, args)
            (self.folder / "run/report.html").mkdir()
            self.assertIn("run/report.html", self.trainer("report", "run", status=5))
            self.assertEqual(watched.reads(), 0)
            self.trainer("report", "run", "--csv", "--output", "runs.csv")
            self.assertEqual(watched.reads(), 2)  # for the columns, then for the rows
        self.assertFalse(list(self.folder.glob("*.part*")) + list(self.folder.glob(".*")))

    def test_what_is_no_run_is_named(self):
        for args, message in ((["tokens"], "tokens: contains no metrics.jsonl; expected the folder (run.dir)"),
                              ([], "runs is required")):
            result = rig.subprocess.run([rig.TRAINER, "report", *args], cwd=self.folder, capture_output=True, text=True)
            self.assertEqual(result.returncode, 2)
            self.assertIn(message, result.stderr)


if __name__ == "__main__":
    rig.main()
