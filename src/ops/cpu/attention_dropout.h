#pragma once
// Dropout of attention probabilities, for kernel files (*.isa.cpp).
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/philox_lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// Returns the global index of (sequence, head, query `row`, key 0).
[[gnu::always_inline]] inline uint64_t dropout_index(const AttentionJob& job, int64_t sequence, int64_t head,
                                                     int64_t row) {
  const int64_t global_head = (job.first_sample + sequence) * job.heads_global + job.first_head + head;
  const auto length = static_cast<uint64_t>(job.length);
  return (static_cast<uint64_t>(global_head) * length + static_cast<uint64_t>(job.first_query + row)) * length +
         static_cast<uint64_t>(job.first_key);
}
/// factors[i] = keep_scale, or 0 if the draw of element index + i is below the threshold; n <= kKeyBlock.
template <typename T>
[[gnu::noinline]] void fill_dropout_factors(const AttentionJob& job, uint64_t index, int64_t n, T* factors) {
  uint32_t draws[kKeyBlock + 2 * kPhiloxGroup];
  const int64_t skip = static_cast<int64_t>(index % 4);
  for (int64_t i = 0; i < skip + n; i += kPhiloxGroup)
    philox_group(job.key.k0, job.key.k1, job.step, index / 4 + static_cast<uint64_t>(i / 4), draws + i);
  const T kept = static_cast<T>(job.keep_scale);
  for (int64_t i = 0; i < n; ++i) factors[i] = draws[skip + i] >= job.threshold ? kept : T{0};
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
