#pragma once
// The kernels of bf16 panels that this CPU can run, and GEMMs with them, for the tests of these kernels.
#include <vector>

#include "ops/cpu/gemm.h"
#include "unit/ops/gemm_problem.h"

namespace trainer::ops::gemm_test {

struct Panels {
  Isa isa;
  const GemmTable* table;
  const char* name;
};
/// Returns panels of pairs or of tiles, for every instruction set that can multiply them.
inline std::vector<Panels> panels_of(bool pairs) {
  std::vector<Panels> sets;
  const auto add = [&](Isa needed, Isa run_by, const GemmTable& by_pairs, const GemmTable& by_tiles) {
    if (device::available(needed) && needed <= device::detect_isa())
      sets.push_back({run_by, pairs ? &by_pairs : &by_tiles, pairs ? "pairs" : "tiles"});
  };
  add(Isa::plain, Isa::plain, plain::gemm_table_pairs, plain::gemm_table_tiles);
  add(Isa::avx2, Isa::avx2, avx2::gemm_table_pairs, avx2::gemm_table_tiles);
  const Isa unit = pairs ? Isa::avx512bf16 : Isa::amx;
  add(unit, unit, avx512::gemm_table_pairs, avx512::gemm_table_tiles);
  return sets;
}
/// Returns panels of both kinds: the unit's if the CPU has it, else those in plain C++ and AVX2.
inline std::vector<Panels> panels() {
  std::vector<Panels> all;
  for (const bool pairs : {true, false}) {
    const std::vector<Panels> sets = panels_of(pairs);
    if (sets.back().isa >= Isa::avx512bf16) {
      all.push_back(sets.back());
    } else {
      all.insert(all.end(), sets.begin(), sets.end());
    }
  }
  return all;
}

inline Buffer packed_weight(Machine& machine, const Problem& problem, const GemmTable& table) {
  const Tensor& b = problem.op.b;
  const bool trans = problem.c.trans_b;
  Buffer weight(*machine.device, "packed",
                {own_packed_bytes(b.dtype, b.shape[trans ? 1 : 0], b.shape[trans ? 0 : 1], table)}, DType::u8);
  Exec ex = machine.ex;
  own_pack(ex, PackB{b, weight, trans}, table);
  return weight;
}

/// Runs problem.op by the kernels of `table`, with B packed in advance or not.
inline void multiply(Machine& machine, Problem& problem, const GemmTable& table, bool packed) {
  Buffer weight;
  problem.op.packed_b = {};
  if (packed) problem.op.packed_b = weight = packed_weight(machine, problem, table);
  Exec ex = machine.ex;
  own_product(ex, problem.op, table);
  problem.op.packed_b = {};
}

}  // namespace trainer::ops::gemm_test
