#!/usr/bin/env python3
"""Tests the benchmarks' rounds, with given instead of measured peaks, and the search for a Python with PyTorch."""
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

import machine


class ToldPeak:
    def __init__(self, *looks):
        self.looks = list(looks)

    def look(self, compute):
        return self.looks.pop(0)


class Rounds(unittest.TestCase):
    def rounds(self, looks, count, tries):
        peak, results = ToldPeak(*looks), iter(range(100))
        rounds = machine.Rounds(peak, count, tries)
        kept = rounds.each("fp32", lambda: next(results))
        self.assertEqual(peak.looks, [], "looks that nobody took")
        return kept, rounds

    def test_calm_rounds_are_measured_once(self):
        kept, rounds = self.rounds([1.0, 0.9, 1.0, 0.86], 3, 3)
        self.assertEqual((kept, rounds.repeated, rounds.disturbed), ([0, 1, 2], 0, 0))
        self.assertIn("calm", rounds.verdict())

    def test_a_round_next_to_which_the_peak_changed_is_repeated(self):
        kept, rounds = self.rounds([1.0, 0.8, 0.8, 0.8], 2, 3)
        self.assertEqual((kept, rounds.repeated, rounds.disturbed), ([1, 2], 1, 0))
        kept, rounds = self.rounds([0.8, 1.0, 1.0], 1, 3)  # a peak that rose is a disturbance, too
        self.assertEqual((kept, rounds.repeated), ([1], 1))

    def test_of_rounds_that_are_all_disturbed_the_calmest_is_kept_and_counted(self):
        kept, rounds = self.rounds([1.0, 0.5, 0.7, 0.3, 0.3], 2, 3)
        self.assertEqual((kept, rounds.repeated, rounds.disturbed), ([1, 3], 2, 1))
        self.assertIn("1 of the rounds kept", rounds.verdict())


class Python(unittest.TestCase):
    def test_the_first_that_has_pytorch_is_taken_and_else_the_command_is_reported(self):
        with tempfile.TemporaryDirectory() as name:
            has = pathlib.Path(name) / "has-torch"
            has.write_text("#!/bin/sh\nexit 0\n")
            has.chmod(0o755)
            lacks = pathlib.Path(name) / "lacks-torch"
            lacks.write_text("#!/bin/sh\nexit 1\n")
            lacks.chmod(0o755)
            with (mock.patch.object(sys, "executable", str(lacks)),
                  mock.patch.object(machine, "TORCH_FOLDER", pathlib.Path(name))):
                with mock.patch.dict(os.environ, {"TRAINER_TORCH_PYTHON": str(has)}):
                    self.assertEqual(machine.torch_python(None), str(has))
                    with self.assertRaises(SystemExit) as reported:  # an interpreter that is named is not replaced
                        machine.torch_python(str(lacks))
                self.assertIn("compare_torch.py --make-python", str(reported.exception))
                os.environ.pop("TRAINER_TORCH_PYTHON", None)
                with self.assertRaises(SystemExit):
                    machine.torch_python(None)
                (pathlib.Path(name) / "bin").mkdir()
                has.rename(pathlib.Path(name) / "bin/python")
                self.assertEqual(machine.torch_python(None), name + "/bin/python")


class Cpu(unittest.TestCase):
    def test_has_a_class_by_its_flags(self):
        kind, flags, _ = machine.cpu()
        self.assertEqual(kind, {"": "plain", "avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX512-BF16",
                                "amx_bf16": "AMX"}[flags[-1] if flags else ""])


if __name__ == "__main__":
    unittest.main(verbosity=2)
