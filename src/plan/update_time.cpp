#include "plan/update_time.h"

#include <algorithm>

#include "config/block_linears.h"
#include "config/layouts.h"
#include "config/resolve.h"
#include "optim/orthogonalize.h"
#include "parallel/strategy.h"
#include "plan/price.h"

namespace trainer::plan {
namespace {

bool uses_muon(const config::Config& config) { return config.optim.name == config::OptimizerName::muon; }
DType type_of_products(const config::Config& config, DType compute) {
  return config::type_of(config.muon.compute).value_or(compute);
}
/// True if every replica orthogonalizes all matrices.
bool repeats_work(const config::Config& config) {
  return config.muon.owners == config::MuonOwners::replica && config.parallel.zero_stage == 0;
}

/// Matrices of one name, in several layers.
struct Matrices {
  std::string name;
  Shape shape;
  int64_t count = 0;
};
/// Returns the matrices that Muon orthogonalizes in the first `layers` layers.
std::vector<Matrices> matrices_of(const config::Model& m, int64_t layers) {
  std::vector<Matrices> all;
  for (int64_t layer = 0; layer < layers; ++layer)
    for (const config::BlockLinear& linear : linears_of(m, layer)) {
      if (!linear.whole_matrix) continue;
      for (const config::LinearPart& part : linear.parts) {
        auto found = std::ranges::find(all, part.name, &Matrices::name);
        if (found == all.end()) found = all.insert(found, {part.name, {linear.in, part.width}});
        found->count += linear.matrices;
      }
    }
  return all;
}

double seconds_of(const Cluster& cluster, DType type, const Shape& shape, int64_t steps) {
  const auto element = static_cast<double>(size_of(type)), sum = static_cast<double>(size_of(accumulator_of(type)));
  const int64_t k = std::min(shape[0], shape[1]), n = std::max(shape[0], shape[1]);
  const auto product = [&](const ProductShape& p) {
    return cluster.product_seconds(type, p, element * static_cast<double>(p.m * p.k + p.k * p.n + p.m * p.n));
  };
  const auto combine = [&](int64_t count) {
    const double bytes = (2 * element + sum) * static_cast<double>(count);
    return cluster.seconds_of(type, {.kind = OpKind::optimizer, .cost = {0, bytes}, .product = {}, .attention = {}});
  };
  const bool wide = shape[0] <= shape[1];
  const double gram = product({.m = k, .k = n, .n = k, .trans_a = !wide, .trans_b = wide});
  const double update = product({.m = wide ? k : n, .k = k, .n = wide ? n : k});
  return static_cast<double>(steps) *
         (gram + product({.m = k, .k = k, .n = k}) + update + combine(k * k) + combine(k * n));
}

}  // namespace

std::optional<DType> type_without_peak(const Cluster& cluster, const config::Config& config, DType compute) {
  for (const DType type : {compute, uses_muon(config) ? type_of_products(config, compute) : compute})
    if (cluster.peak(type) == 0) return type;
  return std::nullopt;
}

double orthogonalization_seconds(const Cluster& cluster, const config::Config& config, DType compute) {
  if (!uses_muon(config)) return 0;
  struct Work {
    int64_t flops = 0;
    double seconds = 0;
    int64_t count = 0;
  };
  // Assigned to the ranks of the stage with most layers as optim::Ownership does.
  const int64_t layers = (config.model.n_layer + config.parallel.stages - 1) / config.parallel.stages;
  std::vector<Work> matrices;
  for (const Matrices& each : matrices_of(config.model, layers))
    matrices.push_back({optim::orthogonalize_flops(each.shape, 1),
                        seconds_of(cluster, type_of_products(config, compute), each.shape, config.muon.steps),
                        each.count});
  std::ranges::stable_sort(matrices, std::greater(), &Work::flops);
  const int64_t replicas = repeats_work(config) ? 1 : config.parallel.data;
  std::vector<Work> ranks(static_cast<size_t>(config::ranks_of_stage(config) * replicas));
  for (const Work& matrix : matrices)
    for (int64_t i = 0; i < matrix.count; ++i) {
      Work& rank = *std::ranges::min_element(ranks, {}, &Work::flops);
      rank.flops += matrix.flops;
      rank.seconds += matrix.seconds;
    }
  return std::ranges::max(ranks, {}, &Work::seconds).seconds;
}

double update_seconds(const Cluster& cluster, const config::Config& config, DType compute,
                      const sharding::ModelSharding& axes) {
  const double work = orthogonalization_seconds(cluster, config, compute);
  const bool split = config.parallel.zero_stage == 1;
  const sharding::AxisSet replica = axes.all() & ~axes.data(), among = repeats_work(config) ? replica : axes.all();
  const auto ranks = static_cast<double>(axes.ranks(among));
  if (work == 0 || ranks == 1) return work;
  // Each element is sent to its owner once, unless it is there, and from there to all ranks that store its state.
  const auto parts = static_cast<double>(axes.ranks(split ? axes.all() : replica)), copies = ranks / parts;
  double elements = 0;
  for (const Matrices& each : matrices_of(config.model, config.model.n_layer))
    elements += static_cast<double>(each.count * each.shape.count());
  elements /= static_cast<double>(config.model.n_layer);  // those in one layer
  const double layers = static_cast<double>(config.model.n_layer) / static_cast<double>(config.parallel.stages);
  const double sent = layers * elements * (1 + copies - 2 / parts);
  const GroupShape group = group_shape(cluster, parallel::mesh_shape(axes), among);
  const double exchange = collective_time(cluster, group, CommOp::all_to_all, type_of_products(config, compute),
                                          static_cast<int64_t>(sent / (ranks - 1)))
                              .total();
  return work + added_by_overlap(group.spans_nodes() ? cluster.inter : cluster.intra, exchange, work);
}

}  // namespace trainer::plan
