"""Models to and from Hugging Face's transformers, as far as that goes without it: `checkpoint export` and `import`."""
import hashlib
import json

import rig
import safetensors_reader as safetensors

LLAMA = ['model.arch="llama"', "model.n_head=4", "model.n_kv_head=2"]
# So small that no weight moves: the checkpoint has those that the run began with.
STILL = ["optim.lr=1e-30", "optim.min_lr=1e-30", "optim.warmup_steps=0", "train.steps=1"]
CHECKPOINT, USAGE, IO = 5, 2, 5


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
                    self.assertAlmostEqual(before[what], after[what], delta=1e-12 * before[what], msg=what)  # other groups
                text = [self.trainer("generate", "--checkpoint", checkpoint, "--prompt", "The", "--tokens", "12", "--seed",
                                     "3", stdout=True) for checkpoint in (name, f"{name}-back")]
                self.assertEqual(*text)

    def test_an_imported_model_starts_a_run(self):
        self.train("train.steps=4")
        self.export("run", "hf", "--dtype", "bf16")
        self.import_("hf", "back")
        loss = self.evaluate("back")["loss"]
        started = self.train("run.dir=next", "model.init_from=back", "train.steps=3", "model.dropout=0")
        self.assertIn("weights of back, fresh optimizer", started)
        self.assertLess(abs(self.events("step", "next")[0]["loss"] - loss), 0.3)
        self.train("run.dir=other", "model.init_from=back", "model.d_model=64", status=CHECKPOINT)

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

    def test_mistakes_are_told(self):
        self.train("train.steps=3")
        for args, status, part in [
                (["export", "--checkpoint", "run", "--output", "o"], USAGE, "needs --format hf"),
                (["export", "--format", "hf", "--checkpoint", "run"], USAGE, "needs --output DIR"),
                (["export", "--format", "gguf", "--checkpoint", "run", "--output", "o"], USAGE, "--format"),
                (["export", "--format", "hf", "--checkpoint", "run", "--output", "o", "--dtype", "int8"], USAGE, "--dtype"),
                (["export", "--format", "hf", "--checkpoint", "none", "--output", "o"], CHECKPOINT, "none"),
                (["export", "--format", "hf", "--checkpoint", "run", "--output", "tokens"], IO, "exists already"),
                (["import", "--format", "hf", "--output", "o"], USAGE, "needs --input DIR"),
                (["import", "--format", "hf", "--input", "tokens", "--output", "o"], CHECKPOINT, "config.json"),
                (["import", "--format", "hf", "--input", "x", "--checkpoint", "run", "--output", "o"], USAGE, "--checkpoint"),
                (["inspect", "--checkpoint", "run", "--format", "hf"], USAGE, "--format goes with"),
        ]:
            with self.subTest(" ".join(args)):
                self.assertIn(part, self.trainer("checkpoint", *args, status=status))
        self.assertFalse((self.folder / "o").exists())


if __name__ == "__main__":
    rig.main()
