#include "ops/cpu/peak.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/dtype.h"
#include "device/isa.h"

namespace trainer::ops {
namespace {

// Small integers: every sum is exact, whatever the order, so the loop must have done just the products it counts.
TEST(PeakLoop, TilesSumTheProductsTheyCount) {
  constexpr int kTile = 512, kTiles = kPeakOperandBytes / 2 / kTile, kRounds = 2;
  std::vector<bf16> operands(kTiles * kTile);
  std::mt19937 random(5);
  std::uniform_int_distribution<int> small(-3, 3);
  for (bf16& value : operands) value = bf16(static_cast<float>(small(random)));
  // Left tiles are [row][term], right ones [pair of terms][column][2]; two of each meet in every step.
  double want[4][16][16] = {};
  for (int step = 0; step < kTiles / 4; ++step)
    for (int sums = 0; sums < 4; ++sums) {
      const bf16* const left = operands.data() + (2 * step + sums / 2) * kTile;
      const bf16* const right = operands.data() + (kTiles / 2 + 2 * step + sums % 2) * kTile;
      for (int row = 0; row < 16; ++row)
        for (int col = 0; col < 16; ++col)
          for (int term = 0; term < 32; ++term)
            want[sums][row][col] += kRounds * static_cast<double>(left[row * 32 + term]) *
                                    static_cast<double>(right[term / 2 * 32 + col * 2 + term % 2]);
    }

  std::vector<const PeakTable*> tables{&plain::peak_table};
  if (device::detect_isa() >= device::Isa::avx2) tables.push_back(&avx2::peak_table);
  if (device::detect_isa() >= device::Isa::amx) tables.push_back(&avx512::peak_table);
  for (const PeakTable* table : tables) {
    std::vector<float> sink(8192 / sizeof(float));
    const double flops = table->bf16_tiles(operands.data(), kRounds, sink.data());
    EXPECT_EQ(flops, 2.0 * kRounds * (kTiles / 4) * 4 * 16 * 16 * 32);
    for (int i = 0; i < 4 * 16 * 16; ++i)
      EXPECT_EQ(static_cast<double>(sink[static_cast<size_t>(i)]), (&want[0][0][0])[i]) << i;
  }
}

}  // namespace
}  // namespace trainer::ops
