#include "ops/normals.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

namespace trainer::ops {
namespace {

TEST(Normals, AreThoseOfTheScalarFunctionBitForBitOnEveryInstructionSet) {
  for (const device::Isa isa : device::kIsas) {
    if (isa > device::detect_isa()) break;
    const device::CpuDevice cpu(1, isa);
    // Every length of the remainder, a counter beyond 32 bits, and enough draws for all quadrants and exponents.
    for (const auto& [first, blocks] :
         std::initializer_list<std::pair<uint64_t, int64_t>>{{0, 1}, {7, 2}, {3, 5}, {0xfffffffdu, 11}, {1, 100000}}) {
      const PhiloxKey key = philox_key(first + 5, "blocks.0.attn.q.weight");
      std::vector<double> out(static_cast<size_t>(4 * blocks) + 1, -7.0);
      fill_normals(cpu, key, first, blocks, out.data());
      for (int64_t i = 0; i < blocks; ++i) {
        const std::array<double, 4> expected = philox_normals(key, first + static_cast<uint64_t>(i));
        for (size_t j = 0; j < 4; ++j)
          ASSERT_EQ(std::bit_cast<uint64_t>(out[4 * static_cast<size_t>(i) + j]), std::bit_cast<uint64_t>(expected[j]))
              << name_of(isa) << " block " << first << " + " << i << " element " << j;
      }
      EXPECT_EQ(out.back(), -7.0);
    }
  }
}

}  // namespace
}  // namespace trainer::ops
