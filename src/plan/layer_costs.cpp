#include "plan/layer_costs.h"

#include <algorithm>
#include <cmath>

#include "config/block_linears.h"
#include "optim/make.h"
#include "parallel/strategy.h"
#include "plan/update_time.h"

namespace trainer::plan {

LayerCosts::LayerCosts(const Cluster& cluster, const config::Config& config, int64_t vocab, DType compute,
                       const ModelSharding& axes, RouteShares& routes)
    : cluster_(cluster),
      config_(config),
      compute_(compute),
      axes_{.axes = axes.axes, .groups = axes.groups},
      mesh_(parallel::mesh_shape(axes_)),
      routes_(routes) {
  const int64_t depth = axes.depth();
  const config::Model& m = config.model;
  rows_ = static_cast<double>(config.train.micro_batch * m.seq_len) / static_cast<double>(depth);
  width_ = static_cast<double>(m.d_model);
  routed_ = static_cast<double>(moe_layers(m)) / static_cast<double>(m.n_layer);
  wide_ = (1 - routed_) * static_cast<double>(m.d_ff) +
          routed_ * static_cast<double>(m.experts_per_token * m.d_expert + m.d_shared);
  heads_ = static_cast<double>(m.n_head);
  kv_heads_ = static_cast<double>(m.n_kv_head);
  queries_ = static_cast<double>(attention_width(m));
  keys_ = static_cast<double>(key_width(m));
  vocab_ = static_cast<double>(round_up(vocab, int64_t{128}));
  element_ = static_cast<double>(size_of(compute));
  accumulation_ = static_cast<double>(config.train.global_batch) /
                  static_cast<double>(config.train.micro_batch * std::max<int64_t>(config.parallel.data, 1));
  const config::Parallel& p = config.parallel;
  share_ = 1 / static_cast<double>(p.stages);
  const double more = p.chunks == 1 ? 0 : static_cast<double>(p.stages - 1) / static_cast<double>(p.chunks);
  in_flight_ = std::min(accumulation_, static_cast<double>(p.stages) + more);
  gated_ = has_gated_mlp(m);
  using config::Role;
  uint8_t matrices = 0;
  for (const auto& [layer, share] : {std::pair{int64_t{0}, 1 - routed_}, {m.moe_every - 1, routed_}})
    for (const config::BlockLinear& linear : share > 0 ? linears_of(m, layer) : std::vector<config::BlockLinear>()) {
      Matrix matrix{.in = static_cast<double>(linear.in),
                    .out = static_cast<double>(linear.out()),
                    .parts = {},
                    .count = static_cast<double>(linear.matrices),
                    .active = static_cast<double>(linear.active),
                    .share = share,
                    .of_experts = linear.role == Role::experts,
                    .index = matrices++};
      if (linear.role != Role::router && linear.role != Role::shared_gate)
        for (const config::LinearPart& part : linear.parts) matrix.parts.push_back(static_cast<double>(part.width));
      matrices_[linear.site].push_back(std::move(matrix));
    }
  const optim::Rules rules = optim::make_rules(config, compute);
  linears_ = {static_cast<double>(rules.front()->traffic()), static_cast<double>(optim::state_bytes(*rules.front()))};
  tables_ = {static_cast<double>(rules.back()->traffic()), static_cast<double>(optim::state_bytes(*rules.back()))};
}

GroupShape LayerCosts::group(AxisSet axes) {
  const auto found = groups_.find(axes);
  if (found != groups_.end()) return found->second;
  return groups_.emplace(axes, group_shape(cluster_, mesh_, axes)).first->second;
}

double LayerCosts::collective(AxisSet axes, CommOp op, DType dtype, double elements) {
  if (elements <= 0) return 0;
  return collective_time(cluster_, group(axes), op, dtype, static_cast<int64_t>(elements)).total();
}

double LayerCosts::move(const MatrixPlacement& from, const MatrixPlacement& to, double elements) {
  if (from == to) return 0;
  const auto [found, is_new] = moves_[elements].try_emplace(pair_key(from, to), 0);
  if (!is_new) return found->second;
  double seconds = 0;
  for (const RouteShares::Leg& leg : routes_.of(axes_, from, to))
    seconds += collective(leg.axes, leg.op, type_of(from), leg.payload * elements);
  return found->second = seconds;
}

double LayerCosts::added(AxisSet axes, double communication, double compute) {
  if (compute == 0) return communication;
  return added_by_overlap(group(axes).spans_nodes() ? cluster_.inter : cluster_.intra, communication, compute);
}

const LayerCosts::Products& LayerCosts::products(const Matrix& matrix, const LinearSharding& linear, AxisSet experts) {
  const uint64_t key = pair_key(output_of(linear), {linear.contraction, matrix.index, experts});
  const auto found = products_.find(key);
  if (found != products_.end()) return found->second;
  const auto cut = [&](double extent, AxisSet axes) {
    return std::max<int64_t>(1, static_cast<int64_t>(extent / ranks(axes)));
  };
  // A GEMM for each of this rank's matrices, with the mean of their rows.
  const double own = matrix.count / ranks(experts), rows = rows_ * matrix.active * load(experts) / own;
  const int64_t m = cut(rows, linear.rows), k = cut(matrix.in, linear.contraction), n = cut(matrix.out, linear.cols);
  const double bytes = element_ * static_cast<double>(m * k + k * n + m * n);
  const auto seconds = [&](const ProductShape& shape) {
    return own * cluster_.product_seconds(compute_, shape, bytes);
  };
  const Products times{seconds({.m = m, .k = k, .n = n}), seconds({.m = m, .k = n, .n = k, .trans_b = true}),
                       seconds({.m = k, .k = m, .n = n, .trans_a = true})};
  return products_.emplace(key, times).first->second;
}

LayerCosts::Products LayerCosts::products_next_to(Site site, const LinearSharding& linear) {
  return routes(site) ? Products() : products(matrix_of(site), linear, 0);
}

double LayerCosts::linear(Site site, const LinearSharding& linear, AxisSet experts) {
  double seconds = 0;
  for (const Matrix& matrix : matrices_.at(site))
    seconds += matrix.share * this->linear(matrix, linear, matrix.of_experts ? experts : 0);
  return seconds;
}

double LayerCosts::linear(const Matrix& matrix, LinearSharding linear, AxisSet experts) {
  if (matrix.parts.empty()) linear.cols = 0;
  const Products& time = products(matrix, linear, experts);
  double seconds = time.forward + time.dx + time.dw;
  seconds += repeated() * time.forward;
  const DType sums = accumulator_of(compute_);
  // Ranks with different experts share neither weights nor gradients.
  const AxisSet flat = linear.flat & ~experts, rows = linear.rows & ~linear.flat & ~experts;
  const double block = matrix.count * matrix.in * matrix.out / ranks(linear.contraction | linear.cols | experts);
  if (ranks(flat) > 1) {
    const double gather = collective(flat, CommOp::all_gather, compute_, block);
    const double scatter = collective(flat, CommOp::reduce_scatter, sums, block);
    // Each collective overlaps with a GEMM of the previous or next linear, which takes about as long as this linear's
    // GEMM.
    // If the matrix is kept, it is gathered once per step.
    const bool kept =
        config_.parallel.cache_layers >= config_.model.n_layer && linear.schedule == sharding::Transfer::at_once;
    seconds += added(flat, gather, time.forward) / (kept ? accumulation_ : 1) +
               (kept ? 0 : added(flat, gather, time.dx)) + added(flat, scatter, time.dx + time.dw);
  }
  const double piece = block / ranks(flat);
  // Gradients are all-reduced once per step, overlapped with the backward GEMMs of the previous layer.
  double once = traffic(OpKind::optimizer, linears_.traffic * piece);
  for (const AxisSet axes : {rows, axes_.data()})
    if (ranks(axes) > 1) once += added(axes, collective(axes, CommOp::all_reduce, sums, piece), time.dx + time.dw);
  return seconds + once / accumulation_;
}

double LayerCosts::read(Site site, const Spread& spread, const LinearSharding& linear) {
  const double elements = rows_ * matrix_of(site).in;
  const Products time = products_next_to(site, linear);
  const MatrixPlacement at = placed(spread), input = input_of(linear);
  if (routes(site) && site == Site::down) return at == input ? 0 : kIllegal;
  const double arriving = move(at, input, elements);
  const double forward =
      linear.contraction == 0 ? gather_before(site, linear, at, input, elements, time.forward) : arriving;
  return forward * (1 + repeated()) + added(moved(at, input), arriving, time.dx) +
         reduce_after(site, linear, input_gradient_of(linear), at, elements, time.dx, time.dw);
}

double LayerCosts::write(Site site, const LinearSharding& linear, const Spread& spread) {
  const double elements = rows_ * matrix_of(site).out;
  // Recomputation of a block ends before the block's last reduction, unless a norm follows it; that of a parallel block
  // before those of both branches.
  const bool ends = site == Site::down && !has_norms_after(config_.model);
  const double again = ends || (site == Site::out && has_parallel_residual(config_.model)) ? 0 : repeated();
  const Products time = products_next_to(site, linear);
  const MatrixPlacement at = placed(spread), output = output_of(linear);
  if (routes(site) && site == Site::up) return at == output ? 0 : kIllegal;
  return reduce_after(site, linear, partial_output_of(linear), at, elements, time.forward, 0) * (1 + again) +
         (linear.cols == 0 ? gather_before(site, linear, at, output, elements, time.dx) : move(at, output, elements));
}

double LayerCosts::stream(const Spread& spread) {
  const double rows = rows_ / ranks(spread.rows);
  const double part = rows * width_ / ranks(spread.cols) * element_;
  const double forward = config_.train.recompute == config::Recompute::none ? 1 + repeated() : 2;
  const double norms = place_of_norms(config_.model) == config::NormPlace::both ? 4 : 2;
  double seconds = norms * (forward * traffic(OpKind::norm, 2 * part) + traffic(OpKind::norm, 5 * part)) +
                   2 * traffic(OpKind::elementwise, 3 * part);
  if (ranks(spread.cols) > 1) {
    const DType sums = accumulator_of(compute_);
    const double planes = config_.model.family.norm == config::NormKind::rms ? 1 : 2;
    const double gathers = has_parallel_residual(config_.model) ? 1 : norms;  // both norms have the same statistics
    seconds += gathers * collective(spread.cols, CommOp::all_gather, sums, planes * rows * ranks(spread.cols)) +
               norms * collective(spread.cols, CommOp::all_reduce, sums, planes * rows);
  }
  return seconds;
}

double LayerCosts::hidden(const Spread& spread, AxisSet experts) {
  const double matrices = config_.train.recompute == config::Recompute::none ? 4 + 2 * repeated() : 6;
  const double seconds =
      traffic(OpKind::activation, matrices * rows_ * wide_ / ranks(spread.rows | spread.cols) * element_);
  return routed_ == 0 ? seconds : seconds + routed_ * routing(spread.rows, experts);
}

double LayerCosts::routing(AxisSet rows, AxisSet experts) {
  const config::Model& m = config_.model;
  const double pairs = rows_ / ranks(rows) * static_cast<double>(m.experts_per_token),
               bytes = pairs * width_ * element_;
  // Rows that are read or written: gathered for the experts (again in the backward pass) and combined, or, with an
  // exchange, gathered twice before it and twice after it.
  const bool sends = ranks(experts) > 1;
  const double forward = sends ? 9 : 3, again = sends ? 4 : 2, backward = sends ? 9 : 5;
  const double seconds =
      traffic(OpKind::elementwise, forward * bytes) + traffic(OpKind::elementwise, backward * bytes) +
      repeated() * traffic(OpKind::elementwise, again * bytes) + (1 + repeated() / 2) * counts_wait(cluster_);
  if (!sends) return seconds;
  const double sent = pairs * load(experts), all_counts = static_cast<double>(m.n_expert) * ranks(experts);
  return seconds + collective(experts, CommOp::all_gather, DType::i32, all_counts) +
         (4 + repeated()) * collective(experts, CommOp::all_to_all, compute_, sent * width_) +
         (2 + repeated()) * collective(experts, CommOp::all_to_all, accumulator_of(compute_), sent);
}

double LayerCosts::vocabulary(const Spread& stream, const sharding::VocabSpread& table) {
  const AxisSet v = table.vocab, h = table.width, f = table.flat;
  // `near` is the placement of the activations next to the table, `partial` that of partial sums over the vocabulary.
  const MatrixPlacement near{(stream.rows | f) & ~(v | h), h, 0}, partial{near.rows, h, v};
  const double elements = rows_ * width_;
  const auto [found, is_new] = tables_at_.try_emplace(pair_key(partial, {f, table.keep ? AxisSet{1} : 0, 0}), 0);
  if (is_new) found->second = next_to_table(near.rows, table);
  return found->second +
         2 * (move(placed(stream), near, elements) + move(partial, placed(stream), elements));  // head and embedding
}

double LayerCosts::next_to_table(AxisSet near, const sharding::VocabSpread& table) {
  const AxisSet v = table.vocab, h = table.width, f = table.flat;
  const int64_t m = std::max<int64_t>(1, static_cast<int64_t>(rows_ / ranks(near))),
                k = static_cast<int64_t>(width_ / ranks(h)), n = static_cast<int64_t>(vocab_ / ranks(v));
  const double bytes = element_ * static_cast<double>(m * k + k * n + m * n);
  const auto product = [&](const ProductShape& shape) { return cluster_.product_seconds(compute_, shape, bytes); };
  const DType sums = accumulator_of(compute_);
  double seconds = product({.m = m, .k = k, .n = n, .trans_b = true}) + product({.m = m, .k = n, .n = k}) +
                   product({.m = n, .k = m, .n = k, .trans_a = true});
  seconds += traffic(OpKind::loss, 3.0 * static_cast<double>(m * n) * static_cast<double>(size_of(sums)));
  if (ranks(h) > 1) seconds += collective(h, CommOp::all_reduce, sums, static_cast<double>(m * n));
  if (ranks(v) > 1) seconds += collective(v, CommOp::all_reduce, DType::f64, static_cast<double>(3 * m));
  const double block = static_cast<double>(k * n), tables = config_.model.tie_embeddings.value_or(true) ? 1 : 2;
  if (ranks(f) > 1)
    seconds += (table.keep ? tables / accumulation_ : 2) * collective(f, CommOp::all_gather, compute_, block) +
               tables * collective(f, CommOp::reduce_scatter, sums, block);
  const double piece = block / ranks(f);
  double once = 0;
  const AxisSet rows = near & ~f;
  if (ranks(rows) > 1) once += collective(rows, CommOp::all_reduce, sums, piece);
  if (ranks(axes_.data()) > 1) once += collective(axes_.data(), CommOp::all_reduce, sums, piece);
  return seconds + tables * (once + traffic(OpKind::optimizer, tables_.traffic * piece)) / accumulation_;
}

double LayerCosts::micro_seconds(const ModelSharding& layout) {
  const double tables = vocabulary(layout.head, layout.table);
  double seconds = 0;
  for (const sharding::Layer& layer : layout.layers) {
    double one = stream(layer.stream) + attention(layer.attention, layer.context) + hidden(layer.mlp, layer.experts);
    for (const auto& [site, matrices] : matrices_) {
      const LinearSharding& l = layer.at(site);
      const bool reads = reads_residual(site);
      one += linear(site, l, layer.experts) + read(site, reads ? layer.stream : layer.inside(site), l) +
             write(site, l, reads ? layer.inside(site) : layer.stream);
    }
    seconds += static_cast<double>(layer.count) * one;
  }
  const config::Parallel& p = config_.parallel;
  if (p.stages == 1) return accumulation_ * (seconds + tables);
  // The slowest stage has at least its share and whole layers; the last one also has the head.
  const double layer = seconds / static_cast<double>(config_.model.n_layer);
  const double least = std::ceil(std::max(0.0, share_ * (seconds + tables) / layer - 1e-9)) * layer;
  const double slowest = std::max(tables, std::min(least, seconds));
  const double turns = static_cast<double>(p.stages - 1) / static_cast<double>(p.chunks);
  return (accumulation_ + turns) * slowest;
}

double LayerCosts::update() const { return update_seconds(cluster_, config_, compute_, axes_); }

}  // namespace trainer::plan
