#!/usr/bin/env python3
"""Incomplete checkpoints: kills in the middle of a save, damaged files, full disks. Runs resume from the newest
checkpoint that is complete; evaluation and generation use it, too."""
import json
import pathlib
import shutil
import signal
import subprocess
import time

import rig


def flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def wipe(path):
    path.write_bytes(bytes(path.stat().st_size))


class Damage(rig.Runs):
    def saved_run(self):
        """Trains run/ to step 6 of 8 with checkpoints 2, 4 and 6, and whole/ to the end."""
        self.train("run.dir=whole")
        self.train("checkpoint.interval=2", max_steps=6)
        self.assertEqual(self.saved_steps(), [2, 4, 6])

    def falls_back(self, damage, to, *expect):
        self.saved_run()
        damage()
        stderr = self.train()
        self.assertIn(f"resumed step {to} from run/checkpoints/step-{to:08}", stderr)
        for part in ("checkpoint skipped", *expect):
            self.assertIn(part, stderr)
        self.assert_same_run(8, "run", "whole")

    def test_auto_passes_over_a_shard_with_a_flipped_byte(self):
        self.falls_back(lambda: flip_a_byte(self.step_folder(6) / "rank-00000.shard"), 4,
                        "step-00000006/rank-00000.shard", "the checksum of bytes")

    def test_auto_passes_over_several(self):
        def damage():
            flip_a_byte(self.step_folder(6) / "rank-00000.shard")
            flip_a_byte(self.step_folder(4) / "tokenizer.model")
        self.falls_back(damage, 2, "step-00000006/rank-00000.shard", "step-00000004/tokenizer.model")

    def test_auto_passes_over_a_truncated_shard(self):
        def cut():
            path = self.step_folder(6) / "rank-00000.shard"
            path.write_bytes(path.read_bytes()[:-100])
        self.falls_back(cut, 4, "step-00000006/rank-00000.shard", "expected")

    def test_auto_passes_over_a_folder_without_its_mark(self):
        self.falls_back(lambda: (self.step_folder(6) / "COMPLETE").unlink(), 4, "step-00000006: COMPLETE not found")

    def test_auto_does_not_start_from_scratch_when_nothing_is_whole(self):
        self.saved_run()
        for folder in self.step_folders():
            flip_a_byte(folder / "rank-00000.shard")
        stderr = self.train(status=5)
        self.assertIn("run/checkpoints: none of the 3 checkpoints is intact; remove the folder to start from scratch", stderr)
        self.assertEqual(self.saved_steps(), [2, 4, 6])

    def test_must_and_a_path_mean_one_checkpoint(self):
        self.saved_run()
        flip_a_byte(self.step_folder(6) / "rank-00000.shard")
        for resume in ("must", "run", "run/checkpoints/step-00000006"):
            self.assertIn("the checksum of bytes", self.train(resume=resume, status=5))
        self.assertEqual(self.saved_steps(), [2, 4, 6])

    def test_eval_and_generate_pass_over_what_is_damaged(self):
        self.saved_run()
        wipe(self.step_folder(6) / "rank-00000.shard")
        wipe(self.step_folder(4) / "tokenizer.model")
        verbs = [["eval"], ["generate", "--prompt", "the cat", "--tokens", "4"]]
        for verb in verbs:
            for path in ("run", "run/checkpoints"):
                stderr = self.trainer(*verb, "--checkpoint", path)
                for damaged in ("step-00000006/rank-00000.shard", "step-00000004/tokenizer.model"):
                    self.assertIn(f"checkpoint skipped, trying the previous one: run/checkpoints/{damaged}", stderr)
                result = json.loads(self.trainer(*verb, "--checkpoint", path, "--json", stdout=True))
                self.assertEqual(result["step"], 2)
        by_config = self.trainer("eval", "--config", "config.toml", "--json", stdout=True)
        self.assertEqual(json.loads(by_config)["step"], 2)
        wipe(self.step_folder(2) / "rank-00000.shard")
        for verb in verbs:
            for path in ("run/checkpoints/step-00000006", "run"):
                stderr = self.trainer(*verb, "--checkpoint", path, status=5)
                self.assertIn("the checksum of bytes", stderr.splitlines()[-1])
            self.assertIn("run: none of its 3 checkpoints is intact: ", stderr)

    def test_another_format_is_refused_by_number(self):
        self.train(max_steps=2)
        manifest = self.step_folder(2) / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"format":2', '"format":1'))
        for stderr in (self.train(status=5), self.train("run.dir=new", "model.init_from=run", status=5),
                       self.trainer("eval", "--checkpoint", "run", status=5),
                       self.trainer("checkpoint", "inspect", "--checkpoint", "run", status=5)):
            for part in ("step-00000002/manifest.json: checkpoint format 1, this program reads format 2",
                         "with the program that wrote it", "checkpoint export --format hf"):
                self.assertIn(part, stderr)

    def test_another_model_is_no_damage(self):
        self.saved_run()
        stderr = self.train("model.d_model=64", status=5)
        self.assertIn("the checkpoint is from a different model", stderr)
        self.assertNotIn("checkpoint skipped", stderr)


class Kills(rig.Runs):
    # Temporary files of a save, in the order in which they appear.
    MOMENTS = [".saving-*", ".saving-*/rank-00000.shard", ".saving-*/manifest.json", ".saving-*/COMPLETE", ".latest-*",
               ".deleting-*"]

    def test_a_kill_in_a_save_loses_nothing_that_was_complete(self):
        sets = ["checkpoint.interval=1", "checkpoint.keep=2", "train.steps=100000", "train.eval_interval=0",
                "checkpoint.keep_best=false"]
        checkpoints = self.folder / "run/checkpoints"
        self.train(*sets, max_steps=1)
        seen = set()
        for moment in self.MOMENTS * 2:
            newest = self.saved_steps()[-1]
            process = self.start_train(*sets)
            self.wait_until(lambda: self.last_step() > newest, process, "a step")
            limit = time.monotonic() + 1  # some of these files exist too briefly to be seen every time
            while not any(checkpoints.glob(moment)) and time.monotonic() < limit:
                pass
            process.kill()
            self.ended(process, -signal.SIGKILL)
            seen.update(path.name.rsplit("-", 2)[0] for path in checkpoints.glob(".*"))
            self.assert_whole(*self.step_folders())
            published = [event["step"] for event in self.events("checkpoint")]
            self.assertGreaterEqual(self.saved_steps()[-1], max(published, default=0), moment)
        self.assertIn(".saving-step", seen, "no kill met a save")
        newest = self.saved_steps()[-1]
        self.assertIn(f"resumed step {newest} ", self.train(*sets, max_steps=1))
        self.assert_no_left_overs()
        self.train("run.dir=whole", "train.steps=100000", "train.eval_interval=0", max_steps=newest + 1)
        self.assert_same_run(newest + 1, "run", "whole")


class CutShort(rig.Runs):
    """A token file is truncated while a run has it open."""

    def cut_while(self, *sets, launcher=(), bytes_left=1024):
        tokens = self.folder / "tokens/tokens.bin"
        whole = tokens.read_bytes()
        self.launcher = list(launcher)
        process = self.start_train("train.steps=100000", "train.eval_interval=0", *sets)
        self.wait_until(lambda: self.last_step() >= 3, process, "three steps")
        with open(tokens, "r+b") as file:
            file.truncate(bytes_left)
        stderr = self.ended(process, 4)
        self.launcher = []
        self.assertIn("tokens/tokens.bin: truncated while in use: "
                      f"it had {len(whole)} bytes, there are {bytes_left} now", stderr)
        self.assertNotIn("bug", stderr)
        tokens.write_bytes(whole)
        return stderr

    def goes_on(self, *sets):
        last = self.last_step()
        self.assertEqual(self.saved_steps(), [last])
        self.assert_whole(*self.step_folders())
        sets = ["train.steps=100000", "train.eval_interval=0", *sets]
        self.train(*sets, max_steps=2)
        self.train("run.dir=whole", *sets, max_steps=last + 2)
        self.assert_same_run(last + 2, "run", "whole")

    def test_the_last_step_is_saved(self):
        self.cut_while()
        self.goes_on()

    def test_whatever_is_left(self):
        self.cut_while("train.micro_batch=1", bytes_left=0)
        self.goes_on("train.micro_batch=1")

    def test_ranks_leave_together(self):
        threads = ["parallel.transport=threads", "parallel.data=2", "run.threads=1"]
        self.cut_while(*threads)
        self.assert_whole(*self.step_folders())
        if shutil.which("mpirun"):
            shutil.rmtree(self.folder / "run")
            stderr = self.cut_while("parallel.data=2", "run.threads=1", launcher=[*rig.MPIRUN, "-np", "2"])
            # One message, or one per rank if both reach the missing bytes before either learns of the other's failure.
            said = [line for line in stderr.splitlines() if "truncated while in use" in line]
            self.assertIn(len(said), (1, 2), stderr)
            self.assertEqual(len({"rank 1:" in line for line in said}), len(said), stderr)
            self.assert_whole(*self.step_folders())

    def test_an_evaluation_reports_it_too(self):
        self.train(max_steps=1)
        text = (self.folder / "text.txt").read_text() * 40
        (self.folder / "long.txt").write_text(text)
        self.trainer("tokenize", "--input", "long.txt", "--output", "long", "--tokenizer", "tokens/tokenizer.model")
        long = self.folder / "long/tokens.bin"
        process = self.start("eval", "--checkpoint", "run", "--data", "long/tokens.bin")
        opened = pathlib.Path(f"/proc/{process.pid}/fd")
        index = long.with_suffix(".docs").resolve()  # opened after the tokens

        def opens_index():
            try:
                return any(path.resolve() == index for path in opened.iterdir())
            except FileNotFoundError:  # a file was closed in the meantime
                return False
        self.wait_until(opens_index, process, "its data", pause=0)
        with open(long, "r+b") as file:
            file.truncate(1024)
        self.assertIn("long/tokens.bin: truncated while in use", self.ended(process, 4))


class FullDisk(rig.Runs):
    def test_a_save_that_fails_costs_a_checkpoint_and_not_the_run(self):
        self.train("run.dir=whole")
        self.train(max_steps=2)
        shard = (self.step_folder(2) / "rank-00000.shard").stat().st_size
        stderr = self.train("checkpoint.interval=2", status=5, file_bytes=shard - 1)
        self.assertIn("step 4: no checkpoint was saved: saving the checkpoint of step 4: ", stderr)
        self.assertIn("step 6: no checkpoint was saved", stderr)
        self.assertIn("saving the checkpoint of step 8: ", stderr.splitlines()[-1])
        self.assertIn("File too large", stderr.splitlines()[-1])
        self.assertEqual([event["step"] for event in self.events("warning")], [4, 6])
        self.assertEqual(self.last_step(), 8)
        self.assertEqual(self.saved_steps(), [2])
        self.assert_whole(self.step_folder(2))
        self.assert_no_left_overs()
        self.assertIn("resumed step 2", self.train())
        self.assert_same_run(8, "run", "whole")

    def in_small_disk(self, kilobytes, script):
        """Runs a shell script with a private file system of this size in disk/; returns its result."""
        mount = f"mount -t tmpfs -o size={kilobytes}k tmpfs disk"
        (self.folder / "disk").mkdir()
        namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
        if not shutil.which("unshare") or subprocess.run([*namespace, mount], cwd=self.folder, capture_output=True).returncode:
            self.skipTest("this user cannot mount a small file system")
        return subprocess.run([*namespace, f"{mount} || exit 99\n{script}"], cwd=self.folder, capture_output=True, text=True,
                              errors="replace", timeout=rig.TIMEOUT_SECONDS, env={"PATH": "/usr/bin:/bin", "T": str(rig.TRAINER)})

    def test_a_disk_that_fills_up_keeps_its_checkpoints(self):
        self.train(max_steps=1)
        size = sum(path.stat().st_size for path in self.step_folder(1).iterdir()) // 1024 + 24
        result = self.in_small_disk(2 * size + size // 2, """
            "$T" --config config.toml --set checkpoint.dir=disk/c --set checkpoint.interval=2 --set checkpoint.keep=0 --resume never
            echo status $?
            ls -A disk/c
            for step in disk/c/step-*; do "$T" checkpoint verify --checkpoint $step > verified || cat verified; done
            rm -r disk/c/step-00000002
            "$T" --config config.toml --set checkpoint.dir=disk/c
            echo status $?
            ls -A disk/c""")
        words = result.stdout.split()
        self.assertEqual(words, ["status", "5", "latest", "step-00000002", "step-00000004",
                                 "status", "0", "latest", "step-00000004", "step-00000008"], result.stdout + result.stderr)
        self.assertIn("step 6: no checkpoint was saved", result.stderr)
        self.assertIn("cannot write: No space left on device; the disk is full: free space there", result.stderr)
        self.assertIn("resumed step 4", result.stderr)

    def test_a_background_save_that_fails_twice_ends_the_run(self):
        self.train(max_steps=1)
        size = sum(path.stat().st_size for path in self.step_folder(1).iterdir()) // 1024 + 24
        result = self.in_small_disk(2 * size + size // 2, """
            run() { "$T" --config config.toml --set checkpoint.dir=disk/c --set checkpoint.async=true "$@"; echo status $?; ls -A disk/c; }
            run --set checkpoint.interval=2 --set checkpoint.keep=0 --resume never
            for step in disk/c/step-*; do "$T" checkpoint verify --checkpoint $step > verified || cat verified; done
            rm -r disk/c/step-00000002
            run""")
        words = result.stdout.split()
        self.assertEqual(words, ["status", "5", "latest", "step-00000002", "step-00000004",
                                 "status", "0", "latest", "step-00000004", "step-00000008"], result.stdout + result.stderr)
        self.assertRegex(result.stderr, "step [678]: saving the checkpoint of step 6: .*No space left on device; .*"
                                        "saving again, while training waits")
        self.assertEqual(result.stderr.count("saving the checkpoint of step 6"), 2)
        self.assertIn("resumed step 4", result.stderr)
        self.train("run.dir=whole")
        self.assertEqual(self.losses("run"), self.losses("whole"))

    def test_a_full_disk_under_the_log_changes_nothing_that_is_said(self):
        result = self.in_small_disk(256, """
            run() { "$T" --config config.toml --set run.dir=disk/run --set checkpoint.dir=c "$@"; echo status $?; }
            run --max-steps 4
            cat /dev/zero > disk/filler 2> ignored
            run --max-steps 2
            run
            cat disk/run/metrics.jsonl > full.jsonl
            rm -r c/step-00000008 c/step-00000006
            run --max-steps 1
            rm disk/filler
            run""")
        self.assertEqual(result.stdout.split(), ["status", "0"] * 5, result.stderr)
        self.assertNotIn("Success", result.stderr)
        summaries = [line for line in result.stderr.splitlines() if line.startswith("run  ")]
        for step, outcome, line in zip([4, 6, 8, 5, 8], ["stopped after --max-steps"] * 2 + ["finished"] +
                                       ["stopped after --max-steps", "finished"], summaries, strict=True):
            self.assertRegex(line, f"{outcome} at step {step} of 8, ")
        self.assertIn("disk/run/metrics.jsonl is missing ", result.stderr)

    def test_a_log_that_cannot_be_written_is_a_warning(self):
        result = self.in_small_disk(64, """
            "$T" --config config.toml --set run.dir=disk/run --set checkpoint.dir=c --set train.steps=200 --set log.progress=off
            echo status $?; cat disk/run/metrics.jsonl | wc -l""")
        self.assertIn("status 0", result.stdout, result.stderr)
        self.assertRegex(result.stderr, "cannot write disk/run/metrics.jsonl: No space left on device; .*training continues, and records")
        self.assert_whole(self.folder / "c/step-00000200")


if __name__ == "__main__":
    rig.main()
