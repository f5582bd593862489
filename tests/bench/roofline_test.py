#!/usr/bin/env python3
"""Tests the bounds of the roofline page on a step with one operator of each kind of limit."""
import unittest

import roofline

STEP = {"tokens": 1000, "parameters": 5e6, "model_flops_per_token": 1e9,
        "operators": [{"name": "gemm", "calls": 2, "gflop": 989.4, "gb": 0.1},  # limited by FLOPs on every device
                      {"name": "norm", "calls": 3, "gflop": 0.1, "gb": 4.8}]}  # and by bytes


class Section(unittest.TestCase):
    def rows(self, measured=None):
        lines = [line for line in roofline.section("model", STEP, measured).splitlines() if line.startswith("|")]
        table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        self.assertEqual({len(row) for row in table}, {len(table[0])}, "rows of different widths")
        return {row[0]: dict(zip(table[0], row)) for row in table[2:]}

    def test_is_bounded_by_data_sheet_and_by_attainable_rates(self):
        rows, (sheet, attainable) = self.rows(), ("H200, ms", "H200, ms at attainable rates")
        self.assertEqual((rows["gemm"][sheet], rows["gemm"][attainable]), ("1.00", "1.25"))  # 989.4 / 794.5
        self.assertEqual((rows["norm"][sheet], rows["norm"][attainable]), ("1.00", "1.11"))  # 4.8 / 4.31
        self.assertEqual((rows["norm"]["A100 80 GB, ms"], rows["norm"]["A100 80 GB, ms at attainable rates"]), ("2.35", "2.68"))
        self.assertEqual((rows["**all**"][sheet], rows["**all**"][attainable]), ("2.00", "2.36"))
        self.assertEqual((rows["**tokens/s at most**"][sheet], rows["**tokens/s at most**"][attainable]), ("500000", "423908"))
        # Both are shares of the data sheet's rate: 1e12 FLOP in 2 ms, and in 2.36 ms, of 989.4 TFLOP/s.
        self.assertEqual((rows["**mfu at most**"][sheet], rows["**mfu at most**"][attainable]), ("50.5 %", "42.8 %"))

    def test_shows_measured_steps_next_to_the_bounds(self):
        measured = {"operators": [{"name": "gemm", "ms": 1.5}], "median_ms": 3.0, "tokens_per_s": 333333.3, "mfu": 0.337}
        rows = self.rows(measured)
        self.assertEqual([rows[name]["measured ms"] for name in ("gemm", "norm", "**all**", "**mfu at most**")], ["1.50", "", "3.00", "33.7 %"])


if __name__ == "__main__":
    unittest.main()
