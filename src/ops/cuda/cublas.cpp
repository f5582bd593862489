#include "ops/cuda/cublas.h"

#include <bit>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/median.h"
#include "device/cuda/runtime.h"
#include "ops/cuda/cublas_plan.h"
#include "ops/cuda/ops.h"

namespace trainer::ops::cuda {
namespace {

static_assert(sizeof(cublasLtMatmulAlgo_t) == sizeof(GemmAlgorithm));

constexpr int kProposals = 4;  // kept for each GEMM: the best, and others in case the library rejects it

/// True if a different algorithm may succeed. Other errors come from the device and are not retried.
bool is_refusal(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH || status == CUBLAS_STATUS_INTERNAL_ERROR;
}

/// An event in a stream.
class Event {
 public:
  explicit Event(cudaStream_t stream) {
    device::cuda::check(cudaEventCreateWithFlags(&event_, 0), "event");
    device::cuda::check(cudaEventRecord(event_, stream), "event");
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  /// Waits for `later`, and returns the time between both events.
  double microseconds_to(const Event& later) const {
    float milliseconds = 0;
    device::cuda::check(cudaEventSynchronize(later.event_), "event");
    device::cuda::check(cudaEventElapsedTime(&milliseconds, event_, later.event_), "event");
    return std::max(1e-3, 1e3 * static_cast<double>(milliseconds));
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// cuBLASLt on a rank's GPU. A plan depends only on its key.
class CublasLt final : public device::Library {
 public:
  CublasLt() = default;
  ~CublasLt() override {
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  int64_t copy_bytes(const LtProduct& op) {
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
    if (op.varies != LtProduct::Varies::nothing) return run_rounded(ex, op, workspace);
    const ProductKey key = key_of(op, workspace.bytes(), static_cast<bool>(copy));
    auto it = plans_.find(key);
    if (it == plans_.end()) {
      if (most_ > 0 && !tuning_.products.contains(name_of_product(op))) measure(ex, op, workspace, copy);
      it = plans_.emplace(key, planned(op, workspace.bytes(), copy)).first;
    }
    LtPlan& plan = it->second;
    while (!plan.algorithms.empty()) {
      const LtProduct formed = in_form(op, plan.form, copy);
      transpose_first(ex, op, plan.form, formed);
      set_addresses(plan, formed);
      const cublasStatus_t status =
          multiply(device::cuda::stream_of(ex.device), plan, plan.algorithms.front(), formed, workspace);
      if (!is_refusal(status)) {
        check(status, "cuBLASLt GEMM");
        return true;
      }
      drop_refused(plan, op, workspace.bytes(), status);
    }
    return false;
  }

  void use(const GemmTuning& tuning) {
    tuning_ = tuning;
    most_ = 0;
    forms_ = std::any_of(tuning.products.begin(), tuning.products.end(),
                         [](const auto& named) { return named.second.form != GemmForm::as_is; });
    plans_.clear();
  }

  void start_measuring(int most, int repeats, bool forms) {
    tuning_ = {};
    favourites_.clear();
    plans_.clear();
    most_ = most;
    repeats_ = repeats;
    forms_ = forms;
  }
  MeasuredGemms stop_measuring() {
    most_ = 0;
    forms_ = false;
    plans_.clear();
    return {std::exchange(tuning_, {}), std::exchange(favourites_, {})};
  }

 private:
  /// The same for a GEMM that uses the algorithms of a larger one, or its own if the library rejects those.
  bool run_rounded(Exec& ex, LtProduct op, const Tensor& workspace) {
    const LtProduct larger = rounded_up(op);
    auto [it, is_new] = plans_.try_emplace(key_of(larger, workspace.bytes(), false));
    if (is_new) it->second = proposed(larger, workspace.bytes());
    LtPlan exact = described(op);
    for (LtPlan& plan = it->second; !plan.algorithms.empty();) {
      const cublasStatus_t status =
          multiply(device::cuda::stream_of(ex.device), exact, plan.algorithms.front(), op, workspace);
      if (!is_refusal(status)) {
        check(status, "cuBLASLt GEMM");
        return true;
      }
      drop_refused(plan, op, workspace.bytes(), status);
    }
    op.varies = LtProduct::Varies::nothing;
    return run(ex, op, workspace, {});
  }

  /// Enqueues the GEMM with an algorithm; `p` describes the GEMM.
  cublasStatus_t multiply(cudaStream_t stream, LtPlan& p, const cublasLtMatmulAlgo_t& algorithm, const LtProduct& op,
                          const Tensor& workspace) {
    const float alpha = 1;
    return cublasLtMatmul(handle(), &p.product, &alpha, op.b.data, &p.a, op.a.data, &p.b, &op.beta, op.c.data, &p.c,
                          op.d.data, &p.d, &algorithm, workspace.data, static_cast<size_t>(workspace.bytes()), stream);
  }

  /// Creates the handle for the first GEMM, since processes that compute no GEMMs also read tuning tables.
  cublasLtHandle_t handle() {
    if (handle_ == nullptr) check(cublasLtCreate(&handle_), "cuBLASLt");
    return handle_;
  }

  /// Records the fastest proposal over all forms for which there is memory. Skips proposals that fail.
  void measure(Exec& ex, const LtProduct& op, const Tensor& workspace, const Tensor& copy) {
    constexpr double kWorthMemory = 0.95;  // maximum time with a copy, relative to the time without
    const std::string name = name_of_product(op);
    TunedProduct best;
    for (const GemmForm form : {GemmForm::as_is, GemmForm::left_first, GemmForm::right_first}) {
      if (form != GemmForm::as_is && !copy) break;
      double limit = best.microseconds == 0 ? std::numeric_limits<double>::infinity() : best.microseconds;
      if (form != GemmForm::as_is && best.form == GemmForm::as_is) limit *= kWorthMemory;
      const LtProduct formed = in_form(op, form, copy);
      LtPlan plan = described(formed);
      for (const auto& result : proposals(handle(), plan, formed, workspace.bytes(), most_, /*measured=*/true)) {
        plan.algorithms = {result.algo};
        const std::optional<double> time = time_of(ex, op, form, formed, plan, workspace);
        if (!time) continue;
        favourites_.emplace(name, *time);  // only the first proposal that works is added
        if (*time >= limit) continue;
        limit = *time;
        best = {std::bit_cast<GemmAlgorithm>(result.algo), static_cast<int64_t>(result.workspaceSize), *time, form};
      }
    }
    if (best.microseconds > 0) tuning_.products[name] = best;
  }

  /// Returns microseconds, including the copy; empty if the library rejects the proposal.
  std::optional<double> time_of(Exec& ex, const LtProduct& op, GemmForm form, const LtProduct& formed, LtPlan& plan,
                                const Tensor& workspace) {
    constexpr int kInARow = 5;  // so that launch overhead does not count
    const cudaStream_t stream = device::cuda::stream_of(ex.device);
    std::vector<double> microseconds;
    for (int round = 0; round <= repeats_; ++round) {
      const Event begin(stream);
      for (int i = 0; i < kInARow; ++i) {
        transpose_first(ex, op, form, formed);
        if (multiply(stream, plan, plan.algorithms.front(), formed, workspace) != CUBLAS_STATUS_SUCCESS)
          return std::nullopt;
      }
      if (round > 0) microseconds.push_back(begin.microseconds_to(Event(stream)) / kInARow);
    }
    return median(microseconds);
  }

  /// Returns the GEMM's plan from the tuning table, or from the library's proposals if the table has none.
  LtPlan planned(const LtProduct& op, int64_t workspace, const Tensor& copy) {
    const auto tuned = tuning_.products.find(name_of_product(op));
    if (tuned != tuning_.products.end() && (tuned->second.form == GemmForm::as_is || copy)) {
      LtPlan plan = described(in_form(op, tuned->second.form, copy));
      plan.form = tuned->second.form;
      const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(tuned->second.algorithm);
      if (accepts(handle(), plan, algorithm, workspace)) {
        plan.algorithms = {algorithm};
        plan.tuned = true;
        return plan;
      }
    }
    LtPlan plan = proposed(op, workspace);
    if (plan.algorithms.empty() && (op.bias || op.aux))
      log::warning("{} has no algorithm for GEMM {}: its epilogue runs as a separate kernel", library_name(),
                   name_of_product(op));
    return plan;
  }
  LtPlan proposed(const LtProduct& op, int64_t workspace) {
    LtPlan plan = described(op);
    for (const auto& result : proposals(handle(), plan, op, workspace, kProposals, /*measured=*/false))
      plan.algorithms.push_back(result.algo);
    return plan;
  }

  /// Switches to the next algorithm after the library rejected the first one at run time, although it had proposed that
  /// one. Warns once for each algorithm of a GEMM.
  void drop_refused(LtPlan& plan, const LtProduct& op, int64_t workspace, cublasStatus_t status) {
    if (plan.tuned) {
      plan = proposed(op, workspace);
    } else {
      plan.algorithms.erase(plan.algorithms.begin());
    }
    const char* const then = !plan.algorithms.empty()                  ? "trying the next one"
                             : op.varies != LtProduct::Varies::nothing ? "trying those for its own size"
                             : op.bias || op.aux ? "it is split, with the epilogue as a separate kernel"
                                                 : "no other is left";
    log::warning("{} rejected its own algorithm for GEMM {} ({}); {}", library_name(), name_of_product(op),
                 cublasLtGetStatusName(status), then);
  }

  cublasLtHandle_t handle_ = nullptr;
  std::map<ProductKey, LtPlan> plans_;
  GemmTuning tuning_;
  int most_ = 0, repeats_ = 0;  // while measuring: number of proposals to try; 0: not measuring
  bool forms_ = false;          // while measuring: all forms are tried; if not: the table has forms with copies
  std::map<std::string, double> favourites_;
};

CublasLt& library_of(const device::Device& device) {
  std::unique_ptr<device::Library>& library = device.libraries()->gemm;
  if (!library) library = std::make_unique<CublasLt>();
  return static_cast<CublasLt&>(*library);
}

}  // namespace

int64_t copy_bytes(const device::Device& device, const LtProduct& op) { return library_of(device).copy_bytes(op); }

bool run_product(Exec& ex, const LtProduct& op, const Tensor& workspace, const Tensor& copy) {
  return library_of(ex.device).run(ex, op, workspace, copy);
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

}  // namespace trainer::ops::cuda
