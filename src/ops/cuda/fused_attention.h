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

/// One pass of causal attention over `batch` sequences of `length` queries and as many keys, in bf16. Row strides are
/// in elements, multiples of 8, as is head_dim. A head's columns are contiguous, and heads follow each other.
struct FusedShape {
  bool backward = false;
  bool keeps_lse = true;  // forward
  int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, head_dim = 0;
  float scale = 1;
  std::array<int64_t, 8> row_distance{};  // q, k, v, out, dout, dq, dk, dv; the last four in backward
  auto operator<=>(const FusedShape&) const = default;
};

struct FusedOperands {
  void *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;  // bf16, at multiples of 16 bytes
  float* lse = nullptr;                                           // [batch·heads, length]; null: not kept
  void *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

/// The same shape gives the same kernels, which are deterministic. A device whose Libraries contain such a library uses
/// it for every pass that it supports.
class FusedAttention : public device::Library {
 public:
  virtual std::string name() const = 0;  // "cuDNN 9.19.0"
  virtual int64_t version() const = 0;   // 91900
  /// Returns the bytes of workspace of this pass; none: the library does not support it.
  virtual std::optional<int64_t> workspace(const FusedShape& shape) = 0;
  /// Queues a pass for which workspace() returned a size.
  virtual void run(cudaStream_t stream, const FusedShape& shape, const FusedOperands& operands, void* workspace) = 0;
};

/// The oldest cuDNN used by default: the deterministic backward pass of older ones needs a workspace of
/// batch·heads·length².
inline constexpr int64_t kDefaultCudnn = 92500;
/// Returns why the library is not used by default; empty: it may be.
std::string why_not_by_default(const FusedAttention& library);

/// Returns cuDNN on GPU `ordinal`. Throws Code::usage with the reason if this program was built without it, or it
/// cannot be loaded here.
std::unique_ptr<FusedAttention> load_cudnn(int ordinal);

}  // namespace trainer::ops::cuda
