#pragma once
// Mixtures of experts on this machine: a whole layer, and its grouped GEMMs compared with single ones.
#include "bench/gemm.h"
#include "config/model.h"

namespace trainer::bench {

/// Both passes of the MLP of a layer with experts.
struct ExpertsTime {
  double seconds = 0, gemm_seconds = 0;  // medians
  double outside_gemms() const { return 1 - gemm_seconds / seconds; }
};
/// Measures the last layer of the model, which must have experts, with random weights on `rows` random rows.
ExpertsTime bench_experts(Exec& ex, const config::Model& model, DType compute, int64_t rows, int repeats);

/// Rates of the GEMMs of groups with equal numbers of rows and a weight each, relative to those of one GEMM of all
/// rows.
struct GroupedRate {
  GemmShape shape;  // m: of all groups
  int64_t groups = 0;
  double forward = 0, dx = 0, dw = 0;
};
/// Measures GEMMs of both kinds alternately; returns medians of the ratios.
GroupedRate bench_grouped_gemm(Exec& ex, DType dtype, const GemmShape& shape, int64_t groups, int repeats);

}  // namespace trainer::bench
