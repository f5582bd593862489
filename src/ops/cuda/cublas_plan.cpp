#include "ops/cuda/cublas_plan.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

cudaDataType_t data_type(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

/// cuBLASLt is column-major: it sees every matrix transposed, and computes dᵀ = op(b)ᵀ·op(a)ᵀ.
struct Sizes {
  int64_t m, n, k;
};
Sizes sizes_of(const LtProduct& op) { return {op.d.shape[0], op.d.shape[1], op.a.shape[op.trans_a ? 0 : 1]}; }

/// Returns the tensor in `memory` for a transposed operand. Its rows are aligned to 16 bytes, the library's fastest
/// case.
Tensor transposed_in(const Tensor& memory, const Tensor& x) {
  const int64_t pitch = round_up(x.rows(), 16 / size_of(x.dtype));
  return {memory.data, {x.cols(), x.rows()}, x.dtype, pitch};
}
/// Returns the alignment that algorithms may rely on: at most 16 bytes, since a tuning table does not record more, and
/// its entries are also used for other tensors of the same shape.
int64_t alignment(const Tensor& t) {
  constexpr int64_t most = 16;
  return t ? int64_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(t.data) | static_cast<uintptr_t>(most)) : 0;
}

template <typename T>
void set(cublasLtMatmulDescOpaque_t& product, cublasLtMatmulDescAttributes_t which, const T& value) {
  check(cublasLtMatmulDescSetAttribute(&product, which, &value, sizeof(value)), "cuBLASLt GEMM");
}
template <typename T>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t which, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(&preference, which, &value, sizeof(value)), "cuBLASLt preference");
}
}  // namespace

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw Error(Code::device, format("{}: {}", what, cublasLtGetStatusName(status)));
}

std::string library_name() {
  const size_t version = cublasLtGetVersion();  // 130100: 13.1.0
  return format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

int64_t transposed_bytes(const Tensor& x) { return x.cols() * transposed_in({}, x).pitch * size_of(x.dtype); }

LtProduct in_form(LtProduct op, GemmForm form, const Tensor& copy) {
  if (form == GemmForm::left_first) {
    op.a = transposed_in(copy, op.a);
    op.trans_a = !op.trans_a;
  }
  if (form == GemmForm::right_first) {
    op.b = transposed_in(copy, op.b);
    op.trans_b = !op.trans_b;
  }
  return op;
}
LtProduct rounded_up(LtProduct op) {
  const auto round = [](Tensor& t, int dim) {
    t.pitch = t.ld();
    t.shape = t.shape.with(dim, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(t.shape[dim]))));
  };
  if (op.varies == LtProduct::Varies::m)
    for (Tensor* t : {&op.a, &op.c, &op.d}) round(*t, 0);  // a is not transposed
  if (op.varies == LtProduct::Varies::k)
    for (Tensor* t : {&op.a, &op.b}) round(*t, 0);  // a is transposed, b is not
  return op;
}
void transpose_first(Exec& ex, const LtProduct& op, GemmForm form, const LtProduct& formed) {
  if (form == GemmForm::left_first) cuda::run(ex, Transpose{op.a, formed.a});
  if (form == GemmForm::right_first) cuda::run(ex, Transpose{op.b, formed.b});
}

ProductKey key_of(const LtProduct& op, int64_t workspace, bool copy) {
  const auto [m, n, k] = sizes_of(op);
  const bool flags[] = {op.trans_a,
                        op.trans_b,
                        op.beta != 0,
                        bool(op.bias),
                        op.a.dtype == DType::bf16,
                        op.d.dtype == DType::bf16,
                        op.varies != LtProduct::Varies::nothing};
  int64_t bits = 0;
  for (const bool flag : flags) bits = bits * 2 + flag;
  return {m,
          n,
          k,
          op.a.ld(),
          op.b.ld(),
          op.c.ld(),
          op.d.ld(),
          bool(op.aux) * op.aux.ld(),
          bits,
          alignment(op.a),
          alignment(op.b),
          alignment(op.c),
          alignment(op.d),
          workspace,
          copy};
}
std::string name_of_product(const LtProduct& op) {
  const auto [m, n, k] = sizes_of(op);
  return format("{}x{}x{} {}{} {}->{} ld {} {} {} {}{}{}{}", m, n, k, op.trans_a ? 't' : 'n', op.trans_b ? 't' : 'n',
                name_of(op.a.dtype), name_of(op.d.dtype), op.a.ld(), op.b.ld(), op.c.ld(), op.d.ld(),
                op.beta != 0 ? " plus" : "", op.bias ? " bias" : "", op.aux ? format(" dgelu {}", op.aux.ld()) : "");
}

void set_addresses(LtPlan& plan, const LtProduct& op) {
  if (op.bias) set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(op.bias.data));
  if (op.aux) set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(op.aux.data));
}

LtPlan described(const LtProduct& op) {
  const auto [m, n, k] = sizes_of(op);
  LtPlan plan;
  check(cublasLtMatmulDescInit(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cuBLASLt GEMM");
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, op.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, op.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  // Not BGRADB: dW with it takes longer than dW and a separate sum of columns. Not GELU_AUX_BIAS: it activates the
  // unrounded sum, which recomputation from the rounded one does not repeat.
  const cublasLtEpilogue_t epilogue = op.aux    ? CUBLASLT_EPILOGUE_DGELU
                                      : op.bias ? CUBLASLT_EPILOGUE_BIAS
                                                : CUBLASLT_EPILOGUE_DEFAULT;
  set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (op.bias) set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, data_type(op.bias.dtype));
  if (op.aux) set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, op.aux.ld());
  const auto layout = [](cublasLtMatrixLayoutOpaque_t& out, const Tensor& t, int64_t rows, int64_t cols) {
    check(cublasLtMatrixLayoutInit(&out, data_type(t.dtype), static_cast<uint64_t>(rows), static_cast<uint64_t>(cols),
                                   std::max(t.ld(), rows)),
          "cuBLASLt layout");
  };
  layout(plan.a, op.b, op.b.shape[1], op.b.shape[0]);
  layout(plan.b, op.a, op.a.shape[1], op.a.shape[0]);
  layout(plan.c, op.c, n, m);
  layout(plan.d, op.d, n, m);
  set_addresses(plan, op);
  return plan;
}

std::vector<cublasLtMatmulHeuristicResult_t> proposals(cublasLtHandle_t handle, LtPlan& plan, const LtProduct& op,
                                                       int64_t workspace, int most, bool measured) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check(cublasLtMatmulPreferenceInit(&preference), "cuBLASLt preference");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace));
  // f32 results are in the compute type themselves: partial sums may be kept in the result, and in its type.
  const bool any_scheme = measured && op.d.dtype == DType::f32;
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(any_scheme ? CUBLASLT_REDUCTION_SCHEME_MASK : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto& [which, operand] : {std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &op.b},
                                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &op.a},
                                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &op.c},
                                       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &op.d}})
    set(preference, which, static_cast<uint32_t>(alignment(*operand)));
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &plan.product, &plan.a, &plan.b, &plan.c,
                                                               &plan.d, &preference, most, results.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED)
    count = 0;
  else
    check(status, "cuBLASLt heuristic");
  results.resize(static_cast<size_t>(count));
  std::erase_if(results, [&](const cublasLtMatmulHeuristicResult_t& result) {
    return result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > static_cast<size_t>(workspace);
  });
  return results;
}

bool accepts(cublasLtHandle_t handle, LtPlan& plan, const cublasLtMatmulAlgo_t& algorithm, int64_t workspace) {
  cublasLtMatmulHeuristicResult_t result{};
  return cublasLtMatmulAlgoCheck(handle, &plan.product, &plan.a, &plan.b, &plan.c, &plan.d, &algorithm, &result) ==
             CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= static_cast<size_t>(workspace);
}

}  // namespace trainer::ops::cuda
