#include "ops/cpu/peak.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/dtype.h"
#include "device/isa.h"

namespace trainer::ops {
namespace {

// With small integers every sum is exact in any order, so the loop must have computed just the products that it counts.
TEST(PeakLoop, TilesSumTheProductsTheyCount) {
  constexpr int kTile = 512, kTiles = kPeakOperandBytes / 2 / kTile, kRounds = 2;
  std::vector<bf16> operands(kTiles * kTile);
  std::mt19937 random(5);
  std::uniform_int_distribution<int> small(-3, 3);
  for (bf16& value : operands) value = bf16(static_cast<float>(small(random)));
  // Left tiles are [row][term], right ones [pair of terms][column][2]; each step multiplies two by two.
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

/// Compares every sum of the loop; `lanes`: floats in a vector.
void expect_pair_products(const PeakTable& table, int lanes, int left_vectors) {
  constexpr int kElements = kPeakOperandBytes / 2, kRounds = 2, kRight = 3;
  std::vector<bf16> operands(kElements);
  std::mt19937 random(6);
  std::uniform_int_distribution<int> small(-3, 3);
  for (bf16& value : operands) value = bf16(static_cast<float>(small(random)));
  const int width = 2 * lanes, steps = kElements / 2 / (left_vectors * width);
  std::vector<float> sink(8192 / sizeof(float));
  const double flops = table.bf16_pairs(operands.data(), kRounds, sink.data());
  EXPECT_EQ(flops, 2.0 * kRounds * steps * left_vectors * kRight * width);
  for (int i = 0; i < left_vectors; ++i)
    for (int j = 0; j < kRight; ++j)
      for (int lane = 0; lane < lanes; ++lane) {
        double want = 0;
        for (int step = 0; step < steps; ++step)
          for (int half = 0; half < 2; ++half) {
            const int at = 2 * lane + half;
            want +=
                kRounds * static_cast<double>(operands[static_cast<size_t>((step * left_vectors + i) * width + at)]) *
                static_cast<double>(operands[static_cast<size_t>(kElements / 2 + (step * kRight + j) * width + at)]);
          }
        EXPECT_EQ(static_cast<double>(sink[static_cast<size_t>((i * kRight + j) * lanes + lane)]), want);
      }
}

TEST(PeakLoop, PairsSumTheProductsTheyCount) {
  expect_pair_products(plain::peak_table, 4, 4);
  const device::Isa best = device::detect_isa();
  if (best >= device::Isa::avx2) expect_pair_products(avx2::peak_table, 8, 4);
  if (best >= device::Isa::avx512bf16 && device::available(device::Isa::avx512bf16))
    expect_pair_products(avx512::peak_table, 16, 8);
}

// Small integers again, for exact sums.
TEST(TrafficLoop, AddsTheGradientToThreeArraysAndReadsAllFour) {
  std::vector<const PeakTable*> tables{&plain::peak_table};
  if (device::detect_isa() >= device::Isa::avx2) tables.push_back(&avx2::peak_table);
  if (device::detect_isa() >= device::Isa::avx512) tables.push_back(&avx512::peak_table);
  for (const PeakTable* table : tables)
    for (const int n : {1, 15, 64, 77}) {
      std::vector<float> arrays[4];
      float sum = 0;
      for (int which = 0; which < 4; ++which)
        for (int i = 0; i < n; ++i) {
          arrays[which].push_back(static_cast<float>(100 * which + i % 7 - 3));
          sum += arrays[which].back();
        }
      EXPECT_EQ(table->read(arrays[0].data(), arrays[1].data(), arrays[2].data(), arrays[3].data(), n), sum);
      table->traffic(arrays[0].data(), arrays[1].data(), arrays[2].data(), arrays[3].data(), n);
      for (int which = 0; which < 4; ++which)
        for (int i = 0; i < n; ++i) {
          const int before = 100 * which + i % 7 - 3, gradient = 300 + i % 7 - 3;
          EXPECT_EQ(arrays[which][static_cast<size_t>(i)], which < 3 ? before + gradient : gradient);
        }
    }
}

}  // namespace
}  // namespace trainer::ops
