#!/usr/bin/env python3
"""Runs over several ranks, through the program: ranks as processes of mpirun or threads of one process, and
replicas."""
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess

import rig

LOST_PEER = 7


class Ranks(rig.Runs):
    def replicas(self, count, *sets, transport="threads", **options):
        sets = [f"parallel.data={count}", "train.global_batch=12", "run.threads=1", *sets]
        return self.train_on(count, *sets, transport=transport, **options)

    def test_processes_and_threads_and_zero_stages_give_the_same_bits(self):
        # Per step and rank: three micro-batches of two sequences, two of two, or three of one.
        for compute, count, micro_batch in (("fp32", 2, 2), ("bf16", 2, 2), ("fp32", 3, 2), ("fp32", 4, 1)):
            runs = []
            for stage in (0, 1):
                for transport in ("threads", "mpi"):
                    runs.append(f"{compute}-{count}-{transport}{stage}")
                    self.replicas(count, f"run.dir={runs[-1]}", f"precision.compute={compute}",
                                  f"parallel.zero_stage={stage}", f"train.micro_batch={micro_batch}", transport=transport)
            for run in runs[1:]:
                self.assert_same_run(8, run, runs[0])

    def test_text_is_tokenized_once_for_any_number_of_ranks(self):
        """Also if an EOS is configured that is not the tokenizer's own."""
        (self.folder / "own").mkdir()
        shutil.copy(self.folder / "tokens/tokenizer.model", self.folder / "own")
        (self.folder / "own/tokenizer_config.json").write_text('{"eos_token": "<s>"}')
        for name, *tokenizer in (("trained", "data.tokenizer=train", "data.vocab_size=300"), ("given",),
                                 ("own", "data.tokenizer=own")):
            sets = [f"run.dir={name}", 'data.train=["text.txt"]', *tokenizer, "train.micro_batch=1"]
            files = set()
            for steps, count, transport in ((2, 1, "threads"), (4, 2, "threads"), (6, 3, "mpi"), (8, 4, "threads")):
                self.replicas(count, *sets, transport=transport, max_steps=steps)
                files.add((self.folder / name / "tokens/train.bin").stat().st_ino)
            self.assertEqual(len(files), 1, name)

    def test_delayed_messages_and_a_single_lane_change_no_bit(self):
        self.replicas(3, "run.dir=plain", "parallel.zero_stage=1")
        self.replicas(3, "run.dir=late", "parallel.zero_stage=1", 'debug.inject=["delay:0.002"]', "parallel.lanes=1")
        self.assert_same_run(8, "late", "plain")

    def test_config_check_reports_on_how_many_ranks(self):
        def check(*args, verb="check", **more):
            return self.trainer("config", verb, "--config", "config.toml", *args, stdout=True, **more)
        self.assertIn("no errors, runs on any number of ranks that divides global_batch / micro_batch = 2", check())
        self.assertIn("no errors, runs on 2 ranks", check("--ranks", "2"))
        self.assertIn("no errors, runs on 2 ranks", check("--set", "parallel.data=2"))
        self.assertIn("no errors, runs on 1 rank\n", check("--set", "parallel.transport=threads"))
        self.assertRegex(check(verb="show"), r"data += 1 ")
        self.assertRegex(check("--ranks", "2", verb="show"), r"data += 2 ")
        self.assertIn("does not match 3 ranks", self.trainer("config", "check", "--config", "config.toml", "--ranks", "3",
                                                            "--set", "parallel.data=2", status=3))

    def test_the_bytes_of_the_run_are_those_that_were_predicted(self):
        for stage, operations in ((0, {"all_reduce"}), (1, {"reduce_scatter", "all_gather"})):
            run = f"bytes{stage}"
            self.replicas(3, f"run.dir={run}", f"parallel.zero_stage={stage}", "train.micro_batch=1")
            end = self.events("end", run)[-1]
            self.assertEqual(end["predicted"]["comm_bytes"], end["measured"]["comm_bytes"])
            self.assertEqual(set(end["measured"]["comm_bytes"]["data"]), operations)
            steps = [sum(event["comm_bytes"]["data"].values()) for event in self.events("step", run)]
            self.assertEqual(sum(steps), sum(end["measured"]["comm_bytes"]["data"].values()))

    def test_a_checkpoint_goes_on_with_any_number_of_replicas(self):
        common = ("precision.compute=fp64", "train.micro_batch=1")
        self.train("run.dir=alone", "train.global_batch=12", *common)
        for first, second, stages in ((2, 3, (0, 1)), (4, 1, (1, 0)), (1, 4, (0, 1))):
            run = f"from{first}to{second}"
            self.replicas(first, f"run.dir={run}", *common, f"parallel.zero_stage={stages[0]}", max_steps=4)
            self.replicas(second, f"run.dir={run}", *common, f"parallel.zero_stage={stages[1]}")
            self.assert_follows(run, "alone")
            self.assert_whole(*self.step_folders(run))

    def test_evaluation_covers_the_same_tokens_on_any_number_of_ranks(self):
        self.train("run.dir=alone")
        single = self.results("eval", "--checkpoint", "alone", "--json")
        for ranks in (2, 3):
            self.launcher = [*rig.MPIRUN, "-np", str(ranks)]
            report = self.results("eval", "--checkpoint", "alone", "--json")
            self.assertEqual(report["tokens"], single["tokens"])
            self.assertAlmostEqual(report["loss"], single["loss"], delta=1e-6 * single["loss"])

    def test_replicas_that_are_equal_pass_the_comparison(self):
        self.replicas(2, "debug.check_replicas_every=1")

    def test_a_signal_to_one_process_saves_and_stops_all(self):
        self.launcher = [*rig.MPIRUN, "-np", "2"]
        process = self.start_train("parallel.data=2", "train.steps=100000", "run.threads=1")
        self.wait_until(lambda: self.last_step() >= 3, process, "three steps")
        stderr = self.stop(process, signal.SIGUSR1)
        self.assertEqual(self.saved_steps(), [self.last_step()], stderr)
        self.launcher = []
        self.assert_whole(*self.step_folders())

    def test_a_rank_that_stops_answering_is_named_and_the_other_ranks_stop(self):
        for layout, name in (("data", ""), ("stages", "stage 1, ")):
            self.launcher = [*rig.MPIRUN, "-np", "3"]
            process = self.start_train(f"parallel.{layout}=3", "train.global_batch=12", "train.steps=100000", "run.threads=1",
                                       "parallel.timeout=2", "checkpoint.interval=5", f"run.dir={layout}")
            self.wait_until(lambda: self.last_step(layout) >= 7, process, "seven steps")
            os.kill(self.process_of(process.pid, rank=1), signal.SIGSTOP)
            stderr = self.ended(process, LOST_PEER)
            self.assertRegex(stderr, rf"rank 1 \({name}host .*, process \d+\)")
            self.assertNotRegex(stderr, r"(rank \d+): \1")
            self.launcher = []
            self.assert_whole(*self.step_folders(layout))

    def test_a_rank_that_is_killed_is_named_and_the_other_ranks_stop(self):
        """mpirun ends the other ranks and returns the signal; with --enable-recovery they exit with their own
        status."""
        for run, options in (("ended", []), ("left", ["--enable-recovery"])):
            keep = ["sh", "-c", '"$0" "$@"; echo $? > status.$OMPI_COMM_WORLD_RANK']
            self.launcher = [*rig.MPIRUN, *options, "-np", "3", *keep]
            process = self.start_train("parallel.data=3", "train.global_batch=12", "train.steps=100000", "run.threads=1",
                                       "parallel.timeout=10", "checkpoint.interval=5", f"run.dir={run}")
            self.wait_until(lambda: self.last_step(run) >= 7, process, "seven steps")
            shell = self.process_of(process.pid, rank=1)
            victim = pathlib.Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0]
            os.kill(int(victim if options else shell), signal.SIGKILL)
            _, stderr = process.communicate(timeout=rig.TIMEOUT_SECONDS)
            if options:
                statuses = [int((self.folder / f"status.{rank}").read_text()) for rank in range(3)]
                self.assertEqual(statuses, [LOST_PEER, 128 + signal.SIGKILL, LOST_PEER], stderr)
                self.assertRegex(stderr, r"rank 1 \(host .*, process \d+\)")
            else:
                self.assertEqual(process.returncode, 128 + signal.SIGKILL, stderr)
            self.launcher = []
            self.assert_whole(*self.step_folders(run))

    def two_ranks(self, first, second, status, folder=".", program=rig.TRAINER):
        """Runs two ranks with different command lines, the first of `program`, the second in `folder`; returns their
        stderr."""
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        common = [program, "--config", "config.toml", "--set", "run.threads=1", "--set", "parallel.timeout=20"]
        self.launcher = [*rig.MPIRUN, "-np", "1", *common, *first, ":", "-np", "1", "-wdir", str(self.folder / folder)]
        try:
            return self.trainer(*common[1:], *second, status=status)
        finally:
            self.launcher = []

    def test_ranks_with_different_configurations_are_not_a_job(self):
        stderr = self.two_ranks(["--set", "optim.lr=1e-3"], ["--set", "optim.lr=2e-3"], status=2)
        self.assertRegex(stderr, r"rank 1 on \S+ belongs to a different job than rank 0: optim.lr is 0.002, but 0.001 on rank 0")
        self.assertEqual(stderr.count("belongs to a different job"), 1, stderr)
        stderr = self.two_ranks(["--max-steps", "2"], ["--max-steps", "3"], status=2)
        self.assertIn("--max-steps is 3, but 2 on rank 0", stderr)
        self.assertFalse((self.folder / "run/metrics.jsonl").exists())

    def test_ranks_with_other_files_for_their_configuration_are_not_a_job(self):
        (self.folder / "same.toml").write_text(rig.CONFIG)
        (self.folder / "longer.toml").write_text(rig.CONFIG.replace("steps = 8", "steps = 9"))
        named = ["--set", "run.name=config"]
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        for file, status in (("same.toml", 0), ("longer.toml", 2)):
            self.launcher = [*rig.MPIRUN, "-np", "1", rig.TRAINER, "--config", "config.toml", *named, ":", "-np", "1"]
            stderr = self.trainer("--config", file, *named, status=status)
        self.launcher = []
        self.assertIn("train.steps is 9, but 8 on rank 0", stderr)

    def test_ranks_with_and_without_a_gpu_are_one_error(self):
        emulated = rig.TRAINER.with_name("trainer_emulated")
        if not emulated.exists():
            self.skipTest("no emulated GPU")
        for sets, status, why in ((["parallel.data=2"], 3, "rank 0 has a GPU, but rank 1 has none"),
                                  (["parallel.tensor=2"], 3, "rank 0 has a GPU, but rank 1 has none"),
                                  (["parallel.data=2", "run.device=cuda"], 2, 'rank 1: run.device = "cuda": '),
                                  (["parallel.data=2", "run.device=cpu"], 0, "2 ranks (mpi) with 1 thread")):
            args = ["--max-steps", "1"] + [arg for key_value in sets for arg in ("--set", key_value)]
            stderr = self.two_ranks(args, args, status, program=emulated)
            self.assertEqual(stderr.count(why), 1, stderr)

    def other_folder(self):
        """Makes a folder as a second host would have it, with its own copies of all files; returns it."""
        other = self.folder / "other"
        shutil.copytree(self.folder, other)
        return other

    def two_hosts(self, *args, status, stdout=False):
        """Runs the same command line on two ranks, the second in the folder `other`."""
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        self.launcher = [*rig.MPIRUN, "-np", "1", rig.TRAINER, *args, ":", "-np", "1", "-wdir", str(self.folder / "other")]
        try:
            return self.trainer(*args, status=status, stdout=stdout)
        finally:
            self.launcher = []

    def test_ranks_with_different_data_are_not_a_job(self):
        other = self.other_folder()
        (other / "text.txt").write_text((self.folder / "text.txt").read_text() + "and one more line\n")
        self.trainer("tokenize", "--input", "other/text.txt", "--output", "other/tokens", "--tokenizer",
                     "tokens/tokenizer.model")
        joint = ["--set", f"run.dir={self.folder}/run"]
        stderr = self.two_ranks(joint, joint, status=4, folder="other")
        self.assertRegex(stderr, r"rank 1 on \S+ belongs to a different job than rank 0: the number of training tokens is \d+, but \d+ on rank 0")
        # If a tokenizer is trained, rank 0 trains it, on its own text.
        text = [*joint, "--set", "data.train=text.txt", "--set", "data.tokenizer=train", "--set", "data.vocab_size=320"]
        stderr = self.two_ranks(text, text, status=4, folder="other")
        self.assertIn("the number of training tokens is", stderr)

    def test_ranks_with_different_copies_of_a_checkpoint_are_refused(self):
        self.train("run.dir=init", "parallel.transport=threads", "parallel.data=2", max_steps=2)
        other = self.other_folder()
        joint = ["--config", "config.toml", "--set", "run.threads=1", "parallel.timeout=20", f"run.dir={self.folder}/joint"]
        questions = [{"ctx": "the", "endings": ["a", "b"], "label": 0}, {"ctx": "a", "endings": ["c", "d"], "label": 1}]
        for folder, count in ((self.folder, 1), (other, 2)):
            (folder / "questions.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions[:count]))
        verbs = (["train", *joint, "model.init_from=init", "--max-steps", "3"],
                 ["train", *joint, "--resume", "init", "--max-steps", "3"],
                 ["eval", "--checkpoint", "init", "--set", "run.threads=1"],
                 ["generate", "--checkpoint", "init", "--prompt", "the", "--tokens", "2", "--set", "run.threads=1"])

        def differ(what, *args, code):
            stderr = self.two_hosts(*args, status=code)
            host = socket.gethostname()
            self.assertRegex(stderr, rf"rank 1 on {host} .*: {what} is (\w+), but (?!\1)\w+ on rank 0 \(host {host}\)")
            self.assertEqual(stderr.count("on rank 0"), 1, stderr)

        for verb in verbs:  # equal copies do
            self.two_hosts(*verb, status=0)
            shutil.rmtree(self.folder / "joint", ignore_errors=True)
        # Another run's checkpoint, of the same step and sizes.
        shutil.rmtree(other / "init")
        self.train("run.dir=other/init", "run.seed=7", "parallel.transport=threads", "parallel.data=2", max_steps=2)
        for verb in verbs:
            differ("the checksum of its manifest", *verb, code=5)
        self.assertFalse((self.folder / "joint/metrics.jsonl").exists())
        self.train("run.dir=other/init", "run.seed=7", "parallel.transport=threads", "parallel.data=2", max_steps=4)
        shutil.copytree(self.step_folder(2, "init"), self.folder / "one")
        shutil.copytree(self.step_folders("other/init")[-1], other / "one")
        differ("its step", "eval", "--checkpoint", "one", code=5)
        # Files of an evaluation.
        shutil.rmtree(other / "init")
        shutil.copytree(self.folder / "init", other / "init")
        (other / "text.txt").write_text((self.folder / "text.txt").read_text().swapcase())
        differ("the (?:number of evaluation tokens|hash of the evaluation data)", "eval", "--checkpoint", "init", "--data", "text.txt", code=4)
        differ("the number of questions", "eval", "--checkpoint", "init", "--choices", "questions.jsonl", code=4)

    def test_a_copy_that_one_rank_lacks_is_named(self):
        self.train("run.dir=init", max_steps=1)
        other = self.other_folder()
        shutil.rmtree(other / "init")
        stderr = self.two_hosts("--config", "config.toml", "--set", "model.init_from=init", f"run.dir={self.folder}/joint", status=5)
        self.assertRegex(stderr, r"rank 1: init\S*: not found")

    def test_a_run_folder_that_ranks_do_not_share_is_found_at_the_start(self):
        other = self.other_folder()
        host = socket.gethostname()
        # A folder with the lock of an earlier run is not the folder of rank 0 either.
        self.trainer("train", "--config", "other/config.toml", "--set", "run.dir=other/run", "--max-steps", "1")
        (other / "run/checkpoints/save.lock").write_text("process 1 on " + host + "\n")
        stderr = self.two_hosts("--config", "config.toml", "--set", "run.threads=1", status=2)
        for part in ("run.dir: ranks must share this folder", f"{self.folder}/run/checkpoints on {host}",
                     f"rank 1's {other}/run/checkpoints on {host}", "absolute path"):
            self.assertIn(part, stderr)
        self.assertEqual(stderr.count("must share this folder"), 1, stderr)
        self.assertFalse((self.folder / "run/metrics.jsonl").exists())
        # Only checkpoints are written by all ranks.
        self.two_hosts("--config", "config.toml", "--set", "run.threads=1", f"checkpoint.dir={self.folder}/saved", "--max-steps", "1",
                       status=0)
        self.trainer("checkpoint", "verify", "--checkpoint", "saved")

    def tasks_of_srun(self, *args, shell=False, **variables):
        """Runs the program with the variables of `srun -n 3` without PMI; returns the status and stderr of each task."""
        results = []
        for task in range(1 if shell else 3):
            step = {"SLURM_JOB_ID": "134", "SLURM_NTASKS": "3", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "3",
                    "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task), **variables}
            result = subprocess.run([rig.TRAINER, *args], cwd=self.folder, env={**os.environ, **step}, stdin=subprocess.DEVNULL,
                                    capture_output=True, text=True, timeout=rig.TIMEOUT_SECONDS)
            results.append((result.returncode, result.stderr))
        return results

    def test_tasks_of_srun_without_pmi_do_not_train_alone(self):
        train = ["--config", "config.toml", "--max-steps", "1"]
        self.train(max_steps=1)
        for args in (train, ["eval", "--checkpoint", "run"], ["generate", "--checkpoint", "run", "--prompt", "a"]):
            results = self.tasks_of_srun(*args)
            self.assertEqual([status for status, _ in results], [2, 2, 2], results)
            texts = "".join(stderr for _, stderr in results)
            self.assertEqual(texts.count("srun started 3 tasks"), 1, texts)
            for part in ("PMI", "srun --mpi=pmix", "mpirun -np 3"):
                self.assertIn(part, results[0][1])
        # Verbs of one process need no other ranks, nor do commands in an interactive shell.
        for args in (["config", "check", "--config", "config.toml"], ["checkpoint", "verify", "--checkpoint", "run"],
                     ["--config", "config.toml", "--dry-run"]):
            self.assertEqual([status for status, _ in self.tasks_of_srun(*args)], [0, 0, 0])
        pty = {"SLURM_PTY_PORT": "4711", "SLURM_TASK_PID": str(os.getpid())}
        for name, variables in (("pty", pty), ("pmix", {**pty, "PMIX_RANK": "0"}), ("pmi2", {**pty, "PMI_SIZE": "3", "PMI_RANK": "0"}),
                                ("step", {"SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0"})):
            (status, stderr), = self.tasks_of_srun(*train, "--set", f"run.dir={name}", shell=True, **variables)
            self.assertEqual(status, 0, stderr)

    def test_mistakes_are_reported_once_and_end_all_ranks(self):
        self.launcher = [*rig.MPIRUN, "-np", "2"]
        stderr = self.train("model.layers=3", status=2)
        self.assertEqual(stderr.count("unknown key"), 1, stderr)
        stderr = self.train("data.train=tokens/none.bin", status=4)
        self.assertEqual(stderr.count("not found"), 1, stderr)
        stderr = self.train("parallel.data=3", status=3)
        self.assertEqual(stderr.count("does not match 2 ranks"), 1, stderr)

    def test_one_rank_works_where_the_work_is_for_one(self):
        self.train(max_steps=1)
        for ranks in ([], [*rig.MPIRUN, "-np", "2"]):
            self.launcher = ranks
            self.trainer("checkpoint", "export", "--format", "hf", "--checkpoint", "run", "--output", f"hf{len(ranks)}")
            self.trainer("checkpoint", "strip", "--checkpoint", "run", "--output", f"weights{len(ranks)}")
        self.launcher = []
        single, parallel = ((self.folder / name / "model.safetensors").read_bytes() for name in ("hf0", f"hf{len(ranks)}"))
        self.assertTrue(single == parallel)
        self.assertEqual(list(self.folder.glob(".writing*")), [])

    def test_warnings_come_once(self):
        self.launcher = [*rig.MPIRUN, "-np", "2"]
        self.train("model.arch=llama", max_steps=1)
        stderr = self.train("run.dir=next", "model.arch=llama", "model.init_from=run", "model.rope_theta=2e4",
                            "log.trace=[50, 60]", max_steps=1)
        self.assertEqual(stderr.count("rope_theta: 10000 in the checkpoint"), 1, stderr)
        self.assertEqual(stderr.count("no trace: "), 1, stderr)
        stderr = self.trainer("eval", "--checkpoint", "run", "--set", "optim.lr=1e-3")
        self.assertEqual(stderr.count("no effect on `eval`"), 1, stderr)
        stderr = self.train("run.dir=other", "model.arch=llama", "model.init_from=run", "model.n_head=1", max_steps=1, status=5)
        self.assertEqual(stderr.count("are from a different model"), 1, stderr)

    def test_rank_0_prints_for_all(self):
        self.launcher = [*rig.MPIRUN, "-np", "2"]
        self.assertEqual(self.trainer("config", "show", "--config", "config.toml", stdout=True).count("[model]"), 1)
        self.assertIn("`bench peak` measures one process, but 2 ranks were started", self.trainer("bench", "peak", status=2))

    def test_ranks_with_different_texts_are_not_a_job(self):
        self.train(max_steps=1)
        generate = ["generate", "--checkpoint", "run", "--prompt", "a", "--tokens"]
        result = subprocess.run([*rig.MPIRUN, "-np", "1", rig.TRAINER, *generate, "5", ":", "-np", "1", rig.TRAINER, *generate, "7"],
                                cwd=self.folder, capture_output=True, text=True, timeout=rig.TIMEOUT_SECONDS)
        self.assertEqual(result.returncode, 2)
        self.assertIn("--tokens is 7, but 5 on rank 0", result.stderr)

    def test_a_dry_run_needs_none_of_its_ranks(self):
        plan = self.trainer("train", "--config", "config.toml", "--dry-run", "--set", "parallel.data=4",
                            "--set", "train.global_batch=16", stdout=True)
        self.assertIn("communication of a step over 4 ranks", plan)
        self.assertIn("data all_reduce", plan)

    def results(self, *args):
        """Returns the JSON that the program prints."""
        return json.loads(self.trainer(*args, stdout=True))

    @staticmethod
    def process_of(mpirun, rank):
        """Returns the id of the process that mpirun started as this rank."""
        for pid in pathlib.Path(f"/proc/{mpirun}/task/{mpirun}/children").read_text().split():
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"OMPI_COMM_WORLD_RANK={rank}".encode() in environment:
                return int(pid)
        raise AssertionError(f"mpirun has no rank {rank}")


if __name__ == "__main__":
    rig.main()
