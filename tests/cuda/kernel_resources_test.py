#!/usr/bin/env python3
"""Tests the output of scripts/kernel_resources.py for kernels that are better or worse than their record."""
import contextlib
import copy
import importlib.util
import io
import pathlib
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "kernel_resources.py"
spec = importlib.util.spec_from_file_location("kernel_resources", SCRIPT)
resources = importlib.util.module_from_spec(spec)
spec.loader.exec_module(resources)

COMPILER = "release 13.0, V13.0.88"
TABLE = {
    ("norm.cu", "norm_kernel<bf16, 8>"): {
        80: {"threads": 256, "shared": 512, "registers": 80, "stack": 0, "blocks": 3},
        90: {"threads": 256, "shared": 512, "registers": 78, "stack": 8, "blocks": 3},
    }
}
NAME = next(iter(TABLE))


class Record(unittest.TestCase):
    def check(self, table, compiler=COMPILER):
        with tempfile.TemporaryDirectory() as folder:
            record = pathlib.Path(folder) / "record.txt"
            record.write_text(resources.text_of(COMPILER, TABLE), encoding="utf-8")
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                return resources.check(record, compiler, table), said.getvalue()

    def test_is_read_as_it_was_written(self):
        self.assertEqual(resources.parsed(resources.text_of(COMPILER, TABLE)), (COMPILER, TABLE))
        self.assertEqual(self.check(TABLE)[0], 0)

    def test_fails_on_a_new_spill(self):
        for architecture, stack in ((80, 4), (90, 12)):
            worse = copy.deepcopy(TABLE)
            worse[NAME][architecture]["stack"] = stack
            status, said = self.check(worse)
            self.assertEqual(status, 1)
            self.assertIn(f"norm_kernel<bf16, 8>, sm_{architecture}: {stack} bytes of stack", said)
        new = {**TABLE, ("norm.cu", "other"): {80: {**TABLE[NAME][80], "stack": 16}}}
        self.assertEqual(self.check(new)[0], 1)

    def test_fails_where_fewer_blocks_fit(self):
        worse = copy.deepcopy(TABLE)
        worse[NAME][80]["blocks"] = 2
        self.assertEqual(self.check(worse)[0], 1)

    def test_names_what_is_better_without_failing(self):
        better = copy.deepcopy(TABLE)
        better[NAME][90].update(stack=0, registers=70)
        status, said = self.check(better)
        self.assertEqual(status, 0)
        self.assertIn("1 differ", said)

    def test_leaves_another_compiler_unchanged(self):
        worse = copy.deepcopy(TABLE)
        worse[NAME][80]["stack"] = 99
        self.assertEqual(self.check(worse, "release 12.4, V12.4.1")[0], resources.SKIPPED)

    def test_update_keeps_the_rows_of_other_files(self):
        with tempfile.TemporaryDirectory() as folder:
            record = pathlib.Path(folder) / "record.txt"
            row = dict.fromkeys(resources.NUMBERS, 1)
            before = {("a.cu", "gone"): {90: row}, ("b.cu", "kept"): {80: row, 90: row}}
            record.write_text(resources.text_of(COMPILER, before), encoding="utf-8")
            new = {("a.cu", "new"): {80: row}}
            resources.update(record, COMPILER, new)
            self.assertEqual(resources.parsed(record.read_text(encoding="utf-8")), (COMPILER, {**new, ("b.cu", "kept"): before["b.cu", "kept"]}))
            with self.assertRaises(resources.Unreadable):
                resources.update(record, "another compiler", new)

    def test_record_names_sources_that_exist(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        _, record = resources.parsed((root / "tests/cuda/kernel_resources.txt").read_text(encoding="utf-8"))
        sources = {path.name for path in (root / "src/ops/cuda").rglob("*.cu")}
        self.assertEqual({file for file, _ in record}, sources)

    def test_blocks_by_registers_threads_and_shared_memory(self):
        def blocks(threads, registers, shared, architecture=90):
            row = {"threads": threads, "registers": registers, "shared": shared}
            return resources.blocks_of(row, architecture)

        self.assertEqual(blocks(128, 168, 0), 3)  # 168 · 128 = 21504 of 65536 registers
        self.assertEqual(blocks(128, 169, 0), 2)  # allocated in units of 256 per warp: 176
        self.assertEqual(blocks(1024, 16, 0), 2)  # limited by 2048 threads
        self.assertEqual(blocks(64, 32, 60 << 10), 3)  # 61 KiB per block of 228 KiB
        self.assertEqual(blocks(64, 32, 60 << 10, 80), 2)  # of 164 KiB


if __name__ == "__main__":
    unittest.main()
