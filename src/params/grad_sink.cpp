#include "params/grad_sink.h"

#include <algorithm>
#include <cmath>

#include "ops/adamw.h"

namespace trainer::params {
namespace {

template <typename T>
bool any_nonfinite(const T* values, const mesh::Run& run) {
  for (int64_t i = 0; i < run.length; ++i)
    if (!std::isfinite(values[run.local + i * run.stride])) return true;
  return false;
}

}  // namespace

GradSink::GradSink(ParamStore& store)
    : store_(store), written_(static_cast<size_t>(store.slots())), sums_(store.groups().size()) {}

void GradSink::prepare(device::Device& device) {
  const int replicas = store_.replicas().count();
  int64_t blocks = 0;
  for (const Group& group : store_.groups()) {
    offsets_.push_back(blocks);
    blocks += divide_up(divide_up(group.elements, replicas), ops::kNormBlock);  // of the largest chunk
  }
  blocks_ = Buffer(device, "gradients", {replicas, blocks}, DType::f64);
  bad_ = Buffer(device, "gradients", {1}, DType::f64);
}

void GradSink::begin_step() { std::fill(written_.begin(), written_.end(), char{0}); }

GradSlot GradSink::slot(SlotId id) {
  const bool accumulate = std::exchange(written_[static_cast<size_t>(id)], char{1}) != 0;
  return {store_.gradient(id), accumulate};
}

void GradSink::group_done(Exec& ex, int index) {
  const Replicas& replicas = store_.replicas();
  if (!last_ || replicas.count() == 1) return;
  const Group& group = store_.groups()[static_cast<size_t>(index)];
  const Tensor grad = group.grad;
  comm::Ticket& sum = sums_[static_cast<size_t>(index)];
  sum = replicas.split_state
            ? replicas.grads->reduce_scatter(ex, grad, grad.range(group.owned.begin, group.owned.count))
            : replicas.grads->all_reduce(ex, grad);
}

GradNorm GradSink::finish(Exec& ex) {
  const Replicas& replicas = store_.replicas();
  const Tensor all = blocks_, own = all.row_range(replicas.index(), 1);
  // The groups' reductions end in the order they were started: the last group first.
  for (size_t g = sums_.size(); g-- > 0;) {
    if (sums_[g].open()) sums_[g].join(ex);
    const Group& group = store_.groups()[g];
    ops::run(ex, ops::SquaredNorm{
                     group.grad.tensor().range(group.owned.begin, group.owned.count),
                     own.reshape({own.count()}).range(offsets_[g], divide_up(group.owned.count, ops::kNormBlock))});
  }
  if (replicas.count() > 1)
    replicas.control->all_gather(ex, own.reshape({own.count()}), all.reshape({all.count()})).join(ex);
  GradNorm result;
  if (ex.device.dry()) return result;
  double squares = 0;
  for (size_t g = 0; g < offsets_.size(); ++g) {
    const int64_t end = g + 1 < offsets_.size() ? offsets_[g + 1] : all.cols();
    for (int replica = 0; replica < replicas.count(); ++replica)
      for (int64_t block = offsets_[g]; block < end; ++block) squares += all.as<double>()[replica * all.cols() + block];
  }
  result.norm = std::sqrt(squares);
  if (!std::isfinite(squares)) {
    const int64_t bad = first_bad(ex);
    result.bad_tensor = bad < static_cast<int64_t>(store_.params().size())
                            ? store_.params()[static_cast<size_t>(bad)].name
                            : "the sum of squares (overflow)";
  }
  return result;
}

int64_t GradSink::first_bad(Exec& ex) const {
  const auto params = static_cast<int64_t>(store_.params().size());
  int64_t first = 0;
  for (; first < params; ++first) {
    const Param& param = store_.params()[static_cast<size_t>(first)];
    const Group& group = store_.groups()[static_cast<size_t>(param.group)];
    const Tensor owned = group.grad.tensor().range(group.owned.begin, group.owned.count);
    const auto bad = [&](const mesh::Run& run) {
      return owned.dtype == DType::f64 ? any_nonfinite(owned.as<double>(), run) : any_nonfinite(owned.as<float>(), run);
    };
    if (std::ranges::any_of(mesh::clip_runs(param.runs, group.owned.begin, group.owned.count), bad)) break;
  }
  if (store_.replicas().count() == 1) return first;
  double& least = *bad_.tensor().as<double>();
  least = -static_cast<double>(first);
  store_.replicas().control->all_reduce(ex, bad_, comm::Reduce::max).join(ex);
  return static_cast<int64_t>(-least);
}

}  // namespace trainer::params
