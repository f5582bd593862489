// The functions of cuBLASLt that the trainer calls, including those behind inline functions of its header.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <string>

#include "base/shared_library.h"

namespace {

const char* library() {
  static const std::string name = "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);
  return name.c_str();
}

}  // namespace

#define CUBLAS_LT(name, parameters, arguments) \
  TRAINER_FUNCTION_OF_LIBRARY(library(), cublasStatus_t, name, parameters, arguments)

using Handle = cublasLtHandle_t;
using Layout = cublasLtMatrixLayout_t;
using Product = cublasLtMatmulDesc_t;
using Preference = cublasLtMatmulPreference_t;
using Algorithm = cublasLtMatmulAlgo_t;
using Found = cublasLtMatmulHeuristicResult_t;

TRAINER_FUNCTION_OF_LIBRARY(library(), size_t, cublasLtGetVersion, (), ())
TRAINER_FUNCTION_OF_LIBRARY(library(), const char*, cublasLtGetStatusName, (cublasStatus_t status), (status))
CUBLAS_LT(cublasLtCreate, (Handle * handle), (handle))
CUBLAS_LT(cublasLtDestroy, (Handle handle), (handle))
CUBLAS_LT(cublasLtMatrixLayoutInit_internal,
          (Layout layout, size_t size, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld),
          (layout, size, type, rows, cols, ld))
CUBLAS_LT(cublasLtMatmulDescInit_internal,
          (Product product, size_t size, cublasComputeType_t compute, cudaDataType_t scale),
          (product, size, compute, scale))
CUBLAS_LT(cublasLtMatmulDescSetAttribute,
          (Product product, cublasLtMatmulDescAttributes_t attribute, const void* value, size_t bytes),
          (product, attribute, value, bytes))
CUBLAS_LT(cublasLtMatmulPreferenceInit_internal, (Preference preference, size_t size), (preference, size))
CUBLAS_LT(cublasLtMatmulPreferenceSetAttribute,
          (Preference preference, cublasLtMatmulPreferenceAttributes_t attribute, const void* value, size_t bytes),
          (preference, attribute, value, bytes))
CUBLAS_LT(cublasLtMatmulAlgoGetHeuristic,
          (Handle handle, Product product, Layout a, Layout b, Layout c, Layout d, Preference preference, int most,
           Found* found, int* count),
          (handle, product, a, b, c, d, preference, most, found, count))
CUBLAS_LT(cublasLtMatmulAlgoCheck,
          (Handle handle, Product product, Layout a, Layout b, Layout c, Layout d, const Algorithm* algorithm,
           Found* found),
          (handle, product, a, b, c, d, algorithm, found))
CUBLAS_LT(cublasLtMatmul,
          (Handle handle, Product product, const void* alpha, const void* a, Layout of_a, const void* b, Layout of_b,
           const void* beta, const void* c, Layout of_c, void* d, Layout of_d, const Algorithm* algorithm,
           void* workspace, size_t bytes, cudaStream_t stream),
          (handle, product, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, algorithm, workspace, bytes, stream))
