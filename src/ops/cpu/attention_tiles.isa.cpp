// Attention with matrix tiles (attention_panels.h).
#include "ops/cpu/attention_panels.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

struct TileUnit {
  static void begin() { configure_tiles(); }
  [[gnu::always_inline]] static void multiply(int64_t steps, const bf16* left, const bf16* right, bool add, float* sums,
                                              int64_t ld) {
    multiply_panels<false>(steps, left, right, !add, sums, ld, [](int64_t) {});
  }
};

}  // namespace

constinit const AttentionKernels attention_tiles = attention_by<TileUnit>();

}  // namespace trainer::ops::TRAINER_ISA
