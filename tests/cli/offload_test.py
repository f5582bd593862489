#!/usr/bin/env python3
"""Optimizer state in host memory, through the program: every plan gives the same bits, also after kills and resumes."""
import json
import signal

import rig

# Subgroups are so small that the tiny model has dozens of them.
PLANS = {
    "cpu": ["offload.optimizer=cpu", "offload.subgroup=1024"],
    "blocking": ["offload.optimizer=cpu", "offload.subgroup=1024", "debug.overlap=false"],
    "half": ["offload.optimizer=interleaved", "offload.gpu_fraction=1/2", "offload.subgroup=1024", "offload.slots=2"],
    "resident": ["offload.optimizer=interleaved", "offload.gpu_fraction=0.8", "offload.subgroup=512", "offload.resident=3"],
    "auto": ["offload.optimizer=interleaved", "offload.subgroup=2048", "debug.emulate_device=h100"],
    "measured": ["offload.optimizer=interleaved", "offload.subgroup=2048"],
}


class Offload(rig.Runs):
    def test_every_plan_has_the_losses_and_the_checkpoint_of_none(self):
        for compute in ("fp32", "bf16"):
            self.train(f"run.dir={compute}-none", f"precision.compute={compute}")
            for name, sets in PLANS.items():
                run = f"{compute}-{name}"
                self.train(f"run.dir={run}", f"precision.compute={compute}", *sets)
                self.assert_same_run(8, run, f"{compute}-none")

    def test_a_run_goes_on_under_another_plan_and_without(self):
        self.train("run.dir=none")
        for first, second in (("resident", None), (None, "half"), ("half", "resident"), ("blocking", "cpu")):
            run = f"{first}-{second}"
            self.train(f"run.dir={run}", *PLANS.get(first, []), *("checkpoint.interval=3",), max_steps=5)
            self.train(f"run.dir={run}", *PLANS.get(second, []))
            self.assert_same_run(8, run, "none")

    def test_a_run_that_is_stopped_or_killed_goes_on_under_another_plan(self):
        """Whenever the signal comes during an update, the saved checkpoints are complete."""
        steps = "train.steps=400"
        self.train("run.dir=none", steps)
        for which, status in ((signal.SIGUSR1, rig.SAVED_AFTER_SIGNAL), (signal.SIGKILL, -signal.SIGKILL)):
            run = f"run.dir={which.name}"
            for name, least in (("half", 5), ("resident", 60), ("cpu", 120)):
                process = self.start_train(run, steps, "checkpoint.interval=10", "checkpoint.keep=2", *PLANS[name])
                self.wait_until(lambda: self.last_step(which.name) >= least, process, f"step {least}")
                self.stop(process, which, status)
            self.assert_whole(*self.step_folders(which.name))
            self.train(run, steps, *PLANS["measured"])
            self.assert_same_run(400, which.name, "none")

    def test_bf16_gradients_are_rounded_alike_with_and_without_offload(self):
        rounded = "offload.grad_transport=bf16"
        self.train("run.dir=fp32", "precision.compute=bf16")
        self.train("run.dir=none", "precision.compute=bf16", rounded)
        self.assertNotEqual(self.losses("none"), self.losses("fp32"))
        for name in ("cpu", "half"):
            self.train(f"run.dir={name}", "precision.compute=bf16", rounded, *PLANS[name])
            self.assert_same_run(8, name, "none")
        for step in self.events("step", "half"):
            self.assertEqual(step["offload"]["bytes"]["gradient"], 2 * step["offload"]["parameters"]["host"])

    def test_the_ladder_of_an_emulated_device(self):
        ladder = json.loads(self.trainer("bench", "offload", "--config", "config.toml", "--json", "--set",
                                         "debug.emulate_device=h100", stdout=True))
        rungs = {rung["name"]: rung for rung in ladder["rungs"]}
        best = rungs["interleaved, best share"]
        self.assertTrue(ladder["emulated"])
        self.assertGreater(rungs["blocking, all on the host, pageable gradients"]["played_ms"], 2.5 * best["played_ms"])
        self.assertLessEqual(best["played_ms"], rungs["asynchronous, all on the host"]["played_ms"])
        self.assertLess(abs(best["predicted_ms"] / best["played_ms"] - 1), 0.05)
        self.assertLessEqual(best["played_ms"], 1.02 * min(rung["played_ms"] for rung in ladder["sweep"]))

    def test_metrics_tell_where_updates_were_and_what_was_moved(self):
        self.train("run.dir=told", *PLANS["half"], "precision.compute=bf16", "debug.emulate_device=h100")
        for step in self.events("step", "told"):
            offload = step["offload"]
            parameters = offload["parameters"]
            self.assertEqual(offload["gpu_fraction"], "1/2")
            self.assertEqual(parameters["resident"], 0)
            self.assertEqual(offload["bytes"]["gradient"], 4 * parameters["host"])
            self.assertEqual(offload["bytes"]["refresh"], 2 * parameters["host"])
            self.assertEqual(offload["bytes"]["load"], 12 * parameters["streamed"])
            self.assertEqual(offload["bytes"]["drain"], 12 * parameters["streamed"])
            self.assertGreater(offload["emulated"]["update_ms"], 0)
            self.assertNotIn("parameters_per_s", offload)
            self.assertEqual(offload["plan"]["slots"], 2)
            self.assertEqual(offload["plan"]["largest"], 1024)
            self.assertEqual(offload["plan"]["host_memory"], "plain")
            self.assertGreaterEqual(offload["exposed_ms"], 0)
            self.assertIn("host_optimizer", step["memory_bytes"])
            self.assertIn("optimizer_slots", step["memory_bytes"])
        self.train("run.dir=rates", *PLANS["measured"], "log.report=true")
        measured = self.events("step", "rates")[-1]["offload"]
        parameters = sum(measured["parameters"].values())
        self.assertAlmostEqual(measured["parameters_per_s"] * measured["update_ms"], 1e3 * parameters, delta=parameters)
        self.assertTrue(0 <= measured["overlapped"] <= 1, measured)
        if measured["parameters"]["host"] > 0:
            self.assertGreater(measured["memory_share"], 0)
        self.assertIn("Optimizer offload", (self.folder / "rates/report.html").read_text())
        self.train("run.dir=untold")
        self.assertNotIn("offload", self.events("step", "untold")[-1])

    def test_the_log_reports_whether_it_was_needed(self):
        log = self.train("run.dir=said", *PLANS["half"])
        self.assertRegex(log, r"optimizer offload: \d+ subgroups of at most \d+ elements: \d+ on the host, \d+ streamed")
        self.assertIn("fits without offload: yes", log)
        self.assertRegex(log, r"offload +[\d.]+ % updated on the host")
        self.assertNotIn("GB/s to the device", log)
        self.assertRegex(self.train("run.dir=measured", *PLANS["measured"]),
                         r"measured: [\d.]+ GB/s to the device, [\d.]+ GB/s to the host, [\d.]+ GB/s host memory bandwidth")

    def test_a_dry_run_shows_the_memory_of_every_way(self):
        rows = ("none", "cpu", "interleaved, 3 slots")
        interleaved = ["offload.optimizer=interleaved", "offload.gpu_fraction=1/2", "offload.subgroup=1024"]
        for sets, configured in (([], 0), (PLANS["cpu"], 1), (interleaved, 2)):
            text = self.trainer("train", "--dry-run", *self.train_args(sets, {}), stdout=True)
            for place, row in enumerate(rows):
                end = "  as configured" if place == configured else ""
                self.assertRegex(text, rf"\n  {row} +[\d.]+ \w+ +[\d.]+ \w+{end}\n")
            self.assertRegex(text, r"\n  fits without offload: yes, [\d.]+ \w+ of [\d.]+ \w+ per rank\n")
        little = self.trainer("train", "--dry-run", *self.train_args(["hardware.memory_limit=0.0001"], {}), status=3)
        self.assertIn("available (hardware.memory_limit)", little)


if __name__ == "__main__":
    rig.main()
