#pragma once
// Attention kernels on bf16 panels that this CPU can run.
#include <vector>

#include "ops/cpu/attention_kernels.h"
#include "unit/ops/test_device.h"

namespace trainer::ops::attention_test {

using device::Isa;

struct Panels {
  Isa isa;
  const AttentionKernels* kernels;
};
/// Returns panels of both kinds: the unit's if the CPU has it, else those in plain C++ and AVX2.
inline std::vector<Panels> panels() {
  std::vector<Panels> sets;
  const auto add = [&](Isa unit, const AttentionKernels& by_unit, const AttentionKernels& plain_one,
                       const AttentionKernels& avx2_one) {
    const auto has = [](Isa isa) { return isa <= device::detect_isa() && device::available(isa); };
    if (has(unit)) return sets.push_back({unit, &by_unit});
    sets.push_back({Isa::plain, &plain_one});
    if (has(Isa::avx2)) sets.push_back({Isa::avx2, &avx2_one});
  };
  add(Isa::avx512bf16, avx512::attention_pairs, plain::attention_pairs, avx2::attention_pairs);
  add(Isa::amx, avx512::attention_tiles, plain::attention_tiles, avx2::attention_tiles);
  return sets;
}

}  // namespace trainer::ops::attention_test
