#!/usr/bin/env python3
"""Kills at random times, on 1, 2 and 4 ranks: every remaining state is usable, every resume bit-identical.

Half of the killed runs save in the background, and half of the kills come while a checkpoint is being written.
Five kills by default; 300 take ten minutes: HOSTILE_KILLS=300 TRAINER=build/trainer python3 tests/cli/kills_test.py
HOSTILE_SEED chooses other times; the seed in use is printed.
"""
import os
import random
import shutil
import signal
import time

import rig

KILLS = int(os.environ.get("HOSTILE_KILLS", "5"))
SEED = int(os.environ.get("HOSTILE_SEED", "17"))
STEPS = 40


class Kills(rig.Runs):
    # Number of ranks, and their transport. Four processes are two stages, of two ranks that share sequences and pass on
    # their keys and values; two have different experts; other ranks are of different replicas.
    LAYOUTS = [(1, "self"), (2, "threads"), (2, "mpi"), (4, "threads"), (4, "mpi")]

    def sets(self, ranks, transport):
        staged = (ranks, transport) == (4, "mpi")
        tensor, stages, context = 2 if ranks == 4 and not staged else 1, 2 if staged else 1, 2 if staged else 1
        sets = [f"train.steps={STEPS}", "train.eval_interval=7", "checkpoint.interval=1", "checkpoint.keep=3",
                "log.progress=off", "run.threads=1", f"parallel.tensor={tensor}", f"parallel.stages={stages}",
                f"parallel.data={ranks // tensor // stages // context}"]
        if staged:
            sets += [f"parallel.context={context}", "parallel.context_kv=ring"]
        if (ranks, transport) == (2, "mpi"):
            sets += ["parallel.data=1", "parallel.strategy=fsdp", "parallel.shards=2", "parallel.experts=2", "model.arch=qwen2_moe",
                     "model.n_expert=4", "model.d_expert=32", "model.d_shared=32"]
        return sets + (["parallel.transport=threads"] if transport == "threads" else [])

    def use(self, ranks, transport):
        self.launcher = [*rig.MPIRUN, "-np", str(ranks)] if transport == "mpi" else []

    def kill_at(self, moment, process, ranks, random_):
        """Kills one of the ranks, or all; returns False if the run had already ended."""
        checkpoints = self.folder / "run/checkpoints"
        if moment == "in a save":
            while process.poll() is None and not any(checkpoints.glob(".*")):
                pass
        else:
            until = time.monotonic() + random_.uniform(0, 0.6)
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.002)
        victims = rig.children(process.pid) if self.launcher else [process.pid]
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
        kills = finished = async_kills = async_kills_in_a_save = 0
        requested = {layout: KILLS // len(self.LAYOUTS) for layout in self.LAYOUTS}
        for ranks, transport in self.LAYOUTS:
            self.use(ranks, transport)
            sets = self.sets(ranks, transport)
            self.train("run.dir=whole", *sets)
            done = 0
            while done < requested[ranks, transport]:
                background = random_.random() < 0.5
                process = self.start_train(*sets, f"checkpoint.async={str(background).lower()}")
                moment = "in a save" if random_.random() < 1 / 2 else "anywhere"
                # Most kills come while the run is training, some during its start.
                if random_.random() < 0.8:
                    newest = self.last_step()
                    while process.poll() is None and self.last_step() == newest:
                        time.sleep(0.002)
                killed = self.kill_at(moment, process, ranks, random_)
                _, stderr = process.communicate(timeout=rig.TIMEOUT_SECONDS)
                done, kills = done + killed, kills + killed
                async_kills += killed and background
                async_kills_in_a_save += killed and background and moment == "in a save"
                if killed and kills % 10 == 0:
                    print(f"{kills} kills so far, {finished} runs ended", flush=True)
                printed = f"seed {SEED}, kill {kills} {moment}, {'' if background else 'no '}background saves, {ranks} ranks ({transport})\n{stderr}"
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
        print(f"{kills} kills, {async_kills} of them with background saves and {async_kills_in_a_save} of those during one; "
              f"{finished + len(self.LAYOUTS)} runs ended, bit-identical to undisturbed ones", flush=True)


if __name__ == "__main__":
    rig.main()
