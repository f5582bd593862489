#include "ops/cuda/cublas.h"

#include <cublasLt.h>

#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "base/median.h"
#include "device/cuda/runtime.h"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS) throw Error(Code::device, format("{}: {}", what, cublasLtGetStatusName(status)));
}
cudaDataType_t data_type(DType dtype) { return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F; }

std::string library_name() {
  const size_t version = cublasLtGetVersion();  // 130100: 13.1.0
  return format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

/// cuBLASLt is column-major: it sees every matrix transposed, and computes dᵀ = op(b)ᵀ·op(a)ᵀ.
struct Sizes {
  int64_t m, n, k;
};
Sizes sizes_of(const LtProduct& op) { return {op.d.shape[0], op.d.shape[1], op.a.shape[op.trans_a ? 0 : 1]}; }

/// What an algorithm may depend on.
using Key = std::array<int64_t, 14>;
int64_t alignment(const Tensor& t) {
  return t ? std::min<int64_t>(16, int64_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(t.data) | 16)) : 0;
}
Key key_of(const LtProduct& op, int64_t workspace) {
  const auto [m, n, k] = sizes_of(op);
  const bool flags[] = {
      op.trans_a, op.trans_b, op.beta != 0, bool(op.bias), op.a.dtype == DType::bf16, op.d.dtype == DType::bf16};
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
          workspace};
}
std::string name_of_product(const LtProduct& op) {
  const auto [m, n, k] = sizes_of(op);
  return format("{}x{}x{} {}{} {}->{} ld {} {} {} {}{}{}{}", m, n, k, op.trans_a ? 't' : 'n', op.trans_b ? 't' : 'n',
                name_of(op.a.dtype), name_of(op.d.dtype), op.a.ld(), op.b.ld(), op.c.ld(), op.d.ld(),
                op.beta != 0 ? " plus" : "", op.bias ? " bias" : "", op.aux ? format(" dgelu {}", op.aux.ld()) : "");
}

/// Descriptors of one product without its addresses, and the algorithm.
struct Plan {
  cublasLtMatmulDescOpaque_t product{};
  cublasLtMatrixLayoutOpaque_t a{}, b{}, c{}, d{};  // as cuBLASLt names them: a is our b
  cublasLtMatmulAlgo_t algorithm{};
  bool found = false;
};

template <typename T>
void set(cublasLtMatmulDescOpaque_t& product, cublasLtMatmulDescAttributes_t which, const T& value) {
  check(cublasLtMatmulDescSetAttribute(&product, which, &value, sizeof(value)), "cuBLASLt product");
}
template <typename T>
void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t which, const T& value) {
  check(cublasLtMatmulPreferenceSetAttribute(&preference, which, &value, sizeof(value)), "cuBLASLt preference");
}
void set_addresses(cublasLtMatmulDescOpaque_t& product, const LtProduct& op) {
  if (op.bias) set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(op.bias.data));
  if (op.aux) set(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<void*>(op.aux.data));
}

Plan described(const LtProduct& op) {
  const auto [m, n, k] = sizes_of(op);
  Plan plan;
  check(cublasLtMatmulDescInit(&plan.product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cuBLASLt product");
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, op.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, op.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
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
  set_addresses(plan.product, op);
  return plan;
}

/// The heuristic's proposals within the workspace, best first. Partial sums, where an algorithm cuts k, are added in
/// f32 in a fixed order: no atomics, no rounding to the result's type.
std::vector<cublasLtMatmulHeuristicResult_t> proposals(cublasLtHandle_t handle, Plan& plan, const LtProduct& op,
                                                       int64_t workspace, int most) {
  cublasLtMatmulPreferenceOpaque_t preference{};
  check(cublasLtMatmulPreferenceInit(&preference), "cuBLASLt preference");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace));
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<uint32_t>(alignment(op.b)));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<uint32_t>(alignment(op.a)));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<uint32_t>(alignment(op.c)));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<uint32_t>(alignment(op.d)));
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

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(GemmAlgorithm));

/// A moment in a stream.
class Event {
 public:
  explicit Event(cudaStream_t stream) {
    device::cuda::check(cudaEventCreateWithFlags(&event_, 0), "event");
    device::cuda::check(cudaEventRecord(event_, stream), "event");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  /// Waits for `later`.
  double microseconds_to(const Event& later) const {
    float milliseconds = 0;
    device::cuda::check(cudaEventSynchronize(later.event_), "event");
    device::cuda::check(cudaEventElapsedTime(&milliseconds, event_, later.event_), "event");
    return std::max(1e-3, 1e3 * static_cast<double>(milliseconds));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// cuBLASLt on one GPU, for the whole process: plans are functions of their keys, whoever asks first.
class Library {
 public:
  Library() { check(cublasLtCreate(&handle_), "cuBLASLt"); }

  bool run(cudaStream_t stream, const LtProduct& op, const Tensor& workspace) {
    const std::lock_guard lock(mutex_);
    const Key key = key_of(op, workspace.bytes());
    auto it = plans_.find(key);
    if (it == plans_.end()) {
      if (most_ > 0 && !tuning_.products.contains(name_of_product(op))) measure(stream, op, workspace);
      it = plans_.emplace(key, planned(op, workspace.bytes())).first;
    }
    Plan& plan = it->second;
    if (!plan.found) return false;
    set_addresses(plan.product, op);
    check(multiply(stream, plan, op, workspace), "cuBLASLt product");
    return true;
  }

  GemmCandidates candidates(const LtProduct& op, int64_t workspace, int most) {
    const std::lock_guard lock(mutex_);
    Plan plan = described(op);
    GemmCandidates found{name_of_product(op), {}};
    for (const auto& result : proposals(handle_, plan, op, workspace, most))
      found.algorithms.push_back(
          {std::bit_cast<GemmAlgorithm>(result.algo), static_cast<int64_t>(result.workspaceSize), 0});
    return found;
  }

  void use(const GemmTuning& tuning) {
    const std::lock_guard lock(mutex_);
    tuning_ = tuning;
    most_ = 0;
    plans_.clear();
  }

  void start_measuring(int most, int repeats) {
    const std::lock_guard lock(mutex_);
    tuning_ = {};
    favourites_.clear();
    plans_.clear();
    most_ = most;
    repeats_ = repeats;
  }
  MeasuredGemms stop_measuring() {
    const std::lock_guard lock(mutex_);
    most_ = 0;
    plans_.clear();
    return {std::exchange(tuning_, {}), std::exchange(favourites_, {})};
  }

 private:
  cublasStatus_t multiply(cudaStream_t stream, const Plan& plan, const LtProduct& op, const Tensor& workspace) {
    const float alpha = 1;
    // The descriptors are only read; the library's declarations do not say so everywhere.
    Plan& p = const_cast<Plan&>(plan);
    return cublasLtMatmul(handle_, &p.product, &alpha, op.b.data, &p.a, op.a.data, &p.b, &op.beta, op.c.data, &p.c,
                          op.d.data, &p.d, &p.algorithm, workspace.data, static_cast<size_t>(workspace.bytes()),
                          stream);
  }

  /// Notes the fastest of the proposals; one that fails is skipped.
  void measure(cudaStream_t stream, const LtProduct& op, const Tensor& workspace) {
    constexpr int kInARow = 5;  // so that the time of starting one does not count
    Plan plan = described(op);
    const std::string name = name_of_product(op);
    TunedProduct best;
    for (const auto& result : proposals(handle_, plan, op, workspace.bytes(), most_)) {
      plan.algorithm = result.algo;
      std::vector<double> microseconds;
      bool works = true;
      for (int round = 0; works && round <= repeats_; ++round) {
        const Event begin(stream);
        for (int i = 0; works && i < kInARow; ++i)
          works = multiply(stream, plan, op, workspace) == CUBLAS_STATUS_SUCCESS;
        if (round > 0) microseconds.push_back(begin.microseconds_to(Event(stream)) / kInARow);
      }
      if (!works) continue;
      const double time = median(microseconds);
      if (best.microseconds == 0) favourites_[name] = time;
      if (best.microseconds == 0 || time < best.microseconds)
        best = {std::bit_cast<GemmAlgorithm>(result.algo), static_cast<int64_t>(result.workspaceSize), time};
    }
    if (best.microseconds > 0) tuning_.products[name] = best;
  }

  Plan planned(const LtProduct& op, int64_t workspace) {
    Plan plan = described(op);
    if (const auto tuned = tuning_.products.find(name_of_product(op)); tuned != tuning_.products.end()) {
      plan.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(tuned->second.algorithm);
      cublasLtMatmulHeuristicResult_t result{};
      plan.found = cublasLtMatmulAlgoCheck(handle_, &plan.product, &plan.a, &plan.b, &plan.c, &plan.d, &plan.algorithm,
                                           &result) == CUBLAS_STATUS_SUCCESS &&
                   result.workspaceSize <= static_cast<size_t>(workspace);
      if (plan.found) return plan;
    }
    const auto results = proposals(handle_, plan, op, workspace, 1);
    plan.found = !results.empty();
    if (plan.found) plan.algorithm = results.front().algo;
    return plan;
  }

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Plan> plans_;
  GemmTuning tuning_;
  int most_ = 0, repeats_ = 0;  // while measuring: proposals to try; else 0
  std::map<std::string, double> favourites_;
};

/// Never given back: the driver may be gone when static objects end.
Library& library_of(const device::Device& device) {
  static std::mutex mutex;
  static auto& libraries = *new std::map<int, std::unique_ptr<Library>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Library>& library = libraries[device.gpu().ordinal];
  if (!library) library = std::make_unique<Library>();
  return *library;
}

}  // namespace

bool run_product(Exec& ex, const LtProduct& op, const Tensor& workspace) {
  return library_of(ex.device).run(device::cuda::stream_of(ex.device), op, workspace);
}

GemmCandidates candidates_of(Exec& ex, const LtProduct& op, const Tensor& workspace, int most) {
  return library_of(ex.device).candidates(op, workspace.bytes(), most);
}

void use_gemm_tuning(const device::Device& device, const GemmTuning& tuning) { library_of(device).use(tuning); }

void measure_gemms(const device::Device& device, int most, int repeats) {
  library_of(device).start_measuring(most, repeats);
}
MeasuredGemms measured_gemms(const device::Device& device) {
  MeasuredGemms measured = library_of(device).stop_measuring();
  measured.tuning.device = device.gpu().name;
  measured.tuning.made_with = library_name();
  return measured;
}

std::string product_path(const device::Device&, DType) { return library_name(); }

}  // namespace trainer::ops::cuda
