#include "ops/gemm.h"

#include <algorithm>
#include <optional>

#include "ops/cuda/cublas.h"
#include "ops/cuda/gemm_epilogue.h"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

constexpr int64_t kLeastWorkspace = int64_t{1} << 20, kMostWorkspace = int64_t{32} << 20;  // bytes

/// Returns enough for the f32 partial sums of 16 splits of k, within these bounds.
int64_t workspace_bytes(const Gemm& op) { return std::clamp(64 * op.c.count(), kLeastWorkspace, kMostWorkspace); }

bool on_16_bytes(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0; }

/// One library call, and the rest of the epilogue: c = `rest` applied to `sums`, unless sums is empty.
struct Direct {
  LtProduct product;
  Tensor sums;
  Epilogue rest = {};
};

/// Returns the GEMM as one library call; empty if its epilogue requires unrounded sums and the library cannot apply it.
/// The result depends only on shapes and dtypes; fits() checks that the library supports the addresses.
std::optional<Direct> direct(const Gemm& op) {
  const Epilogue& e = op.epilogue;
  const bool activates = e.act != Activation::none;
  Direct way{{op.a, op.b, op.c, op.c, op.trans_a, op.trans_b, op.accumulate ? 1.0f : 0.0f, {}, {}}, {}, {}};
  LtProduct& product = way.product;
  if (activates ? static_cast<bool>(e.residual) : static_cast<bool>(e.pre)) return {};
  if (e.gradient) {
    if (op.c.dtype == DType::f32) {
      way.sums = op.c;
      way.rest = {.act = e.act, .pre = e.pre, .gradient = true};
      return way;
    }
    if (e.act != Activation::gelu) return {};  // the library has the tanh form only
    if (op.c.cols() % 8 != 0 || op.c.ld() % 8 != 0 || e.pre.ld() % 8 != 0) return {};
    product.aux = e.pre;
    return way;
  }
  if (e.bias) {
    if (e.bias.dtype != op.c.dtype) return {};
    product.bias = e.bias;
  }
  if (e.residual) {
    product.c = e.residual;
    product.beta = 1;
  }
  if (activates) {  // applied to rounded sums: the library would use unrounded sums, which recomputation does not have
    product.d = product.c = e.pre ? e.pre : op.c;
    way.sums = product.d;
    way.rest.act = e.act;
  }
  return way;
}

bool fits(const LtProduct& op) {
  return (!op.bias || on_16_bytes(op.bias)) && (!op.aux || (on_16_bytes(op.aux) && on_16_bytes(op.d)));
}

/// Runs a GEMM with any epilogue, some rows at a time; the f32 sums of these rows take half of the workspace.
void run_in_parts(Exec& ex, const Gemm& op, const Tensor& workspace) {
  const int64_t m = op.c.shape[0], n = op.c.shape[1], half = workspace.count() / 2 / 256 * 256;
  int64_t most = std::min(m, half / (n * size_of(DType::f32)));
  if (most < m && most > 64) most -= most % 64;  // aligned like a whole GEMM
  TRAINER_CHECK(most > 0, "GEMM: a row of {} columns does not fit into {} bytes of workspace", n, half);
  const Tensor rest = workspace.range(half, workspace.count() - half);
  for (int64_t first = 0; first < m; first += most) {
    const int64_t rows = std::min(most, m - first);
    const auto part = [&](const Tensor& t) { return t ? t.row_range(first, rows) : t; };
    const Tensor sums{workspace.data, {rows, n}, DType::f32, 0}, c = part(op.c);
    const Tensor a = op.trans_a ? op.a.col_range(first, rows) : part(op.a);
    if (!run_product(ex, {a, op.b, sums, sums, op.trans_a, op.trans_b, 0, {}, {}}, rest))
      throw Error(Code::device, format("cuBLASLt has no algorithm for {} · {}, transposed {} {}", to_string(a),
                                       to_string(op.b), op.trans_a, op.trans_b));
    Epilogue e = op.epilogue;
    e.pre = part(e.pre);
    e.residual = op.accumulate ? c : part(e.residual);
    finish_product(ex, sums, e, c);
  }
}

}  // namespace

void run(Exec& ex, const Gemm& op) {
  if (op.a.dtype != DType::f32 && op.a.dtype != DType::bf16)
    throw Error(Code::usage, format("GEMM in {}: CUDA devices support only fp32 and bf16", name_of(op.a.dtype)));
  if (op.a.count() == 0) {  // k = 0: all sums are 0
    if (!ex.device.dry() && !op.accumulate) finish_product(ex, {}, op.epilogue, op.c);
    return;
  }
  const Scratch workspace = ex.take("gemm.workspace", {workspace_bytes(op)}, DType::u8);
  const std::optional<Direct> way = direct(op);
  const int64_t copied = way ? copy_bytes(ex.device, way->product) : 0;
  Scratch copy;
  if (copied > 0) copy = ex.take("gemm.transposed", {copied}, DType::u8);
  if (ex.device.dry()) return;
  if (!way || !fits(way->product) || !run_product(ex, way->product, workspace, copy))
    return run_in_parts(ex, op, workspace);
  if (way->sums) finish_product(ex, way->sums, way->rest, op.c);
}

}  // namespace trainer::ops::cuda
