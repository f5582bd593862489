#!/usr/bin/env python3
"""Checks every README, the manual in docs/ and CONTRIBUTING.md: paths exist, verbs and options are those of --help, keys
are those of `config reference`, example configurations have no mistakes, commands that compute nothing (`config check`,
--dry-run) run, and commands of README.md and the manual run with two steps on a short text.

Code blocks are read line by line: ```sh has one command per line, ```toml a configuration, ```bash a script whose
commands are checked, ```text a sample with commands after "$ ". "```sh gpu", "cluster" and "slow" mark commands that are
checked but not run. In prose, `code` is taken as a command, an option, a key or a path, depending on its form. Words in
capitals (FILE, N, NEW_INPUTS) are placeholders.
"""
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

import rig

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
READMES = {path.relative_to(ROOT).as_posix(): path.read_text()
           for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("*/README.md"), *ROOT.glob("docs/*.md")]
           if not path.parent.name.startswith("build")}
MANUAL = ["README.md", *(name for name in sorted(READMES) if name.startswith("docs/"))]
VERBS = ("train", "eval", "generate", "tokenize", "bench", "checkpoint", "config", "report", "completion", "manual", "plan", "verify")
# Paths that commands create, and paths on other machines.
MADE = re.compile(r"(/|build|build-[a-z-]+|runs|results|trainer-gpu|share|NEW_INPUTS)(/|$|\.)|~")
# Files that runs and checks write, such as `config.toml`, and the reader's my.txt.
OF_RUNS = {"my.txt", "report.html", "report.json", "metrics.jsonl", "config.toml", "best.toml", "tokenizer.model", "gpu_check.md", "gpu_check.json",
           "gpu_check.log", "tuning.json", "x.model", "tokens", "checkpoints", "trace.json", "config.json", "generation_config.json",
           "tokenizer.json", "tokenizer_config.json", "added_tokens.json", "merges.txt", "vocab.json"}
ENDINGS = ("md", "toml", "sh", "py", "cpp", "h", "cu", "cuh", "txt", "svg", "cmake", "json", "html", "jsonl")
# Other programs, and their options that READMEs mention without the program.
FOREIGN = {"cp", "echo", "tar", "pip", "docker", "git", "sbatch", "tensorboard", "cpack"}
FOREIGN_OPTIONS = {"--bind-to", "--map-by", "--oversubscribe", "--mca", "--mpi", "--enable-recovery", "--gtest_filter", "--gpus-per-task", "--help", "--target"}
ASSIGNMENT = re.compile(r"[A-Z][A-Za-z_]*=\S*$")
PLACEHOLDER = re.compile(r"<?[A-Z][A-Z_]*>?$|…")


class Code:
    """The code in a README: blocks with their language, and spans."""

    def __init__(self, name, text):
        self.name, self.folder = name, (ROOT / name).parent
        marked = re.findall(r"^```(\w*)(?: (gpu|cluster|slow))?\n(.*?)^```", text, re.M | re.S)
        self.blocks = [(language, block) for language, _, block in marked]
        self.runnable = [(language, block) for language, mark, block in marked if not mark]
        prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
        self.spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
        self.links = [link for link in re.findall(r"\]\(([^)]+)\)", prose) if "://" not in link]
        # Paths that are not marked as code: (tests/README.md).
        path = r"(?<!\]\()(?<![\w/`\[])((?:\w+/)+[\w.-]+\.(?:" + "|".join(ENDINGS) + r"))\b"
        self.named = re.findall(path, re.sub("`[^`]*`", "", prose))

    def commands(self):
        """Yields every command as a list of words."""
        yield from self.split(self.blocks, self.spans)

    def split(self, blocks, spans=()):
        lines = [line for language, text in blocks if language in ("sh", "bash")
                 for line in text.replace("\\\n", " ").splitlines()]
        first = re.compile(r"(trainer|build/trainer|cmake|ctest|mpirun|srun|TRAINER=\S+|scripts/\S+|tests/\S+\.(?:sh|py)) \S")
        lines += [span for span in spans if first.match(span)]
        lines += [line[2:] for language, text in blocks if language == "text" for line in text.splitlines() if line[:2] == "$ "]
        for line in lines:
            words = shlex.split(line.replace("…", " "), comments=True)
            for word in ("&&", ";", "|"):
                while word in words:
                    yield words[:words.index(word)]
                    words = words[words.index(word) + 1:]
            if words:
                yield words


CODE = [Code(name, text) for name, text in sorted(READMES.items())]
CODE_OF = {code.name: code for code in CODE}


def files_of(folder, pattern="*"):
    return sorted(path for path in (ROOT / folder).glob(pattern) if path.name not in ("README.md", "__pycache__"))


class Readmes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="trainer-readme-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for name in ("configs", "data", "docs"):
            (cls.folder / name).symlink_to(ROOT / name)
        llama = cls.folder / "Llama-3.2-1B"  # the model that continue-llama3.toml starts from, without its weights
        llama.mkdir()
        (llama / "config.json").write_text(json.dumps({
            "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
            "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "rope_theta": 500000.0,
            "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                             "original_max_position_embeddings": 8192}}))
        (cls.folder / "core").mkdir()  # the questions that core.toml asks
        for name in ["hellaswag_val.jsonl", *re.findall(r'"(core/.*)"', (ROOT / "configs/core.toml").read_text())]:
            (cls.folder / name).write_text(json.dumps({"query": "a", "choices": ["b", "c"], "gold": 0}) + "\n")
        gpt2 = cls.folder / "gpt2-hf"  # what README.md continues to train, without its weights
        shutil.copytree(ROOT / "data/gpt2", gpt2)
        (gpt2 / "config.json").write_text(json.dumps({
            "model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024}))
        pythia = cls.folder / "pythia"  # what pythia-160m.toml continues to train, without its weights
        shutil.copytree(ROOT / "data/gpt2", pythia)
        (pythia / "config.json").write_text(json.dumps({
            "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "max_position_embeddings": 2048, "rotary_pct": 0.25}))
        cls.help = {verb: cls.output(rig.TRAINER, verb, "--help") for verb in VERBS}
        for verb, text in list(cls.help.items()):
            for action in rig.subcommands(text):
                cls.help[f"{verb} {action}"] = cls.output(rig.TRAINER, verb, action, "--help")
        cls.help[""] = cls.output(rig.TRAINER, "--help")
        cls.keys, section = set(), ""
        for line in cls.output(rig.TRAINER, "config", "reference").splitlines():
            if found := re.match(r"\[(\w+)\]", line):
                section = found.group(1)
            elif found := re.match(r"(?:# )?([a-z_0-9.]+) = ", line):
                cls.keys.add(f"{section}.{found.group(1)}")
        cls.scripts = {}

    @classmethod
    def output(cls, *command, status=0, **more):
        result = subprocess.run(list(map(str, command)), cwd=cls.folder, capture_output=True, text=True, errors="replace",
                                timeout=rig.TIMEOUT_SECONDS, **more)
        if result.returncode != status:
            raise AssertionError(f"{shlex.join(map(str, command))}: status {result.returncode}\n{result.stdout}{result.stderr}")
        return result.stdout

    def each(self, items, check):
        """Calls check(README, item) for all items of all READMEs, even after a failure."""
        for code in CODE:
            for item in items(code):
                with self.subTest(readme=code.name, item=item if isinstance(item, str) else shlex.join(item)):
                    check(code, item)

    def require(self, code, path):
        if PLACEHOLDER.match(path) or MADE.match(path) or path.rstrip("/") in OF_RUNS:
            return
        found = [base for base in (code.folder, ROOT) if list(base.glob(path.rstrip("/")))] if path.strip("./") else [ROOT]
        self.assertTrue(found, f"{path} is neither in {code.folder.relative_to(ROOT)}/ nor in the project's root")

    def require_option(self, option, text, where):
        option = re.split("[= ]", option)[0]
        self.assertTrue(re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", text), f"{option} is not in {where}")

    # --- paths

    def test_links_lead_to_files_and_sections(self):
        def check(code, link):
            name, _, section = link.partition("#")
            path = code.folder / name if name else ROOT / code.name
            self.assertTrue(path.exists())
            if section:
                headings = re.findall(r"^#+ (.*)", path.read_text(), re.M)
                self.assertIn(section, [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings])
        self.each(lambda code: code.links, check)

    def test_paths_exist(self):
        def paths(code):
            looks = [span for span in code.spans + code.named if re.match(r"(\.\./)*\w[\w./-]*$", span) and span not in self.keys]
            return [span for span in looks if "/" in span or span.rsplit(".", 1)[-1] in ENDINGS]

        # unit/FOLDER/NAME_test.cpp must match some file
        self.each(paths, lambda code, path: self.require(code, re.sub("NAME|FOLDER", "*", path)))

    def test_nothing_is_left_out(self):
        """Every configuration, script, source folder and test folder has a row in the README next to it."""
        for name, items in (("configs", [path.name for path in files_of("configs")]),
                            ("docs", [path.name for path in files_of("docs", "*.md")]),
                            ("scripts", [path.name for path in files_of("scripts")]),
                            ("src", [f"{path.name}/" for path in files_of("src") if path.is_dir()]),
                            ("tests", [f"{path.name}/" for path in files_of("tests") if path.is_dir()])):
            for item in items:
                with self.subTest(readme=f"{name}/README.md", item=item):
                    self.assertTrue(re.search(rf"^\|[^|]*[`(/]{re.escape(item)}[`)/]", READMES[f"{name}/README.md"], re.M),
                                    f"{name}/README.md has no row for {item}")

    # --- the program

    def test_verbs_are_those_of_the_program(self):
        self.assertEqual(set(VERBS), set(rig.subcommands(self.help[""])))
        documented = "".join(text for name, text in READMES.items() if name in MANUAL)
        for verb in VERBS:
            self.assertIn(f"`trainer {verb}", documented)

    def test_commands_name_what_there_is(self):
        self.each(Code.commands, self.command)

    def command(self, code, words):
        while words and ASSIGNMENT.match(words[0]):
            words = words[1:]
        if not words:
            return
        program, arguments = words[0], words[1:]
        if program in ("mpirun", "srun"):
            start = next((i for i, word in enumerate(arguments) if word.rsplit("/")[-1] == "trainer"), len(arguments))
            ranks = arguments[arguments.index("-np") + 1] if "-np" in arguments[:start] else None
            self.trainer(code, arguments[start + 1:], ranks)
        elif program in ("trainer", "build/trainer"):
            self.trainer(code, arguments)
        elif program == "cmake":
            self.cmake(arguments)
        elif program == "ctest":
            self.ctest(arguments)
        elif program == "python3":
            self.require(code, arguments[0])
        elif program.startswith(("scripts/", "tests/", "trainer-gpu/")):
            self.script(code, program.removeprefix("trainer-gpu/"), arguments)
        elif program.startswith("build"):
            self.assertRegex(program, r"^build(-[a-z-]+)?/(fuzz_|unit_|trainer$)")
            for path in [word.split("=")[-1] for word in arguments if "/" in word]:
                self.require(code, path)
        else:
            self.assertTrue(program.startswith("#") or program in FOREIGN, f"{program} is no program that READMEs may name")
            if program == "docker" and "--target" in arguments:
                self.assertIn(f" AS {arguments[arguments.index('--target') + 1]}\n", (ROOT / "Dockerfile").read_text())

    def trainer(self, code, arguments, ranks=None):
        verb = arguments[0] if arguments and not arguments[0].startswith("-") else ""
        self.assertIn(verb, ("", "VERB", *VERBS))
        if verb == "VERB":
            return
        sets, option = [], ""
        if verb and rig.subcommands(self.help[verb]) and len(arguments) > 1 and not arguments[1].startswith("-"):
            verb += f" {arguments[1]}"
            self.assertIn(verb, self.help)
        for word in arguments:
            if word.startswith("-") and len(word) > 1:
                option = word
                self.require_option(word, self.help[verb], f"trainer {verb} --help")
            elif option in ("--set", "-s"):
                self.assertIn(word.split("=")[0], self.keys)
                # The preceding command would make this profile; here any machine description will do.
                profile = f"hardware.profile={ROOT / 'configs/clusters/laptop-2core.toml'}"
                if not re.search("=(runs/|gpt2$|my.txt|tuning.json)", word):  # made by an earlier command or by the reader
                    sets += ["--set", profile if word.startswith("hardware.profile=") else word]
        if "--config" not in arguments:
            return
        config = arguments[arguments.index("--config") + 1]
        if PLACEHOLDER.match(config) or config == "-":
            return
        self.require(code, config)
        more = ["--ranks", ranks] if ranks and ranks.isdigit() else []
        self.output(rig.TRAINER, "config", "check", "--config", config, *sets, *more)
        if "--dry-run" in arguments:
            # Even if this machine's memory is in use.
            self.assertTrue(self.output(rig.TRAINER, *arguments, "--set", "hardware.memory_limit=64"))
        if verb == "config":
            self.assertTrue(self.output(rig.TRAINER, *arguments))

    def cmake(self, arguments):
        presets = json.loads((ROOT / "CMakePresets.json").read_text())
        kind = "buildPresets" if "--build" in arguments else "configurePresets"
        options = re.findall(r"TRAINER_\w+", (ROOT / "CMakeLists.txt").read_text())
        for i, word in enumerate(arguments):
            if i > 0 and arguments[i - 1] == "--preset":
                self.assertIn(word, [preset["name"] for preset in presets[kind]])
            if word.startswith("-DTRAINER_"):
                self.assertIn(word[2:].split("=")[0], options)

    def ctest(self, arguments):
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["testPresets"]
        lists = "".join(path.read_text() for path in (ROOT / "tests").rglob("CMakeLists.txt"))
        for option, word in zip(arguments, arguments[1:]):
            if option == "--preset":
                self.assertIn(word, [preset["name"] for preset in presets])
            if option == "-L":
                self.assertRegex(lists, rf"LABELS? \"?{word}\b")
            if option == "-R":
                self.assertRegex(lists, rf"(NAME |SHARDS_){word}\b")

    def script(self, code, path, arguments):
        """Requires that --help lists the options, and that arguments that look like files of the project exist."""
        self.assertTrue((ROOT / path).is_file(), f"no {path}")
        self.assertTrue(os.access(ROOT / path, os.X_OK), f"{path} is not executable")
        if path not in self.scripts:
            self.scripts[path] = self.output(ROOT / path, "--help")
        own, behind = arguments, []
        if "--" in arguments:
            own, behind = arguments[:arguments.index("--")], arguments[arguments.index("--") + 1:]
        for word in own:
            if word.startswith("-"):
                self.require_option(word, self.scripts[path], f"{path} --help")
            elif re.match(r"(configs|data|scripts|src|tests)/", word):
                self.require(code, word)
        if "--config" in own:
            sets = [[option, word] for option, word in zip(own, own[1:]) if option == "--set"]
            self.output(rig.TRAINER, "config", "check", "--config", own[own.index("--config") + 1], *sum(sets, []))
        if behind:
            self.command(code, behind)

    def test_options_are_somebodys(self):
        everything = "".join(self.help.values())

        def check(_, span):
            if re.split("[= ]", span)[0] not in FOREIGN_OPTIONS:
                self.require_option(span, everything, "any verb's --help")
        self.each(lambda code: [span for span in code.spans if re.match(r"--?[a-z]", span)], check)

    def test_build_options_are_those_of_cmake(self):
        lists = (ROOT / "CMakeLists.txt").read_text() + (ROOT / "scripts/cmake/TrainerBuild.cmake").read_text()

        def check(_, span):
            name = span.removeprefix("-D").split("=")[0]
            if name == "TRAINER_ISA":  # an environment variable at run time
                self.assertIn(f'"{name}"', "".join(path.read_text() for path in (ROOT / "src").rglob("*.cpp")))
            elif name in ("TRAINER_TORCH_PYTHON", "TRAINER_GGUF_PYTHON"):  # environment variables of tests
                self.assertIn(f'"{name}"', "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py") if path.name != "readme_test.py"))
            else:
                self.assertRegex(lists, rf"\b{name}\b")
        self.each(lambda code: [span for span in code.spans if re.match(r"(-D)?TRAINER_\w+(=|$)", span)], check)

    def test_commands_of_the_manual_run(self):
        """Runs the commands of README.md and docs/ with two steps on a short text."""
        (self.folder / "short.txt").write_text(4 * rig.tiny_text())
        shutil.copy(self.folder / "short.txt", self.folder / "my.txt")
        short = ["train.steps=2", "optim.warmup_steps=1", 'data.train=["short.txt"]', "data.vocab_size=320", "train.eval_batches=1",
                 "train.sample_tokens=4", "train.sample_interval=0"]
        # A model to import in Hugging Face's format, smaller than the manual's.
        tiny = ["model.n_layer=1", "model.n_head=2", "model.d_model=32", "model.seq_len=128"]
        self.output(rig.TRAINER, "--config", "configs/quickstart.toml", "--set", "run.name=tiny", *short, *tiny)
        shutil.rmtree(self.folder / "gpt2-hf")
        self.output(rig.TRAINER, "checkpoint", "export", "--format", "hf", "--checkpoint", "runs/tiny", "--output", "gpt2-hf")
        self.output(rig.TRAINER, "--config", "configs/quickstart.toml", "--set", *short, *tiny)
        done = []
        for name in MANUAL:
            for words in CODE_OF[name].split(CODE_OF[name].runnable):
                if "build/trainer" not in words or "--dry-run" in words or words in done:
                    continue
                done.append(words)
                with self.subTest(page=name, command=shlex.join(words)):
                    self.run_shortened(words[:words.index(">")] if ">" in words else words, short, tiny)
        self.assertGreater(len(done), 40)

    def run_shortened(self, words, short, tiny):
        text = shlex.join(words).replace("step-00000400", "step-00000002").replace("--step 100", "--step 2")
        command = [str(rig.TRAINER) if word == "build/trainer" else word for word in shlex.split(text)]
        if command[0] == "mpirun":
            if shutil.which("mpirun") is None:
                return
            command[:1] = rig.MPIRUN
        verb = words[words.index("build/trainer") + 1]
        if "--config" in command and verb in ("--config", "train"):
            own = [key for key in short if not ("configs/chat.toml" in command and key.startswith("data."))]
            command += ["--set", *own, *(tiny if "configs/quickstart.toml" in command else [])]
        elif "--config" in command and verb == "bench":
            command += ["--set", *tiny, "train.global_batch=4"]
        self.output(*command, input="She had never")

    # --- configurations

    def test_keys_are_those_of_the_reference(self):
        sections = {key.split(".")[0] for key in self.keys}
        ends = {key.split(".", 1)[1] for key in self.keys} | {key.split(".", 1)[1].split(".")[0] for key in self.keys}

        def check(_, span):
            if found := re.match(r"(\w+)\.([a-z_0-9.]+)( = .*)?$", span):
                if found.group(1) in sections and found.group(2) not in ENDINGS:
                    self.assertIn(f"{found.group(1)}.{found.group(2)}", self.keys)
            elif found := re.match(r"([a-z_]+) = ", span):
                self.assertIn(found.group(1), ends)
            elif found := re.match(r"\[(\w+)\]$", span):
                if found.group(1).islower() and len(found.group(1)) > 1:
                    self.assertIn(found.group(1), sections)
        self.each(lambda code: code.spans, check)

    def test_the_example_strategy_is_the_one_that_is_tested(self):
        tested = (ROOT / "tests/unit/train/example_strategy_test.cpp").read_text()
        examples = [text for language, text in CODE_OF["src/README.md"].blocks if language == "cpp" and "ModelSharding" in text]
        self.assertEqual(len(examples), 1)
        self.assertIn(examples[0], tested)

    def test_blocks_of_toml_are_configurations(self):
        def check(_, text):
            (self.folder / "block.toml").write_text(text)
            self.output(rig.TRAINER, "config", "check", "--config", "block.toml")
        self.each(lambda code: [text for language, text in code.blocks if language == "toml"], check)

    def test_every_configuration_has_no_mistake(self):
        for path in files_of("configs", "*.toml"):
            with self.subTest(config=path.name):
                self.output(rig.TRAINER, "config", "check", "--config", f"configs/{path.name}")

    def test_commands_in_comments_of_configurations_name_what_there_is(self):
        commands = 0
        for path in files_of("configs", "*.toml"):
            code = Code("configs/README.md", "")
            for line in re.findall(r"^#   ((?:mpirun|build/trainer|scripts/).*)$", path.read_text(), re.M):
                commands += 1
                with self.subTest(config=path.name, command=line):
                    # get_text.sh would make data/large.
                    self.command(code, shlex.split(line.replace("data/large", "data"), comments=True))
        self.assertGreater(commands, 20)


if __name__ == "__main__":
    rig.main()
