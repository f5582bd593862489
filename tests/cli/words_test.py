#!/usr/bin/env python3
"""Spellings that users expect to work, and lines that they expect in a run's log."""
import json
import os
import pathlib
import pty
import re
import shutil
import subprocess

import rig


class Words(rig.Runs):
    def config_show(self, *args):
        return self.trainer("config", "show", "--config", "config.toml", *args, stdout=True)

    def test_one_set_takes_several_settings(self):
        shown = self.config_show("--set", "train.steps=5", "optim.lr=0.5", "-s", "optim.warmup_steps=1", "optim.eps=0.25")
        for line in (r"^steps += 5 ", r"^lr += 0.5 ", r"^warmup_steps += 1 ", r"^eps += 0.25 "):
            self.assertRegex(shown, re.compile(line, re.M))
        bench = self.trainer("bench", "--set", "run.threads=1", "optim.lr=1", "peak", "--json", stdout=True)
        self.assertEqual(json.loads(bench)["threads"], 1)

    def test_a_length_on_the_command_line_replaces_the_other_of_the_file(self):
        self.assertIn("step 2/2 ", self.train("train.tokens=256", "optim.warmup_steps=0", "log.progress=off"))
        (self.folder / "tokens.toml").write_text((self.folder / "config.toml").read_text().replace("steps = 8", "tokens = 5120"))
        self.assertIn("step 3/3 ", self.trainer("--config", "tokens.toml", "--set", "train.steps=3", "run.dir=three"))

    def test_a_configuration_comes_from_standard_input(self):
        text = (self.folder / "config.toml").read_text()
        result = subprocess.run([rig.TRAINER, "--config", "-", "--set", "train.steps=3"], cwd=self.folder, input=text,
                                capture_output=True, text=True, timeout=rig.TIMEOUT_SECONDS)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.last_step(), 3)
        wrong = subprocess.run([rig.TRAINER, "config", "check", "--config", "-"], cwd=self.folder, input="[trian]\n",
                               capture_output=True, text=True, timeout=rig.TIMEOUT_SECONDS)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("stdin:1:2: trian: unknown section", wrong.stderr)
        if shutil.which("mpirun"):
            self.launcher = [*rig.MPIRUN, "-np", "2"]
            ranks = subprocess.run([*self.launcher, rig.TRAINER, "--config", "-", "--set", "run.dir=two"], cwd=self.folder,
                                   env=self.environment(), input=text, capture_output=True, text=True,
                                   timeout=rig.TIMEOUT_SECONDS)
            self.launcher = []
            self.assertEqual(ranks.returncode, 0, ranks.stderr)
            self.assertEqual(self.last_step("two"), 8)

    def test_paths_begin_with_the_home_folder(self):
        environment = {**os.environ, "HOME": str(self.folder)}
        for args in (["--config=~/config.toml", "--set", "run.dir=~/mine", "data.train=~/tokens/tokens.bin",
                      "data.tokenizer=~/tokens/tokenizer.model", "checkpoint.dir=~/kept"],
                     ["eval", "--checkpoint=~/kept"], ["checkpoint", "verify", "--checkpoint=~/mine"],
                     ["generate", "--checkpoint=~/mine", "--prompt", "the", "--tokens", "2"],
                     ["tokenize", "--input=~/text.txt", "--output=~/again", "--tokenizer=~/tokens/tokenizer.model"]):
            result = subprocess.run([rig.TRAINER, *args], cwd="/", env=environment, capture_output=True, text=True, errors="replace",
                                    timeout=rig.TIMEOUT_SECONDS)
            self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue((self.folder / "kept/step-00000008/COMPLETE").exists())
        self.assertEqual((self.folder / "again/tokens.bin").read_bytes(), (self.folder / "tokens/tokens.bin").read_bytes())

    def test_a_checkpoint_is_evaluated_from_any_folder(self):
        self.train()
        here = json.loads(self.trainer("eval", "--checkpoint", "run", "--json", stdout=True))
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        result = subprocess.run([rig.TRAINER, "eval", "--checkpoint", "../run", "--json"], cwd=elsewhere, capture_output=True,
                                text=True, timeout=rig.TIMEOUT_SECONDS)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["loss"], here["loss"])

    def test_a_run_folder_links_to_checkpoints_elsewhere(self):
        self.train("checkpoint.dir=kept")
        for args in (["eval", "--checkpoint", "run"], ["generate", "--checkpoint", "run", "--prompt", "the", "--tokens", "2"],
                     ["checkpoint", "verify", "--checkpoint", "run"]):
            self.trainer(*args)
        self.assertIn("resumed step 8", self.train("train.steps=9", "checkpoint.dir=kept"))
        self.assertTrue((self.folder / "kept/step-00000009/COMPLETE").exists())

    def test_a_configuration_names_the_run_for_every_verb(self):
        self.train()
        sample = ["--prompt", "the", "--tokens", "5", "--seed", "3", "--json"]
        for verb, more in (("generate", sample), ("eval", ["--json"]), ("checkpoint", ["inspect", "--json"])):
            by = [json.loads(self.trainer(verb, *way, *more, stdout=True))
                  for way in (["--checkpoint", "run"], ["--config", "config.toml"])]
            for result in by:
                result.pop("seconds", None)
                result.pop("checkpoint", None)
            self.assertEqual(*by, verb)

    def test_the_mean_of_checkpoints_evaluates(self):
        self.train("checkpoint.interval=4", "checkpoint.keep=5")
        steps = [self.step_folder(step) for step in (4, 8)]
        reported = json.loads(self.trainer("checkpoint", "merge", *reversed(steps), "-o", "mean", "--json", stdout=True))
        self.assertEqual([pathlib.Path(source).name for source in reported["sources"]], ["step-00000004", "step-00000008"])
        self.assert_whole("mean")
        losses = [json.loads(self.trainer("eval", "--checkpoint", path, "--json", stdout=True))["loss"] for path in (*steps, "mean")]
        self.assertLess(losses[2], losses[0])
        self.train("run.dir=other", "model.n_layer=1", "train.steps=3")
        reported = self.trainer("checkpoint", "merge", "run", "other", "--output", "no", status=5)
        for part in ("n_layer: ", "merge checkpoints of one model"):
            self.assertIn(part, reported)
        self.assertFalse((self.folder / "no").exists())

    def test_weights_without_optimizer_state_evaluate_generate_and_begin_runs(self):
        self.train()
        (self.folder / "plain").mkdir()
        self.trainer("checkpoint", "strip", "--checkpoint", "run", "--output", "plain/weights/")
        size = lambda folder: sum(file.stat().st_size for file in folder.glob("*.shard"))
        self.assertAlmostEqual(size(self.folder / "plain/weights") / size(self.step_folder(8)), 1 / 3, delta=0.05)
        self.assertEqual(os.listdir(self.folder / "plain"), ["weights"])
        self.assert_whole("plain/weights")
        for verb in (["eval"], ["generate", "--prompt", "the", "--tokens", "5"]):
            whole, single = (json.loads(self.trainer(*verb, "--checkpoint", path, "--json", stdout=True))
                            for path in ("run", "plain/weights"))
            key = "loss" if verb == ["eval"] else "text"
            self.assertEqual(single[key], whole[key])
        for way in (dict(resume="plain/weights"), dict(resume="must")):
            if way["resume"] == "must":
                shutil.copytree(self.folder / "plain", self.folder / "new/checkpoints", dirs_exist_ok=True)
                (self.folder / "new/checkpoints/weights").rename(self.folder / "new/checkpoints/step-00000008")
            stderr = self.train("run.dir=new", "train.steps=9", status=5, **way)
            self.assertIn("a run cannot resume from this checkpoint", stderr)
            self.assertIn("start a new run from it with model.init_from", stderr)
        self.train("run.dir=from_all", "model.init_from=run")
        self.train("run.dir=from_weights", "model.init_from=plain/weights")
        self.assertTrue(self.tensors(8, "from_all") == self.tensors(8, "from_weights"))

    def test_samples_follow_their_seeds(self):
        self.train()
        args = ["generate", "--checkpoint", "run", "--prompt", "the cat", "--tokens", "12"]
        several = json.loads(self.trainer(*args, "--samples", "3", "--seed", "5", "--json", stdout=True))["samples"]
        self.assertEqual([sample["seed"] for sample in several], [5, 6, 7])
        for sample in several:
            single = json.loads(self.trainer(*args, "--seed", str(sample["seed"]), "--json", stdout=True))
            self.assertEqual(single["text"], sample["text"])
        shown = self.trainer(*args, "--samples", "3", "--seed", "5", stdout=True)
        self.assertEqual(shown, "---\n".join(f"the cat{sample['text']}\n" for sample in several))

    def test_a_text_ends_before_what_stops_it(self):
        self.train()
        args = ["generate", "--checkpoint", "run", "--prompt", "the", "--tokens", "60", "--temperature", "0.5", "--json"]
        whole = json.loads(self.trainer(*args, stdout=True))
        for stop in re.findall("[a-z ]{2,}", whole["text"])[1:4]:
            cut = json.loads(self.trainer(*args, f"--stop={stop}", stdout=True))
            self.assertEqual(cut["text"], whole["text"][:whole["text"].index(stop)])
            self.assertLessEqual(cut["tokens"], whole["tokens"])
        never = json.loads(self.trainer(*args, "--stop", whole["text"][-3:] + "#", stdout=True))
        self.assertEqual(never["text"], whole["text"])
        for text in (whole, never):
            self.assertEqual(text["finish_reason"], "length" if text["tokens"] == 60 else "eos")
        self.assertEqual(cut["finish_reason"], "stop")
        self.assertEqual(json.loads(self.trainer(*args, "--stop", "#none#", "--stop", stop, stdout=True))["text"], cut["text"])
        self.assertIn("; ended by a --stop text", self.trainer(*args[:-1], "--stop", stop))
        self.assertNotIn("--stop", self.trainer(*args[:-1]))

    def test_the_end_of_a_text_is_reported(self):
        self.train(max_steps=1)
        args = ["generate", "--checkpoint", "run", "--prompt", "the", "--tokens", "4000"]
        text = json.loads(self.trainer(*args, "--json", stdout=True))
        self.assertLess(text["tokens"], 4000, "an untrained model chooses each of 320 tokens about equally often")
        self.assertEqual(text["finish_reason"], "eos")
        self.assertIn("; ended by the end-of-text token", self.trainer(*args))
        (self.folder / "in.jsonl").write_text('{"prompt": "a"}\n')
        line = json.loads(self.trainer(*args[:3], "--prompts", "in.jsonl", "--tokens", "1", stdout=True))
        self.assertIn(line["finish_reason"], ("length", "eos"))
        self.assertEqual(line["finish_reason"] == "length", line["tokens"] == 1)

    def test_no_samples_where_none_are_requested(self):
        prompt = "train.sample_prompt=the"
        self.assertEqual(self.train(prompt, "run.dir=last").count("--- sample at step"), 1)
        self.assertEqual(self.train(prompt, "run.dir=some", "train.sample_interval=4").count("--- sample at step"), 2)
        self.assertEqual(self.train(prompt, "run.dir=none", "train.sample_interval=0").count("--- sample at step"), 0)

    def test_samples_act_on_no_terminal(self):
        stderr = self.train(r'train.sample_prompt="the \u001b[31mcat\u0007 \u009bsat\n"', "train.steps=3", "optim.warmup_steps=1")
        sample = stderr[stderr.index("--- sample at step"):]
        self.assertIn(r"the \x1b[31mcat\x07 \x9bsat", sample)
        self.assertNotRegex(sample, "[\x00-\x08\x0b-\x1f\x7f-\x9f]")

    def test_a_terminal_is_not_controlled_by_a_sample(self):
        self.train(max_steps=1)
        args = [rig.TRAINER, "generate", "--checkpoint", "run", "--prompt", "the \x1b[31mcat", "--tokens", "40", "--seed", "2"]
        ours, its = pty.openpty()
        with os.fdopen(ours, "rb", 0) as terminal:
            subprocess.run(args, cwd=self.folder, stdout=its, stderr=subprocess.DEVNULL, timeout=rig.TIMEOUT_SECONDS, check=True)
            os.close(its)
            text = terminal.read(1 << 16).decode(errors="replace")
        self.assertIn("the \\x1b[31mcat", text)
        self.assertNotRegex(text, "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
        piped = subprocess.run(args, cwd=self.folder, capture_output=True, timeout=rig.TIMEOUT_SECONDS, check=True).stdout
        self.assertTrue(piped.startswith(b"the \x1b[31mcat"))

    def test_the_epoch_is_reported(self):
        stderr = self.train("train.steps=100")
        windows = self.events("start")[-1]["windows"]
        for step in self.events("step"):
            self.assertAlmostEqual(step["epoch"], step["step"] * 4 / windows, delta=1e-9)
        self.assertIn(f"step 100/100  epoch {400 / windows:.2f}  loss", stderr)
        self.assertRegex(stderr, rf"run +finished at step 100 of 100, .* tokens, {400 / windows:.2f} epochs")

    def test_validation_text_that_was_trained_on_is_reported(self):
        text = (self.folder / "text.txt").read_text()
        (self.folder / "tail.txt").write_text(text[len(text) * 3 // 4:])
        (self.folder / "other.txt").write_text("".join(f"{i * i} birds, {i} nests, {i % 7 * 991} eggs\n" for i in range(400)))
        sets = ["data.train=text.txt", "data.val_fraction=0"]
        reported = "data.val: validation text is part of the training text: 8 of 8"
        self.assertIn(reported, self.train(*sets, "data.val=text.txt", "run.dir=same"))
        self.assertIn(reported, self.train(*sets, "data.val=tail.txt", "run.dir=tail"))
        self.assertNotIn("data.val:", self.train(*sets, "data.val=other.txt", "run.dir=other"))

    def test_memory_is_checked_before_a_tokenizer_is_trained_and_text_is_tokenized(self):
        for tokenizer in ("train", "tokens/tokenizer.model"):
            stderr = self.train("data.train=text.txt", f"data.tokenizer={tokenizer}", "data.vocab_size=320",
                                "hardware.memory_limit=1e-6", status=3)
            self.assertIn("the run needs", stderr)
            self.assertFalse((self.folder / "run/tokens").exists())

    def test_tokens_are_made_by_one_rank_of_many(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        self.launcher = [*rig.MPIRUN, "-np", "3"]
        args = ["tokenize", "--input", "text.txt", "--output", "together", "--train-vocab", "320"]
        stderr = self.trainer(*args)
        self.assertEqual(stderr.count("runs on rank 0 only"), 1, stderr)
        self.assertEqual((self.folder / "together/tokens.bin").read_bytes(), (self.folder / "tokens/tokens.bin").read_bytes())
        stderr = self.trainer("tokenize", "--input", "none.txt", "--output", "nothing", "--train-vocab", "320", status=4)
        self.assertEqual(stderr.count("none.txt"), 1, stderr)

    def test_kinds_of_text_follow_from_extensions_of_any_case(self):
        text = (self.folder / "text.txt").read_text()
        lines = "".join(json.dumps({"text": line}) + "\n" for line in text.splitlines())
        whole = self.ids("tokens")
        for name, content, more in (("A.TXT", text, []), ("b.Text", text, []), ("c.md", text, []), ("enwik", text, ["--format", "text"]),
                                    ("d.csv", text, ["--format", "text"]), ("e.txt", b"\xef\xbb\xbf" + text.encode(), [])):
            self.assertEqual(self.tokenized(name, content, *more), whole, name)
        first = self.tokenized("l.jsonl", lines)
        for name, content, more in (("L.JSONL", lines, []), ("m.ndjson", lines, []), ("n.json", lines, ["--format", "jsonl"]),
                                    ("o.jsonl", b"\xef\xbb\xbf" + lines.encode(), [])):
            self.assertEqual(self.tokenized(name, content, *more), first, name)

    def tokenized(self, name, content, *more):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.trainer("tokenize", "--input", name, "--output", name + ".tokens", "--tokenizer", "tokens/tokenizer.model", *more)
        return self.ids(name + ".tokens")

    def ids(self, folder):
        return pathlib.Path(self.folder / folder / "tokens.bin").read_bytes()[1024:]


if __name__ == "__main__":
    rig.main()
