// GEMMs of the emulated device, with the precision of a GPU: sums in fp32, and a GELU derivative from an approximate
// tanh. Of the two algorithms one adds terms from first to last, the other from last to first. The second requires
// workspace, and overwrites it.
#include "cublasLt.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/dtype.h"

namespace {

using trainer::bf16;

constexpr uint64_t kMark = 0x5eedb1a5;  // identifies algorithms of this library
constexpr size_t kWorkspace = 4096;     // workspace of the second proposal

/// A column-major matrix.
struct Matrix {
  void* data;
  cudaDataType_t type;
  int64_t ld;
  float get(int64_t i, int64_t j) const {
    const int64_t at = i + j * ld;
    if (type == CUDA_R_16BF) return static_cast<float>(static_cast<const bf16*>(data)[at]);
    return static_cast<const float*>(data)[at];
  }
  void set(int64_t i, int64_t j, float value) const {
    const int64_t at = i + j * ld;
    if (type == CUDA_R_16BF) {
      static_cast<bf16*>(data)[at] = bf16(value);
    } else {
      static_cast<float*>(data)[at] = value;
    }
  }
};

struct Product {
  Matrix a, b, c, d, bias, aux;
  bool trans_a, trans_b;
  int64_t rows, cols, terms;
  float alpha, beta;
  bool backwards;
  void* workspace;
};

/// Returns tanh truncated to 12 bits: its relative error is below 2^-11, like that of tanh.approx (PTX ISA).
float rough_tanh(float x) { return std::bit_cast<float>(std::bit_cast<uint32_t>(std::tanh(x)) & 0xfffff000u); }
float gelu_slope(float x) {
  const float t = rough_tanh(0.7978845608f * (x + 0.044715f * x * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * 0.7978845608f * (1 + 3 * 0.044715f * x * x);
}

void compute(Product p) {
  if (p.backwards) std::memset(p.workspace, 0xff, kWorkspace);
  for (int64_t j = 0; j < p.cols; ++j)
    for (int64_t i = 0; i < p.rows; ++i) {
      float sum = 0;
      for (int64_t k = 0; k < p.terms; ++k) {
        const int64_t t = p.backwards ? p.terms - 1 - k : k;
        sum += (p.trans_a ? p.a.get(t, i) : p.a.get(i, t)) * (p.trans_b ? p.b.get(j, t) : p.b.get(t, j));
      }
      sum *= p.alpha;
      if (p.beta != 0) sum += p.beta * p.c.get(i, j);
      if (p.bias.data != nullptr) sum += p.bias.get(i, 0);
      if (p.aux.data != nullptr) sum *= gelu_slope(p.aux.get(i, j));
      p.d.set(i, j, sum);
    }
}

void nothing() {}

bool aligned(const void* address) { return reinterpret_cast<uintptr_t>(address) % 16 == 0; }

/// Returns true if the library supports the GEMM.
bool supported(const cublasLtMatmulDescOpaque_t& desc, const cublasLtMatrixLayoutOpaque_t& a,
               const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& c,
               const cublasLtMatrixLayoutOpaque_t& d) {
  const bool ta = desc.trans_a == CUBLAS_OP_T, tb = desc.trans_b == CUBLAS_OP_T;
  const uint64_t rows = ta ? a.cols : a.rows, terms = ta ? a.rows : a.cols, cols = tb ? b.rows : b.cols;
  if (desc.compute != CUBLAS_COMPUTE_32F || desc.scale != CUDA_R_32F) return false;
  if (terms != (tb ? b.cols : b.rows) || terms == 0 || rows != d.rows || cols != d.cols) return false;
  if (c.rows != d.rows || c.cols != d.cols || c.type != d.type || a.type != b.type) return false;
  if (d.type != a.type && d.type != CUDA_R_32F) return false;
  if (desc.epilogue == CUBLASLT_EPILOGUE_DEFAULT) return true;
  if (emulator::blas().refuse_epilogues) return false;
  if (desc.epilogue == CUBLASLT_EPILOGUE_BIAS) return aligned(desc.bias) && desc.bias_type == d.type;
  return a.type == CUDA_R_16BF && d.type == a.type && aligned(desc.aux) && desc.ld_aux % 8 == 0 && d.rows % 8 == 0;
}

cublasLtMatmulAlgo_t algorithm(uint64_t which) { return {{kMark, which, 0, 0, 0, 0, 0, 0x8000000000000000u | which}}; }
bool known(const cublasLtMatmulAlgo_t& algo) {
  const cublasLtMatmulAlgo_t same = algorithm(algo.data[1]);
  return algo.data[1] < 2 && std::memcmp(&same, &algo, sizeof(algo)) == 0;
}
size_t needed(uint64_t which) { return which == 1 ? kWorkspace : 0; }

template <typename T>
cublasStatus_t take(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

emulator::Blas& emulator::blas() {
  static Blas state;
  return state;
}

size_t cublasLtGetVersion() { return 130100; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_INVALID_VALUE";
}
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t desc, cublasComputeType_t compute, cudaDataType_t scale) {
  *desc = {compute, scale, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, nullptr, 0};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t which,
                                              const void* value, size_t bytes) {
  switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(desc->trans_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(desc->trans_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(desc->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(desc->ld_aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(desc->bias_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t layout, cudaDataType_t type, uint64_t rows,
                                        uint64_t cols, int64_t ld) {
  if (rows == 0 || cols == 0 || ld < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *layout = {type, rows, cols, ld};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t preference) {
  *preference = {0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t which, const void* value,
                                                    size_t bytes) {
  switch (which) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(preference->schemes, value, bytes);
    default:
      return take(preference->alignment[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference,
                                              int requested, cublasLtMatmulHeuristicResult_t* results, int* returned) {
  ++std::atomic_ref(emulator::blas().heuristics);
  std::atomic_ref(emulator::blas().schemes) = preference->schemes;
  std::atomic_ref(emulator::blas().alignment) = preference->alignment[3];
  *returned = 0;
  if (!supported(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (uint64_t which = 0; which < 2 && *returned < requested; ++which)
    if (needed(which) <= preference->workspace)
      results[(*returned)++] = {algorithm(which), needed(which), CUBLAS_STATUS_SUCCESS, 1};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  if (!known(*algo)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(*desc, *a, *b, *c, *d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  *result = {*algo, needed(algo->data[1]), CUBLAS_STATUS_SUCCESS, 1};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  if (!known(*algo) || workspace_bytes < needed(algo->data[1])) return CUBLAS_STATUS_INVALID_VALUE;
  if (!supported(*desc, *a_layout, *b_layout, *c_layout, *d_layout)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((emulator::blas().broken >> algo->data[1] & 1) != 0) return emulator::blas().failure;
  if (c == d && c_layout->ld != d_layout->ld) return CUBLAS_STATUS_INVALID_VALUE;
  const auto matrix = [](const void* data, const cublasLtMatrixLayoutOpaque_t& layout) {
    return Matrix{const_cast<void*>(data), layout.type, layout.ld};
  };
  const bool ta = desc->trans_a == CUBLAS_OP_T, with_bias = desc->epilogue == CUBLASLT_EPILOGUE_BIAS;
  const bool with_slope = desc->epilogue == CUBLASLT_EPILOGUE_DGELU;
  std::atomic_ref(emulator::blas().algorithm) = static_cast<int>(algo->data[1]);
  ++std::atomic_ref(emulator::blas().products);
  const int way = 2 * (desc->trans_b == CUBLAS_OP_T) + ta;  // column-major, so the operands are swapped
  std::atomic_ref(emulator::blas().way) = way;
  cudaLaunchConfig_t config;
  config.stream = stream;
  for (int i = 0; (emulator::blas().slow_ways >> way & 1) != 0 && i < 9; ++i) cudaLaunchKernelEx(&config, nothing);
  const cudaError_t status = cudaLaunchKernelEx(
      &config, compute,
      Product{matrix(a, *a_layout), matrix(b, *b_layout), matrix(c, *c_layout), matrix(d, *d_layout),
              Matrix{with_bias ? const_cast<void*>(desc->bias) : nullptr, desc->bias_type, 0},
              Matrix{with_slope ? desc->aux : nullptr, d_layout->type, desc->ld_aux}, ta, desc->trans_b == CUBLAS_OP_T,
              static_cast<int64_t>(d_layout->rows), static_cast<int64_t>(d_layout->cols),
              static_cast<int64_t>(ta ? a_layout->rows : a_layout->cols), *static_cast<const float*>(alpha),
              *static_cast<const float*>(beta), algo->data[1] == 1, workspace});
  return status == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}
