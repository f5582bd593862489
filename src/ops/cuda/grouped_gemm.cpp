#include "ops/grouped_gemm.h"

#include <algorithm>

#include "ops/cuda/cublas.h"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

/// Takes the memory in which the library splits the GEMMs of any group: `most`: the elements of the largest result.
Scratch take_workspace(Exec& ex, int64_t most) {
  constexpr int64_t kLeast = int64_t{1} << 20, kMost = int64_t{32} << 20;  // bytes, as for a single GEMM
  return ex.take("gemm.workspace", {std::clamp(64 * most, kLeast, kMost)}, DType::u8);
}

void multiply_group(Exec& ex, const LtProduct& product, const Tensor& workspace) {
  if (!run_product(ex, product, workspace))
    throw Error(Code::device,
                format("cuBLASLt has no algorithm for a group of {} · {}", to_string(product.a), to_string(product.b)));
}

}  // namespace

void run(Exec& ex, const GroupedGemm& op) {
  if (op.a.dtype == DType::f64)
    throw Error(Code::usage, "grouped GEMM in fp64: CUDA devices support only fp32 and bf16");
  const int64_t all = op.a.rows(), of_group = op.b.rows() / std::ssize(op.rows);
  const Scratch workspace = take_workspace(ex, all * op.c.cols());
  if (ex.device.dry()) return;
  int64_t first = 0, group = 0;
  for (const int64_t rows : op.rows) {
    const Tensor c = op.c.row_range(first, rows), b = op.b.row_range(group++ * of_group, of_group);
    if (rows > 0)
      multiply_group(ex,
                     {.a = op.a.row_range(first, rows),
                      .b = b,
                      .c = c,
                      .d = c,
                      .trans_b = op.trans_b,
                      .varies = LtProduct::Varies::m},
                     workspace);
    first += rows;
  }
}

void run(Exec& ex, const GroupedWeightGradient& op) {
  if (op.x.dtype == DType::f64)
    throw Error(Code::usage, "grouped GEMM in fp64: CUDA devices support only fp32 and bf16");
  const int64_t of_group = op.x.cols();
  const Scratch workspace = take_workspace(ex, of_group * op.dy.cols());
  if (ex.device.dry()) return;
  int64_t first = 0, group = 0;
  for (const int64_t rows : op.rows) {
    const Tensor dw = op.dw.row_range(group++ * of_group, of_group);
    if (rows > 0)
      multiply_group(ex,
                     {.a = op.x.row_range(first, rows),
                      .b = op.dy.row_range(first, rows),
                      .c = dw,
                      .d = dw,
                      .trans_a = true,
                      .beta = op.accumulate ? 1.0f : 0.0f,
                      .varies = LtProduct::Varies::k},
                     workspace);
    else if (!op.accumulate)
      for (int64_t r = 0; r < (dw.packed() ? 1 : of_group); ++r)
        ex.device.clear(dw.data + r * dw.ld() * size_of(dw.dtype),
                        dw.packed() ? dw.bytes() : dw.cols() * size_of(dw.dtype));
    first += rows;
  }
}

}  // namespace trainer::ops::cuda
