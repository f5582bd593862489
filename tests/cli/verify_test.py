#!/usr/bin/env python3
"""`trainer verify`: passes on intact layouts, and each check finds a fault that is planted on one rank and names it."""
import json
import pathlib
import shutil
import subprocess
import time
import unittest

import rig

DIFFERENCE = 8
ALL = ("environment", "links", "device", "gradients", "norm", "update", "bytes", "repeat", "transport", "resume", "data", "derivative")
FOUR = ("parallel.strategy=megatron-1d", "parallel.tensor=2", "parallel.data=2", "train.micro_batch=1", "run.threads=1")
WEIGHT = "blocks.0.mlp.up.weight"


class Verify(rig.Runs):
    def verify(self, *sets, ranks=0, status=0, only="", options=()):
        """Returns the checks of the JSON document, and the document."""
        if ranks and shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        self.launcher = [*rig.MPIRUN, "-np", str(ranks)] if ranks else []
        args = ["--config", "config.toml", "--json", *(["--only", only] if only else []), *options]
        for key_value in sets:
            args += ["--set", key_value]
        document = json.loads(self.trainer("verify", *args, status=status, stdout=True))
        self.launcher = []
        return document["checks"], document

    def passed(self, checks):
        """Returns the checks that passed, or that a slow machine did not begin in time."""
        for check in checks:
            self.assertIn(check["result"], ("pass", "skipped"), check)
        return {check["check"] for check in checks if check["result"] == "pass" or "time limit" in check["text"]}

    def test_layouts_pass_on_threads_and_leave_no_file(self):
        began = time.monotonic()
        checks, document = self.verify(*FOUR)
        self.assertEqual(self.passed(checks), set(ALL) - {"transport"})
        self.assertTrue(document["passed"])
        if document["seconds"] < 60:
            self.assertTrue(document["complete"])
            self.assertEqual(document["not_checked"], ["transport"])
        self.assertEqual(document["ranks"], 4)
        self.assertEqual(document["layout"], "tensor 2, data 2")
        self.assertFalse((self.folder / "run").exists())
        self.assertLess(document["seconds"], time.monotonic() - began)
        exact = [check for check in checks if check["check"] in ("gradients", "update") and "fp64" in check["checked"]]
        self.assertTrue(exact and all(0 < check["worst"] < check["bound"] for check in exact), exact)
        bits = [check for check in checks if "equal gradients" in check["checked"]]
        self.assertEqual([(check["result"], check["bound"]) for check in bits], [("pass", None)])

    def test_layouts_pass_over_mpi(self):
        checks, _ = self.verify("parallel.zero_stage=1", "parallel.data=2", "train.micro_batch=1", "optim.name=muon",
                                ranks=2, only="gradients,update,bytes,transport,resume")
        self.assertEqual(self.passed(checks), {"gradients", "update", "bytes", "transport", "resume"})

    def test_stages_pass_over_mpi(self):
        checks, _ = self.verify("parallel.stages=2", "train.micro_batch=1", ranks=2, only="links,bytes,transport,resume")
        self.assertEqual(self.passed(checks), {"links", "bytes", "transport", "resume"})
        self.assertTrue(any(check["checked"].startswith("links of 2 stages, both ways") for check in checks), checks)

    def test_configurations_for_stages_and_experts_pass_in_a_minute(self):
        only, divided = "gradients,links,resume", ("parallel.strategy=fsdp", "parallel.shards=4", "parallel.experts=2")
        for name, sets, layout in (("pipeline", (), "2 stages (1f1b), tensor 2, data 1"),
                                   ("moe-quickstart", ("parallel.data=2",), "shards 1, data 2"),
                                   ("qwen3-moe", divided, "shards 4, experts 2, data 1")):
            with self.subTest(name):
                shutil.copy(pathlib.Path(__file__).parents[2] / f"configs/{name}.toml", self.folder / "config.toml")
                checks, document = self.verify("data.train=text.txt", *sets, only=only)
                self.assertEqual(self.passed(checks), set(only.split(",")))
                self.assertEqual(document["layout"], layout)
                if document["complete"]:
                    self.assertLess(document["seconds"], 60)

    def test_updates_in_the_type_of_the_run_are_those_of_one_cpu(self):
        checks, _ = self.verify("parallel.zero_stage=1", "parallel.data=2", "train.micro_batch=1", "optim.name=muon",
                                "precision.compute=bf16", "optim.moments=bf16", only="update")
        typed = [check for check in checks if "run's type (bf16" in check["checked"]]
        self.assertEqual([check["result"] for check in typed], ["pass", "pass"], typed)
        self.assertIn("orthogonalized matrices", typed[1]["checked"])
        self.assertTrue(0 < typed[1]["worst"] < typed[1]["bound"], typed)

    def test_offloaded_updates_are_those_of_one_rank(self):
        for mode in ("cpu", "interleaved"):
            checks, _ = self.verify("parallel.data=2", "train.micro_batch=1", f"offload.optimizer={mode}", "run.threads=1",
                                    only="gradients,norm,update,bytes")
            self.assertEqual(self.passed(checks), {"gradients", "norm", "update", "bytes"})

    def test_a_slow_host_is_named(self):
        cluster = pathlib.Path(__file__).parents[1] / "bench/emulated_cluster.sh"
        if subprocess.run([cluster, "--hosts", "1", "--", "true"], capture_output=True).returncode == 77:
            self.skipTest("no network namespaces")
        self.launcher = [cluster, "--hosts", "3", "--rate", "1gbit", "--slow", "40mbit", "--"]
        document = json.loads(self.trainer("verify", "--config", "config.toml", "--json", "--only", "links", "--set",
                                           "parallel.data=3", "train.global_batch=3", "train.micro_batch=1", stdout=True))
        pairs = document["checks"][-1]
        self.assertEqual(pairs["result"], "warning", pairs)
        self.assertEqual(pairs["ranks"], [2])
        self.assertRegex(pairs["text"], r"host h\d-\d+ <-> host h\d-\d+: .* all pairs are slow of rank 2 \(host h3-")

    def test_one_rank_passes(self):
        checks, _ = self.verify("precision.compute=fp64", only="links,gradients,bytes,transport,derivative")
        self.assertEqual(self.passed(checks), {"gradients", "derivative"})
        self.assertIn("the loss", self.trainer("verify", "--config", "config.toml", "--only", "derivative", "--set",
                                               "model.dropout=0.1", "train.z_loss=0.01"))

    def test_a_planted_fault_is_found_and_its_rank_named(self):
        for fault, check, rank in (("message:2:0", "links", 2),
                                   ("weight:3:wte:5:22", "device", 3),
                                   (f"gradient:3:{WEIGHT}:31:20", "gradients", 3),
                                   ("gradient:1:blocks.1.norm2.gain:3:30", "gradients", 1),
                                   (f"weight:3:{WEIGHT}:31:50", "update", 3),
                                   ("file:1:0", "resume", 1)):
            with self.subTest(fault=fault):
                checks, document = self.verify(*FOUR, f'debug.inject=["{fault}"]', status=DIFFERENCE, only=check)
                failed = [each for each in checks if each["result"] == "failure"]
                self.assertTrue(failed and not document["passed"])
                if check == "resume":  # every rank reads the damaged file
                    self.assertIn("1.shard", failed[0]["text"])
                else:
                    self.assertEqual(failed[0]["ranks"], [rank], failed[0])
                    self.assertEqual(len(failed[0]["hosts"]), 1)
                    self.assertIn(f"rank {rank} (host ", failed[0]["text"])
                if check == "gradients":  # in fp64, and of the rank's device on its own
                    self.assertEqual([each["ranks"] for each in failed], [[rank], [rank]], failed)
                    self.assertIn("one rank against fp64", failed[1]["checked"])

    def test_a_wrong_weight_is_found_by_every_check_of_steps(self):
        checks, _ = self.verify("parallel.data=2", "train.micro_batch=1", f'debug.inject=["weight:1:{WEIGHT}:5:50"]',
                                ranks=2, status=DIFFERENCE, only="norm,repeat,transport,derivative")
        failed = {each["check"] for each in checks if each["result"] == "failure"}
        self.assertEqual(failed, {"norm", "repeat", "transport", "derivative"})
        derivative = [each for each in checks if each["check"] == "derivative"]
        self.assertEqual(derivative[0]["ranks"], [1])

    def test_the_table_ends_with_a_verdict(self):
        text = self.trainer("verify", "--config", "config.toml", "--only", "gradients,links", stdout=True)
        self.assertRegex(text, r"(?m)^verify: .*1 rank on 1 host, fp32, self; model shrunk to 2 layers x 32")
        self.assertRegex(text, r"(?m)^links .*skipped: one rank$")
        self.assertRegex(text, r"(?m)^gradients .* tensors, layout against one rank, fp64 .* pass \(.*\)$")
        self.assertRegex(text, r"(?m)^verdict: pass; not checked: environment, links, .*, derivative\. \d+ s$")
        self.assertNotIn("this layout computes what one rank computes", text)

    def test_nothing_checked_is_no_success(self):
        _, document = self.verify("parallel.data=2", "train.micro_batch=1", only="transport", status=2)
        self.assertFalse(document["passed"])
        self.assertEqual(document["verdict"], "nothing was checked")

    def test_more_layouts_than_threads_need_mpirun(self):
        text = self.trainer("verify", "--config", "config.toml", "--set", "parallel.data=17", "train.global_batch=17",
                            "train.micro_batch=1", status=2)
        self.assertIn("start them with mpirun -np 17", text)

    def test_other_data_on_one_rank_are_found(self):
        other = self.folder / "other"
        shutil.copytree(self.folder / "tokens", other / "tokens")
        tokens = bytearray((other / "tokens/tokens.bin").read_bytes())
        tokens[-64:] = tokens[-128:-64]
        (other / "tokens/tokens.bin").write_bytes(tokens)
        shutil.copy(self.folder / "config.toml", other)
        one = ("verify", "--config", "config.toml", "--only", "data", "--set", "data.val_fraction=0")
        self.launcher = [*rig.MPIRUN, "-np", "1"]
        self.trainer(*one, ":", "-np", "1", "-wdir", other, rig.TRAINER, *one, status=DIFFERENCE)
        shutil.copy(self.folder / "tokens/tokens.bin", other / "tokens")
        self.trainer(*one, ":", "-np", "1", "-wdir", other, rig.TRAINER, *one)
        (other / "tokens/tokens.bin").unlink()
        self.trainer(*one, ":", "-np", "1", "-wdir", other, rig.TRAINER, *one, status=DIFFERENCE)

    def test_wrong_usage_is_rejected(self):
        self.assertIn("unknown check; expected some of environment, links",
                      self.trainer("verify", "--config", "config.toml", "--only", "foo", status=2))
        self.trainer("verify", status=2)
        self.assertIn("debug.inject", self.trainer("verify", "--config", "config.toml", "--set",
                                                   'debug.inject=["weight:1"]', status=2))
        self.assertIn("--full compares with one rank", self.trainer(
            "verify", "--config", "config.toml", "--full", "--set", "model.d_model=65536", status=3))


if __name__ == "__main__":
    unittest.main()
