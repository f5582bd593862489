#pragma once
// Loops of multiply-add instructions on operands in L1: what a product could reach at most. One per instruction set.
#include <cstdint>

namespace trainer::ops {

/// Operands of a peak loop: fits L1, one half for each factor. Filled by the caller: the clock depends on live data.
inline constexpr int64_t kPeakOperandBytes = 16384;

/// Runs `rounds` passes over the operands; returns the FLOPs done. Results go to `sink`, 8 KiB, so that work is not
/// elided.
using PeakLoop = double (*)(const void* operands, int64_t rounds, void* sink);

struct PeakTable {
  PeakLoop f64 = nullptr, f32 = nullptr;
  PeakLoop bf16_tiles = nullptr;  // on bf16 operands; avx512: needs Isa::amx
};
namespace plain {
extern const PeakTable peak_table;
}
namespace avx2 {
extern const PeakTable peak_table;
}
namespace avx512 {
extern const PeakTable peak_table;
}

}  // namespace trainer::ops
