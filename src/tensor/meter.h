#pragma once
// Meter: what the operators did, by kind: calls, FLOPs, bytes of memory traffic, seconds. Filled alike by real and dry runs.
#include <array>
#include <cstdint>
#include <string_view>

#include "base/clock.h"

namespace trainer {

enum class OpKind : uint8_t { gemm, attention, norm, activation, rope, embedding, loss, elementwise, column_sum, pack, grad_norm, optimizer };
inline constexpr int kOpKinds = 12;
std::string_view name_of(OpKind kind);

struct Cost {
  double flops = 0, bytes = 0;
};

class Meter {
 public:
  struct Entry {
    int64_t calls = 0;
    double flops = 0, bytes = 0, seconds = 0;
  };
  const Entry& of(OpKind kind) const { return entries_[static_cast<size_t>(kind)]; }
  /// FLOPs of products and attention, and the share of them that recomputation repeated.
  double matmul_flops() const { return of(OpKind::gemm).flops + of(OpKind::attention).flops; }
  double recomputed_flops() const { return recomputed_; }
  void reset() { *this = Meter(); }

  void add(OpKind kind, const Cost& cost, double seconds) {
    Entry& entry = entries_[static_cast<size_t>(kind)];
    ++entry.calls;
    entry.flops += cost.flops;
    entry.bytes += cost.bytes;
    entry.seconds += seconds;
    if (recomputing && (kind == OpKind::gemm || kind == OpKind::attention)) recomputed_ += cost.flops;
  }

  bool recomputing = false;  // set while a block's forward runs again for its backward

 private:
  std::array<Entry, kOpKinds> entries_{};
  double recomputed_ = 0;
};

/// Measures one operator call: construct at its start; adds to the meter when destroyed.
class OpTimer {
 public:
  OpTimer(Meter& meter, OpKind kind, Cost cost) : meter_(meter), kind_(kind), cost_(cost), start_(now_seconds()) {}
  ~OpTimer() { meter_.add(kind_, cost_, now_seconds() - start_); }
  OpTimer(const OpTimer&) = delete;
  OpTimer& operator=(const OpTimer&) = delete;

 private:
  Meter& meter_;
  OpKind kind_;
  Cost cost_;
  double start_;
};

}  // namespace trainer
