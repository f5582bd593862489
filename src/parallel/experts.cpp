#include "parallel/experts.h"

#include "ops/grouped_gemm.h"
#include "ops/routing.h"

namespace trainer::parallel {
namespace {

using config::Role;
using mesh::Layout;
using mesh::split;

AxisSet reduced(const sharding::LinearSharding& grid) { return grid.rows & ~grid.flat; }

/// Adds a linear of every token, sharded as `grid`.
Weights add_linear(ParamStore& store, const LayerSpec& spec, const LinearSpec& linear,
                   const sharding::LinearSharding& grid) {
  Weights weights(
      store, spec.group, linear,
      [&](const LinearPart&, const Layout& whole) -> Weights::Placed {
        return {whole.with(grid.contraction, split(0)).with(grid.cols, split(1)).with(grid.flat, mesh::kFlat),
                reduced(grid)};
      },
      [](const LinearPart&, const Layout& whole) -> Weights::Placed { return {whole}; });
  if (grid.keep) weights.keep();
  return weights;
}

/// Adds a linear of the experts, a tensor [E, in, out] for each part, sharded as `grid`, but with experts instead of
/// rows along `divided`.
params::SlotId add_experts(ParamStore& store, const LayerSpec& spec, Site site, const sharding::LinearSharding& grid,
                           AxisSet divided) {
  const LinearSpec linear = spec.linear(site, Role::experts);
  std::vector<params::SlotPart> parts;
  for (const LinearPart& part : linear.parts)
    parts.push_back({.name = part.name + ".weight",
                     .layout = store.replicated({linear.matrices, linear.in, part.width})
                                   .with(divided, split(0))
                                   .with(grid.contraction, split(1))
                                   .with(grid.cols, split(2))
                                   .with(grid.flat & ~divided, mesh::kFlat),
                     .init = {params::Init::Kind::normal, linear.init_std},
                     .sum_over = reduced(grid) & ~divided,
                     .hidden = true});
  const params::SlotId slot = store.add_slot(spec.group, std::move(parts));
  if (grid.keep) store.weights().keep(slot);
  return slot;
}

}  // namespace

Experts::Experts(const Ranks& ranks, ParamStore& store, const LayerSpec& spec, const sharding::ModelSharding& sharding)
    : ranks_(ranks),
      store_(store),
      stream_(sharding.layer(spec.layer).stream),
      divided_(sharding.wide(sharding.layer(spec.layer).experts)),
      up_(sharding.layer(spec.layer).at(Site::up)),
      down_(sharding.layer(spec.layer).at(Site::down)),
      width_(spec.model.d_model),
      experts_(spec.model.n_expert),
      chosen_(spec.model.experts_per_token),
      normalize_(normalizes_topk(spec.model)),
      act_(operator_activation(spec.model)),
      index_((spec.layer + 1) / spec.model.moe_every - 1),
      replicas_(sharding.data()),
      reports_(ranks.index(sharding.all() & ~(sharding.data() | sharding.stage_axis() | up_.rows)) == 0),
      adds_router_(ranks.index(up_.cols) == 0),
      counted_(static_cast<size_t>(experts_)) {
  if (divided_ != 0) exchange_.emplace(ranks, divided_, up_.rows, experts_, chosen_, sharding.expert_buffer);
  sharding::LinearSharding whole = up_;  // router and gate
  whole.cols = 0;
  router_.emplace(add_linear(store, spec, spec.linear(Site::up, Role::router), whole));
  experts_up_ = add_experts(store, spec, Site::up, up_, divided_);
  experts_down_ = add_experts(store, spec, Site::down, down_, divided_);
  if (spec.model.d_shared == 0) return;
  const auto add = [&](Site site, Role role, const sharding::LinearSharding& grid) {
    return add_linear(store, spec, spec.linear(site, role), grid);
  };
  shared_.emplace(Shared{.up = add(Site::up, Role::shared, up_),
                         .down = add(Site::down, Role::shared, down_),
                         .gate = add(Site::up, Role::shared_gate, whole)});
}

void Experts::forward(Exec& ex, const Batch& batch, Operand x, Saved& s) {
  const Rows rows = batch.rows();
  if (Scratch moved = ranks_.start_move(ex, home(rows), used(rows), x).finish(ex)) x = std::move(moved);
  Routed& r = s.routed;
  const bool again = static_cast<bool>(r.choices);
  route(ex, batch, x, r);
  const auto count = [&] {
    count_rows(ex, batch, r, again && exchanges(batch) ? Counts::kept : Counts::read);
    if (again || ex.device.dry() || batch.routing == nullptr || !reports_) return;
    const Tensor& counts = exchanges(batch) ? r.all_counts : r.counts;
    const int64_t lines = r.counts.tensor().rows(), first = exchanges(batch) ? ranks_.index(divided_) * lines : 0;
    const Tensor own = on_host_.at(counts.data).tensor().row_range(first, lines);
    batch.routing->count(index_, {own.as<int32_t>(), static_cast<size_t>(own.count())});
  };
  RowExchange::Sent x_sent, weights_sent;  // while the shared expert computes
  if (exchanges(batch)) {
    count();
    x_sent = exchange_->start(ex, 0, x, r.order, chosen_);
    weights_sent = exchange_->start(ex, 0, column(r.weights), r.order, 1);
  }
  if (shared_) {
    r.shared_pre = ex.take("shared.pre", {x.x.rows(), shared_->up.out()}, x.x.dtype);
    shared_->up.multiply(ex, x, r.shared_pre);
    r.shared_gate = ex.take("shared.gate", {x.x.rows(), 1}, accumulator_of(x.x.dtype));
    shared_->gate.multiply(ex, x, r.shared_gate);
    ops::run(ex, ops::Sigmoid{r.shared_gate, r.shared_gate});
    activate_shared(ex, r);
  }
  if (!exchanges(batch)) count();  // waits for the device, which has the shared expert to compute
  Scratch rows_of_experts = exchanges(batch) ? exchange_->finish(ex, std::move(x_sent)) : sorted(ex, x, r);
  if (exchanges(batch)) {
    r.row_weights = exchange_->finish(ex, std::move(weights_sent));
    r.x.emplace(std::move(x));
  }
  x.owner.reset();
  s.pre = ex.take("experts.pre", {rows_of_experts.tensor().rows(), store_.box(experts_up_)[1]},
                  rows_of_experts.tensor().dtype);
  held_up_.emplace(store_.weights().hold(ex, experts_up_));
  ops::run(ex, ops::GroupedGemm{.a = rows_of_experts, .b = *held_up_, .c = s.pre, .rows = rows_});
  if (exchanges(batch))
    r.rows = std::move(rows_of_experts);
  else
    held_up_.reset();
  rows_of_experts.reset();
  activate(ex, s);
  if (batch.keep) return;
  s.pre.reset();
  r.shared_pre.reset();
  r.rows.reset();
  r.row_weights.reset();
}

void Experts::route(Exec& ex, const Batch& batch, const Tensor& x, Routed& r) {
  const int64_t n = x.rows();
  const DType wide = accumulator_of(x.dtype);
  const Tile tile = ranks_.tile({.rows = up_.rows}, batch.rows(), width_);
  const int64_t first_row = tile.first_row;
  const bool again = static_cast<bool>(r.choices);
  const Tensor injected = batch.routing != nullptr ? batch.routing->choices : Tensor();
  using From = ops::Route::From;
  From from = again || injected ? From::given : batch.balanced_routing ? From::balanced : From::logits;

  r.logits = ex.take("router.logits", {n, experts_}, wide);
  router_->multiply(ex, x, r.logits);
  if (!again) r.choices = ex.take("router.choices", {n, chosen_}, DType::i32);
  if (!again && injected)
    ops::run(ex, ops::Copy{injected.row_range(index_ * batch.rows().count + first_row, n), r.choices});
  r.weights = ex.take("router.weights", {n, chosen_}, wide);
  r.lse = ex.take("router.lse", {n}, wide);
  r.counts = ex.take("router.counts", {counts_by_sequence(batch) ? batch.sequences : 1, experts_}, DType::i32);
  ops::run(ex, ops::Route{.logits = r.logits,
                          .choices = r.choices,
                          .weights = r.weights,
                          .lse = r.lse,
                          .counts = r.counts,
                          .from = from,
                          .first_row = first_row,
                          .rows_per_count = counts_by_sequence(batch) ? batch.seq_len : 0,
                          .normalize = normalize_,
                          .order = rows_of(batch.order, tile)});
  comm::Ticket gathered;
  if (exchanges(batch) && !r.all_counts) {
    r.all_counts = ex.take("experts.counts", {ranks_.size(divided_) * r.counts.tensor().rows(), experts_}, DType::i32);
    gathered = exchange_->gather(ex, r.counts, r.all_counts);
  }
  r.order = ex.take("router.order", {n * chosen_}, DType::i32);
  r.place = ex.take("router.place", {n * chosen_}, DType::i32);
  ops::run(ex, ops::SortRows{.choices = r.choices, .order = r.order, .place = r.place, .experts = experts_});
  if (gathered.is_open()) gathered.join(ex);
  if (!again && !ex.device.dry() && batch.routing != nullptr && batch.routing->on_choice)
    batch.routing->on_choice(index_, first_row, r.logits, r.choices);
}

void Experts::activate_shared(Exec& ex, Routed& r) const {
  const Tensor pre = r.shared_pre;
  r.shared_z = ex.take("shared.z", {pre.rows(), pre.cols() / 2}, pre.dtype);
  ops::run(ex, ops::GatedForward{.gate = gate_of(pre),
                                 .up = up_of(pre),
                                 .y = r.shared_z,
                                 .weights = r.shared_gate.tensor().reshape({pre.rows()}),
                                 .act = act_});
}

Scratch Experts::output(Exec& ex, const Batch& batch, const ForwardFusion& fusion, Saved& s) {
  const Rows rows = batch.rows();
  const AxisSet summed = down_.contraction | (batch.cut ? AxisSet{0} : divided_);
  const Layout partial = used(rows).with(summed, mesh::kPartial);
  const bool moves = partial != home(rows), in_place = !moves && !fusion.dropout;
  const Tensor z = s.z;
  Scratch sorted = ex.take("experts.y", {z.rows(), width_}, z.dtype);
  held_down_.emplace(store_.weights().hold(ex, experts_down_));
  ops::run(ex, ops::GroupedGemm{.a = z, .b = *held_down_, .c = sorted, .rows = rows_});
  sorted = all_outputs(ex, batch, s.routed, std::move(sorted));
  held_up_.reset();
  held_down_.reset();
  Scratch y = ex.take("mlp.y", {sorted.tensor().rows() / chosen_, width_}, ranks_.sum_type(summed, z.dtype));
  ops::run(ex, ops::CombineRows{
                   .rows = sorted, .place = s.routed.place, .y = y, .residual = in_place ? fusion.residual : Tensor()});
  sorted.reset();
  if (shared_) {
    // In generation the ranks with different experts have the same rows, and one of them adds this part.
    const bool adds = batch.cut || ranks_.index(divided_) == 0;
    const Tensor sum = y;
    const Scratch unused = adds ? Scratch() : ex.take("experts.unused", sum.shape, sum.dtype);
    shared_->down.multiply(ex, s.routed.shared_z, adds ? sum : unused, {.residual = adds ? sum : Tensor()});
  }
  if (moves) y = ranks_.start_move(ex, partial, home(rows), std::move(y)).finish(ex);
  y = cast_to(ex, std::move(y), z.dtype);
  if (fusion.dropout)
    ops::run(ex, ops::DropoutAdd{y, fusion.residual, y, *fusion.dropout, {}});
  else if (moves && fusion.residual)
    ops::run(ex, ops::Add{.x = y, .other = fusion.residual, .y = y});
  return y;
}

Scratch Experts::backward(Exec& ex, const Batch& batch, Operand dy, Saved& s, GradSink& grads) {
  Routed& r = s.routed;
  held_up_.reset();  // a recomputed forward pass leaves it
  r.x.reset();
  if (Scratch moved = ranks_.start_move(ex, home(batch.rows()), used(batch.rows()), dy).finish(ex))
    dy = std::move(moved);
  const int64_t n = dy.x.rows(), pairs = n * chosen_;
  const DType type = dy.x.dtype, wide = accumulator_of(type);
  count_rows(ex, batch, r, Counts::kept);
  RowExchange::Sent sent;
  if (exchange_) sent = exchange_->start(ex, 0, dy, r.order, chosen_);
  r.dweights = ex.take("experts.dweights", {n * (chosen_ + (shared_ ? 1 : 0))}, wide);
  if (shared_) {  // while dy is in flight
    if (!r.shared_z) activate_shared(ex, r);
    shared_->down.add_weight_gradient(ex, r.shared_z, dy, grads);
    const Scratch dz = ex.take("shared.dz", r.shared_z.tensor().shape, type);
    r.shared_z.reset();
    shared_->down.multiply(ex, dy, dz, {}, /*transposed=*/true);
    const Tensor pre = r.shared_pre;
    ops::run(ex, ops::GatedBackward{.dy = dz,
                                    .gate = gate_of(pre),
                                    .up = up_of(pre),
                                    .dgate = gate_of(pre),
                                    .dup = up_of(pre),
                                    .weights = r.shared_gate.tensor().reshape({n}),
                                    .dweights = r.dweights.tensor().range(pairs, n),
                                    .act = act_});
  }
  if (!s.z) activate(ex, s);
  Scratch rows = exchange_ ? exchange_->finish(ex, std::move(sent)) : sorted(ex, dy, r);
  Scratch dz = ex.take("experts.dz", s.z.tensor().shape, type);
  held_down_.emplace(store_.weights().hold(ex, experts_down_));
  ops::run(ex, ops::GroupedGemm{.a = rows, .b = *held_down_, .c = dz, .rows = rows_, .trans_b = true});
  if (!exchange_) held_down_.reset();
  comm::Ticket returned;
  {
    const Tensor pre = s.pre;
    Scratch memory, dweights = ex.take("experts.dweights", {pre.rows(), 1}, wide);
    activation_gradient(ex, dz, pre, weights_of_rows(ex, r, memory), dweights);
    dz.reset();
    if (exchange_) {
      r.sorted_dweights = ex.take("experts.dweights.all", {pairs, 1}, wide);
      returned = exchange_->start_return(ex, 0, dweights, r.sorted_dweights);
    } else {
      ops::run(ex, ops::GatherRows{.x = dweights, .index = r.place, .y = column(r.dweights.tensor().range(0, pairs))});
    }
  }
  const params::GradSlot dw = grads.slot(ex, experts_down_);
  ops::run(ex, ops::GroupedWeightGradient{
                   .x = s.z, .dy = rows, .dw = dw.tensor, .rows = rows_, .accumulate = dw.accumulate});
  dw_down_ = dw.tensor;
  if (returned.is_open()) returned.join(ex);
  if (!exchange_) grads.complete(ex, experts_down_);
  s.z.reset();
  if (exchange_) r.dy.emplace(std::move(dy));
  return std::move(s.pre);
}

Scratch Experts::input_gradient(Exec& ex, const Batch& batch, const Tensor& d, const Tensor& x, Saved& s,
                                GradSink& grads) {
  const Rows rows = batch.rows();
  Routed& r = s.routed;
  const Layout partial = used(rows).with(up_.cols, mesh::kPartial);
  const Scratch moved = ranks_.start_move(ex, home(rows), used(rows), x).finish(ex);
  const Tensor own = moved ? moved.tensor() : x;
  const int64_t n = own.rows(), pairs = n * chosen_;
  // Both overlap with the GEMMs.
  comm::Ticket weights_summed = exchange_ ? comm::Ticket() : start_sum(ex, up_.cols, r.dweights);
  comm::Ticket counted = start_counting(ex, batch, n, r);
  Scratch rows_of_experts = exchange_ ? std::move(r.rows) : this->sorted(ex, own, r), sorted;
  const auto multiply = [&](const Tensor& dx) {
    held_up_.emplace(store_.weights().hold(ex, experts_up_));
    ops::run(ex, ops::GroupedGemm{.a = d, .b = *held_up_, .c = dx, .rows = rows_, .trans_b = true});
  };
  comm::Ticket returned;
  if (exchange_) {  // returns the gradients of x while those of the weights are computed
    sorted = ex.take("experts.dx.all", {pairs, width_}, own.dtype);
    const Scratch dx = ex.take("experts.dx", rows_of_experts.tensor().shape, own.dtype);
    multiply(dx);
    returned = exchange_->start_return(ex, 0, dx, sorted);
  }
  const params::GradSlot dw = grads.slot(ex, experts_up_);
  ops::run(ex, ops::GroupedWeightGradient{
                   .x = rows_of_experts, .dy = d, .dw = dw.tensor, .rows = rows_, .accumulate = dw.accumulate});
  if (!exchange_) {
    grads.complete(ex, experts_up_);
    multiply(rows_of_experts);
    sorted = std::move(rows_of_experts);
  } else {
    rows_of_experts.reset();
    if (returned.is_open()) returned.join(ex);
    run_backward_rounds(ex, own, dw.tensor, r, sorted);
    held_down_.reset();
    grads.complete(ex, experts_down_);
    grads.complete(ex, experts_up_);
    if (batch.routing != nullptr)
      batch.routing->exchanged(index_, exchange_->rounds(), divided_, exchange_->take_unplanned_bytes());
    ops::run(ex, ops::GatherRows{
                     .x = r.sorted_dweights, .index = r.place, .y = column(r.dweights.tensor().range(0, pairs))});
    weights_summed = start_sum(ex, up_.cols, r.dweights);
  }
  held_up_.reset();
  // Several GEMMs add to dx, which is rounded once.
  Scratch dx = ex.take("mlp.dx", {n, width_}, accumulator_of(own.dtype));
  ops::run(ex, ops::CombineRows{.rows = sorted, .place = r.place, .y = dx});
  sorted.reset();
  const auto add_linear = [&](const Weights& linear, const Tensor& dy, bool adds) {
    linear.add_weight_gradient(ex, own, dy, grads);
    if (adds) linear.multiply(ex, dy, dx, {.residual = dx}, /*transposed=*/true);
  };
  if (shared_) add_linear(shared_->up, r.shared_pre, true);
  if (weights_summed.is_open()) weights_summed.join(ex);
  if (counted.is_open()) counted.join(ex);
  if (shared_) {
    const Scratch dgate = ex.take("shared.dgate", {n, 1}, own.dtype);
    ops::run(ex,
             ops::SigmoidBackward{.dy = column(r.dweights.tensor().range(pairs, n)), .y = r.shared_gate, .dx = dgate});
    add_linear(shared_->gate, dgate, adds_router_);
  }
  add_linear(*router_, route_backward(ex, batch, r), adds_router_);
  r = {};
  dx = cast_to(ex, std::move(dx), ranks_.sum_type(up_.cols, own.dtype));
  if (partial != home(rows)) dx = ranks_.start_move(ex, partial, home(rows), std::move(dx)).finish(ex);
  return cast_to(ex, std::move(dx), own.dtype);
}

comm::Ticket Experts::start_sum(Exec& ex, AxisSet axes, const Tensor& x) const {
  if (ranks_.size(axes) == 1) return {};
  comm::Ticket ticket = ranks_.along(axes).all_reduce(ex, x);
  if (!ranks_.overlap()) ticket.join(ex);
  return ticket;
}

comm::Ticket Experts::start_counting(Exec& ex, const Batch& batch, int64_t own_rows, const Routed& r) const {
  if (batch.routing == nullptr) return {};
  const AxisSet parts_of_sequences = own_rows % batch.seq_len == 0 && !batch.order ? 0 : up_.rows;
  const Tensor counts = r.counts;
  return start_sum(ex, counts_by_sequence(batch) ? parts_of_sequences : up_.rows | replicas_,
                   counts.reshape({counts.count()}));
}

Scratch Experts::route_backward(Exec& ex, const Batch& batch, const Routed& r) const {
  const Tensor logits = r.logits;
  const int64_t n = logits.rows(), pairs = n * chosen_;
  const bool by_sequence = counts_by_sequence(batch);
  const Tile tile = ranks_.tile({.rows = up_.rows}, batch.rows(), width_);
  Scratch dlogits = ex.take("router.dlogits", logits.shape, store_.compute_dtype());
  const Scratch terms = ex.take("router.terms", {n, 3}, logits.dtype);
  ops::run(ex,
           ops::RouteBackward{.dweights = r.dweights.tensor().range(0, pairs).reshape({n, chosen_}),
                              .logits = logits,
                              .lse = r.lse,
                              .choices = r.choices,
                              .weights = r.weights,
                              .counts = r.counts,
                              .dl = dlogits,
                              .terms = terms,
                              .balance = batch.routing != nullptr ? batch.routing->balance : 0,
                              .z = batch.routing != nullptr ? batch.routing->z_loss : 0,
                              .first_row = tile.first_row,
                              .rows_per_count = by_sequence ? batch.seq_len : 0,
                              .counted_rows = by_sequence ? batch.seq_len : batch.rows().count * ranks_.size(replicas_),
                              .normalize = normalize_,
                              .order = rows_of(batch.order, tile)});
  if (batch.routing != nullptr && reports_) {
    const Routing::Sums sums = batch.routing->sums(index_);
    ops::run(ex, ops::ColumnSum{terms, sums.tensor, sums.accumulate});
  }
  return dlogits;
}

void Experts::forget(Saved& s, config::Recompute recompute) const {
  s.z.reset();
  s.routed.shared_z.reset();
  if (recompute != config::Recompute::full) return;
  s.pre.reset();
  Scratch choices = std::move(s.routed.choices), all_counts = std::move(s.routed.all_counts);
  s.routed = {};
  s.routed.choices = std::move(choices);
  s.routed.all_counts = std::move(all_counts);
}

}  // namespace trainer::parallel
