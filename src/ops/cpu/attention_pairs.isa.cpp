// Attention with dot products of bf16 pairs (attention_panels.h), on the same panels as with tiles. A pair of the left
// operand is broadcast to all lanes; a pair in each of sixteen columns of the right operand forms a vector.
#include "ops/cpu/attention_panels.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

constexpr int64_t kSumRows = 8;     // rows of sums in registers
constexpr int64_t kSumVectors = 2;  // vectors of columns per row
constexpr int64_t kSumCols = kSumVectors * kPairLanes;
static_assert(kTilePanel % kSumRows == 0 && kTilePanel % kSumCols == 0);

struct PairUnit {
  static void begin() {}

  [[gnu::noinline]] static void multiply(int64_t steps, const bf16* left, const bf16* right, bool add, float* sums,
                                         int64_t ld) {
    for (int64_t column = 0; column < kTilePanel; column += kSumCols)
      for (int64_t row = 0; row < kTilePanel; row += kSumRows)
        multiply_block(steps, left + row * kTileTerms, right, column, add, sums + row * ld + column, ld);
  }
  [[gnu::always_inline]] static void multiply_block(int64_t steps, const bf16* left, const bf16* right, int64_t column,
                                                    bool add, float* sums, int64_t ld) {
    const bf16* columns[kSumVectors];  // vectors of columns of the right operand, at its first pair
    for (int64_t v = 0; v < kSumVectors; ++v) {
      const int64_t at = column + v * kPairLanes;
      columns[v] = right + at / kTileRows * kTileElements + at % kTileRows * 2;
    }
    Vec<float> acc[kSumRows][kSumVectors];
#pragma GCC unroll 16
    for (int64_t r = 0; r < kSumRows; ++r)
#pragma GCC unroll 4
      for (int64_t v = 0; v < kSumVectors; ++v) acc[r][v] = add ? load(sums + r * ld + v * kPairLanes) : Vec<float>{};
    for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 1
      for (int64_t pair = 0; pair < kPairs; ++pair) {
        const int64_t at = step * kStepElements + pair * kTileTerms;
        Pairs y[kSumVectors];
#pragma GCC unroll 4
        for (int64_t v = 0; v < kSumVectors; ++v) y[v] = load_pairs(columns[v] + at);
#pragma GCC unroll 16
        for (int64_t r = 0; r < kSumRows; ++r) {
          const Pairs x = splat_pair(left + step * kStepElements + r * kTileTerms + 2 * pair);
#pragma GCC unroll 4
          for (int64_t v = 0; v < kSumVectors; ++v) add_dots(acc[r][v], x, y[v]);
        }
      }
    }
#pragma GCC unroll 16
    for (int64_t r = 0; r < kSumRows; ++r)
#pragma GCC unroll 4
      for (int64_t v = 0; v < kSumVectors; ++v) store(sums + r * ld + v * kPairLanes, acc[r][v]);
  }
};

}  // namespace

constinit const AttentionKernels attention_pairs = attention_by<PairUnit>();

}  // namespace trainer::ops::TRAINER_ISA
