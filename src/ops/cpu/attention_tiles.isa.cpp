// Attention by matrix tiles (attention_panels.h).
#include "ops/cpu/attention_panels.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

/// bf16 bits of x in the low halves.
[[gnu::always_inline]] inline Pairs rounded(Vec<float> x) {
  const Pairs u = (Pairs)x;
  return x == x ? (Pairs)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16) : Pairs{} + 0x7fffu;
}

struct TileUnit {
  static void begin() { configure_tiles(); }
  [[gnu::always_inline]] static void multiply(int64_t steps, const bf16* left, const bf16* right, bool add, float* sums,
                                              int64_t ld) {
    multiply_panels<false>(steps, left, right, !add, sums, ld, [](int64_t) {});
  }
  [[gnu::always_inline]] static Pairs pair(Vec<float> first, Vec<float> second) {
    return rounded(first) | rounded(second) << 16;
  }
  [[gnu::always_inline]] static void round(bf16* to, Vec<float> v) { store(to, v); }
};

}  // namespace

constinit const AttentionKernels attention_tiles = attention_by<TileUnit>();

}  // namespace trainer::ops::TRAINER_ISA
