// The rows of a rank's experts: which they are, where they come from, and the rounds in which they arrive.
#include <algorithm>
#include <numeric>

#include "ops/grouped_gemm.h"
#include "ops/routing.h"
#include "parallel/experts.h"

namespace trainer::parallel {

// A dry device has no counts: those of debug.balanced_routing take their place.
void Experts::count_rows(Exec& ex, const Batch& batch, const Routed& r, Counts from) {
  Tensor counts = exchanges(batch) ? r.all_counts : r.counts;
  if (ex.device.dry()) {
    counts = {};
  } else if (from == Counts::read) {
    counts = on_host_[counts.data].get(ex.device, counts);
  } else {
    const auto kept = on_host_.find(counts.data);
    TRAINER_CHECK(kept != on_host_.end(), "no forward pass read the counts of layer {} of those with experts", index_);
    counts = kept->second.tensor();
  }
  if (exchanges(batch)) {
    TRAINER_CHECK(counts || ex.device.dry(), "the counts of layer {} of those with experts are missing", index_);
    exchange_->plan(r.order.tensor().count() / chosen_, counts);
    return begin_round(0);
  }
  std::ranges::fill(counted_, 0);
  const int64_t own = experts_ / ranks_.size(divided_);
  const auto set = [&] {
    const auto begin = counted_.begin() + ranks_.index(divided_) * own;
    rows_ = {begin, begin + own};
    first_ = std::reduce(counted_.begin(), begin);
    total_ = std::reduce(begin, begin + own);
  };
  if (ex.device.dry()) {
    const int64_t pairs = r.choices.tensor().count();
    const int64_t first = ranks_.tile({.rows = up_.rows}, batch.rows(), width_).first_row * chosen_;
    for (int64_t e = 0; e < experts_; ++e)
      counted_[static_cast<size_t>((first + e) % experts_)] = pairs / experts_ + (e < pairs % experts_);
    return set();
  }
  for (int64_t i = 0; i < counts.count(); ++i) counted_[static_cast<size_t>(i % experts_)] += counts.as<int32_t>()[i];
  set();
}

void Experts::begin_round(int64_t round) {
  rows_ = exchange_->rows_of_experts(round);
  first_ = 0;
  total_ = exchange_->arriving(round);
}

Scratch Experts::sorted(Exec& ex, const Tensor& x, const Routed& r) const {
  Scratch y = ex.take("experts.rows", {r.order.tensor().count(), x.cols()}, x.dtype);
  ops::run(ex, ops::GatherRows{.x = x,
                               .index = r.order.tensor().range(first_, total_),
                               .y = y.tensor().row_range(0, total_),
                               .per_row = chosen_});
  return y;
}

Tensor Experts::weights_of_rows(Exec& ex, const Routed& r, Scratch& memory) const {
  if (!r.row_weights) {
    const Tensor weights = r.weights;
    memory = ex.take("experts.weights", {weights.count(), 1}, weights.dtype);
    ops::run(ex, ops::GatherRows{.x = column(weights),
                                 .index = r.order.tensor().range(first_, total_),
                                 .y = memory.tensor().row_range(0, total_)});
  }
  const Tensor all = r.row_weights ? r.row_weights : memory;
  return all.reshape({all.count()}).range(0, total_);
}

void Experts::activate(Exec& ex, const Tensor& pre, const Tensor& weights, const Tensor& z) const {
  const Tensor rows = pre.row_range(0, total_);
  ops::run(ex,
           ops::GatedForward{
               .gate = gate_of(rows), .up = up_of(rows), .y = z.row_range(0, total_), .weights = weights, .act = act_});
}

void Experts::activate(Exec& ex, Saved& s) const {
  const Tensor pre = s.pre;
  Scratch memory;
  const Tensor weights = weights_of_rows(ex, s.routed, memory);
  s.z = ex.take("experts.z", {pre.rows(), pre.cols() / 2}, pre.dtype);
  activate(ex, pre, weights, s.z);
}

void Experts::activation_gradient(Exec& ex, const Tensor& dz, const Tensor& pre, const Tensor& weights,
                                  const Tensor& dweights) const {
  const Tensor rows = pre.row_range(0, total_);
  ops::run(ex, ops::GatedBackward{.dy = dz.row_range(0, total_),
                                  .gate = gate_of(rows),
                                  .up = up_of(rows),
                                  .dgate = gate_of(rows),
                                  .dup = up_of(rows),
                                  .weights = weights,
                                  .dweights = dweights.reshape({dweights.count()}).range(0, total_),
                                  .act = act_});
}

Scratch Experts::all_outputs(Exec& ex, const Batch& batch, Routed& r, Scratch&& y) {
  if (divided_ == 0) return std::move(y);
  const DType type = y.tensor().dtype;
  Scratch sorted = ex.take("experts.y.all", {r.order.tensor().count(), width_}, type);
  if (!batch.cut) {
    scatter_own(ex, y, sorted);
    return sorted;
  }
  exchange_->give_back(ex, 0, y, sorted);
  y.reset();
  int64_t round = 0;
  repeat(ex, exchange_->rounds() - 1, [&](Exec& loop) {
    begin_round(++round);
    const Scratch x = exchange_->send(loop, round, *r.x, r.order, chosen_),
                  weights = exchange_->send(loop, round, column(r.weights), r.order, 1);
    const int64_t rows = x.tensor().rows(), wide = store_.box(experts_up_)[1];
    const Scratch pre = loop.take("experts.pre", {rows, wide}, type),
                  z = loop.take("experts.z", {rows, wide / 2}, type),
                  own = loop.take("experts.y", {rows, width_}, type);
    ops::run(loop, ops::GroupedGemm{.a = x, .b = *held_up_, .c = pre, .rows = rows_});
    activate(loop, pre, weights.tensor().reshape({rows}).range(0, total_), z);
    ops::run(loop, ops::GroupedGemm{.a = z, .b = *held_down_, .c = own, .rows = rows_});
    exchange_->give_back(loop, round, own, sorted);
  });
  r.x.reset();
  if (batch.routing == nullptr) exchange_->take_unplanned_bytes();  // evaluation has no plan
  return sorted;
}

void Experts::scatter_own(Exec& ex, const Tensor& own, const Tensor& sorted) {
  const int64_t pairs = sorted.rows();
  own_rows_.resize(static_cast<size_t>(pairs));
  for (int64_t i = 0; i < pairs; ++i)
    own_rows_[static_cast<size_t>(i)] = static_cast<int32_t>(i >= first_ && i < first_ + total_ ? i - first_ : -1);
  const Scratch index = ex.take("experts.index", {pairs}, DType::i32);
  const Tensor to = index;
  ex.device.copy_to_device(to.data, own_rows_.data(), to.bytes());
  ops::run(ex, ops::GatherRows{.x = own, .index = index, .y = sorted});
}

void Experts::run_backward_rounds(Exec& ex, const Tensor& x, const Tensor& dw_up, Routed& r, const Tensor& dx) {
  const DType type = x.dtype;
  int64_t round = 0;
  repeat(ex, exchange_->rounds() - 1, [&](Exec& loop) {
    begin_round(++round);
    Scratch own = exchange_->send(loop, round, x, r.order, chosen_);
    const Scratch dy = exchange_->send(loop, round, *r.dy, r.order, chosen_),
                  memory = exchange_->send(loop, round, column(r.weights), r.order, 1);
    const int64_t rows = own.tensor().rows(), wide = store_.box(experts_up_)[1];
    const Tensor weights = memory.tensor().reshape({rows}).range(0, total_);
    const Scratch pre = loop.take("experts.pre", {rows, wide}, type),
                  z = loop.take("experts.z", {rows, wide / 2}, type),
                  dz = loop.take("experts.dz", {rows, wide / 2}, type),
                  dweights = loop.take("experts.dweights", {rows, 1}, r.weights.tensor().dtype);
    ops::run(loop, ops::GroupedGemm{.a = own, .b = *held_up_, .c = pre, .rows = rows_});
    activate(loop, pre, weights, z);
    ops::run(loop, ops::GroupedGemm{.a = dy, .b = *held_down_, .c = dz, .rows = rows_, .trans_b = true});
    ops::run(loop, ops::GroupedWeightGradient{.x = z, .dy = dy, .dw = dw_down_, .rows = rows_, .accumulate = true});
    activation_gradient(loop, dz, pre, weights, dweights);
    exchange_->give_back(loop, round, dweights, r.sorted_dweights);
    ops::run(loop, ops::GroupedWeightGradient{.x = own, .dy = pre, .dw = dw_up, .rows = rows_, .accumulate = true});
    ops::run(loop, ops::GroupedGemm{.a = pre, .b = *held_up_, .c = own, .rows = rows_, .trans_b = true});
    exchange_->give_back(loop, round, own, dx);
  });
}

}  // namespace trainer::parallel
