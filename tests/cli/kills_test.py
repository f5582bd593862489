#!/usr/bin/env python3
"""Kills at random moments, on 1, 2 and 4 ranks: every state that is left is usable, every resume bit-identical.

Run by hand, a minute for five kills: HOSTILE_KILLS=300 TRAINER=build/trainer python3 tests/cli/kills_test.py
HOSTILE_SEED chooses other moments; what is printed says which one was in use.
"""
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import rig
from mistakes import limits

KILLS = int(os.environ.get("HOSTILE_KILLS", "5"))
SEED = int(os.environ.get("HOSTILE_SEED", "17"))
STEPS = 40


def children(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


class Kills(rig.Runs):
    # Ranks and what connects them.
    LAYOUTS = [(1, "self"), (2, "threads"), (2, "mpi"), (4, "threads"), (4, "mpi")]

    def sets(self, ranks, transport):
        tensor = 2 if ranks == 4 else 1
        sets = [f"train.steps={STEPS}", "train.eval_interval=7", "checkpoint.interval=1", "checkpoint.keep=3",
                "log.progress=off", "run.threads=1", f"parallel.tensor={tensor}", f"parallel.data={ranks // tensor}"]
        return sets + (["parallel.transport=threads"] if transport == "threads" else [])

    def use(self, ranks, transport):
        self.launcher = [*rig.MPIRUN, "-np", str(ranks)] if transport == "mpi" else []

    def kill_at(self, moment, process, ranks, random_):
        """One of the ranks, or all; False when the run was over before."""
        checkpoints = self.folder / "run/checkpoints"
        if moment == "in a save":
            while process.poll() is None and not any(checkpoints.glob(".*")):
                pass
        else:
            until = time.monotonic() + random_.uniform(0, 0.6)
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.002)
        victims = children(process.pid) if self.launcher else [process.pid]
        if process.poll() is not None or not victims:
            return False
        for victim in victims if random_.random() < 0.5 else [random_.choice(victims)]:
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return True

    def usable(self, printed):
        self.launcher, launcher = [], self.launcher
        folders = self.step_folders()
        self.assert_whole(*folders)
        published = max((event["step"] for event in self.events("checkpoint")), default=0)
        self.assertGreaterEqual(max(self.saved_steps(), default=0), published, printed)
        self.launcher = launcher

    def test_kills_at_random_moments(self):
        if shutil.which("mpirun") is None:
            self.skipTest("no mpirun on this machine")
        random_ = random.Random(SEED)
        kills = finished = 0
        wanted = {layout: KILLS // len(self.LAYOUTS) for layout in self.LAYOUTS}
        for ranks, transport in self.LAYOUTS:
            self.use(ranks, transport)
            sets = self.sets(ranks, transport)
            self.train("run.dir=whole", *sets)
            done = 0
            while done < wanted[ranks, transport]:
                process = self.start_train(*sets)
                moment = "in a save" if random_.random() < 1 / 3 else "anywhere"
                # Most kills meet a run that is training, some its beginning.
                if random_.random() < 0.8:
                    newest = self.last_step()
                    while process.poll() is None and self.last_step() == newest:
                        time.sleep(0.002)
                killed = self.kill_at(moment, process, ranks, random_)
                _, stderr = process.communicate(timeout=rig.TIMEOUT_SECONDS)
                done, kills = done + killed, kills + killed
                printed = f"seed {SEED}, kill {kills} {moment}, {ranks} ranks ({transport})\n{stderr}"
                self.usable(printed)
                if not killed:
                    self.assertEqual(process.returncode, 0, printed)
                    self.assert_same_run(STEPS, "run", "whole")
                    finished += 1
                    shutil.rmtree(self.folder / "run")
            self.train(*sets)
            self.assert_same_run(STEPS, "run", "whole")
            self.assert_no_left_overs()
            shutil.rmtree(self.folder / "run")
            shutil.rmtree(self.folder / "whole")
        print(f"{kills} kills, {finished + len(self.LAYOUTS)} runs went on to their end bit-identically", flush=True)


class Flips(rig.Runs):
    TEXT = ["data.train=text.txt", "data.tokenizer=train", "data.vocab_size=320"]

    def run_of(self, *args):
        result = subprocess.run([rig.TRAINER, *args], cwd=self.folder, capture_output=True, text=True, errors="replace",
                                    timeout=rig.TIMEOUT_SECONDS, preexec_fn=limits(None))
        return result.returncode, result.stdout, result.stderr

    def test_flipped_bits_are_detected_or_harmless(self):
        random_ = random.Random(SEED)
        self.train(*self.TEXT, max_steps=2)
        self.train(*self.TEXT, max_steps=2)
        (self.folder / "text.txt").rename(self.folder / "kept.txt")  # nothing can be made anew
        evaluate = ["eval", "--checkpoint", "run", "--json", "--batches", "1"]
        reference = json.loads(self.trainer(*evaluate, stdout=True))
        step = self.step_folder(4)
        groups = [sorted(path for path in step.iterdir() if path.is_file() and path.suffix != ".shard"),
                  sorted(step.glob("*.shard")), [self.folder / "run/checkpoints/latest"],
                  sorted((self.folder / "run/tokens").glob("train.*")), [self.folder / "tokens/tokens.bin"]]
        detected = harmless = 0
        for flip in range(FLIPS):
            path = random_.choice(groups[flip % len(groups)])
            whole = path.read_bytes()
            bit = random_.randrange(8 * len(whole))
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            printed = f"seed {SEED}, flip {flip}: bit {bit} of {path.relative_to(self.folder)}"
            if path.parent == step:
                status, _, stderr = self.run_of("checkpoint", "verify", "--checkpoint", str(step))
                self.assertEqual(status, 5, f"{printed}\n{stderr}")
                detected += 1
            elif path.parent.name == "tokens" and path.parent.parent == self.folder:
                status, _, stderr = self.run_of("train", *self.train_args(["run.dir=other"], {"max_steps": 1}))
                self.assertEqual(status, 4, f"{printed}\n{stderr}")
                detected += 1
            else:
                status, stdout, stderr = self.run_of(*evaluate)
                self.assertIn(status, (0, 4, 5), f"{printed}\n{stderr}")
                if status == 0:
                    self.assertEqual(json.loads(stdout), reference, f"{printed}\n{stderr}")
                detected += status != 0
                harmless += status == 0
            path.write_bytes(whole)
        print(f"{FLIPS} flips: {detected} detected, {harmless} harmless", flush=True)


if __name__ == "__main__":
    rig.main()
