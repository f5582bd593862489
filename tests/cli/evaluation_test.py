#!/usr/bin/env python3
"""Evaluation as reported in papers: sliding windows, multiple choice, many prompts."""
import json
import math
import os
import re
import shutil

import rig


class Evaluation(rig.Runs):
    def setUp(self):
        super().setUp()
        self.train("precision.compute=fp64", max_steps=4)

    def json(self, *args, ranks=1):
        if ranks > 1:
            self.launcher = [*rig.MPIRUN, "-np", str(ranks)]
        try:
            return json.loads(self.trainer(*args, "--checkpoint", "run", "--json", stdout=True))
        finally:
            self.launcher = []

    # --- keys

    def test_keys_apply_or_are_named(self):
        self.train("run.dir=half", "precision.compute=bf16", max_steps=4)
        loss = lambda *sets: json.loads(self.trainer("eval", "--checkpoint", "half", "--json", "--set", "run.threads=1", *sets,
                                                     stdout=True))["loss"]
        self.assertNotEqual(loss("precision.compute=fp32"), loss())
        self.assertAlmostEqual(loss("precision.compute=fp32"), loss(), delta=1e-3)
        stderr = self.trainer("eval", "--checkpoint", "half", "--set", "model.n_layer=7", "optim.lr=1e-3", "run.threads=1")
        self.assertIn("--set model.n_layer optim.lr: has no effect on `eval`", stderr)
        text = 'data.train=["text.txt"]'  # has an effect only if a configuration describes the run
        self.assertIn("--set data.train: has no effect on `eval`", self.trainer("eval", "--checkpoint", "half", "--set", text))
        self.assertNotIn("no effect", self.trainer("eval", "--config", "config.toml", "--set", "run.dir=half"))
        stderr = self.trainer("generate", "--checkpoint", "half", "--set", "foo.b=3", "--prompt", "a", "--tokens", "2")
        self.assertIn("--set foo.b: has no effect on `generate`", stderr)
        self.trainer("eval", "--checkpoint", "half", "--set", "run.device=cuda", status=2)
        self.assertIn("--set requires --config",
                      self.trainer("checkpoint", "verify", "--checkpoint", "half", "--set", "optim.lr=1", status=2))

    def test_any_number_of_groups_is_at_most_all(self):
        self.assertEqual(self.json("eval", "--batches", str(2**60)), self.json("eval"))
        self.train("run.dir=many", "train.eval_batches=1000000000000000000", max_steps=3)

    # --- runs

    def test_ranks_may_be_threads(self):
        alone = self.json("eval", "--set", "run.threads=1")
        threads = self.json("eval", "--set", "run.threads=1", "parallel.transport=threads", "parallel.data=2")
        self.assertAlmostEqual(threads["loss"], alone["loss"], delta=1e-12)

    def test_a_configuration_of_more_ranks_names_its_run(self):
        config = (self.folder / "config.toml").read_text() + "[parallel]\ntensor = 2\n"
        (self.folder / "tensor.toml").write_text(config)
        self.trainer("--config", "tensor.toml", "--set", "parallel.transport=threads", "run.dir=tensor")
        args = ["eval", "--json", "--set", "run.threads=1"]
        named = self.trainer(*args, "run.dir=tensor", "--config", "tensor.toml", stdout=True)
        self.assertEqual(named, self.trainer(*args, "--checkpoint", "tensor", stdout=True))

    def test_a_run_without_validation_data_finishes_once(self):
        sets = ["run.dir=unvalidated", "data.val_fraction=0", "train.steps=3", "optim.warmup_steps=0"]
        self.train(*sets)
        events = (self.folder / "unvalidated/metrics.jsonl").read_text()
        self.assertIn("finished", self.train(*sets))
        self.assertEqual((self.folder / "unvalidated/metrics.jsonl").read_text(), events)

    def test_a_run_without_a_log_is_evaluated_once(self):
        sets = ["run.dir=unlogged", "log.jsonl=false", "train.steps=4", "optim.warmup_steps=0"]
        self.train(*sets)
        self.assertIn("the run is finished", self.train(*sets))
        self.train(*sets, "train.steps=5", max_steps=1)  # a new last step has its own evaluation
        self.assertIn("the run is finished", self.train(*sets, "train.steps=5"))

    def test_names_of_files_are_any_bytes(self):
        name = os.fsdecode(b"caf\xe9.txt")
        (self.folder / "odd").mkdir()
        shutil.copy(self.folder / "text.txt", self.folder / "odd" / name)
        sets = ["run.dir=odd-run", "data.train=odd/*.txt", "data.tokenizer=train", "data.vocab_size=300"]
        self.train(*sets, max_steps=2)
        self.train(*sets, max_steps=1)  # resumes
        self.assertIn("not UTF-8", self.train(f"data.train=odd/{name}", "run.dir=odd-name", status=2))
        shutil.copy(self.folder / "config.toml", self.folder / f"{name}.toml")  # the name of the run
        self.assertIn("must be UTF-8", self.trainer("--config", f"{name}.toml", status=2))

    def test_a_checkpoint_is_averaged_once(self):
        stderr = self.trainer("checkpoint", "merge", "run", "./run", "-o", "mean", status=5)
        self.assertIn("named twice", stderr)

    # --- windows

    def test_windows_slide(self):
        text = (self.folder / "text.txt").read_text()
        (self.folder / "part.txt").write_text(text[:len(text) // 4])
        plain = self.json("eval", "--data", "part.txt")
        whole = self.json("eval", "--data", "part.txt", "--stride", "32")
        half = self.json("eval", "--data", "part.txt", "--stride", "16")
        self.assertEqual(half["tokens"], whole["tokens"])  # all tokens except the first
        self.assertTrue(0 <= whole["tokens"] - plain["tokens"] < 32)  # the incomplete last window
        self.assertEqual(plain["tokens"] % 32, 0)
        self.assertNotEqual(half["loss"], whole["loss"])  # contexts differ
        self.assertAlmostEqual(half["perplexity"], math.exp(half["loss"]), delta=1e-9 * half["perplexity"])
        self.assertEqual(half["stride"], 16)
        if shutil.which("mpirun"):
            shared = self.json("eval", "--data", "part.txt", "--stride", "16", ranks=2)
            self.assertEqual(shared["tokens"], half["tokens"])
            self.assertAlmostEqual(shared["loss"], half["loss"], delta=1e-12 * half["loss"])

    def test_mistakes(self):
        (self.folder / "few.jsonl").write_text(json.dumps({"query": "a", "choices": ["b", "c"], "gold": 0}))
        for args, status, message in (
                (["--stride", "33"], 2, "--stride 33: expected at most 32 tokens (model.seq_len)"),
                (["--stride", "0"], 2, "--stride: Value 0"),
                (["--choices", "q.jsonl", "--data", "text.txt"], 2, "--data excludes --choices"),
                (["--questions", "3"], 2, "--questions requires --choices or --task"),
                (["--choices", "none.jsonl"], 4, "none.jsonl: cannot open: No such file"),
                (["--choices", "text.txt"], 4, "text.txt:1: expected a question as a JSON object"),
                (["--shots", "3"], 2, "--shots requires --task"),
                (["--task", "q.jsonl", "--choices", "q.jsonl"], 2, "--choices excludes --task"),
                (["--task", "few.jsonl", "--shots", "1"], 4, "shots = 1, but there are only 1 questions"),
                (["--choices", "."], 4, ".: not a regular file")):
            with self.subTest(args=args):
                self.assertIn(message, self.trainer("eval", "--checkpoint", "run", *args, status=status))

    # --- multiple choice

    def questions(self):
        """Writes questions: the text's own ending, and its words in a different order. A trained model prefers the
        former."""
        words = (self.folder / "text.txt").read_text().split()
        lines = []
        for i in range(30):
            at = 40 * i
            context, ending = " ".join(words[at:at + 12]), words[at + 12:at + 20]
            others = [" ".join(ending[::-1]), " ".join(sorted(ending)) + " z"]
            lines.append(json.dumps({"ind": i, "ctx": context, "endings": [*others[:i % 2], " ".join(ending), *others[i % 2:]],
                                     "label": i % 2}))
        return "\n".join(lines) + "\n"

    def test_questions_are_answered(self):
        (self.folder / "q.jsonl").write_text(self.questions())
        self.trainer("--config", "config.toml", "--set", "run.dir=longer", "train.steps=60", "optim.lr=1e-2", "model.dropout=0")
        result = json.loads(self.trainer("eval", "--checkpoint", "longer", "--choices", "q.jsonl", "--json", stdout=True))
        self.assertEqual(result["questions"], 30)
        for name in ("accuracy", "accuracy_norm", "accuracy_per_token", "accuracy_per_byte"):
            self.assertGreater(result[name], 0.5, name)  # a random choice scores 1/3
            self.assertAlmostEqual(result[name] * 30, round(result[name] * 30), places=9)
        few = json.loads(self.trainer("eval", "--checkpoint", "longer", "--choices", "q.jsonl", "--questions", "7", "--json", stdout=True))
        self.assertEqual(few["questions"], 7)
        text = self.trainer("eval", "--checkpoint", "longer", "--choices", "q.jsonl", stdout=True)
        error = math.sqrt(result["accuracy"] * (1 - result["accuracy"]) / 29)
        self.assertIn(f"acc            {result['accuracy']:.4f} ± {error:.4f}\n", text)

        task = json.loads(self.trainer("eval", "--checkpoint", "longer", "--task", "q.jsonl", "--metric", "acc_bytes", "--json", stdout=True))
        self.assertEqual((task["metric"], task["score"], task["loss"]), ("acc_bytes", result["accuracy_per_byte"], result["loss"]))

    def test_tasks_are_scored_during_training_and_do_not_change_it(self):
        (self.folder / "q.jsonl").write_text(self.questions())
        tables = """
            [[data.task]]
            name = "bytes"
            files = ["q.jsonl"]
            metric = "acc_bytes"
            [[data.task]]
            name = "few"
            files = ["q.jsonl"]
            metric = "core"
            shots = 1
            questions = 9
            baseline = 0.25
            """
        (self.folder / "tasks.toml").write_text((self.folder / "config.toml").read_text() + tables)
        train = ("--set", "train.steps=6", "train.eval_interval=3", "checkpoint.interval=3", "log.tensorboard=true")
        self.trainer("--config", "config.toml", *train, "run.dir=plain")
        self.trainer("--config", "tasks.toml", *train, "run.dir=tasks", "train.task_interval=2", "checkpoint.best=bytes")
        events = {name: [json.loads(line) for line in (self.folder / name / "metrics.jsonl").read_text().splitlines()]
                  for name in ("plain", "tasks")}
        for kind, fields in (("step", ("step", "loss", "grad_norm", "data_position")), ("eval", ("step", "loss"))):
            with_tasks, without = ([[each[field] for field in fields] for each in events[name] if each["event"] == kind]
                                   for name in ("tasks", "plain"))
            self.assertEqual(with_tasks, without)
        tasks = [each for each in events["tasks"] if each["event"] == "tasks"]
        self.assertEqual([each["step"] for each in tasks], [2, 4, 6])
        last = tasks[-1]
        self.assertEqual(last["tasks"]["bytes"]["questions"], 30)
        few = last["tasks"]["few"]
        self.assertEqual(few["questions"], 9)
        self.assertAlmostEqual(few["centred"], (few["score"] - 0.25) / 0.75)
        self.assertEqual(last["core"], few["centred"])
        alone = json.loads(self.trainer("eval", "--checkpoint", "tasks", "--task", "q.jsonl", "--metric", "acc_bytes", "--json", stdout=True))
        self.assertAlmostEqual(alone["score"], last["tasks"]["bytes"]["score"])
        best = json.loads(self.trainer("checkpoint", "inspect", "--checkpoint", "tasks", "--json", stdout=True))
        self.assertAlmostEqual(best["best_val_loss"], 1 - last["tasks"]["bytes"]["score"])
        self.assertIn("task.bytes.score", self.trainer("report", "tasks", "--csv", stdout=True).splitlines()[0])
        self.trainer("report", "tasks")
        self.assertIn("standard error", (self.folder / "tasks" / "report.html").read_text().lower())

    def test_ranks_share_the_questions(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        (self.folder / "q.jsonl").write_text(self.questions())
        one, two = (self.json("eval", "--choices", "q.jsonl", ranks=ranks) for ranks in (1, 2))
        self.assertAlmostEqual(one.pop("loss"), two.pop("loss"), places=11)
        self.assertEqual(one, two)

    # --- many prompts

    def test_prompts_are_continued_line_by_line(self):
        prompts = [{"id": 7, "prompt": "the cat"}, {"prompt": "a ", "note": ["x", None]}, {"prompt": "", "text": "replaced"},
                   {"prompt": "the cat"}, {"prompt": "the cat", "seed": 9}]
        (self.folder / "in.jsonl").write_text("\n".join(map(json.dumps, prompts)) + "\n\n")
        args = ["generate", "--checkpoint", "run", "--tokens", "6", "--seed", "3", "--temperature", "0.9"]
        lines = [json.loads(line) for line in self.trainer(*args, "--prompts", "in.jsonl", "--samples", "2", stdout=True).splitlines()]
        self.assertEqual(len(lines), 10)
        self.assertEqual([line["seed"] for line in lines[8:]], [9, 10])  # a line's own seed takes precedence
        self.assertEqual(len({line["seed"] for line in lines}), 10)  # equal prompts give different texts
        for i, line in enumerate(lines):
            prompt = prompts[i // 2]
            single = json.loads(self.trainer(*args[:-4], "--temperature", "0.9", "--seed", str(line["seed"]), "--prompt", prompt["prompt"],
                                            "--json", stdout=True))
            self.assertEqual((line["text"], line["tokens"]), (single["text"], single["tokens"]))
            # The line's own fields are kept.
            self.assertEqual({**line, **prompt, "text": line["text"], "seed": line["seed"]}, line)
        for batch, ranks in ((1, 1), (3, 1), (3, 2)) if shutil.which("mpirun") else ((1, 1), (3, 1)):
            self.launcher = [*rig.MPIRUN, "-np", str(ranks)] if ranks > 1 else []
            self.trainer(*args, "--prompts", "in.jsonl", "--output", "out.jsonl", "--batch-size", str(batch))
            out = [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]
            self.assertEqual(out, lines[::2], (batch, ranks))
        self.launcher = []
        self.assertIn("--output in.jsonl: this is the file of --prompts", self.trainer(*args, "--prompts", "in.jsonl", "--output", "in.jsonl",
                                                                               status=2))

    def test_members_of_a_prompt_keep_their_digits(self):
        """Python and JavaScript write integers and floats that a double cannot hold, or writes differently."""
        kept = ['"id":18446744073709551617', '"id2": -123456789012345678901234567890', '"score":1.10', '"tiny":1e-400', '"huge":1e999',
                '"nested":{"a" : [36893488147419103233, "\\"}", 1E5]}', '"\\u0041":"\\u00e9\\ud83d\\ude00"', '"big":10000000000000000000000.0']
        (self.folder / "in.jsonl").write_text("{" + ", ".join([*kept[:4], '"text":18446744073709551617', '"prompt" : "a"', *kept[4:]]) + " }\n")
        out = self.trainer("generate", "--checkpoint", "run", "--tokens", "2", "--prompts", "in.jsonl", stdout=True)
        for member in kept:
            name, _, value = member.partition(":")
            self.assertIn(f"{name}:{value.strip()}", out)
        numbers = json.loads(out, parse_int=str, parse_float=str)
        given = json.loads((self.folder / "in.jsonl").read_text(), parse_int=str, parse_float=str)
        self.assertEqual(list(numbers), [*given, "tokens", "finish_reason", "seed"])
        self.assertEqual({**numbers, "text": given["text"]}, {**given, **{key: numbers[key] for key in ("tokens", "finish_reason", "seed")}})
        self.assertIsInstance(json.loads(out)["text"], str)

    def test_as_many_texts_are_decoded_together_as_fit_in_memory(self):
        (self.folder / "in.jsonl").write_text('{"prompt": "She"}\n' * 40)
        args = ("generate", "--checkpoint", "run", "--prompts", "in.jsonl", "--tokens", "3", "--set")
        needed = re.search(r"the model needs ([0-9.]+) MiB", self.trainer(*args, "hardware.memory_limit=0.0001", status=3))
        limit = f"hardware.memory_limit={1.01 * 16 / 15 * float(needed[1]) / 1024:.6f}"  # a sixteenth is left free
        error = self.trainer(*args, limit, "--batch-size", "40", status=3)
        fits = re.search(r"--batch-size 40: 40 texts take .* together, of which each KV cache takes .*; use --batch-size (\d+)", error)
        self.assertIn(int(fits[1]), range(1, 40), error)
        for batch in (("--batch-size", fits[1]), ()):
            self.assertEqual(len(self.trainer(*args, limit, *batch, stdout=True).splitlines()), 40)

    def test_mistakes_in_prompts_are_named(self):
        for text, status, message in (('{"prompt": "a"}\n{"text": "b"}\n', 4, "in.jsonl:2: expected a JSON object with a text called \"prompt\""),
                                      ("\n", 4, "in.jsonl: no prompts"), ('{"prompt": "a", "seed": 18446744073709551616}', 4, "in.jsonl:1: seed: "),
                                       ("[1]", 4, "in.jsonl:1: expected a JSON object")):
            (self.folder / "in.jsonl").write_text(text)
            self.assertIn(message, self.trainer("generate", "--checkpoint", "run", "--prompts", "in.jsonl", status=status))
        self.assertIn("--prompt excludes --prompts",
                      self.trainer("generate", "--checkpoint", "run", "--prompts", "in.jsonl", "--prompt", "x", status=2))
        self.assertIn("--output requires --prompts",
                      self.trainer("generate", "--checkpoint", "run", "--output", "x", "--prompt", "x", status=2))


if __name__ == "__main__":
    rig.main()
