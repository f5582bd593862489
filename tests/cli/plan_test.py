#!/usr/bin/env python3
"""The planner and sharding specs, through the program."""
import json
import os
import pathlib
import re

import rig

CLUSTERS = pathlib.Path(__file__).resolve().parents[2] / "configs" / "clusters"
TAGS = """
[parallel]
strategy = "autoddl"
axes = [2, 2]
table = "fv"
transport = "threads"
[[parallel.layer]]
layers = 1
stream = "rr"
attention = "cc"
hidden = "cc"
qkv = "cc"
out = "kk"
up = "cc"
down = "kk"
[[parallel.layer]]
stream = "rc"
attention = "rc"
hidden = "rc"
qkv = "fc"
out = "fc"
up = "fc"
down = "fk"
"""


class Plan(rig.Runs):
    def setUp(self):
        super().setUp()
        laptop = (CLUSTERS / "laptop-2core.toml").read_text()
        (self.folder / "cluster.toml").write_text(laptop.replace("devices_per_node = 2", "devices_per_node = 8"))

    def plan(self, *args, status=0, stdout=True):
        return self.trainer("plan", "--config", "config.toml", "--cluster", "cluster.toml", *args, status=status,
                            stdout=stdout)

    def add_to_config(self, text):
        path = self.folder / "config.toml"
        path.write_text(path.read_text() + text)

    def test_layers_by_tags_follow_one_rank(self):
        common = ("precision.compute=fp64", "model.n_head=4", "run.threads=1")
        self.train("run.dir=alone", *common)
        self.add_to_config(TAGS)
        self.train("run.dir=tags", *common)
        self.assert_follows("tags", "alone")
        end = self.events("end", "tags")[-1]
        self.assertEqual(end["predicted"]["comm_bytes"], end["measured"]["comm_bytes"])
        self.assertEqual(set(end["measured"]["comm_bytes"]), {"a", "b", "a+b"})
        # A run with sharding specs resumes from a checkpoint of one rank.
        self.train("run.dir=mixed", *common, "parallel.strategy=megatron-1d", max_steps=4)
        self.train("run.dir=mixed", *common)
        self.assert_follows("mixed", "alone")

    def test_a_plan_is_a_table_a_document_a_page_and_a_run(self):
        text = self.plan("--devices", "4", "--free", "all", "--explain", "--html", "plan.html", "--set", "model.n_head=4")
        for part in ("row", "megatron-1d", "ms/step = compute (matmuls", "exposed (communication", "batch: train.micro_batch", "slower by: ", "exposed", "breakdown of the", "sensitivity", "the next strategy"):
            self.assertIn(part, text)
        self.assertIn("<svg", (self.folder / "plan.html").read_text())
        document = json.loads(self.plan("--devices", "4", "--free", "all", "--json", "--emit", "best.toml", "--top", "99",
                                        "--set", "model.n_head=4"))
        runs = document["runs"]
        self.assertEqual([run["step_seconds"] for run in runs], sorted(run["step_seconds"] for run in runs))
        self.assertGreaterEqual(len({run["strategy"] for run in runs}), 3)
        for run in runs:
            self.assertAlmostEqual(sum(run["parts"].values()), run["step_seconds"], delta=1e-9 * run["step_seconds"])
        # The printed table agrees with the JSON, row by row.
        strategies = {run["strategy"] for run in runs}
        rows = [line.split() for line in text.splitlines()[2:]]
        rows = [row for row in rows if len(row) > 1 and row[1] in strategies]
        self.assertGreaterEqual(len(rows), 3)
        for place, (row, run) in enumerate(zip(rows, runs)):
            self.assertEqual(row[:2], [str(place + 1), run["strategy"]])
            self.assertIn(f"{run['step_seconds'] * 1e3:.4g}", row)
            self.assertIn(run["recompute"], row)
        # Planning the emitted configuration gives the same numbers, and it runs unchanged.
        again = json.loads(self.trainer("plan", "--config", "best.toml", "--cluster", "cluster.toml",
                                        "--devices", "4", "--json", stdout=True))
        self.assertEqual(len(again["runs"]), 1)
        for key in ("strategy", "layout", "step_seconds", "memory_bytes", "comm_bytes", "parts"):
            self.assertEqual(again["runs"][0][key], runs[0][key])
        self.trainer("--config", "best.toml", "--max-steps", "2", "--set", "parallel.transport=threads")
        end = self.events("end")[-1]
        self.assertEqual(end["predicted"]["comm_bytes"], end["measured"]["comm_bytes"])
        per_step = {axis: {op: count * 2 for op, count in ops.items()} for axis, ops in runs[0]["comm_bytes"].items()}
        self.assertEqual(end["measured"]["comm_bytes"], per_step)

    def test_a_free_batch_conflicts_with_nothing(self):
        conflict = ("--devices", "2", "--set", "train.global_batch=8", "train.micro_batch=3")
        self.assertIn("not a multiple of micro_batch = 3", self.plan(*conflict, status=2, stdout=False))
        for free in ("all", "train.micro_batch"):
            runs = json.loads(self.plan(*conflict, "--free", free, "--json", "--top", "99"))["runs"]
            self.assertTrue(runs)
            for run in runs:
                self.assertEqual(8 % (run["micro_batch"] * run["data"]), 0)
        text = (self.folder / "config.toml").read_text()  # a batch that is not given is free, whatever its default
        (self.folder / "config.toml").write_text(text.replace("micro_batch = 2\n", "").replace("global_batch = 4", "global_batch = 6"))
        self.assertTrue(json.loads(self.plan("--devices", "2", "--json"))["runs"])
        self.train('parallel.strategy="auto"', "hardware.profile=cluster.toml", max_steps=1)

    def test_the_batches_that_would_fit_are_named(self):
        def why(devices, *sets):
            return self.plan("--devices", str(devices), "--set", *sets, status=2, stdout=False)
        text = why(8, "train.global_batch=28", "parallel.data=8", "train.micro_batch=1")
        self.assertIn("global_batch = 28 does not divide over data = 8", text)
        self.assertRegex(text, r"global_batch = 24 or 32 would fit")
        for batch in (24, 32):
            self.plan("--devices", "8", "--set", f"train.global_batch={batch}", "parallel.data=8", "train.micro_batch=1")
        text = why(4, "train.global_batch=8", "parallel.data=4", "train.micro_batch=4")
        self.assertRegex(text, "global_batch = 16 would fit, or micro_batch = 2")
        self.plan("--devices", "4", "--set", "train.global_batch=8", "parallel.data=4", "train.micro_batch=2")

    def test_layouts_with_depth_are_planned_with_muon_and_zero(self):
        sets = ("optim.name=muon", "parallel.strategy=optimus-2d", "parallel.mesh=[1, 1, 2]", "parallel.zero_stage=1",
                "parallel.data=1")
        document = json.loads(self.plan("--devices", "2", "--json", "--set", *sets))
        self.assertEqual([run["zero_stage"] for run in document["runs"]], [1])
        self.assertNotIn("cannot be built", str(document["not_tried"]))

    def test_any_row_of_the_table_can_be_written(self):
        args = ("--devices", "4", "--free", "all", "--set", "model.n_head=4")
        document = json.loads(self.plan(*args, "--json", "--top", "1", "--emit", "third.toml", "--row", "3"))
        runs = json.loads(self.plan(*args, "--json", "--top", "99"))["runs"]
        self.assertEqual(len(document["runs"]), 1)
        emitted = json.loads(self.trainer("plan", "--config", "third.toml", "--cluster", "cluster.toml", "--devices", "4", "--json",
                                          stdout=True))["runs"][0]
        self.assertEqual([emitted[key] for key in ("strategy", "layout", "step_seconds")],
                         [runs[2][key] for key in ("strategy", "layout", "step_seconds")])
        self.assertRegex(self.plan(*args, "--emit", "none.toml", "--row", "1000", status=2, stdout=False), r"--row 1000: .*\d+ layouts")
        self.assertFalse((self.folder / "none.toml").exists())
        self.assertIn("--emit", self.plan(*args, "--row", "2", status=2, stdout=False))

    def test_a_plan_counts_the_samples_of_a_run(self):
        """Samples take as much memory as in the dry run, at most the host's; layouts that a run would refuse are left
        out."""
        for prompt in ("", "The"):
            sets = ("--set", f'train.sample_prompt="{prompt}"', "model.seq_len=64", "parallel.data=1", "train.recompute=none")
            memory = json.loads(self.plan("--devices", "1", "--json", *sets))["runs"][0]["memory"]
            self.assertEqual(memory.get("kv_cache", 0), 2 * 2 * 64 * 32 * 4 if prompt else 0)
            text = self.trainer("train", "--dry-run", "--config", "config.toml", *sets, stdout=True)
            self.assertEqual("kv_cache" in text, bool(prompt))

    def test_an_emitted_configuration_predicts_its_run(self):
        # --cluster is relative to the working folder; the configuration is written to a different one.
        (self.folder / "out").mkdir()
        document = json.loads(self.plan("--devices", "2", "--free", "all", "--set", "run.threads=1", "--json", "--emit",
                                        "out/best.toml"))
        planned = document["runs"][0]
        text = (self.folder / "out" / "best.toml").read_text()
        self.assertIn(f'profile = "{self.folder.resolve() / "cluster.toml"}"', text)
        self.assertIn(f"# Predicted: {planned['step_seconds'] * 1e3:.4g} ms/step", text)
        self.assertIn("(data sheet, not calibrated)", text)
        log = self.trainer("--config", "out/best.toml", "--set", "parallel.transport=threads", "log.report=true")
        start, end = self.events("start")[0], self.events("end")[-1]
        for event in (start, end):
            self.assertAlmostEqual(event["predicted"]["step_ms"], planned["step_seconds"] * 1e3,
                                   delta=1e-9 * planned["step_seconds"] * 1e3)
        self.assertEqual(start["predicted_by"],
                         f"{self.folder.resolve() / 'cluster.toml'} (data sheet of core with AVX2)")
        report = json.loads((self.folder / "run" / "report.json").read_text())
        self.assertAlmostEqual(report["predicted_wait_ms"], start["predicted"]["wait_ms"])
        # The run's last lines and its report compare the same means over the steps after the warm-up.
        steps = [event["step_ms"] for event in self.events("step")][2:]
        mean = sum(steps) / len(steps)
        self.assertAlmostEqual(report["mean_step_ms"], mean)
        predicted = start["predicted"]["step_ms"]
        verdict = report["prediction"]
        self.assertIn(verdict, re.search(r"^prediction +(.*)$", log, re.M).group(1))
        self.assertTrue(verdict.startswith(f"{predicted:.4g} ms/step, measured {mean:.4g} ({mean / predicted:.2f}x)"),
                        verdict)
        phase, waits = report["phase_ms"], report["predicted_wait_ms"]
        parts = {"compute": (predicted - waits, mean - phase["comm_exposed"] - phase["data"]),
                 "exposed communication": (waits, phase["comm_exposed"]), "waiting for data": (0, phase["data"])}
        worst = max(parts, key=lambda name: abs(parts[name][1] - parts[name][0]))
        self.assertIn(f"largest difference: {worst}, {parts[worst][0]:.4g} ms predicted, {parts[worst][1]:.4g} measured",
                      verdict)
        # Planning the emitted file does not need --cluster.
        again = json.loads(self.trainer("plan", "--config", "out/best.toml", "--devices", "2", "--json", stdout=True))
        self.assertEqual(again["runs"][0]["step_seconds"], planned["step_seconds"])
        # A data sheet without a peak in the run's compute type gives a message instead of a prediction.
        cluster = self.folder / "cluster.toml"
        cluster.write_text(cluster.read_text().replace("tflops_fp32", "tflops_bf16"))
        log = self.train("run.dir=other", "hardware.profile=cluster.toml")
        self.assertIn("device.tflops_fp32 is missing", log)
        self.assertIsNone(self.events("start", "other")[0]["predicted"]["step_ms"])

    def test_what_a_run_takes_and_costs(self):
        cluster = self.folder / "cluster.toml"
        cluster.write_text(cluster.read_text().replace("lanes = 3", "lanes = 3\nprice_per_gpu_hour = 2.5"))
        keys = ("--free", "all", "--set", "model.n_head=4", "train.steps=3000", "train.global_batch=8")
        single = json.loads(self.plan("--devices", "2", *keys, "--json"))
        run = single["runs"][0]
        self.assertAlmostEqual(run["run_seconds"], 3000 * run["step_seconds"])
        self.assertAlmostEqual(run["device_hours"], 3000 * run["step_seconds"] * 2 / 3600)
        self.assertAlmostEqual(run["price"], 2.5 * run["device_hours"])
        self.assertRegex(self.plan("--devices", "2", *keys), r"3000 steps, 768k tokens, take .*price .* at 2.5 each")
        # The same length given in tokens is the same run.
        tokens = [key.replace("train.steps=3000", f"train.tokens={3000 * 8 * 32}") for key in keys]
        self.assertEqual(json.loads(self.plan("--devices", "2", *tokens, "--json"))["runs"][0]["run_seconds"],
                         run["run_seconds"])
        # Several device counts give one table, whose rows are those of single plans.
        text = self.plan("--devices", "1,2,4,7", *keys, "--html", "scaling.html")
        document = json.loads(self.plan("--devices", "1,2,4,7", *keys, "--json"))
        rows = document["scaling"]
        self.assertEqual([row["devices"] for row in rows], [1, 2, 4, 7])
        self.assertEqual(rows[1]["run"], run)
        self.assertEqual(rows[0]["efficiency"], 1)
        for row in rows[:3]:
            speed = row["run"]["tokens_per_s"] / row["devices"]
            self.assertAlmostEqual(row["efficiency"], speed / rows[0]["run"]["tokens_per_s"])
            self.assertRegex(text, rf"(?m)^ +{row['devices']} {row['run']['strategy']}.* {row['run']['step_seconds'] * 1e3:.4g} ")
        self.assertIn("no layout on 7 devices", rows[3]["problem"])
        self.assertRegex(text, r"(?m)^ +7 no layout on 7 devices")
        page = (self.folder / "scaling.html").read_text()
        self.assertIn("<svg", page)
        self.assertIn("4 devices", page)
        for option in ("--emit=best.toml", "--explain"):
            self.assertIn("--devices, found 2", self.plan("--devices", "1,2", option, status=2, stdout=False))
        self.assertIn("no layout on 7 devices", self.plan("--devices", "7,11", *keys, status=2, stdout=False))
        # Every plan prints its error band.
        for lines in (text, self.plan("--devices", "2", *keys)):
            self.assertRegex(lines, r"error band: steps take 0\.\d+ to 1\.\d+ times as long as predicted; cluster.toml is a data sheet")

    def test_what_binds_a_layout_is_what_makes_it_faster(self):
        args = ("--devices", "4", "--set", "model.n_head=4", "--set", "parallel.strategy=megatron-1d", "--set",
                "parallel.data=2", "--set", "train.micro_batch=2", "--set", "train.recompute=none", "--set",
                "parallel.zero_stage=0", "--set", "parallel.sequence_parallel=true")
        cluster = (self.folder / "cluster.toml").read_text()
        before = json.loads(self.plan(*args, "--json"))["runs"][0]["step_seconds"]
        lines = self.plan(*args, "--explain").split("sensitivity: the step with\n")[1].splitlines()
        first = lines[0]
        self.assertRegex(first, r"-\d")
        changes = {"matmuls twice as fast": [("tflops_fp32 = 0.096", "tflops_fp32 = 0.192"),
                                             ("tflops_fp64 = 0.048", "tflops_fp64 = 0.096")],
                   "memory twice as fast": [("memory_gb_per_s = 16", "memory_gb_per_s = 32")],
                   "links within nodes twice as fast": [("gb_per_s = 4\n", "gb_per_s = 8\n")],
                   "no latency": [("operator_us = 3", "operator_us = 0"), ("start_us = 10", "start_us = 0"),
                                  ("hop_us = 5", "hop_us = 0")]}
        named = next(name for name in changes if first.strip().startswith(name))
        relaxed = cluster
        for old, new in changes[named]:
            self.assertIn(old, relaxed)
            relaxed = relaxed.replace(old, new)
        (self.folder / "cluster.toml").write_text(relaxed)
        after = json.loads(self.plan(*args, "--json"))["runs"][0]["step_seconds"]
        self.assertLess(after, before)
        self.assertIn(f"{after * 1e3:.4g} ms", first)

    def test_every_strategy_can_be_written_and_run(self):
        for strategy in ("megatron-1d", "fsdp", "optimus-2d", "axonn-4d", "autoddl"):
            self.plan("--devices", "4", "--emit", f"{strategy}.toml", "--set", f"parallel.strategy={strategy}", "--set",
                      "model.n_head=4", "--set", "parallel.data=1", "--set", f"run.dir={strategy}", "--set",
                      "train.micro_batch=4")
            warnings = self.trainer("--config", f"{strategy}.toml", "--max-steps", "2", "--set",
                                    "parallel.transport=threads")
            self.assertNotIn("no effect", warnings)
            self.assertIn(f'strategy = "{strategy}"', (self.folder / strategy / "config.toml").read_text())

    def test_a_given_spec_is_planned_even_if_all_ranks_repeat_its_gemms(self):
        """A search ignores such specs: fewer ranks would be as fast."""
        spec = ", ".join(f'{name}="-"' for name in ("stream", "attention", "hidden", "qkv", "out", "up", "down"))
        stdout = self.plan("--devices", "7", "--set", "parallel.strategy=autoddl", "--set", "parallel.axes=[7]", "--set",
                           f"parallel.layer=[{{{spec}}}]", "--set", "parallel.head=-", "--set", "parallel.table=-")
        self.assertRegex(stdout, r"\n +1 +autoddl +axes 7, data 1 ")

    def test_mistakes_end_with_what_would_fit(self):
        small = ("--set", "model.n_head=2", "--set", "train.global_batch=4")
        self.assertIn("; 4 or 8 devices would fit", self.plan("--devices", "7", *small, status=2, stdout=False))
        message = self.plan("--devices", "4", "--set", "hardware.memory_limit=0.0001", status=3, stdout=False)
        self.assertIn("no layout fits into", message)
        self.assertIn("raise hardware.memory_limit, let the planner choose train.micro_batch, or use more devices", message)
        bare = re.sub("efficiency = .*", "", (self.folder / "cluster.toml").read_text())
        (self.folder / "bare.toml").write_text(bare)
        message = self.trainer("plan", "--config", "config.toml", "--cluster", "bare.toml")
        self.assertIn("bare.toml: device.efficiency is missing", message)
        (self.folder / "bad.toml").write_text((self.folder / "cluster.toml").read_text().replace("gb_per_s = 4", ""))
        message = self.trainer("plan", "--config", "config.toml", "--cluster", "bad.toml", status=2)
        self.assertIn("intra.gb_per_s: missing", message)
        (self.folder / "percent.toml").write_text(re.sub("efficiency = .*", "efficiency = 85", (self.folder / "cluster.toml").read_text()))
        message = self.trainer("plan", "--config", "config.toml", "--cluster", "percent.toml", status=2)
        self.assertIn("device.efficiency: expected a number above 0 and at most 1, found the integer 85", message)
        message = self.plan("--devices", "1", "--free", "model.n_layer", status=2, stdout=False)
        self.assertIn("--free model.n_layer: the planner does not search this", message)
        freed = self.plan("--devices", "2", "--set", "parallel.strategy=fsdp", "--set", "parallel.cache_layers=2", "--free",
                          "parallel.cache_layers")
        never_set = self.plan("--devices", "2", "--set", "parallel.strategy=fsdp")
        table = lambda text: re.findall(r"^ +\d+ fsdp .*", text, re.M)
        self.assertEqual(table(freed), table(never_set))
        self.assertIn("--emit and --html both name x", self.plan("--emit", "x", "--html", "x", status=2, stdout=False))
        message = self.trainer("plan", "--config", "config.toml", status=2)
        for part in ("--cluster FILE", "--profile FILE", "or set hardware.profile"):
            self.assertIn(part, message)
        message = self.trainer("plan", "--config", "config.toml", "--cluster", "h100.toml", "--emit", "best.toml", status=2)
        self.assertIn("h100.toml: cannot be read: No such file", message)
        self.assertIn("expected a cluster file such as those in configs/clusters/", message)
        self.assertNotIn("config reference", message)
        self.assertFalse((self.folder / "best.toml").exists())
        message = self.trainer("plan", "--config", "config.toml", "--profile", str(CLUSTERS / "h100.toml"), status=2)
        self.assertIn("not a measured profile", message)
        self.assertIn("--free", self.plan("--free", "train.tenser", status=2, stdout=False))
        message = self.train("parallel.strategy=auto", status=2)
        self.assertIn("hardware.profile", message)

    def test_what_is_no_file_is_not_replaced(self):
        (self.folder / "taken").mkdir()
        os.mkfifo(self.folder / "pipe")
        (self.folder / "link").symlink_to("pipe")
        for option in ("--emit", "--html"):
            for name, what in (("taken", "a folder"), ("pipe", "a pipe"), ("link", "a pipe")):
                message = self.plan("--devices", "1", option, name, status=5, stdout=False)
                self.assertIn(f"{name}: {what}; expected a regular file (which is overwritten) or an unused name", message)
        self.assertTrue((self.folder / "taken").is_dir())
        self.assertTrue((self.folder / "pipe").is_fifo())
        self.assertTrue((self.folder / "link").is_symlink())
        self.assertEqual(list(self.folder.glob("*.new")), [])

    def test_a_profile_predicts_the_run_and_chooses_its_strategy(self):
        self.add_to_config('[parallel]\ntransport = "threads"\ndata = 2\n')
        self.trainer("bench", "all", "--write-profile", "here.toml", "--repeats", "1", "--config", "config.toml",
                     "--compute", "fp32", "--set", "run.threads=1")
        profile = (self.folder / "here.toml").read_text()
        self.assertIn("ranks = 2", profile)
        self.train("run.dir=predicted", "hardware.profile=here.toml", "run.threads=1", "log.report=true")
        start, end = self.events("start", "predicted")[0], self.events("end", "predicted")[-1]
        self.assertGreater(start["predicted"]["step_ms"], 0)
        self.assertEqual(end["predicted"]["step_ms"], start["predicted"]["step_ms"])
        self.assertAlmostEqual(end["ratio"]["step_ms"], end["measured"]["step_ms"] / end["predicted"]["step_ms"])
        off = abs(end["ratio"]["step_ms"] - 1) > 0.25
        self.assertEqual(any("was predicted" in w["message"] for w in self.events("warning", "predicted")), off)
        self.assertIn("Predicted and measured", (self.folder / "predicted" / "report.html").read_text())
        log = self.train("run.dir=chosen", "hardware.profile=here.toml", "run.threads=1", "parallel.strategy=auto")
        self.assertIn('strategy "auto" chose', log)
        self.assertNotIn('strategy = "auto"', (self.folder / "chosen" / "config.toml").read_text())
        # A profile of a different device is refused.
        lines = [line if not (i > 0 and line.startswith("name = ") and profile.splitlines()[i - 1] == "[device]")
                 else 'name = "another"' for i, line in enumerate(profile.splitlines())]
        (self.folder / "other.toml").write_text("\n".join(lines) + "\n")
        message = self.train("run.dir=refused", "hardware.profile=other.toml", status=2)
        self.assertIn("measured on devices other than this one", message)

    def test_a_resumed_run_keeps_its_layout(self):
        fsdp, auto = ("parallel.strategy=fsdp",), ("parallel.strategy=auto", "hardware.profile=cluster.toml")
        log = self.train_on(2, *auto, "run.dir=auto", "run.threads=1", transport="mpi")
        self.assertIn('strategy "auto" chose', log)
        self.assertNotIn('strategy "auto" chose fsdp', log)
        self.train_on(2, *fsdp, "run.dir=whole", "run.threads=1", transport="mpi")
        self.train_on(2, *fsdp, "run.dir=kept", "run.threads=1", transport="mpi", max_steps=2)
        log = self.train_on(2, *auto, "run.dir=kept", "run.threads=1", transport="mpi")
        self.assertRegex(log, 'strategy "auto" keeps the run\'s layout, fsdp with shards 2, .*data 1')
        self.assertEqual(self.losses("kept"), self.losses("whole"))


if __name__ == "__main__":
    rig.main()
