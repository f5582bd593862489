#include "ops/cpu/merge_attention_kernels.h"

#include "ops/cpu/canonical.h"
#include "ops/cpu/lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

[[gnu::always_inline]] inline float exp_of(float x) { return __builtin_expf(x); }
[[gnu::always_inline]] inline double exp_of(double x) { return __builtin_exp(x); }
[[gnu::always_inline]] inline float log_of(float x) { return __builtin_logf(x); }
[[gnu::always_inline]] inline double log_of(double x) { return __builtin_log(x); }

template <typename Storage, typename T>
void merge(const MergeRows& all, int64_t first_row, int64_t rows) {
  for (int64_t row = first_row; row < first_row + rows; ++row)
    for (int64_t head = 0; head < all.heads; ++head) {
      const int64_t at = (row / all.q_len * all.heads + head) * all.q_len + row % all.q_len;
      const T here = static_cast<const T*>(all.part_lse)[at];
      T& lse = static_cast<T*>(all.sum_lse)[at];
      const Storage* part = static_cast<const Storage*>(all.part) + row * all.part_ld + head * all.head_dim;
      T* sum = static_cast<T*>(all.sum) + row * all.sum_ld + head * all.head_dim;
      if (all.first) {
        lse = here;
        each_vector<T>(all.head_dim, [&](int64_t c, auto tag) { put(sum + c, get(part + c, tag), tag); });
        continue;
      }
      if (here == lse && here == -__builtin_inf()) continue;  // the row still has no key, and a sum of 0
      const T top = here > lse ? here : lse, ours = exp_of(here - top), theirs = exp_of(lse - top);
      const T whole = ours + theirs;
      const Vec<T> part_share = splat(ours / whole), sum_share = splat(theirs / whole);
      lse = top + log_of(whole);
      each_vector<T>(all.head_dim, [&](int64_t c, auto tag) {
        put(sum + c, fused<T>(get(part + c, tag), part_share, get(sum + c, tag) * sum_share), tag);
      });
    }
}

}  // namespace

const MergeAttentionKernels merge_attention_kernels = {
    {merge<double, double>, merge<float, float>, merge<bf16, float>}};

}  // namespace trainer::ops::TRAINER_ISA
