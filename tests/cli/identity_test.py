#!/usr/bin/env python3
"""A checkpoint's data and tokenizer: evaluation and rejected starts change nothing, and no run resumes with different
data unless that is requested."""
import json
import pathlib
import shutil

import rig

TEXT = ["data.train=text.txt", "data.tokenizer=train", "data.vocab_size=320"]
OTHER_DATA = "checkpoint.allow_other_data=true"


class Identity(rig.Runs):
    def setUp(self):
        super().setUp()
        self.text = self.folder / "text.txt"

    def train_text(self, *sets, **options):
        return self.train(*TEXT, *sets, **options)

    def contents(self, run="run"):
        """Returns every file of the run with its bytes and modification time."""
        return {str(path.relative_to(self.folder)): (path.read_bytes(), path.stat().st_mtime_ns)
                for path in sorted((self.folder / run).rglob("*")) if path.is_file()}

    def grow(self):
        with self.text.open("a") as file:
            file.write("quite another zebra waltz jumps; " * 20 + "\n")

    def flip(self, path):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)

    def evaluate(self, *args, status=0):
        if status:
            return self.trainer("eval", *args, status=status)
        return json.loads(self.trainer("eval", "--json", *args, stdout=True))

    # --- evaluation

    def test_evaluation_writes_nothing_into_the_run(self):
        self.train_text(max_steps=4)
        before, names = self.contents(), set(self.folder.iterdir())
        first = self.evaluate("--checkpoint", "run")
        self.assertEqual(self.contents(), before)
        shutil.rmtree(self.folder / "run/tokens")
        before = self.contents()
        self.assertEqual(self.evaluate("--checkpoint", "run"), first)  # tokenizes the text again
        self.assertEqual(self.contents(), before)
        self.assertEqual(set(self.folder.iterdir()), names)

    def test_evaluation_rejects_a_text_that_changed(self):
        self.train_text(max_steps=4)
        before = self.contents()
        self.grow()
        stderr = self.evaluate("--checkpoint", "run", status=5)
        self.assertIn("text.txt: the validation data differs from that of checkpoint", stderr)
        self.assertIn("--data", stderr)
        self.assertEqual(self.contents(), before)
        self.evaluate("--checkpoint", "run", "--data", "text.txt")
        self.evaluate("--checkpoint", "run", "--set", OTHER_DATA)
        self.assertEqual(self.contents(), before)

    def test_evaluation_rejects_another_file_of_the_same_name(self):
        (self.folder / "val.txt").write_text(self.text.read_text()[:2000])
        sets = ["data.val=val.txt", "data.val_fraction=0"]
        self.train_text(*sets, max_steps=4)
        (self.folder / "val.txt").write_text(self.text.read_text()[2000:4500])
        stderr = self.evaluate("--checkpoint", "run", status=5)
        self.assertIn("val.txt: the validation data differs from that of checkpoint", stderr)
        # The run itself may resume with it, and warns.
        self.assertIn("changed since the checkpoint: the validation data", self.train_text(*sets, max_steps=1))
        self.evaluate("--checkpoint", "run")

    def test_a_moved_run_folder_brings_its_tokens(self):
        self.train_text(max_steps=4)
        first = self.evaluate("--checkpoint", "run")
        (self.folder / "run").rename(self.folder / "moved")
        self.text.unlink()
        again = self.evaluate("--checkpoint", "moved")
        self.assertEqual(first["loss"], again["loss"])

    def move(self, name):
        """Moves the whole project; relative paths stay valid."""
        moved = self.folder.with_name(self.folder.name + name)
        self.folder.rename(moved)
        self.folder, self.text = moved, moved / self.text.name
        self.addCleanup(shutil.rmtree, moved, ignore_errors=True)

    def test_a_moved_project_goes_on(self):
        """Checkpoints record the old paths; if those are missing, the run's own tokens or --config are used instead."""
        self.train_text("run.dir=whole")
        self.train_text(max_steps=4)
        first = self.evaluate("--checkpoint", "run")
        self.move("-1")
        self.assertEqual(first["loss"], self.evaluate("--checkpoint", "run")["loss"])
        self.assertIn("resumed step 4", self.train_text(max_steps=2))
        second = self.evaluate("--checkpoint", "run")
        self.move("-2")
        self.assertEqual(second["loss"], self.evaluate("--checkpoint", "run")["loss"])
        self.text.unlink()
        self.assertEqual(second["loss"], self.evaluate("--checkpoint", "run")["loss"])
        self.assertIn("resumed step 6", self.train_text())
        self.assert_same_run(8, "run", "whole")

    def test_a_moved_project_of_token_files_goes_on(self):
        self.train(max_steps=4)
        first = self.evaluate("--config", "config.toml")
        self.move("-1")
        self.assertIn("tokens/tokens.bin not found, but the checkpoint's configuration refers to it; give its current path with --data", self.evaluate("--checkpoint", "run", status=4))
        self.assertEqual(first["loss"], self.evaluate("--config", "config.toml")["loss"])
        self.assertIn("resumed step 4", self.train())

    # --- resuming

    def test_a_rejected_resume_leaves_the_tokens_as_they_were(self):
        self.train_text(max_steps=4)
        before = {name: both for name, both in self.contents().items() if not name.endswith("run.lock")}
        self.grow()
        stderr = self.train_text(status=5)
        self.assertIn("the training data differs from that of checkpoint run/checkpoints/step-00000004", stderr)
        after = {name: both for name, both in self.contents().items() if not name.endswith("run.lock")}
        self.assertEqual(after, before)
        self.assertFalse((self.folder / "run/tokens/next").exists())

    def test_other_data_that_are_requested_replace_the_tokens(self):
        self.train_text(max_steps=4)
        old = (self.folder / "run/tokens/train.bin").read_bytes()
        self.grow()
        stderr = self.train_text(OTHER_DATA)
        self.assertIn("warning: the training data differs from that of checkpoint", stderr)
        self.assertNotEqual((self.folder / "run/tokens/train.bin").read_bytes(), old)
        self.assertFalse((self.folder / "run/tokens/next").exists())
        self.evaluate("--checkpoint", "run")

    def test_a_run_keeps_the_tokenizer_of_its_checkpoint(self):
        self.train_text(max_steps=4)
        model = (self.step_folder(4) / "tokenizer.model").read_bytes()
        self.grow()
        self.train_text(OTHER_DATA)
        self.assertEqual((self.step_folder(8) / "tokenizer.model").read_bytes(), model)
        # A run in a different folder that resumes from it has its tokenizer, too.
        self.train_text(OTHER_DATA, "run.dir=elsewhere", resume="run/checkpoints/step-00000004")
        self.assertEqual((self.step_folder(8, "elsewhere") / "tokenizer.model").read_bytes(), model)

    def test_another_tokenizer_is_not_recommended(self):
        self.train_text(max_steps=4)
        self.grow()
        self.trainer("tokenize", "--input", "text.txt", "--output", "others", "--train-vocab", "320")
        stderr = self.train("data.train=text.txt", "data.tokenizer=others/tokenizer.model", status=5)
        self.assertIn("the tokenizer differs from the checkpoint's, whose embeddings belong to other tokens", stderr)
        self.assertIn('set data.tokenizer = "run/checkpoints/step-00000004/tokenizer.model"', stderr)

    def test_initial_weights_need_their_tokenizer(self):
        self.train_text(max_steps=4)
        self.grow()
        sets = ["run.dir=new", "model.init_from=run"]
        stderr = self.train_text(*sets, status=5)
        self.assertIn("the tokenizer differs from the checkpoint's", stderr)
        self.assertIn("run/checkpoints/step-00000004/tokenizer.model", stderr)
        self.train("data.train=text.txt", "data.tokenizer=run/checkpoints/step-00000004/tokenizer.model", *sets)
        self.assertIn("warning: the tokenizer differs", self.train_text(*sets, OTHER_DATA, resume="never"))

    def test_a_run_goes_on_without_the_weights_that_it_began_with(self):
        self.train("run.dir=first", max_steps=2)
        sets = ["model.init_from=first", "run.dir=second"]
        self.train(*sets, max_steps=2)
        shutil.rmtree(self.folder / "first")
        self.assertIn("resumed step 2", self.train(*sets))
        self.assertIn('checkpoint "first" not found', self.train(*sets, resume="never", status=5))

    def test_a_folder_has_one_tokenizer(self):
        gpt2 = pathlib.Path(__file__).resolve().parents[2] / "data/gpt2"
        self.trainer("tokenize", "--input", "text.txt", "--output", "both", "--tokenizer", "tokens")
        stderr = self.trainer("tokenize", "--input", "text.txt", "--output", "both", "--tokenizer", str(gpt2), status=4)
        self.assertIn("both: contains tokenizer.model, a different kind of tokenizer", stderr)
        for tokenizer, kept in ("tokens", "tokenizer.model"), (str(gpt2), "tokenizer.json"):
            self.train("data.train=text.txt", f"data.tokenizer={tokenizer}", resume="never", max_steps=1)
            self.assertEqual([path.name for path in (self.folder / "run").glob("tokenizer.*")], [kept])

    def test_another_model_is_rejected_before_its_data_are_tokenized(self):
        self.train_text(max_steps=4)
        before = (self.folder / "run/tokens/tokenizer.json").read_bytes()
        self.assertIn("vocab_size: 320 in the checkpoint, the run has 330", self.train_text("data.vocab_size=330", status=5))
        self.assertEqual((self.folder / "run/tokens/tokenizer.json").read_bytes(), before)

    # --- cached tokens

    def test_a_flipped_bit_in_the_tokens_is_noticed_and_mended(self):
        self.train_text("run.dir=whole")
        self.train_text(max_steps=4)
        for name in ("train.bin", "train.docs", "tokenizer.model"):
            path = self.folder / "run/tokens" / name
            whole = path.read_bytes()
            self.flip(path)
            if name != "tokenizer.model":  # a resumed run takes the checkpoint's
                self.assertRegex(self.train_text(max_steps=1), f"{name}: .*checksum differs")
                self.assertEqual(path.read_bytes(), whole)
        self.flip(self.folder / "run/tokens/train.bin")
        self.evaluate("--checkpoint", "run")
        self.text.unlink()
        self.assertIn("checksum differs", self.train_text(status=4))
        self.assertIn("text.txt not found", self.evaluate("--checkpoint", "run", status=4))

    def test_damaged_token_files_of_the_user_are_rejected(self):
        self.flip(self.folder / "tokens/tokens.bin")
        self.assertRegex(self.train(status=4), "tokens/tokens.bin: .*checksum differs")

    def test_a_run_goes_on_without_its_text(self):
        self.train_text("run.dir=whole")
        self.train_text(max_steps=4)
        self.text.unlink()
        stderr = self.train_text()
        self.assertIn("warning: text.txt not found; its tokens in run/tokens/train.bin are complete", stderr)
        self.assert_same_run(8, "run", "whole")
        self.train_text(resume="never")
        self.assert_same_run(8, "run", "whole")
        self.assertIn("not found", self.train_text("run.dir=new", status=4))

    def test_a_run_goes_on_without_the_text_of_its_glob(self):
        (self.folder / "part-1.txt").write_text(self.text.read_text()[:20000])
        (self.folder / "part-2.txt").write_text(self.text.read_text()[20000:] + "more\n")
        sets = ["data.train=part-*.txt"]
        self.train_text("run.dir=whole", *sets)
        self.train_text(*sets, max_steps=4)
        for part in self.folder.glob("part-*.txt"):
            part.unlink()
        self.assertIn("not found; its tokens in", self.train_text(*sets))
        self.assert_same_run(8, "run", "whole")

    def test_a_lost_cache_is_made_again_from_the_same_text(self):
        self.train_text("run.dir=whole")
        self.train_text(max_steps=4)
        shutil.rmtree(self.folder / "run/tokens")
        self.train_text()
        self.assert_same_run(8, "run", "whole")


if __name__ == "__main__":
    rig.main()
