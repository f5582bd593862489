#!/usr/bin/env python3
"""Tensor parallelism through the program: several ranks (processes or threads) train as one rank does."""
import json
import re

import rig

COMMON = ("model.n_head=4", "run.threads=1")


class Tensor(rig.Runs):
    def layout(self, tensor, data, *sets, transport="threads", **options):
        sets = [*COMMON, f"parallel.tensor={tensor}", f"parallel.data={data}", *sets]
        return self.train_on(tensor * data, *sets, transport=transport, **options)

    def test_layouts_follow_one_rank(self):
        for family in ("gpt2", "llama"):
            common = ("precision.compute=fp64", f"model.arch={family}", "model.n_kv_head=2" if family == "llama" else
                      "model.n_kv_head=4")
            self.train(f"run.dir=alone-{family}", *COMMON, *common)
            for tensor, data, transport in ((2, 1, "mpi"), (4, 1, "threads"), (2, 2, "threads")):
                for rows in ("true", "false"):
                    run = f"{family}-{tensor}-{data}-{rows}"
                    self.layout(tensor, data, f"run.dir={run}", f"parallel.sequence_parallel={rows}", *common,
                                transport=transport)
                    self.assert_follows(run, f"alone-{family}")
                    end = self.events("end", run)[-1]
                    self.assertEqual(end["predicted"]["comm_bytes"], end["measured"]["comm_bytes"])
                    self.assertIn("all_gather" if rows == "true" else "all_reduce",
                                  end["measured"]["comm_bytes"]["tensor"])

    def test_transport_overlap_lanes_and_delays_change_no_bit(self):
        self.assert_changes_no_bit(lambda *sets, **options: self.layout(2, 2, *sets, **options))

    def test_a_checkpoint_goes_on_in_any_layout(self):
        common = ("precision.compute=fp64",)
        self.train("run.dir=alone", *COMMON, *common)
        for first, second in (((2, 1), (1, 1)), ((1, 1), (4, 1)), ((4, 1), (2, 2)), ((2, 2), (4, 1))):
            run = "from{}x{}to{}x{}".format(*first, *second)
            self.layout(*first, f"run.dir={run}", *common, max_steps=4)
            self.layout(*second, f"run.dir={run}", *common)
            self.assert_follows(run, "alone")
            self.assert_whole(*self.step_folders(run))

    def test_samples_and_generated_text_are_those_of_one_rank(self):
        common = ("precision.compute=fp64", "train.sample_interval=4", "train.sample_prompt=the", "train.sample_tokens=20")
        self.train("run.dir=alone", *COMMON, *common)
        self.layout(4, 1, "run.dir=four", *common)
        self.layout(2, 2, "run.dir=two", *common, transport="mpi")
        prompt = ("generate", "--prompt", "the", "--tokens", "30", "--checkpoint")
        expected = self.trainer(*prompt, "alone", stdout=True)
        for run in ("four", "two"):
            self.assertEqual(self.trainer(*prompt, run, stdout=True), expected)
        for ranks in (2, 3, 4):  # three ranks cannot share four heads, so one of them generates
            self.launcher = [*rig.MPIRUN, "-np", str(ranks)]
            self.assertEqual(self.trainer(*prompt, "four", stdout=True), expected)
            self.assertIn("no prompt", self.trainer("generate", "--checkpoint", "four", status=2))
        self.launcher = []

    def test_evaluation_does_not_depend_on_the_layout(self):
        self.layout(4, 1, "run.dir=four", "precision.compute=fp64")
        single = json.loads(self.trainer("eval", "--checkpoint", "four", "--json", stdout=True))
        last = self.events("eval", "four")[-1]
        self.assertGreater(single["tokens"], 0)
        self.train("run.dir=one", *COMMON, "precision.compute=fp64")
        self.assertAlmostEqual(self.events("eval", "one")[-1]["loss"], last["loss"], delta=1e-10 * last["loss"])

    def test_a_model_that_one_rank_cannot_hold_is_evaluated_and_writes_on_several(self):
        # Sharded weights are most of the memory; the limit allows each rank only its quarter. Evaluation in bf16 takes less
        # than a fourth of the memory of training.
        wide = ("model.d_ff=180000", "train.micro_batch=1", "train.global_batch=1", "train.steps=2", "optim.warmup_steps=1",
                "precision.compute=bf16", "train.eval_interval=2")
        plan = self.trainer("train", "--dry-run", *self.train_args(
            (*COMMON, *wide, "parallel.tensor=4"), {}), stdout=True)
        quarter = float(re.search(r"^ +total +([0-9.]+) MiB", plan, re.M)[1]) / 1024
        self.layout(4, 1, "run.dir=four", *wide, f"hardware.memory_limit={1.02 * quarter:.5f}")
        limit = ("--set", f"hardware.memory_limit={quarter / 4:.5f}")
        single = self.trainer("eval", "--checkpoint", "four", *limit, status=3)
        self.assertRegex(single, r"the model needs [0-9.]+ MiB of memory, but only [0-9.]+ MiB is available \(hardware.memory_limit\)")
        self.trainer("generate", "--checkpoint", "four", "--prompt", "the", *limit, status=3)
        self.launcher = [*rig.MPIRUN, "-np", "4"]
        shared = json.loads(self.trainer("eval", "--checkpoint", "four", "--json", "--batches", "2", *limit, stdout=True))
        self.assertGreater(len(self.trainer("generate", "--checkpoint", "four", "--prompt", "the", "--tokens", "5", *limit,
                                            stdout=True)), 3)
        self.launcher = []
        self.assertAlmostEqual(shared["loss"], self.events("eval", "four")[-1]["loss"], delta=1e-6)

    def test_what_does_not_divide_is_rejected_once_on_all_ranks(self):
        mistakes = (
            ((), 3, 2, r"n_head = 4 heads .* 3 ranks along tensor.*; tensor = 2 or 4"),
            (("model.d_ff=66",), 4, 2, r"d_ff = 66 .* 4 ranks along tensor"),
            (("model.vocab_multiple=97",), 2, 2, r"vocab_multiple = 97 .* 2 ranks along tensor"),
            (("model.n_head=12", "model.d_model=48", "model.n_kv_head=6", "model.arch=llama"), 4, 2,
             r"n_kv_head = 6 heads can neither be split evenly over 4 ranks along tensor.* nor"),
            (("model.seq_len=31", "train.micro_batch=1"), 2, 2,
             r"31 token rows .* 2 ranks along tensor.*; sequence_parallel = false fits"),
            (("parallel.data=3",), 2, 3, r"tensor = 2 x data = 3 does not match 2 ranks"),
        )
        for sets, tensor, status, message in mistakes:
            self.assert_refused_once(tensor, *COMMON, *sets, f"parallel.tensor={tensor}", status=status, message=message)
        # The setting that the message proposes works.
        self.layout(2, 1, "model.seq_len=31", "train.micro_batch=1", "parallel.sequence_parallel=false")

    def test_a_dry_run_needs_no_ranks(self):
        plan = self.trainer("train", "--config", "config.toml", "--dry-run", "--set", "model.n_head=4", "--set",
                            "parallel.tensor=4", "--set", "parallel.data=2", stdout=True)
        self.assertIn("over 8 ranks", plan)
        self.assertRegex(plan, r"tensor all_gather +[0-9.]+ .iB")


if __name__ == "__main__":
    rig.main()
