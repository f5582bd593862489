#!/usr/bin/env python3
"""Runs that are interrupted and resumed are bit-identical to uninterrupted ones."""
import hashlib
import json
import os
import re
import shutil

import rig


class Resume(rig.Runs):
    def two_halves(self, *sets):
        self.train("run.dir=whole", *sets)
        self.train(*sets, max_steps=4)
        self.assertEqual(self.saved_steps(), [4])
        stderr = self.train(*sets)
        self.assertIn("resumed step 4 from run/checkpoints/step-00000004", stderr)
        self.assert_same_run(8, "run", "whole")
        self.assertEqual([step for step, *_ in self.losses()[0]], list(range(1, 9)))
        self.assertEqual([step for step, *_ in self.losses()[1]], [3, 6, 8])

    def test_two_halves_are_the_whole_run_in_fp64(self):
        self.two_halves("precision.compute=fp64")

    def test_two_halves_are_the_whole_run_in_fp32(self):
        self.two_halves("precision.compute=fp32")

    def test_two_halves_are_the_whole_run_in_bf16(self):
        self.two_halves("precision.compute=bf16")

    def test_two_halves_are_the_whole_run_of_a_llama_with_grouped_heads(self):
        self.two_halves("precision.compute=bf16", "model.arch=llama", "model.n_kv_head=1", "train.recompute=full")

    def test_each_step_may_be_a_run_of_its_own(self):
        self.train("run.dir=whole")
        for _ in range(8):
            self.train(max_steps=1)
        self.assert_same_run(8, "run", "whole")

    def test_the_number_of_threads_changes_no_bit(self):
        for compute in ("fp64", "fp32", "bf16"):
            self.train(f"precision.compute={compute}", f"run.dir={compute}-1", "run.threads=1")
            self.train(f"precision.compute={compute}", f"run.dir={compute}-2", max_steps=3)
            self.train(f"precision.compute={compute}", f"run.dir={compute}-2", "run.threads=1", max_steps=2)
            self.train(f"precision.compute={compute}", f"run.dir={compute}-2")
            self.assert_same_run(8, f"{compute}-1", f"{compute}-2")

    def test_skipped_steps_are_resumed_like_others(self):
        """With learning rates that overflow: a skipped step advances the data and the schedule, but not Adam's step."""
        sets = ["optim.lr=1e30", "optim.min_lr=1e29", "optim.warmup_steps=0", "train.max_skipped_steps=100"]
        self.train("run.dir=whole", *sets, max_steps=7)
        self.assertTrue(any(event["skipped"] for event in self.events("step", "whole")), "no step was skipped")
        self.train(*sets, max_steps=4)
        self.train(*sets, max_steps=3)
        self.assertTrue(self.tensors(7) == self.tensors(7, "whole"))
        states = [json.loads((self.step_folder(7, run) / "manifest.json").read_text())["state"] for run in ("run", "whole")]
        self.assertEqual(*states)
        self.assertGreater(states[0]["skipped_in_row"], 3)

    def test_a_path_goes_on_in_another_folder(self):
        self.train("run.dir=whole")
        self.train(max_steps=4)
        before = self.tensors(4)
        paths = {"step": "run/checkpoints/step-00000004", "checkpoints": "run/checkpoints", "folder": "run",
                 "slash": "run/checkpoints/step-00000004/", "latest": "run/checkpoints/latest"}
        for name, path in paths.items():
            stderr = self.train(f"run.dir={name}", resume=path)
            self.assertIn("resumed step 4 from run/checkpoints/step-00000004", stderr)
            self.assertEqual(self.saved_steps(name), [8])
            self.assertTrue(self.tensors(8, name) == self.tensors(8, "whole"), name)
            self.assertEqual(self.losses(name)[0], self.losses("whole")[0][4:])
        self.assertEqual(self.saved_steps(), [4])
        self.assertTrue(self.tensors(4) == before, "the checkpoint that others started from changed")
        # A run resumes from its own step, also with the slash that shell completion adds.
        self.assertIn("resumed step 4", self.train(resume="run/checkpoints/step-00000004/"))

    def test_a_moved_step_folder_is_enough(self):
        self.train("run.dir=whole")
        self.train(max_steps=4)
        self.step_folder(4).rename(self.folder / "kept")
        self.train("run.dir=again", resume="kept")
        self.assertTrue(self.tensors(8, "again") == self.tensors(8, "whole"))

    def test_must_without_a_checkpoint_is_an_error(self):
        stderr = self.train(resume="must", status=5)
        self.assertIn('checkpoint.resume = "must": no complete checkpoint in run/checkpoints', stderr)
        self.train(max_steps=2)
        self.assertIn("resumed step 2", self.train(resume="must"))

    def test_never_starts_from_scratch(self):
        self.train("run.dir=whole")
        self.train(max_steps=4)
        self.assertNotIn("resumed", self.train(resume="never"))
        self.assert_same_run(8, "run", "whole")

    def test_a_finished_run_reports_it_and_changes_nothing(self):
        self.train("log.report=true")
        def files():
            run = (path for path in (self.folder / "run").rglob("*") if path.is_file() and "lock" not in path.name)
            return {path.relative_to(self.folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in run}

        before = files()
        stderr = self.train("log.report=true")
        self.assertIn("the run is finished: 8 of 8 steps are done", stderr)
        self.assertIn("finished at step 8 of 8", stderr)
        self.assertEqual(files(), before)
        # A new report would show the step times of one rank for a layout that made no steps.
        self.train("parallel.transport=threads", "parallel.data=2", "parallel.zero_stage=1", "log.tensorboard=true",
                   "log.report=true")
        self.assertEqual(files(), before)

    def test_speed_and_memory_are_those_of_the_last_setup(self):
        self.train(max_steps=4)
        stderr = self.train("parallel.transport=threads", "parallel.data=2", "log.report=true")
        self.assertIn("since step 5, when the setup changed", stderr)
        report = json.loads((self.folder / "run/report.json").read_text())
        self.assertEqual(report["medians_from_step"], 5)
        steps = sorted(event["step_ms"] for event in self.events("step") if event["step"] > 4)
        self.assertAlmostEqual(report["step_ms"], (steps[1] + steps[2]) / 2, places=9)

    def test_a_run_of_so_many_tokens_sees_them_at_any_batch(self):
        config = self.folder / "config.toml"
        config.write_text(config.read_text().replace("steps = 8\n", "tokens = 2048\n"))  # 128 tokens per step: 16 steps
        self.train(max_steps=4)
        self.assertIn("finished at step 10 of 10", self.train("train.global_batch=8"))
        steps = self.events("step")
        self.assertEqual([event["tokens"] for event in steps], [128, 256, 384, 512] + list(range(768, 2049, 256)))
        whole = self.events("start")[-1]
        self.assertEqual((whole["step"], whole["total_steps"]), (4, 10))
        rates = [event["lr"] for event in steps[4:]]
        self.assertEqual(rates, sorted(rates, reverse=True))
        self.assertLess(rates[-1], 0.2 * max(rates))  # the schedule ends with the run
        self.assertIn("the run is finished: 10 of 10", self.train("train.global_batch=8"))

    def test_the_best_checkpoint_is_one_that_was_evaluated(self):
        """With evaluations at steps 2, 4, 6 and 8 and checkpoints at 3, 6 and 8, only 6 and 8 can be the best."""
        sets = ["train.eval_interval=2", "checkpoint.interval=3", "checkpoint.keep=0"]
        self.train(*sets)
        best = {step: json.loads((self.step_folder(step, "run") / "manifest.json").read_text())["state"]["best_step"]
                for step in self.saved_steps()}
        losses = {event["step"]: event["loss"] for event in self.events("eval")}
        self.assertEqual(best, {3: -1, 6: 6, 8: min((6, 8), key=losses.get)})

    def test_a_branch_goes_on_when_its_command_is_repeated(self):
        self.train("run.dir=base", max_steps=4)
        branch = ["run.dir=branch", "train.steps=12"]
        self.train(*branch, resume="base", max_steps=3)
        self.assertIn("branch of base/checkpoints/step-00000004, resuming at step 7",
                      self.train(*branch, resume="base", max_steps=3))
        self.assertIn("resumed step 10", self.train(*branch, resume="base/checkpoints/step-00000004"))
        self.train("run.dir=whole", "train.steps=12", resume="base")
        self.assert_same_run(12, "branch", "whole")
        self.train("run.dir=base", max_steps=1)
        self.assertIn("do not descend from base/checkpoints/step-00000005",
                      self.train(*branch, resume="base/checkpoints/step-00000005", status=5))
        shutil.rmtree(self.step_folder(4, "base"))
        stderr = self.train(*branch, resume="base", status=5)
        self.assertIn("descend from none of the 1 checkpoints now in base", stderr)
        self.assertIn("use --resume auto", stderr)
        # A run that did not start from a checkpoint has no origin.
        self.assertIn("descend from none of the", self.train("run.dir=base", resume="whole", status=5))

    def test_going_back_goes_on_when_its_command_is_repeated(self):
        sets = ["checkpoint.interval=2", "checkpoint.keep=0"]
        back = ["train.steps=12", "optim.lr=1e-4", "optim.min_lr=1e-4", *sets]
        self.train(*sets)
        path = "run/checkpoints/step-00000004"
        self.assertIn("resumed step 4", self.train(*back, resume=path, max_steps=1))
        self.assertIn(f"branch of {path}, resuming at step 5", self.train(*back, resume=path, max_steps=3))
        self.assertIn("resumed step 8", self.train(*back, resume=path))
        self.train("run.dir=whole", *back, resume=path)
        self.assertTrue(self.tensors(12) == self.tensors(12, "whole"))
        self.assertEqual(self.losses()[0][4:], self.losses("whole")[0])
        # Resuming a whole run folder does not begin a branch; resuming from an even earlier step begins a new one.
        self.assertIn("resumed step 12", self.train("train.steps=13", *back[1:], resume="run"))
        self.assertIn("resuming at step 13", self.train("train.steps=14", *back[1:], resume=path))
        self.assertIn("resumed step 2", self.train(*back, resume="run/checkpoints/step-00000002", max_steps=1))
        self.assertIn("resuming at step 3", self.train(*back, resume="run/checkpoints/step-00000002", max_steps=1))

    def test_saves_in_the_background_have_the_bits_of_saves_between_steps(self):
        sets = ["parallel.data=2", "parallel.zero_stage=1", "checkpoint.interval=2", "checkpoint.keep=0"]
        self.train("run.dir=whole", "parallel.transport=threads", *sets)
        for transport in ("threads", "mpi"):
            self.train_on(2, "checkpoint.async=true", f"run.dir={transport}", *sets, transport=transport)
            self.assertEqual(self.saved_steps(transport), [2, 4, 6, 8])
            self.assert_whole(*self.step_folders(transport))
            self.assert_no_left_overs(transport)
            for step in self.saved_steps(transport):
                self.assert_same_run(step, transport, "whole")
            saves = self.events("checkpoint", transport)
            self.assertEqual([save["step"] for save in saves], [2, 4, 6, 8])
            for save in saves:
                self.assertGreater(save["seconds"], 0)
                self.assertGreater(save["wait_seconds"], 0)
            self.train("run.dir=branch", "parallel.transport=threads", *sets, resume=f"{transport}/checkpoints/step-00000004")
            self.assertEqual(self.tensors(8, "branch"), self.tensors(8, "whole"))
            shutil.rmtree(self.folder / "branch")

    # Layouts with up to eight ranks.
    LAYOUTS = {
        "megatron": ["parallel.tensor=2", "parallel.data=1", "parallel.sequence_parallel=false"],
        "replicas": ["parallel.data=2", "parallel.zero_stage=1", "offload.optimizer=cpu"],
        "sequence parallel": ["parallel.tensor=2", "parallel.data=2", "parallel.zero_stage=1"],
        "ring": ["parallel.strategy=optimus-2d", "parallel.mesh=[2, 2]", "parallel.panels=ring", "parallel.data=1"],
        "gather": ["parallel.strategy=optimus-2d", "parallel.mesh=[2, 2]", "parallel.panels=gather", "parallel.data=1"],
        "2.5D": ["parallel.strategy=optimus-2d", "parallel.mesh=[2, 2, 2]", "parallel.data=1", "parallel.zero_stage=1"],
        "axonn": ["parallel.strategy=axonn-4d", "parallel.grid=[2, 1, 2]", "parallel.data=1", "offload.optimizer=cpu"],
        "specs": ["parallel.strategy=autoddl", "parallel.axes=[2, 2]", "parallel.head=rc", "parallel.table=fv", "parallel.data=1",
                  'parallel.layer=[{stream="rc", attention="rc", hidden="rc", qkv="fc", out="fc", up="fc", down="fk"}]'],
    }

    def test_checkpoints_of_processes_are_those_of_threads(self):
        """Each layout resumes from the previous one's checkpoint, as processes and as threads, with equal bytes.
        LAYOUT_PAIRS=all tests all layouts. unit/train/layout_checkpoints_test.cpp tests every pair of layouts on
        threads."""
        names = list(self.LAYOUTS) if os.environ.get("LAYOUT_PAIRS") == "all" else ["sequence parallel", "ring", "replicas"]
        base = ["train.steps=12", "train.micro_batch=4", "train.global_batch=8", "checkpoint.keep=0", "run.threads=1"]
        self.train("run.dir=start", *base, max_steps=2)
        before = "start"
        for step, name in enumerate(names, start=3):
            sets = [*base, *self.LAYOUTS[name]]
            ranks = {"megatron": 2, "replicas": 2, "2.5D": 8}.get(name, 4)
            for transport in ("threads", "mpi"):
                self.train_on(ranks, f"run.dir={name} {transport}", *sets, transport=transport, max_steps=1, resume=before)
            mine, others = f"{name} mpi", f"{name} threads"
            self.assertTrue(self.tensors(step, mine) == self.tensors(step, others), f"{name} after {before}")
            self.assertEqual(self.losses(mine)[0], self.losses(others)[0])
            before = mine

    def test_every_optimizer_resumes_as_if_it_had_not_stopped(self):
        for name, sets in (("muon", ["optim.name=muon"]), ("bf16", ["optim.moments=bf16"]), ("spikes", ["train.skip_sigma=6"])):
            with self.subTest(name):
                self.train(f"run.dir={name}-whole", *sets)
                self.train(f"run.dir={name}", *sets, max_steps=3)
                self.train(f"run.dir={name}", *sets)
                self.assert_same_run(8, name, f"{name}-whole")
        stderr = self.train("run.dir=muon", "train.steps=9", status=5)
        self.assertIn('has the state of optim.name = "muon", but the run has "adamw"', stderr)
        self.assertIn("model.init_from", stderr)
        stderr = self.train("run.dir=bf16", "train.steps=9", status=5)
        self.assertIn('bf16 in the checkpoint, but fp32 in the run; set optim.moments = "bf16"', stderr)

    def test_a_run_whose_folder_is_gone_saves_and_resumes(self):
        sets = ["train.steps=100000", "train.eval_interval=0", "checkpoint.interval=5", "log.progress=off"]
        process = self.start_train(*sets)
        self.wait_until(self.saved_steps, process, "a save")
        (self.folder / "run").rename(self.folder / "gone")
        self.wait_until(self.saved_steps, process, "a save into a new folder")
        self.stop(process)
        self.assert_whole(*self.step_folders())
        step = self.saved_steps()[-1]
        self.assertIn(f"resumed step {step} ", self.train(*sets, max_steps=1))

    def test_saves_wait_where_their_copy_does_not_fit(self):
        planned = self.trainer("train", "--config", "config.toml", "--dry-run", "--set", "checkpoint.async=true", stdout=True)
        self.assertRegex(planned, "host_snapshot +[0-9.]+ [KM]iB")
        total = float(re.search(r"total +([0-9.]+) MiB", planned).group(1))
        limit = f"hardware.memory_limit={(total - 0.1) / 1024}"
        stderr = self.train("checkpoint.async=true", "checkpoint.interval=2", limit)
        self.assertIn("checkpoint.async is ignored", stderr)
        self.assertEqual(self.saved_steps(), [4, 6, 8])

    def test_a_warm_up_is_compared_with_the_steps_of_the_run_at_hand(self):
        """A larger batch shortens a new run, but a resumed one has made most of its steps already."""
        sets = ["train.tokens=1536", "optim.warmup_steps=6", "checkpoint.keep=0", "train.eval_interval=0"]
        large = [*sets, "train.global_batch=16"]
        wsd = ["optim.schedule=wsd", "optim.decay_fraction=0.3"]
        self.train(*sets, max_steps=8)  # of 12
        self.assertIn("a warm-up of 6 steps is longer than the run of 3 steps of 512 tokens", self.train(*large, status=2, resume="never"))
        self.assertEqual(self.saved_steps(), [8])
        self.train(*large)
        self.assertEqual(self.saved_steps(), [8, 9])
        for verb in (["eval", "--batches", "1"], ["generate", "--prompt", "the", "--tokens", "2"]):
            self.trainer(*verb, "--checkpoint", "run")  # which has this configuration
        self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "run", "--output", "hf")
        # Branches, and the other phases of a schedule.
        branch = {"resume": "run/checkpoints/step-00000008"}
        self.train(*large, "run.dir=branch", **branch)
        self.assertEqual(self.saved_steps("branch"), [9])
        self.train(*large, *wsd, "run.dir=wsd", **branch)  # 6 + 3 of 9 steps
        self.assertIn("a final decay over 4 of 9 steps", self.train(*large, *wsd, "optim.decay_fraction=0.4", "run.dir=long", status=2, **branch))
        # A run that is resumed within its warm-up.
        self.train(*sets, "run.dir=early", max_steps=2)
        self.assertIn("a warm-up of 6 steps is longer than the run of 5 steps", self.train(*large, "run.dir=early", status=2))
        self.assertEqual(self.saved_steps("early"), [2])
        self.train(*sets, "run.dir=early")
        self.assertEqual(self.saved_steps("early"), [2, 12])

    def test_a_run_from_step_0_leaves_nothing_of_an_earlier_one(self):
        self.train(max_steps=2)
        stderr = self.train("model.d_model=48", resume="never", max_steps=1)
        self.assertIn("steps of an earlier run are deleted", stderr)
        self.assertEqual([event["model"]["d_model"] for event in self.events("start")], [48])

    def test_metrics_of_another_run_are_reported(self):
        self.train("checkpoint.interval=4", "checkpoint.keep=0")
        steps = (self.folder / "run/metrics.jsonl").read_text()
        self.assertNotIn("from a different run", self.train("train.steps=9"))
        unrecorded = "".join(line for line in steps.splitlines(True) if '"event":"checkpoint"' not in line)
        self.assertLess(len(unrecorded), len(steps))

        def other(log):
            events = [json.loads(line) for line in log.splitlines()]
            for event in events:
                if event["event"] == "step" and event["step"] == 4:
                    event["loss"] += 1e-9
            return "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)

        # A run that saves in the background may be killed after a checkpoint is complete and before it is recorded.
        for name, log, warned in (("killed", unrecorded, False), ("other", other(steps), True), ("unsaved", other(unrecorded), True)):
            shutil.copytree(self.folder / "run", self.folder / name)
            (self.folder / name / "metrics.jsonl").write_text(log)
            stderr = self.train(f"run.dir={name}", resume=f"{name}/checkpoints/step-00000004")
            self.assertEqual("from a different run" in stderr, warned, name)
            if warned:
                self.assertIn(f"{name}/metrics.jsonl: does not record step 4, from which this run resumes, with its loss", stderr)

    def test_a_log_is_read_once_at_the_start_and_once_for_the_report(self):
        for name, sets, reads in (("steps", ["train.steps=6"], 2), ("evaluated", ["train.steps=6", "train.eval_interval=2"], 2),
                                  ("finished", ["train.steps=4"], 1)):
            self.train(f"run.dir={name}", *sets, max_steps=4)
            with rig.Watched(self.folder / name / "metrics.jsonl") as watched:
                self.train(f"run.dir={name}", *sets)
                self.assertEqual(watched.reads(), reads, name)

    def test_a_trace_out_of_reach_is_a_warning(self):
        stderr = self.train("log.trace=[10, 12]")
        self.assertIn("no trace: log.trace covers steps 10 to 12, but this run trains steps 1 to 8", stderr)

    def test_the_log_is_cut_back_to_the_resumed_step(self):
        self.train("run.dir=whole")
        self.train("checkpoint.interval=3", "checkpoint.keep=0")
        self.assertEqual(self.saved_steps(), [3, 6, 8])
        self.train("run.dir=run", resume="run/checkpoints/step-00000003")
        self.assert_same_run(8, "run", "whole")
        steps = [event["step"] for event in self.events("step")]
        self.assertEqual(steps, list(range(1, 9)))


if __name__ == "__main__":
    rig.main()
