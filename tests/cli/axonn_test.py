#!/usr/bin/env python3
"""AxoNN-4D through the program: grids of ranks (processes or threads) train as one rank does."""
import re

import rig

COMMON = ("model.n_head=4", "run.threads=1")


class Axonn(rig.Runs):
    def grid(self, x, y, z, *sets, data=1, transport="threads", **options):
        sets = [*COMMON, "parallel.strategy=axonn-4d", f"parallel.grid=[{x}, {y}, {z}]", f"parallel.data={data}", *sets]
        return self.train_on(x * y * z * data, *sets, transport=transport, **options)

    def test_grids_follow_one_rank(self):
        for family in ("gpt2", "llama"):
            common = ("precision.compute=fp64", f"model.arch={family}",
                      "model.n_kv_head=2" if family == "llama" else "model.n_kv_head=4")
            self.train(f"run.dir=alone-{family}", *COMMON, *common)
            for (x, y, z, data), transport in (((2, 1, 1, 1), "mpi"), ((1, 2, 2, 1), "mpi"), ((4, 2, 1, 1), "threads"),
                                               ((2, 2, 2, 1), "threads"), ((1, 1, 2, 2), "threads")):
                run = f"{family}-{x}-{y}-{z}-{data}"
                self.grid(x, y, z, f"run.dir={run}", *common, data=data, transport=transport)
                self.assert_follows(run, f"alone-{family}")
                end = self.events("end", run)[-1]
                self.assertEqual(end["predicted"]["comm_bytes"], end["measured"]["comm_bytes"])
                # Ranks that share key/value heads all-reduce those gradients ("rep"). The vocabulary is split over x
                # and y, and the loss is all-reduced over both.
                self.assertEqual("xy" in end["measured"]["comm_bytes"], x > 1 and y > 1)
                self.assertEqual(set(end["measured"]["comm_bytes"]) - {"rep", "xy"},
                                 {axis for axis, size in zip(("x", "y", "z", "data"), (x, y, z, data)) if size > 1})

    def test_transport_overlap_lanes_delays_and_kept_weights_change_no_bit(self):
        overlaps = (f"parallel.overlap.{each}=false" for each in ("all_reduce", "reduce_scatter", "all_gather"))
        self.assert_changes_no_bit(lambda *sets, **options: self.grid(2, 2, 2, *sets, **options), *overlaps,
                                   "parallel.cache_layers=2")

    def test_a_resumed_run_keeps_the_axes_of_its_vocabulary(self):
        for axes in ("x", "xy"):
            for run, options in ((axes, {"max_steps": 4}), (f"{axes}-whole", {})):
                self.grid(2, 2, 1, f"run.dir={run}", f"parallel.vocab_axes={axes}", **options)
            self.grid(2, 2, 1, f"run.dir={axes}")
            self.assert_same_run(8, axes, f"{axes}-whole")
        self.assertNotEqual(self.losses("x"), self.losses("xy"))
        self.grid(2, 2, 1, "run.dir=auto")
        self.assert_same_run(8, "auto", "xy-whole")

    def test_a_checkpoint_goes_on_in_any_layout(self):
        common = ("precision.compute=fp64",)
        self.train("run.dir=alone", *COMMON, *common)
        megatron = ("parallel.strategy=megatron-1d", "parallel.tensor=4", "parallel.transport=threads")
        for first, second in (((2, 2, 1), None), (None, (1, 2, 2)), ((2, 1, 2), (4, 1, 1)), ((1, 2, 2), "megatron"),
                              ("megatron", (2, 2, 2))):
            run = f"from{first}to{second}".replace(" ", "")
            for layout, options in ((first, {"max_steps": 4}), (second, {})):
                sets = (f"run.dir={run}", *common)
                if layout is None:
                    self.train(*COMMON, *sets, **options)
                elif layout == "megatron":
                    self.train(*COMMON, *megatron, *sets, **options)
                else:
                    self.grid(*layout, *sets, **options)
            self.assert_follows(run, "alone")
            self.assert_whole(*self.step_folders(run))

    def test_samples_evaluation_and_generated_text_are_those_of_one_rank(self):
        self.assert_texts_and_evaluations_of_one_rank(
            COMMON, lambda *sets: self.grid(2, 2, 2, *sets), lambda *sets: self.grid(2, 1, 2, *sets, transport="mpi"), "eight")

    def test_what_does_not_divide_is_rejected_with_the_nearest_grid(self):
        mistakes = (
            ((3, 1, 1), (), 2, r"n_head = 4 heads .* 3 ranks along x.*; grid = \[2, 1, 1\] or \[4, 1, 1\] fits"),
            ((1, 3, 1), (), 2, r"d_model = 32 .* 3 ranks along y.*; grid = \[1, 2, 1\] or \[1, 4, 1\] fits"),
            ((1, 1, 4), (), 2, r"micro_batch = 2 sequences .* 4 ranks along z.*; grid = \[1, 2, 2\] fits"),
            ((2, 1, 1), ("model.vocab_multiple=97",), 2, r"vocab_multiple = 97 .* 2 ranks along x"),
            ((2, 1, 1), ("parallel.data=3",), 3, r"grid = \[2, 1, 1\] x data = 3 does not match 2 ranks"),
        )
        for (x, y, z), sets, status, message in mistakes:
            self.assert_refused_once(x * y * z, *COMMON, "parallel.strategy=axonn-4d", f"parallel.grid=[{x}, {y}, {z}]", *sets,
                                     status=status, message=message)
        for grid, message in (("[2, 2]", r"parallel.grid=\[2, 2\]: expected three sizes \[x, y, z\], found 2"),
                              ("[2, 0, 1]", r"expected a list of integers >= 1 and <= 65536, found a list of 3 integers"),
                              ("[2, \"a\", 1]", r"expected a list of integers .* found a list with .* at position 2")):
            self.assertRegex(self.train("parallel.strategy=axonn-4d", f"parallel.grid={grid}", status=2), message)
        self.assertRegex(self.train("parallel.strategy=axonn-4d", "parallel.order=dxyz", status=2), "one of yxzd, xyzd")
        check = self.trainer("config", "check", "--config", "config.toml", "--set", "parallel.strategy=axonn-4d", "--set",
                             "parallel.grid=[2, 2, 1]", "--ranks", "6", status=3)
        self.assertIn("grid = [2, 2, 1] requires a multiple of 4 ranks, but this is 6 ranks; start with mpirun -np 4", check)

    def test_a_resumed_run_keeps_its_vocabulary_axes_where_they_fit(self):
        def chosen():
            return re.search(r'vocab_axes = "(\w+)"', (self.folder / "run/config.toml").read_text())[1]
        sets = ("run.dir=run", "model.vocab_multiple=4")
        self.grid(2, 2, 1, *sets, max_steps=2)
        first = chosen()
        self.grid(1, 2, 2, *sets, max_steps=4)
        self.assertEqual((first, chosen()), ("xy", "xy"))
        stderr = self.grid(2, 4, 1, *sets, max_steps=6)  # 8 ranks cannot split the padded vocabulary
        self.assertIn('"xy", with which the run was trained until now, does not fit this grid', stderr)
        self.assertEqual(chosen(), "x")

    def test_a_dry_run_needs_no_ranks(self):
        plan = self.trainer("train", "--config", "config.toml", "--dry-run", "--set", "model.n_head=4", "--set",
                            "parallel.strategy=axonn-4d", "--set", "parallel.grid=[2, 2, 2]", "--set", "parallel.data=1",
                            stdout=True)
        self.assertIn("over 8 ranks", plan)
        for axis, operation in (("x", "all_reduce"), ("y", "all_gather"), ("z", "reduce_scatter")):
            self.assertRegex(plan, rf"{axis} {operation} +[0-9.]+ .i?B")


if __name__ == "__main__":
    rig.main()
