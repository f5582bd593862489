#!/usr/bin/env python3
"""Muon through the program: runs that are interrupted, killed, on a full disk or have spikes, and every verb that reads
them."""
import collections
import json
import math
import os
import pathlib
import shutil
import signal
import struct

import rig

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAPTOP = ROOT / "configs/clusters/laptop-2core.toml"
MUON = ["optim.name=muon", "optim.lr=1e-2"]
TWO = ["parallel.data=2", "run.threads=1"]


def token_file(tokens):
    """Returns a token file in llm.c's format, with the vocabulary size in the header."""
    return struct.pack("<256i", 20240520, 1, len(tokens), 0, 320, *[0] * 251) + struct.pack(f"<{len(tokens)}H", *tokens)


class Muon(rig.Runs):
    def manifest(self, step, run="run"):
        return json.loads((self.step_folder(step, run) / "manifest.json").read_text())

    # --- training

    def test_two_hundred_steps_learn_more_than_pairs_of_tokens(self):
        """Trains on the bytes of the quick start's text. No bigram table has a loss below the conditional entropy."""
        text = (ROOT / "data/austen.txt").read_bytes()[:300000]
        (self.folder / "bytes.bin").write_bytes(token_file(text))
        pairs, firsts = collections.Counter(zip(text, text[1:])), collections.Counter(text[:-1])
        entropy = -sum(n * math.log(n / firsts[pair[0]]) for pair, n in pairs.items()) / (len(text) - 1)
        config = self.folder / "config.toml"
        config.write_text(config.read_text().replace('tokenizer = "tokens/tokenizer.model"\n', ""))
        self.train(*MUON, 'data.train=["bytes.bin"]', "model.d_model=64", "model.n_head=4", "model.dropout=0", "train.steps=200",
                   "train.global_batch=16", "train.micro_batch=16", "train.eval_interval=200", "train.eval_batches=0",
                   "optim.lr=2e-2", "optim.warmup_steps=20", "optim.grad_clip=1")
        loss = self.events("eval")[-1]["loss"]
        self.assertLess(loss, entropy - 0.2)
        self.assertGreater(loss, 1.5, "lower than 200 steps can explain")

    # --- interruptions

    def test_a_killed_run_resumes_with_the_bits_of_one_that_was_not(self):
        for transport, sets in (("threads", ["parallel.zero_stage=1"]), ("mpi", ["parallel.zero_stage=0"])):
            with self.subTest(transport):
                if transport == "mpi" and shutil.which("mpirun") is None:
                    continue
                sets = [*MUON, *TWO, *sets, "train.steps=100000", "train.eval_interval=0", "checkpoint.interval=2",
                        *(["parallel.transport=threads"] if transport == "threads" else [])]
                self.launcher = [*rig.MPIRUN, "-np", "2"] if transport == "mpi" else []
                process = self.start_train(*sets)
                self.wait_until(lambda: self.last_step() >= 5, process, "five steps")
                for victim in rig.children(process.pid) if self.launcher else [process.pid]:
                    os.kill(victim, signal.SIGKILL)
                process.communicate(timeout=rig.TIMEOUT_SECONDS)
                self.train(*sets, max_steps=2)
                step = self.saved_steps()[-1]
                self.train("run.dir=whole", *sets, max_steps=step)
                self.assert_same_run(step, "run", "whole")
                self.launcher = []
                for run in ("run", "whole"):
                    shutil.rmtree(self.folder / run)

    def test_a_signal_saves_what_the_run_resumes(self):
        sets = [*MUON, *TWO, "parallel.transport=threads", "train.steps=100000", "train.eval_interval=0"]
        process = self.start_train(*sets)
        self.wait_until(lambda: self.last_step() >= 3, process, "three steps")
        self.stop(process)
        last = self.last_step()
        self.assertEqual(self.saved_steps(), [last])
        self.assertIn(f"resumed step {last} ", self.train(*sets, max_steps=2))
        self.train("run.dir=whole", *sets, max_steps=last + 2)
        self.assert_same_run(last + 2, "run", "whole")

    def test_a_save_on_a_full_disk_keeps_the_run_and_its_checkpoints(self):
        self.train(*MUON, "run.dir=whole")
        largest = max(path.stat().st_size for path in self.step_folder(8, "whole").glob("*.shard"))
        self.train(*MUON, max_steps=3)
        self.assertIn("File too large", self.train(*MUON, status=5, file_bytes=largest // 2))
        self.assertEqual(self.saved_steps(), [3])
        self.assert_whole(*self.step_folders())
        self.assertIn("resumed step 3", self.train(*MUON))
        self.assert_same_run(8, "run", "whole")

    # --- spikes

    def test_every_rank_skips_a_spike_and_the_history_survives_a_resume(self):
        """After a hundred steps of a pattern that the run has learned, one step has tokens that it has never seen."""
        (self.folder / "easy.bin").write_bytes(token_file([7, 11] * 3000))
        (self.folder / "hard.bin").write_bytes(token_file([(j * j + 5 * j) % 313 for j in range(6000)]))
        config = self.folder / "config.toml"
        text = config.read_text().replace('train = ["tokens/tokens.bin"]\ntokenizer = "tokens/tokenizer.model"\n', "")
        source = '[[data.source]]\nname = "{0}"\nfiles = ["{0}.bin"]\nweight = {1}\n'
        phase = "[[data.phase]]\nfrom_tokens = {0}\nweights = {{ {1} = 1 }}\n"
        config.write_text(text.replace("val_fraction = 0.1", "val_fraction = 0") + source.format("easy", 1) +
                          source.format("hard", 0) + phase.format(100 * 128, "hard") + phase.format(101 * 128, "easy"))
        for name, sets in (("muon", MUON), ("adamw", ["optim.lr=1e-2"])):
            with self.subTest(name):
                sets = [*sets, *TWO, "train.steps=104", "train.skip_sigma=6", "train.skip_window=64",
                        "debug.check_replicas_every=1", "model.dropout=0"]
                stderr = self.train_on(2, f"run.dir={name}-whole", *sets)
                self.assertRegex(stderr, "step 101: the loss .* exceeds .*train.skip_sigma = 6 ")
                self.train_on(2, f"run.dir={name}", *sets, max_steps=100)
                history = self.manifest(100, name)["state"]["history"]
                self.assertEqual((len(history["losses"]), len(history["norms"])), (64, 64))
                for step in (101, 104):  # the history that detects the spike comes from the checkpoint
                    self.train_on(2, f"run.dir={name}", *sets, max_steps=1 if step == 101 else 10)
                self.assert_same_run(104, name, f"{name}-whole")
                self.assertEqual([event["step"] for event in self.events("step", name) if event["skipped"]], [101])
                unprotected = self.train_on(2, f"run.dir={name}-off", *sets, "train.skip_sigma=0", max_steps=101)
                self.assertNotIn("skipped", unprotected)

    # --- ranks

    def test_owners_transports_and_channels_change_no_bit(self):
        common = [*MUON, "parallel.tensor=2", "parallel.data=2", "run.threads=1"]
        self.train_on(4, "run.dir=plain", *common)
        for name, transport, sets in (("mpi", "mpi", []), ("replica", "threads", ["muon.owners=replica"]),
                                      ("zero", "mpi", ["parallel.zero_stage=1", "parallel.lanes=1"]),
                                      ("late", "threads", ['debug.inject=["delay:0.002"]', "parallel.lanes=1"]),
                                      ("blocking", "threads", ["debug.overlap=false"])):
            self.train_on(4, f"run.dir={name}", *common, *sets, transport=transport)
            self.assert_same_run(8, name, "plain")

    def test_zero_divides_the_state_over_depth(self):
        depth = [*MUON, "parallel.strategy=optimus-2d", "parallel.mesh=[1, 1, 2]", "run.threads=1"]
        self.train_on(2, "run.dir=plain", *depth)
        self.train_on(2, "run.dir=zero", *depth, "parallel.zero_stage=1")
        self.assert_same_run(8, "zero", "plain")

    def test_ranks_with_different_instruction_sets_use_the_lowest(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        second = 'test $OMPI_COMM_WORLD_RANK = 0 || export TRAINER_ISA=plain; exec "$0" "$@"'
        self.launcher = [*rig.MPIRUN, "-np", "2", "sh", "-c", second]
        stderr = self.train("run.dir=mixed", *MUON, *TWO, max_steps=2)
        self.assertEqual(stderr.count("all ranks use plain"), 1, stderr)
        self.launcher = [*rig.MPIRUN, "-np", "2", "sh", "-c", 'export TRAINER_ISA=plain; exec "$0" "$@"']
        self.train("run.dir=alike", *MUON, *TWO, max_steps=2)
        self.assertEqual(self.events("step", "mixed")[-1]["loss"], self.events("step", "alike")[-1]["loss"])

    def test_ranks_that_disagree_about_muon_do_not_start(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        second = 'test $OMPI_COMM_WORLD_RANK = 0 && exec "$0" "$@"; exec "$0" "$@" --set muon.steps=4'
        self.launcher = [*rig.MPIRUN, "-np", "2", "sh", "-c", second]
        self.assertIn("muon.steps", self.train(*MUON, *TWO, status=2))

    # --- verbs

    def test_every_verb_serves_a_checkpoint_of_muon(self):
        self.train(*MUON)
        self.assertEqual(self.manifest(8)["optimizer"], "muon")
        shown = self.trainer("checkpoint", "inspect", "--checkpoint", "run", stdout=True)
        self.assertRegex(shown, "optimizer +muon")
        document = json.loads(self.trainer("checkpoint", "inspect", "--checkpoint", "run", "--json", stdout=True))
        self.assertEqual(document["optimizer"], "muon")
        names = {tensor["name"] for tensor in document["tensors"]}
        self.assertIn("blocks.0.attn.q.weight#momentum", names)
        self.assertNotIn("blocks.0.attn.q.weight#v", names)
        self.assertIn("wte#v", names)
        self.trainer("checkpoint", "verify", "--checkpoint", "run")
        loss = json.loads(self.trainer("eval", "--checkpoint", "run", "--json", stdout=True))["loss"]
        text = self.trainer("generate", "--checkpoint", "run", "--prompt", "a", "--temperature", "0", "--tokens", "5", stdout=True)
        self.trainer("checkpoint", "strip", "--checkpoint", "run", "--output", "stripped")
        weights = json.loads(self.trainer("eval", "--checkpoint", "stripped", "--json", stdout=True))["loss"]
        self.assertEqual(weights, loss)
        self.assertEqual(self.trainer("generate", "--checkpoint", "stripped", "--prompt", "a", "--temperature", "0", "--tokens",
                                      "5", stdout=True), text)
        self.trainer("checkpoint", "export", "--checkpoint", "run", "--format", "hf", "--output", "exported")
        self.trainer("checkpoint", "import", "--format", "hf", "--input", "exported", "--output", "imported")
        self.train("run.dir=adamw", "model.init_from=stripped", max_steps=1)
        self.train("run.dir=again", "model.init_from=run", *MUON, max_steps=1)
        self.assertAlmostEqual(self.events("step", "adamw")[0]["loss"], self.events("step", "again")[0]["loss"], places=5)
        self.assertIn("no optimizer state", self.train("run.dir=resumed", *MUON, resume="stripped", status=5))

    def test_plans_show_the_update(self):
        dry = self.trainer("train", "--config", "config.toml", "--dry-run", "--set", *MUON, stdout=True)
        # Per block: q, k, v and out 32 x 32, up and down 32 x 128; 20·k²·n + 10·k³ each.
        flops = 2 * (4 * 30 * 32**3 + 2 * (20 * 32 * 32 * 128 + 10 * 32**3))
        self.assertRegex(dry, rf"update +{flops / 1e6:.3g}M FLOPs in GEMMs, .* of memory traffic per rank")
        two = self.trainer("train", "--config", "config.toml", "--dry-run", "--set", *MUON, *TWO, "parallel.transport=threads",
                           stdout=True)
        self.assertRegex(two, rf"update +{flops / 2e6:.3g}M FLOPs in GEMMs, .* of memory traffic and .* sent per rank")
        self.train(*MUON)
        for step in self.events("step"):
            self.assertEqual(step["optimizer_flops"], flops)
        self.assertRegex(self.train(*MUON), r"update +[0-9.]+ ms/step")
        plan = self.trainer("plan", "--config", "config.toml", "--cluster", LAPTOP, "--devices", "2", "--set", *MUON, stdout=True)
        self.assertRegex(plan, r"update of row 1: .*M FLOPs in GEMMs, .* of memory traffic and .* sent per rank, .* ms predicted")
        adamw = self.trainer("train", "--config", "config.toml", "--dry-run", stdout=True)
        self.assertRegex(adamw, r"update +[0-9.]+ [KM]iB of memory traffic per rank\n")

    def test_keys_out_of_place_are_refused_with_a_remedy(self):
        for key, parts in (("muon.momentum=1", ["muon.momentum", "< 1"]), ("muon.momentum=-0.1", ["muon.momentum", ">= 0"]),
                           ("muon.steps=0", ["muon.steps", ">= 1"]), ("muon.steps=2.5", ["muon.steps"]),
                           ("muon.steps=many", ["muon.steps"]), ("muon.nesterov=3", ["muon.nesterov"]),
                           ("muon.coefficients=cubic", ["muon.coefficients", "polar"]),
                           ("muon.scale=big", ["muon.scale", "spectral"]), ("muon.lr_ratio=0", ["muon.lr_ratio", "> 0"]),
                           ("muon.lr_ratio=nan", ["muon.lr_ratio"]), ("muon.weight_decay=-1", ["muon.weight_decay", ">= 0"]),
                           ("muon.compute=fp16", ["muon.compute", "fp32"]), ("muon.compute=fp64", ["precision.compute"]),
                           ("muon.owners=some", ["muon.owners", "replica"]), ("muon.ns_steps=5", ["muon.ns_steps", "nesterov, steps"]),
                           ("offload.optimizer=cpu", ["muon", "offload.optimizer"])):
            with self.subTest(key):
                stderr = self.train(*MUON, key, status=2)
                for part in parts:
                    self.assertIn(part, stderr)
        self.assertEqual(self.train("muon.steps=4", max_steps=1).count("muon.steps"), 1)


if __name__ == "__main__":
    rig.main()
