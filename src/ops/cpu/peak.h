#pragma once
// Peak microbenchmarks of operators: multiply-adds on operands in L1, and the memory traffic of an optimizer step. One
// table per instruction set.
#include <cstdint>

#include "device/isa.h"
#include "device/kernel_sets.h"

namespace trainer::ops {

/// Bytes of the operands of the peak microbenchmark: they fit into L1, one half for each operand. The caller fills
/// them, since the clock frequency depends on the data.
inline constexpr int64_t kPeakOperandBytes = 16384;

/// Runs `rounds` passes over the operands; returns the FLOPs done. Results are written to `sink` (8 KiB), so that the
/// work is not optimised away.
using PeakLoop = double (*)(const void* operands, int64_t rounds, void* sink);

/// p, m, v += g: reads four arrays and writes three, like AdamW, with almost no arithmetic.
using TrafficLoop = void (*)(float* p, float* m, float* v, const float* g, int64_t n);
/// Returns the sum of four arrays of n elements: reads as much as an in-place update, and writes nothing.
using ReadLoop = float (*)(const float* p, const float* m, const float* v, const float* g, int64_t n);

struct PeakTable {
  PeakLoop f64 = nullptr, f32 = nullptr;
  PeakLoop bf16_pairs = nullptr;  // on bf16 operands; avx512: requires Isa::avx512bf16
  PeakLoop bf16_tiles = nullptr;  // on bf16 operands; avx512: requires Isa::amx
  TrafficLoop traffic = nullptr;
  ReadLoop read = nullptr;
};
TRAINER_FOR_EACH_ISA(extern const PeakTable peak_table;)

/// Returns the loops for a CPU's instruction set.
const PeakTable& peak_loops(device::Isa isa);

}  // namespace trainer::ops
