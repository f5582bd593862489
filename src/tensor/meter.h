#pragma once
// Meter: the operators' work by kind (calls, FLOPs, bytes of memory traffic, seconds), and communication by mesh axis
// and operation. Real and dry runs fill it in the same way.
#include <array>
#include <compare>
#include <cstdint>
#include <exception>
#include <map>
#include <string_view>

#include "base/dtype.h"
#include "device/device.h"
#include "tensor/trace.h"

namespace trainer {

enum class OpKind : uint8_t {
  gemm,
  attention,
  norm,
  activation,
  rope,
  embedding,
  loss,
  elementwise,
  column_sum,
  pack,
  grad_norm,
  optimizer,
  orthogonalize
};
inline constexpr int kOpKinds = 13;
std::string_view name_of(OpKind kind);
/// True if calls of this kind are GEMMs: those of the model, and those of an optimizer that orthogonalizes its updates.
constexpr bool is_product(OpKind kind) { return kind == OpKind::gemm || kind == OpKind::orthogonalize; }

struct Cost {
  double flops = 0, bytes = 0;
};

/// Operations of a communicator (comm/communicator.h).
enum class CommOp : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, send, shift };
inline constexpr int kCommOps = 8;
std::string_view name_of(CommOp op);

/// `axes` is the set of mesh axes that the group spans, as bits (mesh/mesh_shape.h).
struct CommKey {
  uint32_t axes = 0;
  CommOp op = CommOp::all_reduce;
  DType dtype = DType::f32;
  auto operator<=>(const CommKey&) const = default;
};
struct CommCount {
  int64_t calls = 0;
  int64_t elements = 0;     // payload, as counted in the tables of strategies (comm/bytes.h)
  int64_t wire_bytes = 0;   // summed over the ranks of one group
  double wait_seconds = 0;  // exposed communication time, spent in Ticket::join
};

/// Sizes of a GEMM: op(a) [m, k] · op(b) [k, n]. All 0: not a GEMM.
struct ProductShape {
  int64_t m = 0, k = 0, n = 0;
  bool trans_a = false, trans_b = false;
};

/// Sizes of attention for one head.
struct AttentionExtents {
  int64_t length = 0, head_dim = 0;  // length: number of keys
  bool backward = false;
};

/// One call of an operator.
struct OpCall {
  OpKind kind = OpKind::gemm;
  Cost cost;
  ProductShape product;
  int64_t repeats = 1;      // GEMMs of these sizes in the call, which together have the cost
  bool of_experts = false;  // GEMMs of experts: their rows depend on the routers
  AttentionExtents attention;
  bool recomputed = false;  // repeats work of the forward pass, to save memory
  double seconds = 0;       // see Meter::timed
};

/// Receives the operations of a pass in order: operators, and the starts and joins of collectives. A dry pass records
/// the operations of the real pass, whose time can then be predicted.
class Recorder {
 public:
  virtual ~Recorder() = default;
  virtual void add_operator(const OpCall& call) = 0;
  /// `queue` is a comm::Purpose, or above those the link of a message (comm::Group::queue()), `elements` the payload.
  /// Scalars are keyed by the axes of their ranks. `varies`: the payload depends on data (comm::PeerCounts). Returns a
  /// number for add_wait().
  virtual int64_t add_collective(const CommKey& key, uint8_t queue, int64_t elements, int64_t wire_bytes,
                                 bool varies) = 0;
  virtual void add_wait(int64_t collective) = 0;
};

class Meter {
 public:
  struct Entry {
    int64_t calls = 0;
    double flops = 0, bytes = 0, seconds = 0;
  };
  const Entry& of(OpKind kind) const { return entries_[static_cast<size_t>(kind)]; }
  /// Return the FLOPs of the model's GEMMs and attention, and the part of them that is recomputation.
  double matmul_flops() const { return of(OpKind::gemm).flops + of(OpKind::attention).flops; }
  double recomputed_flops() const { return recomputed_; }
  const std::map<CommKey, CommCount>& comm() const { return comm_; }
  /// Zeroes all counts; communication keys stay, so that counting the same operations again allocates nothing.
  void reset() {
    entries_ = {};
    recomputed_ = 0;
    for (auto& [key, count] : comm_) count = {};
  }

  void add(const CommKey& key, int64_t elements, int64_t wire_bytes) {
    CommCount& count = comm_[key];
    ++count.calls;
    count.elements += elements;
    count.wire_bytes += wire_bytes;
  }
  /// Records that the compute thread waited during `wait` for an operation that was in flight during `flight` and sent
  /// `wire_bytes`.
  void add_wait(const CommKey& key, Interval wait, Interval flight, int64_t wire_bytes) {
    comm_[key].wait_seconds += wait.end - wait.begin;
    if (trace == nullptr) return;
    const auto bytes = static_cast<double>(wire_bytes);
    trace->add({.name = name_of(key.op), .time = wait, .axes = key.axes});
    trace->add({.kind = Span::Kind::axis, .name = name_of(key.op), .time = flight, .axes = key.axes, .bytes = bytes});
  }

  void add(OpKind kind, const Cost& cost, Interval time) {
    const double seconds = time.end - time.begin;
    Entry& entry = entries_[static_cast<size_t>(kind)];
    ++entry.calls;
    entry.flops += cost.flops;
    entry.bytes += cost.bytes;
    entry.seconds += seconds;
    if (trace != nullptr) trace->add({.name = name_of(kind), .time = time, .flops = cost.flops, .bytes = cost.bytes});
    if (recomputing && (kind == OpKind::gemm || kind == OpKind::attention)) recomputed_ += cost.flops;
  }

  /// If set, operators on this device are timed to completion, which prevents overlap. If not set, a GPU operator's
  /// seconds are those of its launch.
  device::Device* timed = nullptr;
  Trace* trace = nullptr;        // set while a step is traced
  Recorder* recorder = nullptr;  // if set, receives every operation
  bool recomputing = false;      // set while a block's forward pass runs again for its backward pass

 private:
  std::array<Entry, kOpKinds> entries_{};
  double recomputed_ = 0;
  std::map<CommKey, CommCount> comm_;
};

/// Measures one operator call: construct it at the start; its destructor adds to the meter.
class OpTimer {
 public:
  OpTimer(Meter& meter, const OpCall& call) : meter_(meter), call_(call), start_(now_seconds()) {}
  OpTimer(Meter& meter, OpKind kind, Cost cost)
      : OpTimer(meter, {.kind = kind, .cost = cost, .product = {}, .attention = {}}) {}
  ~OpTimer() noexcept(false) {
    if (meter_.timed != nullptr && std::uncaught_exceptions() == 0) meter_.timed->synchronize();
    const Interval time{start_, now_seconds()};
    meter_.add(call_.kind, call_.cost, time);
    if (meter_.recorder == nullptr) return;
    call_.recomputed = meter_.recomputing;
    call_.seconds = time.end - time.begin;
    meter_.recorder->add_operator(call_);
  }
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

 private:
  Meter& meter_;
  OpCall call_;
  double start_;
};

}  // namespace trainer
