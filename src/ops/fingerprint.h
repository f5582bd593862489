#pragma once
// Fingerprints: sums by which ranks compare elements without sending them. They do not depend on the order of
// additions, so every device computes the same; and unlike a XOR, repeated elements do not cancel.
#include <span>

#include "tensor/exec.h"

namespace trainer::ops {

/// Some elements of the flat tensor x (f64, f32 or bf16), in rows: element c of row r is x[r·pitch + c·stride], and its
/// number is first + r·step + c.
struct Fingerprint {
  Tensor x;
  int64_t rows = 1, cols = 0, pitch = 0, stride = 1;
  int64_t first = 0, step = 0;
};
/// sums[i] = Σ bits(x_k)·(2k + 1) mod 2⁶⁴ over the elements of part i, whose bits are unsigned integers and whose
/// numbers are k. `sums` i64 [parts]; x of one dtype. So the fingerprint of a tensor is the sum of those of its pieces,
/// wherever they are stored. A part takes one thread (on a GPU, one block): large tensors should be several parts.
struct Fingerprints {
  std::span<const Fingerprint> parts;
  Tensor sums;
};
void run(Exec& ex, const Fingerprints& op);

}  // namespace trainer::ops
