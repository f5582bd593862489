#include "parallel/summa.h"

namespace trainer::parallel {

using mesh::split;
using params::GradSlot;

Panels::Panels(Exec& ex, comm::Communicator& line, const Tensor& own, const char* tag, bool overlap)
    : line_(line), own_(own), tag_(tag), overlap_(overlap) {
  start(ex, 0);
}

void Panels::start(Exec& ex, int64_t step) {
  Slot& slot = slots_[static_cast<size_t>(step % 2)];
  slot.memory.reset();
  slot.panel = own_;
  if (step != line_.rank()) {
    slot.memory = ex.take(tag_, own_.shape, own_.dtype);
    slot.panel = slot.memory;
  }
  slot.ticket = line_.broadcast(ex, slot.panel, static_cast<int>(step));
  if (!overlap_) slot.ticket.join(ex);
}

void Panels::prefetch(Exec& ex) {
  if (step_ + 1 < steps()) start(ex, step_ + 1);
}

const Tensor& Panels::next(Exec& ex) {
  Slot& slot = slots_[static_cast<size_t>(step_++ % 2)];
  if (slot.ticket.is_open()) slot.ticket.join(ex);
  return slot.panel;
}

Sums::Sums(comm::Communicator& line, const Tensor& result, const char* tag, bool overlap)
    : line_(line), result_(result), tag_(tag), overlap_(overlap) {}

Tensor Sums::next(Exec& ex) {
  Slot& at = slot(step_);
  if (at.ticket.is_open()) at.ticket.join(ex);
  part_ = result_;
  if (!is_own()) {
    if (!at.memory) at.memory = ex.take(tag_, result_.shape, result_.dtype);
    part_ = at.memory;
  }
  return part_;
}

void Sums::start_sum(Exec& ex) {
  Slot& at = slot(step_);
  at.ticket = line_.reduce(ex, part_, static_cast<int>(step_));
  if (!overlap_) at.ticket.join(ex);
  ++step_;
}

void Sums::finish(Exec& ex) {
  for (int64_t step = step_; step < step_ + 2; ++step) {  // the earlier step first
    Slot& at = slot(step);
    if (at.ticket.is_open()) at.ticket.join(ex);
    at.memory.reset();
  }
}

void Sums::finish_later(Exec& ex, GradSink& grads, params::SlotId id) {
  for (int64_t step = step_; step < step_ + 2; ++step) {
    Slot& at = slot(step);
    if (!at.ticket.is_open()) continue;
    if (at.memory) at.ticket.keep(std::move(at.memory));
    grads.join_later(ex, id, std::move(at.ticket));
  }
}

void summa_ab(Exec& ex, Panels a, Panels b, const Tensor& c, const Tensor& x, Sums* d, bool accumulate) {
  for (int64_t step = 0; step < a.steps(); ++step) {
    a.prefetch(ex);
    b.prefetch(ex);
    const Tensor &a_l = a.next(ex), &b_l = b.next(ex);
    ops::run(ex, ops::Gemm{.a = a_l, .b = b_l, .c = c, .accumulate = step > 0});
    if (d == nullptr) continue;
    const bool add = accumulate && d->is_own();  // only the rank that stores the existing values adds them
    ops::run(ex, ops::Gemm{.a = a_l, .b = x, .c = d->next(ex), .trans_a = true, .accumulate = add});
    d->start_sum(ex);
  }
}

void summa_abt(Exec& ex, const Tensor& a, Panels b, Sums& c) {
  for (int64_t step = 0; step < b.steps(); ++step) {
    b.prefetch(ex);
    const Tensor& b_l = b.next(ex);
    ops::run(ex, ops::Gemm{.a = a, .b = b_l, .c = c.next(ex), .trans_b = true});
    c.start_sum(ex);
  }
}

void summa_atb(Exec& ex, Panels a, const Tensor& b, Sums& c, bool accumulate) {
  for (int64_t step = 0; step < a.steps(); ++step) {
    a.prefetch(ex);
    const Tensor& a_l = a.next(ex);
    const bool add = accumulate && c.is_own();
    ops::run(ex, ops::Gemm{.a = a_l, .b = b, .c = c.next(ex), .trans_a = true, .accumulate = add});
    c.start_sum(ex);
  }
}

SummaLinear::SummaLinear(const Ranks& ranks, ParamStore& store, int group, const LinearSpec& spec,
                         const sharding::LinearSharding& sharding)
    : ranks_(ranks),
      row_(sharding.rows),
      col_(sharding.cols | sharding.contraction),
      input_stays_(sharding.contraction != 0),
      parts_(ranks, spec.parts),
      weights_(
          store, group, spec,
          [&](const LinearPart& part, const mesh::Layout& whole) -> Weights::Placed {
            // The flat shards of a column of ranks are the blocks of W: all have the same number of rows.
            if (input_stays_) return {whole.with(col_, split(0)).transposed().with(row_, mesh::kFlat)};
            const AxisSet cols = parts_.cut_axes(part, columns());
            return {whole.with(cols, split(1)).with(row_, mesh::kFlat), col_ & ~cols};
          },
          [&](const LinearPart& part, const mesh::Layout& whole) -> Weights::Placed {
            const AxisSet cols = parts_.cut_axes(part, columns());
            return {whole.with(cols, split(0)), row_ | (col_ & ~cols)};
          }) {
  TRAINER_CHECK(!input_stays_ || spec.parts.size() == 1, "a linear with a stationary input must have one part, not {}",
                spec.parts.size());
}

Panels SummaLinear::weight_panels(Exec& ex) const {
  return {ex, col_line(), weights_.piece(col_line().size()), "summa.weight", ranks_.overlap()};
}

Scratch SummaLinear::forward(Exec& ex, Rows, const Tensor& x, const ForwardFusion& fusion) {
  const Shape block = weights_.piece(col_line().size()).shape;
  Scratch y;
  Panels weights = weight_panels(ex);
  if (input_stays_) {
    y = ex.take("linear.y", {x.rows(), block[0]}, ranks_.sum_type(col_, x.dtype));
    Sums sums(row_line(), y, "summa.partial", ranks_.overlap());
    summa_abt(ex, x, std::move(weights), sums);
    sums.finish(ex);
    y = cast_to(ex, std::move(y), x.dtype);
  } else {
    Panels inputs = along_row(ex, x, "summa.x");
    y = ex.take("linear.y", {x.rows(), block[1]}, accumulator_of(x.dtype));
    summa_ab(ex, std::move(inputs), std::move(weights), y);
    y = cast_to(ex, std::move(y), x.dtype);
  }
  weights_.finish(ex, y, fusion);
  return y;
}

Scratch SummaLinear::backward(Exec& ex, Rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                              GradSink& grads, bool late) {
  Panels weights = weight_panels(ex);
  std::optional<Panels> moving;
  if (input_stays_ || !late) moving.emplace(moving_panels(ex, dy, x));
  weights_.add_bias_gradient(ex, dy, grads);  // overlaps with the broadcast of the first blocks
  GradSlot dweight;
  std::optional<Sums> dw;
  if (!late) {
    dweight = weights_.piece_gradient(ex, grads, col_line().size());
    dw.emplace(col_line(), dweight.tensor, "summa.dweight", ranks_.overlap());
  }
  Scratch dx;
  if (input_stays_) {
    dx = ex.take("linear.dx", x.shape, accumulator_of(dy.dtype));
    summa_ab(ex, std::move(*moving), std::move(weights), dx, x, dw ? &*dw : nullptr, dweight.accumulate);
    dx = cast_to(ex, std::move(dx), dy.dtype);
  } else {
    dx = ex.take("linear.dx", x.shape, ranks_.sum_type(col_, dy.dtype));
    Sums sums(row_line(), dx, "summa.partial", ranks_.overlap());
    summa_abt(ex, dy, std::move(weights), sums);
    // Overlaps with the last reductions of dx.
    if (dw) summa_atb(ex, std::move(*moving), dy, *dw, dweight.accumulate);
    sums.finish(ex);
    dx = cast_to(ex, std::move(dx), dy.dtype);
  }
  if (dw) dw->finish_later(ex, grads, weights_.slot());
  if (fusion.act != ops::Activation::none) ops::run(ex, ops::ActivationBackward{dx, fusion.pre, dx, fusion.act});
  return dx;
}

void SummaLinear::weight_gradient(Exec& ex, Rows, const Tensor& dy, const Tensor& x, GradSink& grads) {
  Panels moving = moving_panels(ex, dy, x);
  const GradSlot dweight = weights_.piece_gradient(ex, grads, col_line().size());
  Sums dw(col_line(), dweight.tensor, "summa.dweight", ranks_.overlap());
  summa_atb(ex, std::move(moving), input_stays_ ? x : dy, dw, dweight.accumulate);
  dw.finish_later(ex, grads, weights_.slot());
}

}  // namespace trainer::parallel
