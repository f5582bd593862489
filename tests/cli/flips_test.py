#!/usr/bin/env python3
"""Flipped bits in every file of a run are detected, or have no effect.

Short by default. For a long test: HOSTILE_FLIPS=10000 TRAINER=build/trainer python3 flips_test.py
HOSTILE_SEED chooses other bits; the seed in use is printed.
"""
import json
import os
import random
import subprocess

import rig
from mistakes import limits

FLIPS = int(os.environ.get("HOSTILE_FLIPS", "50"))
SEED = int(os.environ.get("HOSTILE_SEED", "17"))


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
        (self.folder / "text.txt").rename(self.folder / "kept.txt")  # so that no file can be regenerated from the text
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
            if (flip + 1) % 1000 == 0:
                print(f"{flip + 1} flips so far: {detected} detected, {harmless} harmless", flush=True)
        print(f"{FLIPS} flips: {detected} detected, {harmless} harmless", flush=True)


if __name__ == "__main__":
    rig.main()
