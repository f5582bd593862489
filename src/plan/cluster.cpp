#include "plan/cluster.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "comm/collective.h"

namespace trainer::plan {
namespace {

/// Interpolates between points (x ascending, y) on straight lines; beyond the ends the outer lines go on, but never
/// below the first value.
double on_lines(const std::vector<std::pair<double, double>>& points, double x) {
  if (points.size() == 1) return points.front().second * std::max(1.0, x / std::max(points.front().first, 1.0));
  const auto above = std::lower_bound(points.begin() + 1, points.end() - 1, x,
                                      [](const auto& point, double value) { return point.first < value; });
  const auto& [x0, first_y] = *(above - 1);
  const auto& [x1, second_y] = *above;
  return std::max(points.front().second, first_y + (second_y - first_y) * (x - x0) / (x1 - x0));
}

/// Returns the rate of a product among measured ones: their logarithms weighted by the inverse square of the distance
/// in the logarithms of m, k and n. 0 when none of its form was measured.
double interpolated(const std::vector<ProductPoint>& points, DType compute, ProductForm form,
                    const ProductShape& product) {
  double weights = 0, sum = 0;
  const auto apart = [](double a, int64_t b) { return std::log2(a / static_cast<double>(std::max<int64_t>(b, 1))); };
  for (const ProductPoint& point : points) {
    if (point.compute != compute || point.form != form) continue;
    const double dm = apart(point.m, product.m), dk = apart(point.k, product.k), dn = apart(point.n, product.n);
    const double distance = dm * dm + dk * dk + dn * dn;
    if (distance < 1e-12) return point.flops;
    const double weight = 1 / (distance * distance);
    weights += weight;
    sum += weight * std::log(point.flops);
  }
  return weights == 0 ? 0 : std::exp(sum / weights);
}

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

double Cluster::product_seconds(DType compute, const ProductShape& product, double bytes) const {
  const double m = static_cast<double>(product.m), k = static_cast<double>(product.k),
               n = static_cast<double>(product.n), flops = 2 * m * k * n;
  if (flops == 0) return operator_seconds;
  double rate = interpolated(products, compute, form_of(product), product);
  if (rate == 0) rate = peak(compute) * efficiency * m / (m + half_m) * k / (k + half_k) * n / (n + half_n);
  return std::max(flops / rate, memory_rate > 0 ? bytes / memory_rate : 0) + operator_seconds;
}

double Cluster::operator_seconds_of(OpKind kind, DType compute, const Cost& cost) const {
  const double traffic = memory_rate > 0 ? cost.bytes / (memory_rate * memory_share) : 0;
  if (kind == OpKind::attention) return std::max(cost.flops / (peak(compute) * attention), traffic) + operator_seconds;
  return traffic + operator_seconds;
}

CollectiveTime collective_time(const Cluster& cluster, const GroupShape& group, CommOp op, DType dtype,
                               int64_t payload) {
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
  if (group.spans_nodes())
    rate = std::min(rate > 0 ? rate : 1e30,
                    cluster.inter.gb_per_s * 1e9 * group.per_node / std::max(cluster.devices_per_node, group.per_node));
  const bool reduces = op == CommOp::all_reduce || op == CommOp::reduce_scatter || op == CommOp::reduce;
  const bool gathers = op == CommOp::all_gather || op == CommOp::broadcast;
  const bool direct = (reduces && payload <= comm::kDirectElements) || (gathers && bytes <= comm::kExchangeBytes) ||
                      op == CommOp::send_recv;
  const bool chain = op == CommOp::broadcast || op == CommOp::reduce;
  const double steps = op == CommOp::send_recv ? 1
                       : direct                ? std::ceil(std::log2(g))
                                               : (op == CommOp::all_reduce ? 2.0 : 1.0) * (g - 1);
  const double sent =
      chain && !direct ? bytes : static_cast<double>(comm::wire_elements(op, g, payload) * size_of(dtype)) / g;
  return {.fixed = (link.start_us + steps * link.hop_us) * 1e-6, .busy = rate > 0 ? sent / rate : 0};
}

RingFit fit_ring(const CollectivePoint& less, const CollectivePoint& more) {
  constexpr int64_t kMany = 1 << 24;  // few elements would not go round a ring
  const double sent = static_cast<double>(comm::wire_elements(less.op, less.ranks, kMany)) /
                      static_cast<double>(less.ranks * kMany);  // of each byte, by a rank
  RingFit fit;
  fit.rate = sent * (more.bytes - less.bytes) / std::max(more.seconds - less.seconds, 1e-9);
  fit.start = less.seconds - sent * less.bytes / fit.rate;
  return fit;
}

}  // namespace trainer::plan
