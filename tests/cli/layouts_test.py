#!/usr/bin/env python3
"""scripts/compare_layouts.py: healthy layouts pass, others fail with a reason."""
import pathlib
import subprocess
import sys

import rig

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts" / "compare_layouts.py"


class Layouts(rig.Runs):
    def compare(self, *options, status=0):
        """Returns what the script prints to stdout and stderr."""
        command = [sys.executable, SCRIPT, "--trainer", rig.TRAINER, "--config", "config.toml", "--steps", "3",
                   "--set", "run.threads=1", *options]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=rig.TIMEOUT_SECONDS)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_a_healthy_layout_passes(self):
        for compute in ("fp64", "fp32"):
            said = self.compare("--set", "parallel.tensor=2", "--set", f"precision.compute={compute}")
            self.assertIn(f"{compute}, 3 steps, 2 ranks compared with one: parallel.tensor=2\n", said)
            self.assertIn("PASS", said)
        self.assertFalse((self.folder / "run").exists())

    def test_steps_beyond_what_is_known_to_be_healthy_are_not_judged(self):
        said = self.compare("--set", "parallel.tensor=2", "--set", "precision.compute=bf16", "--set", "train.steps=12",
                            "--steps", "12")
        self.assertIn("bf16, 12 steps, judged up to step 10, 2 ranks", said)

    def test_a_layout_that_trains_something_else_fails_and_stays_to_be_looked_at(self):
        wrong = self.folder / "wrong.sh"
        wrong.write_text('#!/bin/sh\nexec "$@" --set parallel.transport=threads --set run.seed=7\n')
        wrong.chmod(0o755)
        said = self.compare("--set", "parallel.tensor=2", "--launcher", str(wrong), "--keep", "kept", status=1)
        self.assertIn("FAIL", said)
        self.assertEqual(len(self.events("step", "kept/layout")), 3)
        self.assertIn("not empty", self.compare("--set", "parallel.tensor=2", "--keep", "kept", status=2))

    def test_mistakes_are_said(self):
        self.assertIn("only one rank", self.compare(status=2))
        self.assertIn('did you mean "tensor"', self.compare("--set", "parallel.tenser=2", status=2))
        self.assertIn("nowhere: ", self.compare("--set", "parallel.tensor=2", "--launcher", "nowhere", status=2))


if __name__ == "__main__":
    rig.main()
