"""Models exported to and imported from Hugging Face's transformers have the same logits, losses and tokens.

Skipped without a Python that has torch and transformers; TRAINER_TORCH_PYTHON names one, and
`tests/bench/compare_torch.py --make-python` makes one.
"""
import array
import json
import math
import os
import pathlib
import re
import struct
import subprocess
import sys

import rig
import safetensors_reader as safetensors

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SKIPPED = 77
FIND_MODULES = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, ['torch', 'transformers'])))"
LLAMA = ['model.arch="llama"', "model.n_head=4", "model.n_kv_head=2"]
RELATIVES = ["llama", "tied", "wide", "biases", "llama3", "yarn", "mistral", "windows", "qwen2", "qwen3", "some-windows", "smollm3",
             "olmo2", "olmo3", "gemma3", "gpt_neox", "sequential"]  # families of transformers_peer.py
EXPERTS = ["mixtral", "olmoe", "qwen2_moe", "qwen3_moe"]


def find_python():
    """Returns an interpreter with torch and transformers, or None."""
    for python in (os.environ.get("TRAINER_TORCH_PYTHON"), sys.executable, ROOT / "build/torch-python/bin/python"):
        if python and pathlib.Path(python).exists():
            probe = subprocess.run([python, "-c", FIND_MODULES])  # importing them takes seconds
            if probe.returncode == 0:
                return python
    return None


PYTHON = find_python()


class Transformers(rig.Runs):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.worker = subprocess.Popen([PYTHON, HERE / "transformers_peer.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.DEVNULL, text=True)
        cls.addClassCleanup(cls.worker.communicate)

    def peer(self, *calls):
        """Makes these calls in transformers_peer.py; returns their results."""
        print(json.dumps([str(self.folder), calls]), file=self.worker.stdin, flush=True)
        results = json.loads(self.worker.stdout.readline() or '"transformers_peer.py ended"')
        self.assertIsInstance(results, list, results)
        return results

    def export(self, run, output, *options):
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", run, "--output", output, *options)

    def write_tokens(self, count):
        """Writes and returns the first tokens of the tests' training text, as int32."""
        content = (self.folder / "tokens/tokens.bin").read_bytes()[1024:1024 + 2 * count]
        ids = array.array("i", struct.unpack(f"<{count}H", content))
        (self.folder / "ids").write_bytes(ids.tobytes())
        return ids

    def compare(self, folders, count):
        """Compares {checkpoint: transformers folder}: logits to 1e-4 of each row's largest, the loss to 1e-6."""
        ids = self.write_tokens(count)
        reported = self.peer(*(["logits", hf, "ids", f"{hf}/logits"] for hf in folders.values()))
        for (checkpoint, hf), result in zip(folders.items(), reported):
            with self.subTest(hf):
                self.compare_logits(checkpoint, self.folder / hf / "logits", ids, result["loss"])
        return reported

    def compare_logits(self, checkpoint, path, ids, expected_loss):
        subprocess.run([os.environ["LOGITS"], checkpoint, "ids", "ours"], cwd=self.folder, check=True, timeout=120)
        ours, theirs = array.array("f"), array.array("f")
        ours.frombytes((self.folder / "ours").read_bytes())
        theirs.frombytes(path.read_bytes())
        self.assertEqual(len(ours), len(theirs))
        vocab = len(ours) // len(ids)
        loss = 0
        for position in range(len(ids)):
            mine, other = (row[position * vocab:(position + 1) * vocab] for row in (ours, theirs))
            largest = max(map(abs, other))
            self.assertGreater(largest, 0.01)
            self.assertLessEqual(max(abs(a - b) for a, b in zip(mine, other)), 1e-4 * largest, f"position {position}")
            if position + 1 < len(ids):
                loss += log_sum_exp(mine) - mine[ids[position + 1]]
        self.assertLessEqual(abs(loss / (len(ids) - 1) - expected_loss), 1e-6 * expected_loss)

    def test_exported_models_compute_the_same(self):
        families = {"gpt2": ([], "GPT2LMHeadModel"), "llama": (LLAMA, "LlamaForCausalLM"),
                    "untied": (["model.tie_embeddings=false"], "GPT2LMHeadModel"),
                    "scaled": ([*LLAMA, "model.head_dim=6", "model.rope_type=llama3", "model.rope_factor=8",
                                "model.rope_original=64"], "LlamaForCausalLM"),
                    "yarn": ([*LLAMA, "model.rope_type=yarn", "model.rope_factor=4", "model.rope_original=16"],
                             "LlamaForCausalLM"),
                    "qwen2": (["model.arch=qwen2", "model.n_head=4", "model.n_kv_head=2"], "Qwen2ForCausalLM"),
                    "qwen3": (["model.arch=qwen3", "model.n_head=4", "model.n_kv_head=2", "model.head_dim=10"],
                              "Qwen3ForCausalLM"),
                    "mistral": (["model.arch=mistral", "model.n_head=4", "model.n_kv_head=2", "model.window=7"],
                                "MistralForCausalLM"),
                    "windows": (["model.arch=qwen2", "model.n_head=4", "model.window=7", "model.window_full_every=2"],
                                "Qwen2ForCausalLM"),
                    "smollm3": (["model.arch=smollm3", "model.n_head=4", "model.n_kv_head=2", "model.nope_every=2"],
                                "SmolLM3ForCausalLM"),
                    "olmo2": (["model.arch=olmo2", "model.n_head=4", "model.n_kv_head=2"], "Olmo2ForCausalLM"),
                    "olmo3": (["model.arch=olmo3", "model.n_head=4", "model.n_kv_head=2", "model.window=7",
                               "model.window_full_every=2", "model.rope_type=yarn", "model.rope_factor=4",
                               "model.rope_original=16"], "Olmo3ForCausalLM"),
                    "gemma3": (["model.arch=gemma3", "model.n_head=4", "model.n_kv_head=2", "model.head_dim=12",
                                "model.attn_scalar=10", "model.window=7", "model.window_full_every=2"], "Gemma3ForCausalLM"),
                    "gpt_neox": (["model.arch=gpt_neox", "model.n_head=4"], "GPTNeoXForCausalLM"),
                    "sequential": (["model.arch=gpt_neox", "model.n_head=4", "model.rotary_dim=6", "model.activation=gelu",
                                    "model.parallel_residual=false"], "GPTNeoXForCausalLM"),
                    "tied": ([*LLAMA, "model.tie_embeddings=true", "model.rope_theta=500"], "LlamaForCausalLM")}
        for name, (sets, _) in families.items():
            self.train(f"run.dir={name}", "train.steps=30", "optim.lr=3e-3", *sets)
            self.export(name, f"{name}-hf", *(["--shard-bytes", "40000"] if name == "untied" else []))
        self.assertGreater(len(list((self.folder / "untied-hf").glob("*.safetensors"))), 2)
        reported = self.compare({name: f"{name}-hf" for name in families}, 32)
        for (_, kind), result in zip(families.values(), reported):
            self.assertEqual(result["model"], kind)
            self.assertEqual(len(result["generated"][0]), 7)
            # generation_config.json and config.json name the tokenizer's end-of-text token.
            self.assertEqual(result["ends"], [2, 2])

    def test_imported_models_compute_the_same(self):
        made = [[family, f"{family}-{dtype}", dtype] for family in ("gpt2", "llama", "tied")
                for dtype in ("float32", "bfloat16", "float16")]
        made += [[family, family, "float32"] for family in (*RELATIVES[2:], *EXPERTS)]
        self.peer(*(["make", *each] for each in made))
        for _, folder, _ in made:
            self.assertGreater(len(list((self.folder / folder).glob("*.safetensors"))), 1)
            self.trainer("checkpoint", "import", "--format", "hf", "--input", folder, "--output", f"{folder}-back")
        self.compare({f"{folder}-back": folder for _, folder, _ in made}, 48)

    def test_imported_models_go_back_and_train_alike_in_every_layout(self):
        """Exports are byte-identical to the imported files, and 20 steps in fp32 have the losses of one rank: of each family in one
        of the layouts, in turn."""
        families = ["gpt2", *RELATIVES]
        self.peer(*(["make", family, family, "bfloat16"] for family in families))
        layouts = {"tensor": ["parallel.tensor=2"], "zero": ["parallel.data=2", "parallel.zero_stage=1"],
                   "grid": ['parallel.strategy="axonn-4d"', "parallel.grid=[2,1,2]"]}
        for number, family in enumerate(families):
            with self.subTest(family):
                # GPT-2's learned positions fix its length.
                start = ["train.steps=20", "optim.warmup_steps=0", f"model.seq_len={48 if family == 'gpt2' else 32}"]
                self.trainer("checkpoint", "import", "--format", "hf", "--input", family, "--output", f"{family}-in")
                self.export(f"{family}-in", f"{family}-out", "--dtype", "bf16")
                self.assertEqual(*(safetensors.read(self.folder / name) for name in (family, f"{family}-out")))
                self.trainer("checkpoint", "import", "--format", "hf", "--input", f"{family}-out", "--output", f"{family}-again")
                self.export(f"{family}-again", f"{family}-twice", "--dtype", "bf16")
                for file in (self.folder / f"{family}-out").iterdir():
                    self.assertEqual(file.read_bytes(), (self.folder / f"{family}-twice" / file.name).read_bytes(), file.name)
                self.write_config(family)
                def run(name, *sets):
                    sets = [f"run.dir={name}", *start, *sets]
                    self.trainer("--config", f"{family}.toml", *(word for each in sets for word in ("--set", each)))
                    return [event["loss"] for event in self.events("step", name)]
                single = run(f"{family}-alone")
                self.assertEqual(len(single), 20)
                self.assertLess(single[-1], single[0])
                for name in layouts if rig.SLOW else [list(layouts)[number % len(layouts)]]:
                    losses = run(f"{family}-{name}", "parallel.transport=threads", *layouts[name])
                    for mine, other in zip(losses, single, strict=True):
                        self.assertLessEqual(abs(mine - other), 1e-5 * other, name)

    def test_experts_go_back_to_tensors_of_their_own(self):
        self.peer(*(["make", family, family, "bfloat16"] for family in EXPERTS))
        for family in EXPERTS:
            with self.subTest(family):
                self.trainer("checkpoint", "import", "--format", "hf", "--input", family, "--output", f"{family}-in")
                self.export(f"{family}-in", f"{family}-out", "--dtype", "bf16")
                self.assertEqual(*(safetensors.read(self.folder / name) for name in (family, f"{family}-out")))

    def write_config(self, folder):
        """Writes FOLDER.toml, the configuration of a run that takes its model from the folder of Hugging Face files."""
        config = (self.folder / "config.toml").read_text()
        bare = re.sub(r"(?ms)^\[model\]\n.*?(?=^\[)", f'[model]\ninit_from = "{folder}"\n', config)
        (self.folder / f"{folder}.toml").write_text(bare)

    def write_few_tokens(self, count):
        """Writes tokens/few.bin with the first tokens of the tests' training text."""
        self.write_tokens(count)
        content = (self.folder / "tokens/tokens.bin").read_bytes()
        header = content[:8] + struct.pack("<i", count) + content[12:1024]
        (self.folder / "tokens/few.bin").write_bytes(header + content[1024:1024 + 2 * count])

    def test_losses_and_gradients_agree_in_double_precision(self):
        """Compares one window of 48 tokens: the loss to 1e-10, each gradient to 1e-10 of its largest element."""
        families = ["gpt2", *RELATIVES, *EXPERTS]
        self.write_few_tokens(49)
        self.peer(*(["make", family, family, "float32"] for family in families))
        losses = self.peer(*(["gradients", family, "ids", f"{family}-gradients"] for family in families))
        # AdamW's first moment is half of the gradient after one step with beta1 = 0.5.
        keys = ["train.steps=1", "train.global_batch=1", "train.micro_batch=1", "train.eval_interval=0", "precision.compute=fp64",
                'data.train=["tokens/few.bin"]', "data.val_fraction=0", "optim.warmup_steps=0", "optim.grad_clip=0",
                "optim.beta1=0.5", "optim.weight_decay=0"]
        for family, expected in zip(families, losses, strict=True):
            with self.subTest(family):
                self.write_config(family)
                self.trainer("--config", f"{family}.toml", "--set", f"run.dir={family}-run", *keys,
                             *(["train.balance_loss=0"] if family in EXPERTS else []))
                loss, = (event["loss"] for event in self.events("step", f"{family}-run"))
                self.assertLessEqual(abs(loss - expected), 1e-10 * expected)
                step, = (self.folder / f"{family}-run/checkpoints").glob("step-*")
                moments = read_moments(step)
                for name, tensor in safetensors.read(self.folder / f"{family}-gradients").items():
                    mine = [2 * value for value in gradient_of(name, tensor[1], moments, family in ("olmo2", "olmo3"))]
                    theirs = safetensors.floats(tensor)
                    self.assertEqual(len(mine), len(theirs), name)
                    largest = max(map(abs, theirs))
                    self.assertLessEqual(max(abs(a - b) for a, b in zip(mine, theirs)), 1e-10 * largest, name)
                self.assertFalse(moments, "tensors that transformers lacks")

    def check_training(self, optimizer):
        """Compares 20 steps of GPT-2 with PyTorch's optimizers. Every step has all windows, so their order does not
        matter."""
        windows, length, steps, lr = 8, 48, 20, 3e-3
        count = windows * length + 1
        self.write_few_tokens(count)
        options = {"optimizer": optimizer, "seq_len": length, "steps": steps, "lr": lr, "weight_decay": 0.1, "grad_clip": 1.0}
        _, expected = self.peer(["make", "gpt2", "start", "float32"], ["train", "start", "ids", options])
        self.trainer("checkpoint", "import", "--format", "hf", "--input", "start", "--output", "imported")
        sizes = {"n_layer": 3, "n_head": 4, "d_model": 40, "d_ff": 100, "seq_len": length, "dropout": 0, "norm_eps": 2e-5,
                 "init_from": '"imported"'}
        keys = {"optim.lr": lr, "optim.min_lr": lr, "optim.warmup_steps": 0, "optim.schedule": '"constant"', "optim.beta2": 0.95,
                "optim.weight_decay": 0.1, "optim.grad_clip": 1, "train.steps": steps, "train.global_batch": windows,
                "train.micro_batch": windows, "train.eval_interval": 0, "data.train": '["tokens/few.bin"]',
                "data.val_fraction": 0}
        if optimizer != "adamw":
            keys["optim.name"] = f'"{optimizer}"'
        self.train(*(f"model.{key}={value}" for key, value in sizes.items()), *(f"{key}={value}" for key, value in keys.items()))
        losses = [event["loss"] for event in self.events("step")]
        self.assertEqual(len(losses), steps)
        self.assertLess(expected[-1], 0.8 * expected[0])
        for step, (mine, theirs) in enumerate(zip(losses, expected), 1):
            self.assertLessEqual(abs(mine - theirs), 1e-4 * theirs, f"{optimizer}, step {step}: {mine}, PyTorch {theirs}")

    def test_training_follows_pytorch_with_adamw(self):
        self.check_training("adamw")

    def test_training_follows_pytorch_with_muon(self):
        self.check_training("muon")

    def check_tokenizer(self, folder, tokenizer, size):
        """Requires that AutoTokenizer encodes a text to the program's tokens, and decodes them to the text."""
        text = (ROOT / "data/austen.txt").read_text()[:300_000] + "\n\n\tnaïve  日本\r\n 🐈\x01 end"
        (self.folder / "long.txt").write_text(text, newline="")
        reported, = self.peer(["tokens", folder, "long.txt"])
        self.trainer("tokenize", "--input", "long.txt", "--output", "again", "--tokenizer", tokenizer)
        content = (self.folder / "again/tokens.bin").read_bytes()[1024:]
        ours = list(struct.unpack(f"<{len(content) // 2}H", content))
        self.assertEqual(ours.pop(), reported["eos"])
        self.assertEqual(reported["size"], size)
        self.assertEqual(ours, reported["ids"])

    def make_tokenizer(self, kind, folder, special, post, settings):
        """Writes the files of a tokenizer of this kind."""
        path = self.folder / folder
        path.mkdir(exist_ok=True)
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
        if kind == "sentencepiece":
            (path / "tokenizer.model").write_bytes((self.folder / "tokens/tokenizer.model").read_bytes())
            return
        self.peer(["tokenizer", folder, special, post])
        if kind == "ranks":  # as next to Llama 3's tokenizer.json
            (path / "tokenizer.model").write_text("IQ== 0\nIg== 1\n")
        elif kind == "pair":
            model = json.loads((path / "tokenizer.json").read_text())["model"]
            (path / "vocab.json").write_text(json.dumps(model["vocab"]))
            merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
            (path / "merges.txt").write_text("#version: 0.2\n" + merges)
            (path / "tokenizer.json").unlink()

    def test_special_tokens_come_back_as_they_were(self):
        """Names and ids of BOS, EOS and padding in all files, and the tokens that are added to a text: every kind of files with
        every third family."""
        said = "{{ bos_token }}{{ messages }}<|eot|>"
        llama3 = ["<|begin|>", "<|end_of_text|>", "<|eom|>", "<|eot|>"]
        qwen = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
        older = ["<s>", "</s>", "<pad>"]
        none = {"unk_token": None, "pad_token": None}  # the class of Qwen 2's tokenizer would add its own
        piece = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}
        no_bos = {"bos_token": None, "eos_token": qwen[2], "pad_token": qwen[0]}
        # kind, special tokens, post-processor, tokenizer_config.json, config.json, generation_config.json (None: no such file)
        cases = {
            "llama 3.1": ("json", llama3, "template", {**none, "bos_token": llama3[0], "eos_token": llama3[3],
                                                            "chat_template": said},
                          {"bos_token_id": 0, "eos_token_id": [1, 2, 3]}, {"bos_token_id": 0, "eos_token_id": [1, 2, 3]}),
            "ranks": ("ranks", llama3, "template", {**none, "bos_token": llama3[0], "eos_token": llama3[1]},
                      {"bos_token_id": 0, "eos_token_id": 1}, {"bos_token_id": 0, "eos_token_id": [1, 3]}),
            "qwen 2.5": ("json", qwen, "none", no_bos, {"bos_token_id": 0, "eos_token_id": 2}, {"eos_token_id": [2, 0], "pad_token_id": 0}),
            "no generation": ("json", qwen, "none", no_bos, {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 1}, None),
            "roberta": ("json", older, "roberta", {**none, "bos_token": older[0], "eos_token": older[1], "add_bos_token": False},
                        {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}, {"eos_token_id": 1}),
            "ignored settings": ("json", older, "none", {**none, "bos_token": older[0], "eos_token": older[1], "add_bos_token": True,
                                                         "add_eos_token": True}, {"bos_token_id": 0, "eos_token_id": 1}, None),
            "defaults": ("json", qwen, "template", {"tokenizer_class": "GPT2Tokenizer"}, {"bos_token_id": 0, "eos_token_id": 0}, None),
            "pair": ("pair", older, None, {"tokenizer_class": "GPT2Tokenizer", "bos_token": older[0], "eos_token": older[1],
                                           "unk_token": older[1], "pad_token": older[2], "add_bos_token": True, "add_eos_token": True},
                     {"bos_token_id": 0, "eos_token_id": 1}, None),
            "model": ("sentencepiece", None, None, piece, {"bos_token_id": 1, "eos_token_id": 2}, None),
            "model with bos": ("sentencepiece", None, None, {**piece, "add_bos_token": True}, {"bos_token_id": 1, "eos_token_id": 2},
                               None),
        }
        families = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3", "olmo2"]
        self.peer(*(["make", family, family, "float32"] for family in families))
        folders = []
        for number, family in enumerate(families):
            for kind_number, (case, (kind, special, post, settings, ids, generation)) in enumerate(cases.items()):
                if kind == "pair" and family in ("mistral", "olmo2"):
                    continue  # which AutoTokenizer loads from tokenizer.json only
                if not rig.SLOW and (number + kind_number) % 3 != 0:
                    continue
                folder = f"{family} {case}"
                path = self.folder / folder
                rig.shutil.copytree(self.folder / family, path)
                self.make_tokenizer(kind, folder, special, post, {"tokenizer_class": "PreTrainedTokenizerFast", **settings})
                config = json.loads((path / "config.json").read_text())
                config = {key: value for key, value in config.items() if not key.endswith("_token_id")}
                if family in ("smollm3", "olmo2"):  # which have defaults that these vocabularies lack
                    ids = {"pad_token_id": None, **ids}
                (path / "config.json").write_text(json.dumps({**config, **ids}))
                (path / "generation_config.json").unlink(missing_ok=True)
                if generation is not None:
                    (path / "generation_config.json").write_text(json.dumps(generation))
                self.trainer("checkpoint", "import", "--format", "hf", "--input", folder, "--output", f"{folder}-in")
                self.export(f"{folder}-in", f"{folder}-out")
                folders.append(folder)
        pairs = self.peer(*(["describe", each, "the house"] for folder in folders for each in (folder, f"{folder}-out")))
        for folder, before, after in zip(folders, pairs[::2], pairs[1::2], strict=True):
            with self.subTest(folder):
                self.assertEqual(before, after)

    def test_exported_tokenizers_begin_texts_as_their_runs_do(self):
        names = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
        expected = {}
        for post, adds in {"none": False, "template": True, "roberta": True}.items():
            self.make_tokenizer("json", post, ["<|begin|>", "<|end|>"], post, names)
            for choice, begins in {"auto": adds, "on": True, "off": False}.items():
                name = f"{post}-{choice}"
                self.train(f"run.dir={name}", 'data.train=["text.txt"]', f"data.tokenizer={post}", f"data.bos={choice}", "train.steps=1",
                           "optim.warmup_steps=0", *LLAMA)
                self.export(name, f"{name}-hf")
                expected[name] = begins
        described = self.peer(*(["describe", f"{name}-hf", "the house"] for name in expected))
        for (name, begins), result in zip(expected.items(), described, strict=True):
            with self.subTest(name):
                self.assertEqual(result["tokens"][0] == 0, begins)
                self.assertEqual(result["tokens"][-1] == 1, name.startswith("roberta"))
                self.assertEqual(result["names"][:2], ["<|begin|>", "<|end|>"])
                self.assertEqual(result["files"], [[0, 1, None]] * 2)

    def test_auto_tokenizer_loads_a_sentencepiece_model(self):
        self.train("train.steps=3")
        self.export("run", "hf")
        self.check_tokenizer("hf", "tokens/tokenizer.model", 320)

    def test_auto_tokenizer_loads_the_tokenizer_of_gpt2(self):
        gpt2 = ROOT / "data/gpt2"
        self.train('data.train=["text.txt"]', f"data.tokenizer={gpt2}", "train.steps=3")
        self.export("run", "hf")
        self.check_tokenizer("hf", gpt2, 50257)
        for name in ("tokenizer.json", "tokenizer_config.json"):  # the older pair of files is enough
            (self.folder / "hf" / name).unlink()
        (self.folder / "hf/tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
        self.check_tokenizer("hf", gpt2, 50257)


def read_moments(step):
    """Returns AdamW's first moments in a step folder as {name: [values]}."""
    manifest = json.loads((step / "manifest.json").read_text())
    shards = [(step / shard["name"]).read_bytes() for shard in manifest["shards"]]
    moments = {}
    for tensor in manifest["tensors"]:
        name, _, state = tensor["name"].partition("#")
        if state != "m":
            continue
        assert tensor["dtype"] == "fp64", tensor
        values = moments[name] = [None] * math.prod(tensor["shape"])
        for piece in tensor["pieces"]:
            at = piece["offset"]
            for first, length, stride, count in ((*run, 0, 1)[:4] for run in piece["runs"]):
                for start in range(first, first + stride * count if stride else first + 1, stride or 1):
                    values[start:start + length] = struct.unpack_from(f"<{length}d", shards[piece["shard"]], at)
                    at += 8 * length
    return moments


def gradient_of(name, shape, moments, post_norms):
    """Returns the values of a transformers tensor in its own order, put together from the moments."""
    if experts := re.match(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj$", name):  # [experts, out, in]
        parts = [moments.pop(f"blocks.{experts[1]}.mlp.experts.{part}.weight") for part in experts[2].split("_")]
        count, out, width = shape[0], shape[1] // len(parts), shape[2]
        return [part[(e * width + i) * out + o] for e in range(count) for part in parts for o in range(out) for i in range(width)]
    kind = "bias" if name.endswith(".bias") else "gain" if len(shape) == 1 else "weight"
    inner = re.sub(r"^(transformer|model|gpt_neox)\.", "", name).rpartition(".")[0]
    block, layer = "", re.match(r"(?:h|layers)\.(\d+)\.", inner)
    if layer:
        block, inner = f"blocks.{layer[1]}.", inner[layer.end():]
    norms = {"input_layernorm": "norm1", "post_attention_layernorm": "norm1" if post_norms else "norm2",
             "post_feedforward_layernorm": "norm2", "ln_1": "norm1", "ln_2": "norm2", "norm": "norm_f", "ln_f": "norm_f",
             "final_layer_norm": "norm_f"}
    linears = {"attn.c_attn": "attn.q attn.k attn.v", "attn.c_proj": "attn.o", "mlp.c_fc": "mlp.up", "mlp.c_proj": "mlp.down"}
    turned = {"attention.dense": "attn.o", "mlp.dense_h_to_4h": "mlp.up", "mlp.dense_4h_to_h": "mlp.down"}
    linears_of_experts = {"mlp.gate": "mlp.router", "mlp.shared_expert_gate": "mlp.shared_gate"}
    tables = {"embed_tokens": "wte", "wte": "wte", "wpe": "wpe", "lm_head": "head.weight", "embed_in": "wte", "embed_out": "head.weight"}
    if "pre_feedforward_layernorm" in inner or f"{block}norm1_post.gain" in moments or f"{block}norm2_post.gain" in moments:
        norms |= {"post_attention_layernorm": "norm1_post", "pre_feedforward_layernorm": "norm2",
                  "post_feedforward_layernorm": "norm2_post"}
    if inner in tables:
        return moments.pop(tables[inner])
    if inner == "attention.query_key_value":  # of 6 heads in turn
        parts = [moments.pop(f"{block}attn.{part}.{'bias' if len(shape) == 1 else 'weight'}") for part in "qkv"]
        size, width = shape[0] // 18, shape[1] if len(shape) == 2 else 1
        return [part[(i * 6 + head) * size + d] for head in range(6) for part in parts for d in range(size) for i in range(width)]
    ours = (norms.get(inner) or linears.get(inner) or turned.get(inner) or linears_of_experts.get(inner)
            or re.sub(r"^self_attn\.", "attn.", inner).replace("shared_expert.", "shared.").removesuffix("_proj"))
    parts = [moments.pop(f"{block}{part}.{kind}") for part in ours.split()]
    if kind != "weight":
        return sum(parts, [])
    if inner in linears:  # [in, out]
        rows, cols = shape[0], shape[1] // len(parts)
        return [value for row in range(rows) for part in parts for value in part[row * cols:(row + 1) * cols]]
    out, width = shape
    return [parts[0][i * out + o] for o in range(out) for i in range(width)]


def log_sum_exp(row):
    largest = max(row)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in row))


if __name__ == "__main__":
    if PYTHON is None:
        print("skipped: no Python with torch and transformers (TRAINER_TORCH_PYTHON, build/torch-python)")
        sys.exit(SKIPPED)
    rig.main()
