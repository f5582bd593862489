#!/usr/bin/env python3
"""The predicted memory of a run compared with the growth that the system reports."""
import pathlib
import re
import resource

import rig

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


@rig.counts_memory
class Memory(rig.Runs):
    def holds(self, *sets):
        stdout = self.trainer("train", "--dry-run", *self.train_args(sets, {}), stdout=True)
        total = re.search(r"^ +total +([\d.]+) (\w+) ", stdout, re.M)
        planned = float(total[1]) * UNITS[total[2]]
        self.train(*sets, "train.steps=4", "checkpoint.interval=2", "checkpoint.resume=never")
        end = self.events("end")[-1]
        predicted, measured = end["predicted"]["memory_bytes"], end["measured"]["memory_bytes"]
        self.assertAlmostEqual(predicted / planned, 1, delta=0.01)
        self.assertLessEqual(measured / predicted, 1.10, f"{measured} bytes, {predicted} predicted")
        self.assertGreaterEqual(measured / predicted, 0.80, f"{measured} bytes, {predicted} predicted")
        self.assertEqual(end["ratio"]["memory_bytes"], measured / predicted)

    def test_a_tiny_model_is_mostly_overhead(self):
        self.holds("model.n_layer=1", "model.d_model=16", "model.seq_len=16", "train.micro_batch=1")

    def test_a_model_of_a_million_parameters(self):
        self.holds("model.n_layer=4", "model.d_model=128", "model.n_head=4", "model.seq_len=64", "train.sample_prompt=the",
                   "train.sample_interval=4")

    def test_a_llama_in_bf16(self):
        self.holds("model.arch=llama", "model.n_layer=4", "model.d_model=128", "model.n_head=4", "model.n_kv_head=2",
                   "model.seq_len=64", "precision.compute=bf16", "train.sample_prompt=the")

    def test_full_recomputation(self):
        self.holds("model.n_layer=4", "model.d_model=128", "model.n_head=4", "model.seq_len=64", "train.recompute=full")

    def test_full_recomputation_of_some_layers(self):
        self.holds("model.n_layer=6", "model.d_model=128", "model.n_head=4", "model.seq_len=64", "train.recompute_layers=4")

    def test_optimizer_offload_on_a_cpu(self):
        sets = ["model.n_layer=4", "model.d_model=128", "model.n_head=4", "model.seq_len=64", "offload.subgroup=65536"]
        self.holds(*sets, "offload.optimizer=cpu")
        self.holds(*sets, "offload.optimizer=interleaved", "offload.gpu_fraction=1/2")

    def test_a_tokenizer_trained_in_the_same_process(self):
        """Heap memory freed by the tokenizer's training must not hide what the model allocates."""
        text = pathlib.Path(__file__).resolve().parents[2] / "data/austen.txt"
        sets = ["model.n_layer=4", "model.d_model=128", "model.n_head=4", "model.seq_len=64", f"data.train={text}",
                "data.tokenizer=train", "data.vocab_size=512"]
        self.holds(*sets)
        self.holds(*sets)  # the tokenizer now exists

    def seconds_to_plan(self, layers):
        """Returns CPU seconds, which depend less on other programs than elapsed time, but may still double."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        self.trainer("train", "--dry-run", "--config", "config.toml", "--set", f"model.n_layer={layers}")
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before

    def test_planning_takes_a_time_linear_in_depth(self):
        few, many = self.seconds_to_plan(500), self.seconds_to_plan(2000)
        self.assertLess(many, 10)  # a second on an idle machine
        self.assertLess(many, 8 * few + 0.1)

    def test_a_plan_that_does_not_fit_is_shown_too(self):
        sets = ["--set", "model.d_model=8192", "model.n_head=64", "model.n_layer=80"]
        args = ["train", "--dry-run", "--config", "config.toml", *sets]
        self.assertRegex(self.trainer(*args, status=3, stdout=True), r"(?s)weights.*total")
        self.assertRegex(self.trainer(*args, status=3), r"the run needs .* only .*hardware\.memory_limit .*plan --cluster")

    def test_the_size_of_the_quickstart(self):
        self.holds("model.n_layer=4", "model.d_model=256", "model.n_head=4", "model.seq_len=256", "train.micro_batch=4",
                   "train.eval_interval=0", "train.eval_batches=1")


if __name__ == "__main__":
    rig.main()
