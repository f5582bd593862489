"""`checkpoint export` and `import` of models in Hugging Face's format, as far as testable without transformers."""
import hashlib
import json
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tomllib

import rig
import safetensors_reader as safetensors

LLAMA = ['model.arch="llama"', "model.n_head=4", "model.n_kv_head=2"]
# Learning rates so small that no weight changes: the checkpoint has the initial weights.
STILL = ["optim.lr=1e-30", "optim.min_lr=1e-30", "optim.warmup_steps=0", "train.steps=1"]
CHECKPOINT, USAGE, IO, DATA = 5, 2, 5, 4
# Runs a command and prints its peak memory. It must be a small process, as a child's peak starts at its parent's
# memory.
PEAK = """import os, sys
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)
print(usage.ru_maxrss * 1024)
sys.exit(os.waitstatus_to_exitcode(status))"""


class HuggingFace(rig.Runs):
    def export(self, run, output, *options, status=0):
        return self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", run, "--output", output, *options,
                            status=status)

    def import_(self, folder, output, status=0):
        return self.trainer("checkpoint", "import", "--format", "hf", "--input", folder, "--output", output,
                            status=status)

    def files(self, folder):
        return {path.name: path.read_bytes() for path in (self.folder / folder).iterdir()}

    def evaluate(self, checkpoint, *data):
        return json.loads(self.trainer("eval", "--checkpoint", checkpoint, "--data", "tokens/tokens.bin",
                                       "--json", stdout=True))

    def test_a_model_comes_back_as_it_went(self):
        for name, sets in {"gpt2": [], "tied": ["model.tie_embeddings=true", *LLAMA], "llama": LLAMA}.items():
            with self.subTest(name):
                self.train(f"run.dir={name}", "train.steps=3", *sets)
                self.export(name, f"{name}-hf")
                config = json.loads((self.folder / f"{name}-hf/config.json").read_text())
                self.assertEqual(config["vocab_size"], 320)
                self.assertEqual(config["eos_token_id"], 2)
                self.import_(f"{name}-hf", f"{name}-back")
                self.assert_whole(f"{name}-back")
                self.export(f"{name}-back", f"{name}-again")
                self.assertEqual(self.files(f"{name}-hf"), self.files(f"{name}-again"))
                before, after = self.evaluate(name), self.evaluate(f"{name}-back")
                for what in ("loss", "perplexity", "bits_per_byte", "tokens"):
                    # Sums are grouped differently.
                    self.assertAlmostEqual(before[what], after[what], delta=1e-12 * before[what], msg=what)
                text = [self.trainer("generate", "--checkpoint", checkpoint, "--prompt", "The", "--tokens", "12", "--seed",
                                     "3", stdout=True) for checkpoint in (name, f"{name}-back")]
                self.assertEqual(*text)

    def test_an_imported_model_starts_a_run(self):
        self.train("train.steps=4")
        self.export("run", "hf", "--dtype", "bf16")
        self.import_("hf", "back")
        loss = self.evaluate("back")["loss"]
        started = self.train("run.dir=next", "model.init_from=back", "train.steps=3", "model.dropout=0")
        self.assertIn("weights of back, new optimizer state", started)
        self.assertLess(abs(self.events("step", "next")[0]["loss"] - loss), 0.3)
        # One message names all keys that differ, and the tokenizer; a run with those settings starts.
        other = ["run.dir=other", "model.init_from=back", "train.steps=3", "model.dropout=0", "model.d_model=64", "model.n_layer=1",
                 "model.n_head=4", "model.seq_len=16", "data.tokenizer=train", "data.vocab_size=300",
                 'data.train=["text.txt"]']
        stderr = self.train(*other, status=CHECKPOINT)
        remedy = re.search(r"Set the same keys: --set (.*)", stderr).group(1).split()
        keys = {"d_ff": 128, "d_model": 32, "n_head": 2, "n_kv_head": 2, "n_layer": 2, "seq_len": 32}
        tokenizer = f"data.tokenizer={next((self.folder / 'back').rglob('tokenizer.*')).relative_to(self.folder)}"
        self.assertEqual(remedy, [f"model.{key}={value}" for key, value in keys.items()] + [tokenizer, "data.vocab_size=320"])
        self.assertIn("weights of back, new optimizer state", self.train(*other, *remedy))

    def test_a_run_starts_from_the_files_themselves(self):
        self.train("train.steps=4", *LLAMA, "model.rope_type=llama3", "model.rope_factor=4", "model.rope_original=64",
                   "model.tie_embeddings=true")
        self.export("run", "hf")
        self.import_("hf", "back")
        config = (self.folder / "config.toml").read_text()
        (self.folder / "bare.toml").write_text(re.sub(r"(?ms)^\[model\]\n.*?(?=^\[)", '[model]\ninit_from = "hf"\n', config))
        shown = self.trainer("config", "show", "--config", "bare.toml", stdout=True)
        self.assertRegex(shown, r'rope_type += "llama3" +# hf\n')
        def run(steps):
            return self.trainer("--config", "bare.toml", "--set", "run.dir=next", "--set", f"train.steps={steps}")
        self.assertIn("weights of hf, new optimizer state", run(3))
        self.assertLess(abs(self.events("step", "next")[0]["loss"] - self.evaluate("back")["loss"]), 0.3)
        self.assertFalse((self.folder / "next/imported").exists())
        self.assertIn("resumed step 3", run(4))
        (self.folder / "hf").rename(self.folder / "gone")
        self.assertIn("resumed step 4", run(5))
        shutil.rmtree(self.folder / "next/checkpoints/step-00000005")  # a user goes back to an earlier step
        self.assertIn("resumed step 4", run(5))
        stderr = self.trainer("--config", "bare.toml", "--set", "run.dir=other", status=CHECKPOINT)
        self.assertIn('model.init_from: checkpoint "hf" not found; expected a checkpoint or a Hugging Face folder', stderr)
        (self.folder / "gone").rename(self.folder / "hf")
        self.export("next", "again")
        before, after = (json.loads((self.folder / name / "config.json").read_text()) for name in ("hf", "again"))
        self.assertEqual(before, after)
        before["rope_scaling"] = {"rope_type": "longrope"}
        (self.folder / "hf/config.json").write_text(json.dumps(before))
        stderr = self.trainer("--config", "bare.toml", "--set", "run.dir=other", status=CHECKPOINT)
        self.assertIn('hf/config.json: rope_scaling: "longrope" is not supported', stderr)
        self.assertFalse((self.folder / "other").exists())

    def test_inspection_prints_the_configuration_of_an_imported_model(self):
        self.train(*LLAMA, "train.steps=4", "model.tie_embeddings=true")
        self.export("run", "hf")
        self.import_("hf", "back")
        shown = self.trainer("checkpoint", "inspect", "--checkpoint", "back", stdout=True)
        block = tomllib.loads(shown[shown.index("[model]\n"):shown.index("tensors (")])
        self.assertEqual((block["model"]["arch"], block["model"]["n_kv_head"], block["data"]["vocab_size"]), ("llama", 2, 320))
        self.assertIs(block["model"]["tie_embeddings"], True)
        values = [f"{section}.{key}={json.dumps(value)}" for section, keys in block.items() for key, value in keys.items()]
        self.train("run.dir=next", "model.init_from=back", "train.steps=4", *values)

    def test_weights_are_rejected_where_they_mean_something_else(self):
        """Tests keys that do not affect any tensor's shape."""
        self.train("run.dir=llama", "model.rope_theta=500000", *LLAMA, max_steps=1)
        start = ["model.init_from=llama", "train.steps=1", "optim.warmup_steps=0", *LLAMA]
        stderr = self.train("run.dir=a", *start, status=CHECKPOINT)
        self.assertIn("rope_theta: 500000 in the checkpoint, the run has 10000", stderr)
        self.assertIn("--set model.rope_theta=500000\n", stderr)
        self.assertIn("weights of", self.train("run.dir=b", *start, "model.rope_theta=500000"))
        # A different rope_theta on the command line is deliberate, for example for a longer context.
        stderr = self.train("run.dir=c", *start, "model.rope_theta=1e6")
        self.assertIn("rope_theta: 500000 in the checkpoint, the run has 1000000", stderr)
        stderr = self.train("run.dir=d", *start, "model.rope_theta=500000", "model.n_head=2", "model.n_kv_head=1",
                            status=CHECKPOINT)
        self.assertIn("n_head: 4 in the checkpoint, the run has 2", stderr)

    def test_experts_begin_as_copies_of_a_dense_mlp(self):
        dense = [*LLAMA, "model.d_ff=48"]
        self.train("run.dir=dense", "train.steps=3", *dense)
        self.export("dense", "dense-hf")
        start = ["train.steps=1", "optim.warmup_steps=0"]
        experts = ["model.arch=mixtral", *LLAMA[1:], "model.n_expert=4", "model.d_expert=48"]
        self.train("run.dir=next", "model.init_from=dense", *start, *dense)
        expected, = (event["loss"] for event in self.events("step", "next"))
        for source in ("dense", "dense-hf"):
            run = f"{source}-experts"
            stderr = self.train(f"run.dir={run}", f"model.init_from={source}", *start, *experts)
            self.assertIn("experts copied from its MLPs, new routers", stderr)
            loss, = (event["loss"] for event in self.events("step", run))
            self.assertAlmostEqual(loss, expected, delta=1e-5 * expected)
        for sets, part in ((["model.norm_topk=false"], "norm_topk: false in the run"),
                           (["model.d_expert=24"], "d_expert: 24 in the run")):
            stderr = self.train("run.dir=no", "model.init_from=dense", *start, *experts, *sets, status=CHECKPOINT)
            self.assertIn(part, stderr)

    def test_every_layout_exports_the_bytes_of_one_rank(self):
        layouts = {"tensor": ["parallel.tensor=2"], "zero": ["parallel.data=2", "parallel.zero_stage=1"],
                   "grid": ['parallel.strategy="axonn-4d"', "parallel.grid=[2,1,2]"],
                   "square": ['parallel.strategy="optimus-2d"', "parallel.mesh=[2,2]"]}
        for family, sets in {"gpt2": [], "llama": LLAMA}.items():
            self.train(f"run.dir={family}", "train.steps=4", *sets)
            self.export(family, f"{family}-hf")
            expected = self.files(f"{family}-hf")
            for name, layout in layouts.items():
                with self.subTest(f"{family} {name}"):
                    run = f"{family}-{name}"
                    self.train(f"run.dir={run}", f"model.init_from={family}", "parallel.transport=threads", *layout, *STILL,
                               *sets)
                    shards = len(list(self.step_folder(1, run).glob("*.shard")))
                    self.assertGreater(shards, 1)
                    self.export(run, f"{run}-hf")
                    got = self.files(f"{run}-hf")
                    for file, content in expected.items():
                        self.assertEqual(hashlib.sha256(got[file]).hexdigest(), hashlib.sha256(content).hexdigest(), file)

    def test_weights_are_where_hugging_face_looks_for_them(self):
        self.train("run.dir=llama", "train.steps=3", *LLAMA)
        self.export("llama", "hf", "--shard-bytes", "40000")
        tensors = safetensors.read(self.folder / "hf")
        index = json.loads((self.folder / "hf/model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), set(tensors))
        self.assertEqual(tensors["model.layers.1.self_attn.v_proj.weight"][1], [16, 32])
        self.assertEqual(tensors["model.layers.0.mlp.down_proj.weight"][1], [32, 128])
        step = self.step_folder(3, "llama")
        manifest = json.loads((step / "manifest.json").read_text())
        shard = (step / manifest["shards"][0]["name"]).read_bytes()
        value = next(each for each in manifest["tensors"] if each["name"] == "blocks.1.attn.v.weight")
        begin = value["pieces"][0]["offset"]
        ours = safetensors.floats(("F32", [32, 16], shard[begin:begin + 4 * 32 * 16]))
        theirs = safetensors.floats(tensors["model.layers.1.self_attn.v_proj.weight"])
        self.assertEqual([ours[i * 16 + o] for o in range(16) for i in range(32)], list(theirs))

    def test_a_tokenizer_that_transformers_would_replace_is_reported(self):
        self.train("train.steps=3", "model.arch=qwen2", "run.dir=qwen2")
        self.assertIn("PreTrainedTokenizerFast.from_pretrained", self.export("qwen2", "qwen2-hf"))
        self.train("train.steps=3", *LLAMA)
        self.assertNotIn("AutoTokenizer", self.export("run", "llama-hf"))

    # --- memory

    def peak(self, *args):
        """Returns the peak memory of a `checkpoint` command in bytes."""
        result = subprocess.run([sys.executable, "-I", "-S", "-c", PEAK, rig.TRAINER, "checkpoint", *args], cwd=self.folder,
                                capture_output=True, text=True, timeout=rig.TIMEOUT_SECONDS)
        self.assertEqual(result.returncode, 0, result.stderr)
        return int(result.stdout.splitlines()[-1])

    def widen(self, small, wide, sizes, layers):
        """Writes a model of zeros like the one in the folder `small`, with other sizes and this number of layers; returns the
        bytes of all tensors, and of the largest one."""
        wide.mkdir()
        tensors = {}
        for name, (_, shape, _) in safetensors.read(small).items():
            for layer in range(layers if ".layers.0." in name else 1):
                if ".layers.1." not in name:
                    tensors[name.replace(".0.", f".{layer}.")] = [sizes.get(size, size) for size in shape]
        header, end = {}, 0
        for name, shape in tensors.items():
            begin, end = end, end + 4 * math.prod(shape)
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        with open(wide / "model.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
        config = json.loads((small / "config.json").read_text())
        for key, value in config.items():
            if key in ("hidden_size", "intermediate_size"):
                config[key] = sizes[value]
        config.pop("head_dim", None)
        (wide / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
        return end, max(4 * math.prod(shape) for shape in tensors.values())

    @rig.counts_memory
    def test_memory_is_that_of_the_largest_tensor(self):
        self.train("model.n_layer=1", *STILL, *LLAMA)
        self.export("run", "small")
        whole, largest = self.widen(self.folder / "small", self.folder / "wide", {32: 256, 16: 128, 128: 4096}, 8)
        self.assertGreater(whole, 20 * largest)
        base = self.peak("import", "--format", "hf", "--input", "small", "--output", "small-back")
        taken = self.peak("import", "--format", "hf", "--input", "wide", "--output", "wide-back") - base
        # The largest tensor, and the chunks in which it is converted, checked and written.
        most = largest + (6 << 20)
        self.assertLess(taken, most, "import")
        for dtype in ("fp32", "bf16"):
            base = self.peak("export", "--format", "hf", "--checkpoint", "small-back", "--output", f"small-{dtype}", "--dtype", dtype)
            taken = self.peak("export", "--format", "hf", "--checkpoint", "wide-back", "--output", f"wide-{dtype}", "--dtype",
                              dtype) - base
            self.assertLess(taken, most, f"export to {dtype}")

    # --- mistakes

    def test_damaged_files_are_rejected(self):
        self.train(*STILL)
        self.export("run", "whole", "--shard-bytes", "40000")
        # The very first file contains only the embedding.
        first = sorted((self.folder / "whole").glob("*.safetensors"))[1].name
        content = (self.folder / "whole" / first).read_bytes()
        length, = struct.unpack("<Q", content[:8])
        header, data = json.loads(content[8:8 + length]), content[8 + length:]
        names = [name for name in header if name != "__metadata__"]

        def with_header(change):
            changed = json.loads(json.dumps(header))
            change(changed)
            text = json.dumps(changed).encode()
            return struct.pack("<Q", len(text)) + text + data

        def overlap(head):
            head[names[1]]["data_offsets"] = [offset - 4 for offset in head[names[1]]["data_offsets"]]

        index = json.loads((self.folder / "whole/model.safetensors.index.json").read_text())
        itself = {**index, "weight_map": dict.fromkeys(index["weight_map"], "model.safetensors.index.json")}
        other = {**index, "weight_map": {**index["weight_map"], names[0]: sorted(set(index["weight_map"].values()))[-1]}}
        tokenizer = (self.folder / "whole/tokenizer.model").read_bytes()
        pad = {**json.loads((self.folder / "whole/config.json").read_text()), "pad_token_id": 320}
        for name, file, damaged, status, part in [
                ("truncated", first, content[:-100], CHECKPOINT, "truncated"),
                ("cut in the header", first, content[:length // 2], CHECKPOINT, "truncated"),
                ("too long", first, content + b"1234", CHECKPOINT, "too long"),
                ("empty", first, b"", CHECKPOINT, "0 bytes"),
                ("huge header", first, struct.pack("<Q", 1 << 62) + content[8:], CHECKPOINT, "its header would have"),
                ("overlap", first, with_header(overlap), CHECKPOINT, "overlap"),
                ("dtype", first, with_header(lambda head: head[names[0]].update(dtype="Q8")), CHECKPOINT, "unknown element type"),
                ("integers", first, with_header(lambda head: head[names[0]].update(dtype="I32")), CHECKPOINT,
                 "elements of type I32, expected F32"),
                ("shape", first, with_header(lambda head: head[names[0]].update(shape=[1 << 40, 1 << 40])), CHECKPOINT, "its shape"),
                ("nesting", first, struct.pack("<Q", 100_000) + b"[" * 100_000, CHECKPOINT, "nested too deeply"),
                ("index of itself", "model.safetensors.index.json", json.dumps(itself).encode(), CHECKPOINT,
                 "is not the name of a safetensors file"),
                ("index of others", "model.safetensors.index.json", json.dumps(other).encode(), CHECKPOINT, "missing from this file"),
                ("index cut", "model.safetensors.index.json", json.dumps(index)[:-9].encode(), CHECKPOINT, "weight_map"),
                ("config nested", "config.json", b'{"model_type": ' + b"[" * 400_000 + b"]" * 400_000 + b"}", CHECKPOINT, "not valid JSON, or values are nested"),
                ("ids nested", "generation_config.json", b'{"eos_token_id": ' + b"[" * 400_000 + b"]" * 400_000 + b"}", DATA,
                 "not valid JSON, or values are nested"),
                ("config cut", "config.json", b'{"model_type": "gpt2"', CHECKPOINT, "config.json"),
                ("padding outside", "config.json", json.dumps(pad).encode(), DATA,
                 "pad_token_id: 320, expected the id of a token, which is between 0 and 319"),
                ("eos outside", "generation_config.json", b'{"eos_token_id": [2, 320]}', DATA, "eos_token_id: 320"),
                ("tokenizer cut", "tokenizer.model", tokenizer[:-50], DATA, "tokenizer.model"),
                ("no tokenizer", "tokenizer.model", b"\x00" * 1000, DATA, "tokenizer.model")]:
            with self.subTest(name):
                folder = self.folder / name
                rig.shutil.copytree(self.folder / "whole", folder)
                (folder / file).write_bytes(damaged)
                reported = self.import_(name, "o", status=status)
                self.assertIn(part, reported)
                self.assertIn(file, reported)
        (self.folder / "whole" / first).unlink()
        os.symlink(first, self.folder / "whole" / first)
        self.assertIn(first, self.import_("whole", "o", status=IO))
        self.assertFalse((self.folder / "o").exists())

    def test_mistakes_are_reported(self):
        self.train("train.steps=3")
        for args, status, part in [
                (["export", "--checkpoint", "run", "--output", "o"], USAGE, "--format is required"),
                (["export", "--format", "hf", "--checkpoint", "run"], USAGE, "--output is required"),
                (["export", "--format", "onnx", "--checkpoint", "run", "--output", "o"], USAGE, "--format"),
                (["export", "--format", "hf", "--checkpoint", "run", "--output", "o", "--dtype", "int8"], USAGE, "--dtype"),
                (["export", "--format", "hf", "--checkpoint", "none", "--output", "o"], CHECKPOINT, "none"),
                (["export", "--format", "hf", "--checkpoint", "run", "--output", "tokens"], IO, "already exists"),
                (["import", "--format", "hf", "--output", "o"], USAGE, "--input is required"),
                (["import", "--format", "hf", "--input", "tokens", "--output", "o"], CHECKPOINT, "config.json"),
                (["import", "--format", "hf", "--input", "x", "--checkpoint", "run", "--output", "o"], USAGE, "--checkpoint"),
                (["inspect", "--checkpoint", "run", "--format", "hf"], USAGE, "--format is an option of"),
        ]:
            with self.subTest(" ".join(args)):
                self.assertIn(part, self.trainer("checkpoint", *args, status=status))
        self.assertFalse((self.folder / "o").exists())


if __name__ == "__main__":
    rig.main()
