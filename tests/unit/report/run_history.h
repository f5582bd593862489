#pragma once
// A made-up run for the tests of summary and report.
#include <cmath>
#include <vector>

#include "report/history.h"

namespace trainer::report {

inline StartReport example_start() {
  StartReport start;
  start.name = "tiny <run>";
  start.time = "2030-01-31T12:34:56Z";
  start.arch = "gpt2";
  start.compute = "fp32";
  start.n_layer = 6;
  start.n_head = 6;
  start.n_kv_head = 2;
  start.d_model = 384;
  start.d_ff = 1536;
  start.seq_len = 256;
  start.vocab_size = 2039;
  start.parameters = 11'504'641;
  start.total_steps = 40;
  start.global_batch = 24;
  start.micro_batch = 12;
  start.accumulation = 2;
  start.train_tokens = 412'345;
  start.val_tokens = 40'123;
  start.unigram_entropy = 6.3125;
  start.flops = {.matmul = 6.8e7, .attention = 7.0e6, .recomputed = 0};
  start.peak = {.flops = 1.9e11,
                .origin = "measured",
                .unit = "AVX2 fma",
                .windows = 60,
                .median_flops = 1.7e11,
                .lowest_flops = 0.9e11};
  start.predicted.memory_bytes = 400 << 20;
  start.environment = {"0.1.0", "1a2b3c4d", "cpu", "avx2", "own kernels & fp32", 1, 2};
  return start;
}

/// Steps 1 … n: loss 8 − step/10, 100 ms + step, 1000 + step tokens/s.
inline History example_history(int64_t n) {
  History history;
  history.start = example_start();
  for (int64_t step = 1; step <= n; ++step) {
    const auto at = static_cast<double>(step);
    StepReport report;
    report.step = step;
    report.tokens = step * 6144;
    report.loss = 8 - at / 10;
    report.lr = 1e-3;
    report.grad_norm = 1 / at;
    report.step_ms = 100 + at;
    report.tokens_per_s = 1000 + at;
    report.tflops_per_device = 0.1;
    report.mfu = 0.5;
    report.mfu_causal = 0.45;
    report.hfu = 0.48;
    report.phase_ms = {.data = 1, .forward = 30, .backward = 60, .optimizer = 5, .comm_exposed = 0};
    history.steps.push_back(report);
  }
  history.memory_bytes = {{"weights", 44 << 20}, {"activations", 190 << 20}};
  return history;
}

}  // namespace trainer::report
