#include "train/rank_scalars.h"

#include <algorithm>
#include <vector>

namespace trainer::train {

RankScalars::RankScalars(device::Device& device, Arena& arena, Meter& meter, mesh::Mesh& mesh, mesh::AxisSet loss_axes)
    : device_(device),
      arena_(arena),
      meter_(meter),
      mesh_(mesh),
      loss_axes_(loss_axes),
      values_(device, "data", {kMost}, DType::f64) {}

mesh::AxisSet RankScalars::row_axes() const { return mesh_.shape().set("data") | loss_axes_; }
mesh::AxisSet RankScalars::replica_axes() const { return mesh_.shape().all() & ~mesh_.shape().set("data"); }

void RankScalars::make_communicators() {
  for (const mesh::AxisSet axes : {row_axes(), mesh_.shape().all(), replica_axes()})
    mesh_.along(axes, comm::Purpose::control);
}

void RankScalars::exchange(mesh::AxisSet axes, std::span<double> values, std::optional<comm::Reduce> how, int root) {
  if (mesh_.along(axes, comm::Purpose::control).size() == 1) return;
  const Tensor scalars = values_.tensor().range(0, static_cast<int64_t>(values.size()));
  device_.copy_to_device(scalars.data, values.data(), scalars.bytes());
  Exec ex{device_, arena_, meter_};
  run(ex, axes, scalars.count(), how, root);
  device_.copy_to_host(values.data(), scalars.data, scalars.bytes());
}

void RankScalars::run(Exec& ex, mesh::AxisSet axes, int64_t values, std::optional<comm::Reduce> how, int root) {
  comm::Communicator& ranks = mesh_.along(axes, comm::Purpose::control);
  const Tensor scalars = values_.tensor().range(0, values);
  (how ? ranks.all_reduce(ex, scalars, *how) : ranks.broadcast(ex, scalars, root)).join(ex);
}

int RankScalars::sum_over_rows(std::span<double> values) {
  exchange(row_axes(), values, comm::Reduce::sum);
  return mesh_.shape().group_size(row_axes());
}

void RankScalars::max_over_ranks(std::span<double> values) { exchange(mesh_.shape().all(), values, comm::Reduce::max); }

bool RankScalars::is_true_on_any_rank(bool flag) {
  double value = flag;
  max_over_ranks({&value, 1});
  return value > 0;
}

void RankScalars::take_from_first_rank(std::span<double> values) { exchange(mesh_.shape().all(), values, {}); }

void RankScalars::broadcast_in_replica(std::span<int64_t> values) {
  const int ranks = mesh_.shape().group_size(replica_axes());
  const int root = mesh_.shape().has("stage") ? ranks - ranks / mesh_.size("stage") : 0;
  std::vector<double> numbers(values.begin(), values.end());  // doubles are exact below 2^53
  for (size_t at = 0; at < numbers.size(); at += kMost)
    exchange(replica_axes(), std::span(numbers).subspan(at, std::min<size_t>(kMost, numbers.size() - at)), {}, root);
  std::ranges::copy(numbers, values.begin());
}

bool RankScalars::is_first_of_replica() const { return mesh_.shape().index(mesh_.rank(), loss_axes_) == 0; }

}  // namespace trainer::train
