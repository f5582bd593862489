#!/usr/bin/env python3
"""Conversations: training on them, answering, and what exports keep."""
import json
import pathlib
import shutil
import subprocess
import unittest

import rig

try:
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    ImmutableSandboxedEnvironment = None

HERE = pathlib.Path(__file__).resolve().parent
FORMATS = ["chatml", "qwen2", "qwen2.5", "smollm2", "llama3", "llama3.1", "llama2", "mistral", "olmo2", "plain"]
CHAT = ["data.train=chats.jsonl", "data.document=chat", "data.chat_format=chatml", "data.tokenizer=train", "data.vocab_size=400",
        "train.steps=6", "model.seq_len=64"]


class Chat(rig.Runs):
    def setUp(self):
        super().setUp()
        shutil.copy(HERE.parents[1] / "data/chats.jsonl", self.folder)

    def generate(self, *args, given=None, status=0, ranks=1):
        """Returns stdout and stderr of `generate --chat`, which reads `given`."""
        launcher = [*rig.MPIRUN, "-np", str(ranks)] if ranks > 1 else []
        tokens = [] if "--tokens" in args else ["--tokens", "12"]
        result = subprocess.run([*launcher, rig.TRAINER, "generate", "--chat", "--temperature", "0", *tokens, *args],
                                cwd=self.folder, input=given, capture_output=True, text=True, errors="replace",
                                timeout=rig.TIMEOUT_SECONDS)
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stdout, result.stderr

    def manifest(self, run="run"):
        return json.loads((self.step_folders(run)[-1] / "manifest.json").read_text())

    # --- answers

    def test_a_conversation_over_a_pipe_is_that_of_its_messages(self):
        self.train(*CHAT, "precision.compute=fp64")
        system = ["--system", "Be brief."]
        answers = self.generate("--checkpoint", "run", *system, given="Hello\nWhy?")[0]
        first = json.loads(self.generate("--checkpoint", "run", *system, "--prompt", "Hello", "--json")[0])["text"]
        self.assertTrue(answers.startswith(first + "\n"))
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
                    {"role": "assistant", "content": first}, {"role": "user", "content": "Why?"}]
        (self.folder / "lines.jsonl").write_text(json.dumps({"id": 7, "messages": messages, "seed": 0}) + "\n")
        line = json.loads(self.generate("--checkpoint", "run", "--prompts", "lines.jsonl")[0])
        self.assertEqual(line["id"], 7)
        self.assertEqual(line["messages"][:-1], messages)
        self.assertEqual(line["messages"][-1]["role"], "assistant")
        self.assertEqual(answers, first + "\n" + line["messages"][-1]["content"] + "\n")
        self.assertEqual(self.generate("--checkpoint", "run", given="Hello\n\nWhy?\n")[0].count("\n"), 1)  # an empty line ends it
        if shutil.which("mpirun"):
            self.assertEqual(self.generate("--checkpoint", "run", *system, given="Hello\nWhy?", ranks=2)[0], answers)

    def test_old_turns_are_dropped(self):
        self.train(*CHAT)
        stderr = self.generate("--checkpoint", "run", given="Tell me about the sea and the wind.\n" * 4)[1]
        self.assertEqual(stderr.count("oldest turns are dropped"), 1)
        stderr = self.generate("--checkpoint", "run", "--prompt", "word " * 200, status=4)[1]
        self.assertRegex(stderr, r"the message has \d+ tokens.*context of 64 tokens")

    def test_mistakes(self):
        self.train(max_steps=1)
        stderr = self.generate("--checkpoint", "run", "--prompt", "a", status=2)[1]
        self.assertIn("no chat format is stored; use --chat-format", stderr)
        self.assertIn("plain", stderr)
        stderr = self.generate("--checkpoint", "run", "--prompt", "a", "--chat-format", "plain")[1]
        self.assertIn("not trained on conversations", stderr)
        stderr = self.generate("--checkpoint", "run", "--prompt", "a", "--chat-format", "llama3", status=2)[1]
        self.assertIn("<|eot_id|>", stderr)
        self.assertIn("--prompt", self.generate("--checkpoint", "run", "--json", given="", status=2)[1])
        (self.folder / "bad.jsonl").write_text('{"messages": [{"role": "assistant", "content": "a"}]}\n')
        self.assertIn("bad.jsonl:1: messages: the last one", self.generate("--checkpoint", "run", "--prompts", "bad.jsonl", status=4)[1])
        self.assertIn('text.txt: document = "chat" needs JSON lines', self.train("data.document=chat", "data.train=text.txt", "run.dir=o",
                                                                             "data.tokenizer=train", "data.vocab_size=320", status=2))

    # --- runs

    def test_a_run_resumes_with_its_format(self):
        self.train(*CHAT, "checkpoint.interval=3", max_steps=3)
        stderr = self.train(*CHAT, "data.chat_format=plain", status=5)
        self.assertIn("data.chat_format differs", stderr)
        self.assertIn("chatml", stderr)
        self.train(*CHAT, "checkpoint.interval=3", "data.chat_format=auto")
        self.train(*CHAT, "checkpoint.interval=3", "run.dir=whole")
        self.assert_same_run(6, "run", "whole")

    def test_ranks_read_one_set_of_tokens(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        stderr = self.train_on(2, *CHAT, transport="mpi")
        self.assertEqual(stderr.count("% trained"), 1)

    def test_the_example_learns_to_answer(self):
        self.trainer("--config", HERE.parents[1] / "configs/chat.toml", "--max-steps", "200",
                     "--set", "run.dir=chat", "data.train=chats.jsonl")
        self.assertLess(min(event["loss"] for event in self.events("eval", "chat")), 4)  # ln 512 is 6.2
        answer = json.loads(self.generate("--checkpoint", "chat", "--tokens", "40", "--json", "--prompt",
                                          "What is the capital of France?")[0])
        self.assertEqual(answer["text"], "The capital of France is Paris.")
        self.assertEqual(answer["finish_reason"], "eos")

    def test_ranks_recognise_the_format_of_a_validation_set(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        self.exported(run="first")
        with (self.folder / "config.toml").open("a") as config:
            config.write('[[data.validation]]\nname = "chats"\nfiles = ["chats.jsonl"]\ndocument = "chat"\n')
        self.train_on(2, "data.train=text.txt", "data.tokenizer=first-hf", "data.val_fraction=0", "model.seq_len=64",
                      transport="mpi")
        manifests = [json.loads(file.read_text()) for file in (self.folder / "run/tokens").glob("*.json")]
        self.assertEqual([each["chat_format"] for each in manifests if "chat_format" in each], ["chatml"])

    # --- exports

    def exported(self, *sets, run):
        # Long enough for the default system message of every format.
        self.train(*CHAT, "train.steps=1", "optim.warmup_steps=0", "model.arch=llama", "model.seq_len=192", f"run.dir={run}", *sets)
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", run, "--output", run + "-hf")
        read = lambda name: json.loads((self.folder / (run + "-hf") / name).read_text())
        return read("tokenizer_config.json"), read("generation_config.json")

    def test_exports_have_the_format_and_its_end(self):
        config, generation = self.exported(run="first")
        special = self.manifest("first")["special_tokens"]
        self.assertEqual(special["chat_format"], "chatml")
        self.assertEqual(generation["eos_token_id"], special["eos"])
        self.assertEqual(len(special["eos"]), 2)  # the end of a turn, then that of a text
        self.trainer("checkpoint", "import", "--format", "hf", "--input", "first-hf", "--output", "again")
        manifest = json.loads(next((self.folder / "again").rglob("manifest.json")).read_text())
        self.assertEqual(manifest["special_tokens"]["fields"]["tokenizer_config.json"]["chat_template"], config["chat_template"])
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "again", "--output", "again-hf")
        kept = json.loads((self.folder / "again-hf/tokenizer_config.json").read_text())
        self.assertEqual(kept["chat_template"], config["chat_template"])
        self.generate("--checkpoint", "again", "--prompt", "Hello")  # the format is recognised
        self.trainer("checkpoint", "export", "--format", "gguf", "--checkpoint", "first", "--output", "first.gguf")
        self.assertIn(config["chat_template"].encode(), (self.folder / "first.gguf").read_bytes())
        # Trained in a different format, an imported model gets that one's template; an unknown one is kept otherwise.
        other = dict(kept, chat_template="{{ unknown }}")
        (self.folder / "again-hf/tokenizer_config.json").write_text(json.dumps(other))
        unset = ["model.init_from=again-hf", "data.tokenizer=again-hf"]
        stderr = self.train(*CHAT, *unset, "data.chat_format=auto", "run.dir=tuned", status=2)
        self.assertIn("chat_template is not known", stderr)
        self.assertIn("chatml", stderr)

    @unittest.skipIf(ImmutableSandboxedEnvironment is None, "no jinja2")
    def test_templates_render_what_is_trained(self):
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        lines = [json.loads(line) for line in (HERE.parent / "unit/data/chat_segments.jsonl").read_text().splitlines()]
        for name in FORMATS:
            config, _ = self.exported(f"data.chat_format={name}", run=name)
            self.assertEqual(config["bos_token"], "<s>")
            template = environment.from_string(config["chat_template"])
            tokens = {key: config[key] for key in ("bos_token", "eos_token")}
            for line in lines:
                if line["format"] != name:
                    continue
                text = "".join(part.replace("{bos}", "<s>").replace("{eos}", "</s>") if kind in "SX" else part
                               for kind, part in line["segments"])
                messages = [{key: each[key] for key in ("role", "content")} for each in line["messages"]]
                self.assertEqual(template.render(messages=messages, **tokens), text, (name, messages))


if __name__ == "__main__":
    unittest.main()
