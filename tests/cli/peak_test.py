#!/usr/bin/env python3
"""Utilisation while other programs use the CPU: the peak measured then is too low, and must be corrected."""
import json
import os
import re
import subprocess
import sys

import rig

# GEMMs are most of the work, so that steps exceed a peak measured at half speed; recomputation makes hfu the highest.
WORK = ["hardware.peak_tflops=0", "model.d_model=256", "model.n_head=4", "model.seq_len=64", "model.dropout=0",
        "train.global_batch=4", "train.micro_batch=4", "train.recompute=full", "train.steps=24", "train.eval_interval=0",
        "log.report=true"]


class Peak(rig.Runs):
    def setUp(self):
        super().setUp()
        self.spinning = []
        self.addCleanup(self.stop_spinning)

    def spin(self):
        """Starts a busy process on every CPU, and waits until all of them run."""
        program = "import sys\nprint('spinning', flush=True)\nwhile True: pass"
        for cpu in sorted(os.sched_getaffinity(0)):
            process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
                                       preexec_fn=lambda cpu=cpu: os.sched_setaffinity(0, {cpu}))
            self.spinning.append(process)
            self.assertEqual(process.stdout.readline(), "spinning\n")

    def stop_spinning(self):
        for process in self.spinning:
            process.kill()
            process.communicate()
        self.spinning = []

    def assert_honest(self, run="run"):
        start, end = self.events("start", run)[0], self.events("end", run)[-1]
        steps = self.events("step", run)
        self.assertEqual(len(steps), 24)
        known = start["peak"]["tflops"]
        for step in steps:
            for share in ("mfu_causal", "hfu"):
                self.assertGreater(step[share], 0)
                self.assertLessEqual(step[share], 1, f"{share} of step {step['step']}")
            self.assertGreaterEqual(step["peak_tflops"], known, "a peak never falls")
            known = step["peak_tflops"]
            full = start["flops_per_token"]["full"]
            self.assertAlmostEqual(step["mfu"] * step["peak_tflops"], step["tflops_per_device"],
                                   delta=1e-9 * step["tflops_per_device"])
            self.assertAlmostEqual(step["hfu"] * full, step["mfu"] * start["flops_per_token"]["hardware"], delta=1e-9 * full)
        for event in (start, end):
            peak = event["peak"]
            self.assertEqual(peak["origin"], "measured")
            self.assertTrue(peak["unit"])
            self.assertGreaterEqual(peak["windows"], 24)
            self.assertLessEqual(peak["lowest_tflops"], peak["median_tflops"])
            self.assertLessEqual(peak["median_tflops"], peak["tflops"])
        self.assertGreaterEqual(end["peak"]["tflops"], known)
        self.assertEqual(start["peak"]["windows"], 24, "start-up measures once")

        report = json.loads((self.folder / run / "report.json").read_text())
        self.assertEqual(report["peak"], end["peak"])
        middle = sorted(step["tflops_per_device"] for step in steps[2:])
        self.assertAlmostEqual(report["mfu"] * end["peak"]["tflops"], (middle[10] + middle[11]) / 2, delta=1e-9)
        for share in ("mfu_causal", "hfu"):
            self.assertLessEqual(report[share], 1)
        page = (self.folder / run / "report.html").read_text()
        shown = [float(text) for text in re.findall(r"([0-9.]+) %", page)]
        self.assertGreaterEqual(len(shown), 4)  # one at the top, and three in the table
        tile = re.search(r"<dt>Utilisation(?:, causal)?</dt><dd>([0-9.]+) %", page)
        self.assertLessEqual(float(tile.group(1)), 100)
        table = re.search(r"mfu [0-9.]+ %, causal ([0-9.]+) %, hardware ([0-9.]+) % of", page)
        for text in table.groups():
            self.assertLessEqual(float(text), 100)

    def test_programs_that_stop_in_the_middle_of_the_run(self):
        self.spin()
        process = self.start_train(*WORK)
        self.wait_until(lambda: self.last_step() >= 6, process, "the sixth step")
        self.stop_spinning()
        self.ended(process, 0)
        self.assert_honest()

    def test_programs_that_go_on_next_to_two_ranks(self):
        self.spin()
        self.train("parallel.transport=threads", "parallel.data=2", "run.threads=1", *WORK, "train.micro_batch=2")
        self.assert_honest()

    def test_a_peak_that_the_user_gives_too_low_is_kept_and_said_once(self):
        stderr = self.train(*WORK, "hardware.peak_tflops=0.00001", "train.steps=4")
        self.assertEqual(stderr.count("set by hardware.peak_tflops"), 1, stderr)
        self.assertEqual(len([event for event in self.events("warning") if "hardware.peak_tflops" in event["message"]]), 1)
        self.assertEqual({step["peak_tflops"] for step in self.events("step")}, {1e-5})
        self.assertEqual(self.events("end")[-1]["peak"], {"tflops": 1e-5, "origin": "user"})


if __name__ == "__main__":
    rig.main()
