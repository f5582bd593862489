#!/usr/bin/env python3
"""Optimus-2D through the program: square meshes of ranks (processes or threads) train as one rank does."""
import rig

COMMON = ("model.n_head=4", "run.threads=1", "train.micro_batch=4", "train.global_batch=8")


class Optimus(rig.Runs):
    def square(self, q, depth, *sets, data=1, transport="threads", **options):
        mesh = [q, q] if depth == 1 else [q, q, depth]
        sets = [*COMMON, "parallel.strategy=optimus-2d", f"parallel.mesh={mesh}", f"parallel.data={data}", *sets]
        return self.train_on(q * q * depth * data, *sets, transport=transport, **options)

    def test_squares_follow_one_rank(self):
        for family in ("gpt2", "llama"):
            common = ("precision.compute=fp64", f"model.arch={family}",
                      "model.n_kv_head=2" if family == "llama" else "model.n_kv_head=4")
            self.train(f"run.dir=alone-{family}", *COMMON, *common)
            for (q, depth, data), transport, sets in (
                    ((2, 1, 1), "mpi", ()), ((2, 1, 1), "threads", ("parallel.stationary=paper", "parallel.panels=gather")),
                    ((4, 1, 1), "threads", ("parallel.node_tile=[2, 2]",)), ((4, 1, 1), "mpi", ()), ((2, 2, 1), "mpi", ()),
                    ((2, 1, 2), "threads", ()), ((1, 2, 1), "threads", ())):
                run = f"{family}-{q}-{depth}-{data}-{transport}"
                self.square(q, depth, f"run.dir={run}", *common, *sets, data=data, transport=transport)
                self.assert_follows(run, f"alone-{family}")
                start, end = self.events("start", run)[-1], self.events("end", run)[-1]
                self.assertEqual((start["micro_batch"], start["accumulation"], start["data_replicas"]), (4, 2 // data, data))
                self.assertEqual(end["predicted"]["comm_bytes"], end["measured"]["comm_bytes"])
                # Ranks that share key/value heads all-reduce those gradients ("rep").
                axes = {axis for axis, size in (("row", q), ("col", q), ("data", data * depth)) if size > 1}
                self.assertEqual(set(end["measured"]["comm_bytes"]) - {"rep"}, axes)

    def test_transport_overlap_lanes_and_delays_change_no_bit(self):
        self.assert_changes_no_bit(lambda *sets, **options: self.square(2, 2, *sets, **options))

    def test_a_checkpoint_goes_on_in_any_layout(self):
        common = ("precision.compute=fp64",)
        self.train("run.dir=alone", *COMMON, *common)
        megatron = ("parallel.strategy=megatron-1d", "parallel.tensor=4", "parallel.transport=threads")
        axonn = ("parallel.strategy=axonn-4d", "parallel.grid=[2, 1, 2]", "parallel.data=1", "parallel.transport=threads")
        layouts = {"alone": None, "megatron": megatron, "axonn": axonn, "square": (2, 1), "deep": (2, 2), "large": (4, 1)}
        for first, second in (("square", "alone"), ("alone", "large"), ("large", "megatron"), ("axonn", "deep"),
                              ("deep", "square"), ("square", "axonn")):
            run = f"from-{first}-to-{second}"
            for name, options in ((first, {"max_steps": 4}), (second, {})):
                layout = layouts[name]
                if layout is None or isinstance(layout[0], str):
                    self.train(*COMMON, *(layout or ()), f"run.dir={run}", *common, **options)
                else:
                    self.square(*layout, f"run.dir={run}", *common, **options)
            self.assert_follows(run, "alone")
            self.assert_whole(*self.step_folders(run))

    def test_samples_evaluation_and_generated_text_are_those_of_one_rank(self):
        self.assert_texts_and_evaluations_of_one_rank(
            COMMON, lambda *sets: self.square(2, 2, *sets), lambda *sets: self.square(2, 1, *sets, transport="mpi"), "four")

    def test_what_does_not_divide_is_rejected_with_the_nearest_mesh(self):
        mistakes = (
            ([3, 3], (), 2, r"n_head = 4 heads .* 3 ranks along col.*; mesh = \[\d, \d(, \d)?\].* fits"),
            ([2, 2], ("model.d_ff=127",), 2, r"d_ff = 127 .* 2 ranks along col"),
            ([2, 2], ("train.micro_batch=1",), 2,
             r"micro_batch = 1 sequences .* 2 ranks along row.*; micro_batch = 2 fits"),
            ([2, 2, 4], (), 2, r"micro_batch = 4 sequences .* 8 ranks along depth\+row.*; mesh = \[4, 4\] fits"),
            ([2, 1], ("parallel.panels=ring",), 2, r"a square mesh of ranks.* found 2 x 1"),
            ([2, 1], (), 2, r"mesh = \[2, 1\] is not square; use \[1, 1\]"),
            ([2, 2], ("model.vocab_multiple=97",), 2, r"vocab_multiple = 97 .* 2 ranks along col"),
            ([2, 2], ("parallel.node_tile=[4, 1]",), 2, r"node_tile = \[4, 1\] does not divide a mesh of 2 x 2 ranks; use node_tile = "
                                                        r"\[2, 1\]"),
            ([2, 2], ("parallel.data=3",), 3, r"mesh = \[2, 2\] x data = 3 does not match 4 ranks; start with mpirun -np 12"),
        )
        for mesh, sets, status, message in mistakes:
            self.assert_refused_once(4, *COMMON, "parallel.strategy=optimus-2d", f"parallel.mesh={mesh}", *sets, status=status,
                                     message=message)
        for key, message in (("mesh=[2]", r"parallel.mesh=\[2\]: expected two sizes \[q, q\] or three \[q, q, d\], found 1"),
                             ("mesh=[2, 0]", r"expected a list of integers >= 1 and <= 4096, found a list of 2 integers"),
                             ("node_tile=[2]", r"parallel.node_tile=\[2\]: expected two sizes \[r, c\], found 1"),
                             ("stationary=result", "expected one of auto, paper"),
                             ("panels=rings", "parallel.panels=rings: expected one of")):
            self.assertRegex(self.train("parallel.strategy=optimus-2d", f"parallel.{key}", status=2), message)

    def test_a_resumed_run_keeps_its_panels(self):
        self.square(2, 1, "run.dir=new", max_steps=1)  # "gather" fits into memory, so a new run chooses it
        self.assertIn('panels = "gather"', (self.folder / "new/config.toml").read_text())
        self.square(2, 1, "run.dir=whole", "parallel.panels=ring")
        self.square(2, 1, "run.dir=resumed", "parallel.panels=ring", max_steps=4)
        self.square(2, 1, "run.dir=resumed")
        self.assert_same_run(8, "resumed", "whole")
        self.assertIn('panels = "ring"', (self.folder / "resumed/config.toml").read_text())

    def test_a_dry_run_needs_no_ranks(self):
        plan = self.trainer("train", "--config", "config.toml", "--dry-run", "--set", "model.n_head=4", "--set",
                            "parallel.strategy=optimus-2d", "--set", "parallel.mesh=[2, 2, 2]", "--set", "parallel.data=1",
                            "--set", "parallel.panels=ring",
                            "--set", "train.micro_batch=4", stdout=True)
        self.assertIn("over 8 ranks", plan)
        for axis, operation in (("col", "broadcast"), ("row", "broadcast"), ("row", "reduce"), ("row", "all_reduce"), ("data", "all_reduce")):
            self.assertRegex(plan, rf"{axis} {operation} +[0-9.]+ .i?B")


if __name__ == "__main__":
    rig.main()
