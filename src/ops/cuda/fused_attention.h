#pragma once
// The interface between attention.cpp and a library's attention kernels.
#include <array>
#include <compare>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "device/cuda/runtime.h"
#include "ops/attention.h"

namespace trainer::ops::cuda {

/// The keys that queries see: as many as there are queries up to theirs; those up to the last query's, which is at the
/// last key; all.
enum class FusedMask { causal, bottom_right, none };

/// One pass of attention over `batch` sequences of `length` queries and `keys` keys, in bf16. Row strides (in
/// elements) and head_dim are multiples of 8. A head's columns are contiguous, and heads follow each other.
struct FusedShape {
  bool backward = false;
  bool keeps_lse = true;  // forward: stores the log-sum-exps
  bool linear = false;    // backward: a slower algorithm, whose workspace is linear in length
  FusedMask mask = FusedMask::causal;
  int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int64_t keys = 0, key_rows = 0;  // per sequence; rows from a sequence's first key to the next one's
  float scale = 1;
  std::array<int64_t, 8> row_distance{};  // q, k, v, out; backward also: dout, dq, dk, dv
  auto operator<=>(const FusedShape&) const = default;
};

struct FusedOperands {
  void *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;  // bf16, 16-byte aligned
  float* lse = nullptr;                                           // [batch·heads, length]; null: not stored
  void *dout = nullptr, *dq = nullptr, *dk = nullptr, *dv = nullptr;
};

/// The parts in which a library runs a pass: some sequences at a time, perhaps fewer in the last part.
struct FusedWay {
  FusedShape part;        // part.batch sequences
  int64_t workspace = 0;  // bytes
};

/// A library with fused attention. It chooses the same kernels every time for the same shape. A device whose Libraries
/// contain one uses it for every pass that the library supports with at most `most_workspace` bytes.
class FusedAttention : public device::Library {
 public:
  explicit FusedAttention(int64_t most_workspace) : most_workspace_(most_workspace) {}

  virtual std::string name() const = 0;  // "cuDNN 9.19.0"
  /// Returns the bytes of workspace of this pass; empty if the library does not support it.
  virtual std::optional<int64_t> workspace(const FusedShape& shape) = 0;
  /// Enqueues a pass for which workspace() returned a size.
  virtual void run(cudaStream_t stream, const FusedShape& shape, const FusedOperands& operands, void* workspace) = 0;

  /// Returns how to run a pass with a batch of shape.batch: at once if the workspace is small enough, else in equal
  /// parts, else with the linear algorithm. Empty: the built-in kernels run it. Logs once for each shape if the last
  /// two apply. Depends only on the library, the shape and the limit.
  std::optional<FusedWay> way(const FusedShape& shape);
  /// Runs a pass in the way that way() returned.
  void run(cudaStream_t stream, const FusedShape& shape, const FusedWay& way, const FusedOperands& operands,
           void* workspace);

 private:
  std::optional<FusedWay> fitting(const FusedShape& shape);

  int64_t most_workspace_;
  std::map<FusedShape, std::optional<FusedWay>> ways_;
};

/// The part of a GPU's memory that a library may use as workspace of a pass.
constexpr int64_t most_workspace_on(const device::cuda::Facts& gpu) { return gpu.memory_bytes / 16; }

/// Returns cuDNN on this GPU. `deterministic`: the backward pass adds in a fixed order. Throws Code::usage with the
/// reason if this program was built without cuDNN, or if cuDNN cannot be loaded.
std::unique_ptr<FusedAttention> load_cudnn(const device::cuda::Facts& gpu, bool deterministic);

}  // namespace trainer::ops::cuda
