#!/usr/bin/env python3
"""Requests to stop or save by signals and --max-time: completed work is kept, and the run resumes bit-identically."""
import json
import os
import pathlib
import signal
import shutil
import subprocess
import time
import unittest

import rig

LONG = ["train.steps=100000", "train.eval_interval=0"]
# The deepest model: planning it takes seconds and, with data.vocab_size, comes before all other work.
DEEP = ["train.eval_interval=0", "model.n_layer=10000", "model.n_head=1", "model.d_model=4", "train.micro_batch=1", "run.threads=1",
        "data.vocab_size=320"]


class Signals(rig.Runs):
    def goes_on_identically(self, *sets):
        """Makes two more steps, and compares with a run that never stopped."""
        last = self.last_step()
        self.assertEqual(self.saved_steps()[-1:], [last] * (last > 0), "a completed step was not saved")
        self.assert_whole(*self.step_folders())
        self.assert_no_left_overs()
        self.assertEqual(f"resumed step {last} " in self.train(*sets, max_steps=2), last > 0)
        self.train("run.dir=whole", *sets, max_steps=last + 2)
        self.assert_same_run(last + 2, "run", "whole")

    @staticmethod
    def processor_ticks(process):
        """Returns the CPU time used so far, in 1/100 s."""
        return int(pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11])

    def stops_and_goes_on(self, which, *sets):
        process = self.start_train(*sets)
        self.wait_until(lambda: self.last_step() >= 3, process, "three steps")
        self.stop(process, which)
        self.assertEqual(self.events("end")[-1]["outcome"], f"stopped by {which.name}")
        self.goes_on_identically(*sets)

    def test_sigterm_saves_and_asks_to_be_started_again(self):
        self.stops_and_goes_on(signal.SIGTERM, *LONG)

    def test_sigusr1_saves_and_asks_to_be_started_again(self):
        self.stops_and_goes_on(signal.SIGUSR1, *LONG)

    def test_sigint_saves_and_asks_to_be_started_again(self):
        self.stops_and_goes_on(signal.SIGINT, *LONG)

    def test_a_stop_waits_for_the_save_in_the_background(self):
        self.stops_and_goes_on(signal.SIGTERM, *LONG, "checkpoint.async=true", "checkpoint.interval=1")

    def test_a_terminal_that_closes_saves_and_asks_to_be_started_again(self):
        """A terminal sends SIGHUP more than once; the second one does not force an immediate exit."""
        process = self.start_train(*LONG)
        self.wait_until(lambda: self.last_step() >= 3, process, "three steps")
        process.send_signal(signal.SIGHUP)
        process.stderr.close()  # the terminal is gone
        process.send_signal(signal.SIGHUP)
        self.assertEqual(process.wait(rig.TIMEOUT_SECONDS), rig.SAVED_AFTER_SIGNAL)
        process.stderr = None
        self.assertEqual(self.events("end")[-1]["outcome"], "stopped by SIGHUP")
        self.goes_on_identically(*LONG)

    def test_under_nohup_a_terminal_may_close(self):
        self.launcher = ["nohup"]
        process = self.start_train(*LONG)
        self.wait_until(lambda: self.last_step() >= 3, process, "three steps")
        process.send_signal(signal.SIGHUP)
        seen = self.last_step()
        self.wait_until(lambda: self.last_step() > seen + 3, process, "further steps")
        self.stop(process)
        self.assertEqual(self.events("end")[-1]["outcome"], "stopped by SIGTERM")

    def test_a_reader_of_the_log_that_leaves_costs_the_log_and_not_the_run(self):
        process = self.start_train(*LONG, "log.interval=1")
        process.stderr.readline()
        process.stderr.close()  # as `… 2>&1 | head -1` does
        seen = self.last_step()
        self.wait_until(lambda: self.last_step() > seen + 5, process, "further steps")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(rig.TIMEOUT_SECONDS), rig.SAVED_AFTER_SIGNAL)
        process.stderr = None
        self.goes_on_identically(*LONG)

    def test_no_file_of_the_run_takes_the_place_of_a_closed_log(self):
        command = 'exec "$0" --config config.toml <&- >&- 2>&-'
        closed = subprocess.run(["sh", "-c", command, rig.TRAINER], cwd=self.folder, timeout=rig.TIMEOUT_SECONDS)
        self.assertEqual(closed.returncode, 0)
        self.train("run.dir=whole")
        self.assert_same_run(8, "run", "whole")
        for line in (self.folder / "run/metrics.jsonl").read_text().splitlines():
            self.assertIn("event", json.loads(line))
        self.assert_whole(*self.step_folders())

    def test_a_signal_between_micro_steps_drops_the_step_that_was_begun(self):
        self.stops_and_goes_on(signal.SIGTERM, *LONG, "train.global_batch=40", "precision.compute=fp64")

    def test_sigusr2_saves_and_goes_on(self):
        process = self.start_train(*LONG)
        for count in (1, 2):
            self.wait_until(lambda: self.last_step() >= 3, process, "three steps")
            process.send_signal(signal.SIGUSR2)
            self.wait_until(lambda: len(self.events("checkpoint")) == count, process, f"checkpoint {count}")
            saved = self.events("checkpoint")[-1]["step"]
            self.wait_until(lambda: self.last_step() > saved + 1, process, "steps after the save")
        self.stop(process)
        first, second, last = self.saved_steps()
        self.assertLess(first, second)
        self.assertLess(second, last)
        self.goes_on_identically(*LONG)

    def test_a_second_signal_ends_the_process_at_once(self):
        self.train(*LONG, max_steps=2)
        # The run's single micro-step takes seconds, so the first signal comes in the middle of it.
        process = self.start_train(*LONG, "run.dir=slow", "model.d_model=256", "model.seq_len=256", "train.micro_batch=16",
                                   "train.global_batch=16", "precision.compute=fp64", "train.recompute=full", "run.threads=1")
        self.wait_until(lambda: self.events("start", "slow"), process, "its start")
        begin = self.processor_ticks(process)
        self.wait_until(lambda: self.processor_ticks(process) > begin + 10, process, "its first micro-step")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=rig.TIMEOUT_SECONDS)
        self.assertIn(process.returncode, (128 + signal.SIGTERM, 128 + signal.SIGINT))
        self.assertEqual(self.saved_steps("slow"), [])
        self.assertEqual(self.events("step", "slow"), [])
        self.goes_on_identically(*LONG)

    def test_a_signal_in_an_evaluation_is_heeded_and_the_evaluation_made_up_for(self):
        sets = ["train.steps=4", "train.eval_interval=2", "data.val_fraction=0.5"]
        slow = ["train.eval_batches=0", "train.micro_batch=1", "run.threads=1", "precision.compute=fp64", "model.n_layer=8"]
        self.train("run.dir=whole", *sets, *slow)
        process = self.start_train(*sets, *slow)
        self.wait_until(lambda: self.last_step() == 2, process, "the step before the evaluation", pause=0)
        self.stop(process)
        self.assertEqual((self.last_step(), self.events("eval")), (2, []))
        self.train(*sets, *slow)
        self.assert_same_run(4, "run", "whole")
        self.assertEqual([event["step"] for event in self.events("eval")], [2, 4])

    def test_a_signal_before_the_first_step_leaves_a_run_that_can_begin(self):
        process = self.start_train(*LONG, "hardware.peak_tflops=0")
        self.wait_until(lambda: (self.folder / "run/config.toml").exists(), process, "the run folder", pause=0)
        self.stop(process)
        self.goes_on_identically(*LONG)

    @staticmethod
    def catches_signals(pid):
        """True once the program has installed its handlers, of which that of SIGUSR2 is the last."""
        try:
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
        except FileNotFoundError:
            return False
        return status.startswith("Name:\ttrainer\n") and int(status.split("SigCgt:")[1].split()[0], 16) >> signal.SIGUSR2 - 1 & 1

    def planning(self, *sets):
        """Starts to plan the deepest model."""
        process = self.start_train(*DEEP, *sets)
        ranks = lambda: rig.children(process.pid) if self.launcher else [process.pid]
        self.wait_until(lambda: ranks() and all(self.catches_signals(rank) for rank in ranks()), process, "its planning")
        return process

    def test_a_stop_while_a_deep_model_is_planned(self):
        for which, sets in ((signal.SIGTERM, []), (signal.SIGINT, ["parallel.data=2", "parallel.transport=threads"]), (signal.SIGHUP, [])):
            process = self.planning(*sets)
            begin = time.monotonic()
            self.assertTrue(self.stop(process, which).endswith(f"stopped by {which.name} while planning; no step was trained\n"))
            self.assertLess(time.monotonic() - begin, 5)
        self.goes_on_identically(*LONG)

    @unittest.skipIf(shutil.which("mpirun") is None, "no mpirun on this machine")
    def test_ranks_stop_together_when_a_deep_model_is_planned(self):
        """All ranks stop together, whichever rank received the signal."""
        for rank, words in enumerate(["stopped by SIGTERM while planning", "stopped by a signal to another rank"]):
            self.launcher = [*rig.MPIRUN, "-np", "2"]
            process = self.planning()
            os.kill(rig.children(process.pid)[rank], signal.SIGTERM)
            stderr = self.ended(process, rig.SAVED_AFTER_SIGNAL)
            self.assertEqual(stderr.count("while planning"), 1)
            self.assertIn(words, stderr)
        self.assertEqual(self.last_step(), 0)

    def test_a_dry_run_of_a_deep_model_ends_at_the_first_signal(self):
        process = self.start_train(*DEEP, dry_run=True)
        self.assertEqual(process.stderr.readline(), "planning memory and communication of 10000 layers\n")
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.ended(process, -signal.SIGINT), "")

    def test_a_signal_stops_an_evaluation_and_a_sample(self):
        self.train(max_steps=1)
        (self.folder / "long.txt").write_text((self.folder / "text.txt").read_text() * 400)
        # A sample ends at the first end-of-text token, so only many samples take long enough.
        for args in (["eval", "--checkpoint", "run", "--data", "long.txt"],
                     ["generate", "--checkpoint", "run", "--prompt", "the", "--samples", "1000000"]):
            process = self.start(*args)
            self.wait_until(lambda: self.catches_signals(process.pid), process, "its work")
            self.assertIn("stopped by SIGTERM", self.stop(process))

    def slow_tokenizer(self):
        """Writes a text whose tokenizer takes long to train, and returns the settings of a run on it."""
        ends = [f"{c}{d}{e}" for c in "uvwxyzabcde" for d in "defghijklmn" for e in "opqrstuvw"]
        words = [f"{a}{b}{end}{begin}" for a in "abcdefghijk" for b in "lmnopqrst" for begin in "xyz" for end in ends]
        (self.folder / "long.txt").write_text(" ".join(words * 3))
        return ["data.train=long.txt", "data.tokenizer=train", "data.vocab_size=8000", "hardware.peak_tflops=1"]

    def training_a_tokenizer(self, *sets, **options):
        process = self.start_train(*sets, **options)
        self.wait_until(lambda: "training the tokenizer: " in process.stderr.readline(), process, "the training of its tokenizer", pause=0)
        return process

    def stopped_at_once(self, process, which, words):
        begin = time.monotonic()
        self.assertIn(words, self.stop(process, which))
        self.assertLess(time.monotonic() - begin, 5)
        self.assertEqual({path.name for path in (self.folder / "run").rglob("*") if path.is_file()}, {"run.lock"})

    def test_a_signal_stops_a_run_that_trains_its_tokenizer(self):
        sets = self.slow_tokenizer()
        for which, more in ((signal.SIGTERM, []), (signal.SIGINT, ["parallel.data=2", "parallel.transport=threads"]),
                            (signal.SIGUSR1, ["data.vocab_size=7000"]), (signal.SIGHUP, [])):
            process = self.training_a_tokenizer(*sets, *more)
            self.stopped_at_once(process, which, f"stopped by {which.name} while training the tokenizer; run the same command again")
        self.goes_on_identically(*LONG)

    def test_max_time_ends_a_run_that_trains_its_tokenizer(self):
        process = self.training_a_tokenizer(*self.slow_tokenizer(), max_time="2s")
        self.assertIn("stopped at --max-time while training the tokenizer; run the same command again to resume", self.ended(process, 0))
        self.goes_on_identically(*LONG)

    def test_a_second_signal_ends_a_run_that_trains_its_tokenizer(self):
        process = self.training_a_tokenizer(*self.slow_tokenizer())
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=rig.TIMEOUT_SECONDS)
        self.assertIn(process.returncode, (rig.SAVED_AFTER_SIGNAL, 128 + signal.SIGTERM, 128 + signal.SIGINT))

    @unittest.skipIf(shutil.which("mpirun") is None, "no mpirun on this machine")
    def test_ranks_stop_together_while_rank_0_trains_a_tokenizer(self):
        sets = self.slow_tokenizer()
        self.launcher = [*rig.MPIRUN, "-np", "2"]
        process = self.training_a_tokenizer(*sets)
        self.stopped_at_once(process, signal.SIGUSR1, "while training the tokenizer")  # mpirun passes it on to all ranks
        process = self.training_a_tokenizer(*sets, max_time="3s")
        self.assertIn("stopped at --max-time while training the tokenizer", self.ended(process, 0))

    def test_a_signal_stops_the_training_of_a_tokenizer(self):
        self.slow_tokenizer()
        process = self.start("tokenize", "--input", "long.txt", "--output", "out", "--train-vocab", "8000")
        self.wait_until(lambda: self.catches_signals(process.pid), process, "its work")
        self.assertIn("stopped by SIGTERM while training the tokenizer", self.stop(process))
        self.assertFalse((self.folder / "out").exists())

    def test_max_time_saves_and_ends_well(self):
        stderr = self.train(*LONG, max_time="1s")
        self.assertIn("stopped at --max-time", stderr)
        self.assertEqual(self.events("end")[-1]["outcome"], "stopped at --max-time")
        self.assertLess(self.events("end")[-1]["wall_s"], 10)
        self.goes_on_identically(*LONG)

    def test_max_time_cuts_an_evaluation_short(self):
        (self.folder / "long.txt").write_text((self.folder / "text.txt").read_text() * 120)
        self.trainer("tokenize", "--input", "long.txt", "--output", "long", "--tokenizer", "tokens/tokenizer.model")
        sets = ["train.steps=2", "optim.warmup_steps=1", "train.eval_interval=1", "train.eval_batches=0", "train.micro_batch=1", "run.threads=1",
                "data.val=long/tokens.bin", "data.val_fraction=0", "precision.compute=fp64"]
        stderr = self.train(*sets, max_time="1s")
        self.assertIn("step 1: --max-time interrupted the evaluation", stderr)
        self.assertEqual(self.events("end")[-1]["outcome"], "stopped at --max-time")
        self.assertEqual((self.saved_steps(), self.events("eval")), ([1], []))
        self.assertLess(self.events("end")[-1]["wall_s"], 8)
        stderr = self.train(*sets, "train.eval_batches=2")
        self.assertEqual([event["step"] for event in self.events("eval")], [1, 2])

    def test_max_time_counts_the_preparation_of_data(self):
        """The time is too short to tokenize; once the tokens exist, the run makes its first step nevertheless."""
        (self.folder / "long.txt").write_text((self.folder / "text.txt").read_text() * 300)
        sets = [*LONG, "data.train=long.txt"]
        stderr = self.train(*sets, max_time="0.01s")
        self.assertIn("stopped at --max-time while tokenizing; run the same command again to resume", stderr)
        self.assertEqual(self.events("step"), [])
        self.train(*sets, max_steps=2)
        self.train("run.dir=whole", *sets, max_steps=2)
        self.assert_same_run(2, "run", "whole")

    def test_max_time_counts_from_the_start_of_the_program(self):
        """The time is over before the program has its configuration, so it makes a single step."""
        args = [rig.TRAINER, "--config", "-", "--max-time", "0.5s"]
        for key_value in LONG:
            args += ["--set", key_value]
        process = subprocess.Popen(args, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        with self.assertRaises(subprocess.TimeoutExpired):  # it waits for its configuration
            process.wait(0.6)
        _, stderr = process.communicate((self.folder / "config.toml").read_text(), timeout=rig.TIMEOUT_SECONDS)
        self.assertEqual(process.returncode, 0, stderr)
        self.assertIn("stopped at --max-time", stderr)
        self.assertEqual(self.last_step(), 1)


if __name__ == "__main__":
    rig.main()
