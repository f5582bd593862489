#include "ops/cuda/cublas.h"

#include <cublasLt.h>

#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
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

/// Returns an operand transposed, in `memory`. Its rows start where the library reads fastest.
Tensor transposed_in(const Tensor& memory, const Tensor& x) {
  const int64_t pitch = round_up(x.rows(), 16 / size_of(x.dtype));
  return {memory.data, {x.cols(), x.rows()}, x.dtype, pitch};
}
int64_t transposed_bytes(const Tensor& x) { return x.cols() * transposed_in({}, x).pitch * size_of(x.dtype); }

/// Returns the same product in another form. `copy` is the memory of the operand that is transposed first.
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
/// Queues the copy that precedes the product.
void transpose_first(Exec& ex, const LtProduct& op, GemmForm form, const LtProduct& formed) {
  if (form == GemmForm::left_first) cuda::run(ex, Transpose{op.a, formed.a});
  if (form == GemmForm::right_first) cuda::run(ex, Transpose{op.b, formed.b});
}

/// The choice of an algorithm may depend on these.
using Key = std::array<int64_t, 15>;
int64_t alignment(const Tensor& t) {
  return t ? std::min<int64_t>(16, int64_t{1} << std::countr_zero(reinterpret_cast<uintptr_t>(t.data) | 16)) : 0;
}
Key key_of(const LtProduct& op, int64_t workspace, bool copy) {
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
          workspace,
          copy};
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
  GemmForm form = GemmForm::as_is;
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

/// Returns the heuristic's proposals within the workspace, best first. Where an algorithm cuts k, it adds partial sums
/// in f32 in a fixed order: no atomics, no rounding to the result's type.
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

/// cuBLASLt on one GPU, for the whole process. A plan is a function of its key, whoever asks first.
class Library {
 public:
  int64_t copy_bytes(const LtProduct& op) {
    const std::lock_guard lock(mutex_);
    if (!forms_) return 0;
    if (most_ > 0) return std::max(transposed_bytes(op.a), transposed_bytes(op.b));
    int64_t most = 0;
    LtProduct either = op;
    for (const float beta : {0.0f, 1.0f}) {
      either.beta = beta;
      const auto tuned = tuning_.products.find(name_of_product(either));
      if (tuned == tuning_.products.end() || tuned->second.form == GemmForm::as_is) continue;
      most = std::max(most, transposed_bytes(tuned->second.form == GemmForm::left_first ? op.a : op.b));
    }
    return most;
  }

  bool run(Exec& ex, const LtProduct& op, const Tensor& workspace, const Tensor& copy) {
    const std::lock_guard lock(mutex_);
    const Key key = key_of(op, workspace.bytes(), static_cast<bool>(copy));
    auto it = plans_.find(key);
    if (it == plans_.end()) {
      if (most_ > 0 && !tuning_.products.contains(name_of_product(op))) measure(ex, op, workspace, copy);
      it = plans_.emplace(key, planned(op, workspace.bytes(), copy)).first;
    }
    Plan& plan = it->second;
    if (!plan.found) return false;
    const LtProduct formed = in_form(op, plan.form, copy);
    transpose_first(ex, op, plan.form, formed);
    set_addresses(plan.product, formed);
    check(multiply(device::cuda::stream_of(ex.device), plan, formed, workspace), "cuBLASLt product");
    return true;
  }

  GemmCandidates candidates(const LtProduct& op, int64_t workspace, int most) {
    const std::lock_guard lock(mutex_);
    Plan plan = described(op);
    GemmCandidates found{name_of_product(op), {}};
    for (const auto& result : proposals(handle(), plan, op, workspace, most))
      found.algorithms.push_back(
          {std::bit_cast<GemmAlgorithm>(result.algo), static_cast<int64_t>(result.workspaceSize), 0});
    return found;
  }

  void use(const GemmTuning& tuning) {
    const std::lock_guard lock(mutex_);
    tuning_ = tuning;
    most_ = 0;
    forms_ = std::any_of(tuning.products.begin(), tuning.products.end(),
                         [](const auto& named) { return named.second.form != GemmForm::as_is; });
    plans_.clear();
  }

  void start_measuring(int most, int repeats, bool forms) {
    const std::lock_guard lock(mutex_);
    tuning_ = {};
    favourites_.clear();
    plans_.clear();
    most_ = most;
    repeats_ = repeats;
    forms_ = forms;
  }
  MeasuredGemms stop_measuring() {
    const std::lock_guard lock(mutex_);
    most_ = 0;
    forms_ = false;
    plans_.clear();
    return {std::exchange(tuning_, {}), std::exchange(favourites_, {})};
  }

 private:
  cublasStatus_t multiply(cudaStream_t stream, const Plan& plan, const LtProduct& op, const Tensor& workspace) {
    const float alpha = 1;
    // The library only reads the descriptors, though its declarations are not all const.
    Plan& p = const_cast<Plan&>(plan);
    return cublasLtMatmul(handle(), &p.product, &alpha, op.b.data, &p.a, op.a.data, &p.b, &op.beta, op.c.data, &p.c,
                          op.d.data, &p.d, &p.algorithm, workspace.data, static_cast<size_t>(workspace.bytes()),
                          stream);
  }

  /// Creates the handle when a product is asked for: tables are also read where none are computed.
  cublasLtHandle_t handle() {
    if (handle_ == nullptr) check(cublasLtCreate(&handle_), "cuBLASLt");
    return handle_;
  }

  /// Records the fastest of the proposals over all forms that there is memory for. Skips one that fails.
  void measure(Exec& ex, const LtProduct& op, const Tensor& workspace, const Tensor& copy) {
    constexpr double kWorthMemory = 0.95;  // of the time as it is
    const std::string name = name_of_product(op);
    TunedProduct best;
    for (const GemmForm form : {GemmForm::as_is, GemmForm::left_first, GemmForm::right_first}) {
      if (form != GemmForm::as_is && !copy) break;
      double limit = best.microseconds == 0 ? std::numeric_limits<double>::infinity() : best.microseconds;
      if (form != GemmForm::as_is && best.form == GemmForm::as_is) limit *= kWorthMemory;
      const LtProduct formed = in_form(op, form, copy);
      Plan plan = described(formed);
      for (const auto& result : proposals(handle(), plan, formed, workspace.bytes(), most_)) {
        plan.algorithm = result.algo;
        const std::optional<double> time = time_of(ex, op, form, formed, plan, workspace);
        if (!time) continue;
        favourites_.emplace(name, *time);  // of the first that works
        if (*time >= limit) continue;
        limit = *time;
        best = {std::bit_cast<GemmAlgorithm>(result.algo), static_cast<int64_t>(result.workspaceSize), *time, form};
      }
    }
    if (best.microseconds > 0) tuning_.products[name] = best;
  }

  /// Returns microseconds, the copy included, or none when the library refuses the proposal.
  std::optional<double> time_of(Exec& ex, const LtProduct& op, GemmForm form, const LtProduct& formed, const Plan& plan,
                                const Tensor& workspace) {
    constexpr int kInARow = 5;  // so that the time to start one does not count
    const cudaStream_t stream = device::cuda::stream_of(ex.device);
    std::vector<double> microseconds;
    for (int round = 0; round <= repeats_; ++round) {
      const Event begin(stream);
      for (int i = 0; i < kInARow; ++i) {
        transpose_first(ex, op, form, formed);
        if (multiply(stream, plan, formed, workspace) != CUBLAS_STATUS_SUCCESS) return std::nullopt;
      }
      if (round > 0) microseconds.push_back(begin.microseconds_to(Event(stream)) / kInARow);
    }
    return median(microseconds);
  }

  Plan planned(const LtProduct& op, int64_t workspace, const Tensor& copy) {
    const auto tuned = tuning_.products.find(name_of_product(op));
    const bool known = tuned != tuning_.products.end();
    if (known && (tuned->second.form == GemmForm::as_is || copy)) {
      Plan plan = described(in_form(op, tuned->second.form, copy));
      plan.form = tuned->second.form;
      plan.algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(tuned->second.algorithm);
      cublasLtMatmulHeuristicResult_t result{};
      plan.found = cublasLtMatmulAlgoCheck(handle(), &plan.product, &plan.a, &plan.b, &plan.c, &plan.d, &plan.algorithm,
                                           &result) == CUBLAS_STATUS_SUCCESS &&
                   result.workspaceSize <= static_cast<size_t>(workspace);
      if (plan.found) return plan;
    }
    Plan plan = described(op);
    const auto results = proposals(handle(), plan, op, workspace, 1);
    plan.found = !results.empty();
    if (plan.found) plan.algorithm = results.front().algo;
    return plan;
  }

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Plan> plans_;
  GemmTuning tuning_;
  int most_ = 0, repeats_ = 0;  // while measuring: proposals to try; else 0
  bool forms_ = false;          // while measuring: they are tried; else: the table has some
  std::map<std::string, double> favourites_;
};

/// Libraries are never freed: the driver may have shut down before static objects are destroyed.
Library& library_of(const device::Device& device) {
  static std::mutex mutex;
  static auto& libraries = *new std::map<int, std::unique_ptr<Library>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Library>& library = libraries[device.gpu().ordinal];
  if (!library) library = std::make_unique<Library>();
  return *library;
}

}  // namespace

int64_t copy_bytes(const device::Device& device, const LtProduct& op) { return library_of(device).copy_bytes(op); }

bool run_product(Exec& ex, const LtProduct& op, const Tensor& workspace, const Tensor& copy) {
  return library_of(ex.device).run(ex, op, workspace, copy);
}

GemmCandidates candidates_of(Exec& ex, const LtProduct& op, const Tensor& workspace, int most) {
  return library_of(ex.device).candidates(op, workspace.bytes(), most);
}

void use_gemm_tuning(const device::Device& device, const GemmTuning& tuning) { library_of(device).use(tuning); }

void measure_gemms(const device::Device& device, int most, int repeats, bool forms) {
  library_of(device).start_measuring(most, repeats, forms);
}
MeasuredGemms measured_gemms(const device::Device& device) {
  MeasuredGemms measured = library_of(device).stop_measuring();
  measured.tuning.device = device.gpu().name;
  measured.tuning.made_with = library_name();
  return measured;
}

std::string product_path(const device::Device&, DType) { return library_name(); }

}  // namespace trainer::ops::cuda
