#pragma once
// The interface between attention.cpp and a library's attention kernels.
#include <array>
#include <compare>
#include <memory>
#include <optional>
#include <string>

#include "device/cuda/runtime.h"
#include "ops/attention.h"

namespace trainer::ops::cuda {

/// One pass of causal attention over `batch` sequences of `length` queries and as many keys, in bf16. Row strides (in
/// elements) and head_dim are multiples of 8. A head's columns are contiguous, and heads follow each other.
struct FusedShape {
  bool backward = false;
  bool keeps_lse = true;  // forward: stores the log-sum-exps
  int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  std::array<int64_t, 8> row_distance{};  // q, k, v, out; backward also: dout, dq, dk, dv
  auto operator<=>(const FusedShape&) const = default;
};

struct FusedOperands {
  void *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;  // bf16, 16-byte aligned
  float* lse = nullptr;                                           // [batch·heads, length]; null: not stored
  void *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

/// A library with fused attention. It chooses deterministic kernels, the same ones every time for the same shape. A
/// device whose Libraries contain one uses it for every pass that the library supports.
class FusedAttention : public device::Library {
 public:
  virtual std::string name() const = 0;  // "cuDNN 9.19.0"
  virtual int64_t version() const = 0;   // 91900
  /// Returns the bytes of workspace of this pass; empty if the library does not support it.
  virtual std::optional<int64_t> workspace(const FusedShape& shape) = 0;
  /// Enqueues a pass for which workspace() returned a size.
  virtual void run(cudaStream_t stream, const FusedShape& shape, const FusedOperands& operands, void* workspace) = 0;
};

/// The oldest cuDNN that is used by default: in older versions, the deterministic backward pass requires a workspace of
/// batch·heads·length².
inline constexpr int64_t kDefaultCudnn = 92500;
/// Returns why the library is not used by default; empty: it may be.
std::string why_not_by_default(const FusedAttention& library);

/// Returns cuDNN on GPU `ordinal`. Throws Code::usage with the reason if this program was built without cuDNN, or if
/// cuDNN cannot be loaded.
std::unique_ptr<FusedAttention> load_cudnn(int ordinal);

}  // namespace trainer::ops::cuda
