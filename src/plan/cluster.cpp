#include "plan/cluster.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "comm/collective.h"

namespace trainer::plan {
namespace {

/// Interpolates linearly between points (x ascending, y). Beyond the ends it extrapolates from the outermost segments,
/// but never returns less than the first value.
double on_lines(const std::vector<std::pair<double, double>>& points, double x) {
  if (points.size() == 1) return points.front().second * std::max(1.0, x / std::max(points.front().first, 1.0));
  const auto above = std::lower_bound(points.begin() + 1, points.end() - 1, x,
                                      [](const auto& point, double value) { return point.first < value; });
  const auto& [x0, first_y] = *(above - 1);
  const auto& [x1, second_y] = *above;
  return std::max(points.front().second, first_y + (second_y - first_y) * (x - x0) / (x1 - x0));
}

/// RateBetween interpolates measured rates: it averages their logarithms, weighted by the inverse fourth power of the
/// distance in log extents.
template <size_t kExtents>
class RateBetween {
 public:
  using Extents = std::array<double, kExtents>;
  explicit RateBetween(const Extents& target) : target_(target) {}
  void add(const Extents& measured, double rate) {
    double distance = 0;  // squared
    for (size_t i = 0; i < kExtents; ++i) {
      const double apart = std::log2(measured[i] / std::max(target_[i], 1.0));
      distance += apart * apart;
    }
    const double weight = 1 / std::max(distance * distance, 1e-24);  // an exact match outweighs all other points
    weights_ += weight;
    sum_ += weight * std::log(rate);
  }
  /// Returns 0 if no rates were added.
  double rate() const { return weights_ == 0 ? 0 : std::exp(sum_ / weights_); }

 private:
  Extents target_;
  double weights_ = 0, sum_ = 0;
};

}  // namespace

std::string_view name_of(ProductForm form) {
  static constexpr std::string_view names[] = {"forward", "dx", "dw"};
  return names[static_cast<size_t>(form)];
}

ProductForm form_of(const ProductShape& product) {
  return product.trans_a ? ProductForm::dw : product.trans_b ? ProductForm::dx : ProductForm::forward;
}

double Cluster::peak(DType compute) const {
  const auto found = peaks.find(compute);
  return found == peaks.end() ? 0 : found->second;
}

double Cluster::measured_rate(DType compute, const ProductShape& product) const {
  RateBetween<3> rate({static_cast<double>(product.m), static_cast<double>(product.k), static_cast<double>(product.n)});
  const ProductForm form = form_of(product);
  for (const ProductPoint& point : products)
    if (point.compute == compute && point.form == form) rate.add({point.m, point.k, point.n}, point.flops);
  return rate.rate();
}

double Cluster::measured_rate(DType compute, const AttentionExtents& extents) const {
  // Beyond the measured range rates hardly change, so extents are clamped to it.
  std::vector<const AttentionPoint*> points;
  for (const AttentionPoint& point : attentions)
    if (point.compute == compute && point.backward == extents.backward) points.push_back(&point);
  if (points.empty()) return 0;
  const auto within = [&](double target, double AttentionPoint::*extent) {
    const auto [least, most] =
        std::ranges::minmax(points, {}, [&](const AttentionPoint* point) { return point->*extent; });
    return std::clamp(target, least->*extent, most->*extent);
  };
  RateBetween<2> rate({within(static_cast<double>(extents.length), &AttentionPoint::length),
                       within(static_cast<double>(extents.head_dim), &AttentionPoint::head_dim)});
  for (const AttentionPoint* point : points) rate.add({point->length, point->head_dim}, point->flops);
  return rate.rate();
}

double Cluster::tiled_seconds(DType compute, const ProductShape& product) const {
  const double m = static_cast<double>(product.m), k = static_cast<double>(product.k),
               n = static_cast<double>(product.n), unit_rate = peak(compute) * efficiency / units;
  // Smaller tiles leave fewer units idle, but load more operand bytes per FLOP. Split-K produces more tiles of the same
  // size, whose fp32 partial sums are written to memory and read back.
  struct Tile {
    double m, n, share;  // share of the largest tile's rate, as is typical of GEMM libraries
  };
  double least = std::numeric_limits<double>::infinity();
  for (const Tile& tile : {Tile{tile_m, tile_n, 1}, Tile{tile_n, tile_m, 1}, Tile{tile_m / 2, tile_n, 0.9},
                           Tile{tile_m / 2, tile_n / 2, 0.8}, Tile{tile_m / 4, tile_n / 2, 0.65}})
    for (double parts = 1; parts <= 16 && (parts == 1 || k / parts >= 256); parts *= 2) {
      const double tiles = std::ceil(m / tile.m) * std::ceil(n / tile.n) * parts;
      const double flops = 2 * tile.m * tile.n * (k / parts + half_k);
      const double sums = parts > 1 && memory_rate > 0 ? 8 * m * n * parts / memory_rate : 0;
      least = std::min(least, std::ceil(tiles / units) * flops / (unit_rate * tile.share) + sums);
    }
  return least;
}

double Cluster::product_seconds(DType compute, const ProductShape& product, double bytes) const {
  const double m = static_cast<double>(product.m), k = static_cast<double>(product.k),
               n = static_cast<double>(product.n), flops = 2 * m * k * n;
  if (flops == 0) return operator_seconds;
  double rate = measured_rate(compute, product) * in_step[static_cast<size_t>(form_of(product))];
  if (rate == 0) rate = peak(compute) * efficiency * m / (m + half_m) * k / (k + half_k) * n / (n + half_n);
  const double seconds = units > 0 && products.empty() ? tiled_seconds(compute, product) : flops / rate;
  return std::max(seconds, memory_rate > 0 ? bytes / memory_rate : 0) + operator_seconds;
}

double Cluster::seconds_of(DType compute, const OpCall& call) const {
  if (is_product(call.kind)) {
    const auto repeats = static_cast<double>(call.repeats);
    return repeats * product_seconds(compute, call.product, call.cost.bytes / repeats);
  }
  if (const auto found = operators.find(call.kind); found != operators.end())
    return call.cost.bytes / found->second + operator_seconds;
  const double traffic = memory_rate > 0 ? call.cost.bytes / (memory_rate * memory_share) : 0;
  if (call.kind != OpKind::attention) return traffic + operator_seconds;
  double rate = measured_rate(compute, call.attention) * attention_in_step;
  if (rate == 0) rate = peak(compute) * attention;
  return std::max(call.cost.flops / rate, traffic) + operator_seconds;
}

CollectiveTime collective_time(const Cluster& cluster, const GroupShape& along, CommOp op, DType dtype,
                               int64_t payload) {
  const GroupShape neighbours{.ranks = std::min(along.ranks, 2), .per_node = along.spans_nodes() ? 1 : 2};
  const GroupShape& group = op == CommOp::send ? neighbours : along;
  const int g = group.ranks;
  if (g <= 1 || payload == 0) return {};
  const double bytes = static_cast<double>(payload * size_of(dtype));
  std::vector<std::pair<double, double>> points;
  for (const CollectivePoint& point : cluster.collectives)
    if (point.op == op && point.ranks == g && point.per_node == group.per_node)
      points.emplace_back(point.bytes, point.seconds);
  const Link& link = group.spans_nodes() ? cluster.inter : cluster.intra;
  if (!points.empty()) {
    std::ranges::sort(points);
    const double total = on_lines(points, bytes), fixed = std::min(total, points.front().second);
    return {.fixed = fixed, .busy = total - fixed, .measured = true};
  }
  double rate = cluster.intra.gb_per_s * 1e9;
  // A message of one device to another node cannot use the shares of the node's other devices.
  const int senders = op == CommOp::shift ? 1 : group.per_node;
  if (group.spans_nodes())
    rate = std::min(rate > 0 ? rate : 1e30,
                    cluster.inter.gb_per_s * 1e9 * senders / std::max(cluster.devices_per_node, senders));
  const bool reduces = op == CommOp::all_reduce || op == CommOp::reduce_scatter || op == CommOp::reduce;
  const bool gathers = op == CommOp::all_gather || op == CommOp::broadcast;
  const bool direct = (reduces && payload <= comm::kDirectElements) || (gathers && bytes <= comm::kExchangeBytes);
  const int nodes = (g + group.per_node - 1) / group.per_node, rounds = op == CommOp::all_reduce ? 2 : 1;
  const auto levels = [](int ranks) { return static_cast<int>(std::ceil(std::log2(ranks))); };
  int steps = op == CommOp::shift ? 1 : rounds * (g - 1),
      crossings = std::min(steps, rounds * nodes);  // steps of a ring or a chain
  if (op == CommOp::all_to_all) crossings = g - group.per_node;
  if (direct) steps = levels(g), crossings = std::min(steps, levels(nodes));
  if (!group.spans_nodes()) crossings = 0;
  const auto latency = [&](int inner, int outer) {
    return (link.start_us + inner * cluster.intra.hop_us + outer * cluster.inter.hop_us) * 1e-6;
  };
  const bool chain = op == CommOp::broadcast || op == CommOp::reduce || op == CommOp::send;
  const double sent =
      chain && !direct ? bytes : static_cast<double>(comm::wire_elements(op, g, payload) * size_of(dtype)) / g;
  const auto seconds_of = [&](double moved) { return rate > 0 ? moved / rate : 0; };
  const CollectiveTime ring{.fixed = latency(steps - crossings, crossings), .busy = seconds_of(sent)};
  if (cluster.cpu || direct || op != CommOp::all_reduce) return ring;
  const CollectiveTime tree{.fixed = latency(2 * levels(group.per_node), 2 * levels(nodes)),
                            .busy = seconds_of(2 * bytes)};
  return tree.total() < ring.total() ? tree : ring;
}

double fitted_rate(const CollectivePoint& less, const CollectivePoint& more) {
  constexpr int64_t kMany = 1 << 24;  // fewer elements would not use a ring
  const double sent = static_cast<double>(comm::wire_elements(less.op, less.ranks, kMany)) /
                      static_cast<double>(less.ranks * kMany);  // bytes that a rank sends per byte of payload
  return sent * (more.bytes - less.bytes) / std::max(more.seconds - less.seconds, 1e-9);
}

}  // namespace trainer::plan
