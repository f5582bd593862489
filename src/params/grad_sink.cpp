#include "params/grad_sink.h"

#include <algorithm>
#include <cmath>

#include "ops/adamw.h"

namespace trainer::params {
namespace {

template <typename T>
bool any_nonfinite(const T* values, const mesh::Run& run) {
  return std::any_of(values + run.local, values + run.local + run.length, [](T x) { return !std::isfinite(x); });
}

/// First parameter with a non-finite gradient; only called once the norm says there is one.
std::string first_bad(const ParamStore& store) {
  for (const Param& param : store.params()) {
    const Tensor grad = store.groups()[static_cast<size_t>(param.group)].grad;
    for (const mesh::Run& run : param.runs)
      if (grad.dtype == DType::f64 ? any_nonfinite(grad.as<double>(), run) : any_nonfinite(grad.as<float>(), run))
        return param.name;
  }
  return "the sum of squares (overflow)";
}

}  // namespace

GradSink::GradSink(ParamStore& store) : store_(store), written_(static_cast<size_t>(store.slots())) {}

void GradSink::prepare(device::Device& device) {
  for (const Group& group : store_.groups())
    blocks_.emplace_back(device, "gradients", Shape{divide_up(group.elements, ops::kNormBlock)}, DType::f64);
}

void GradSink::begin_step() { std::fill(written_.begin(), written_.end(), char{0}); }

GradSlot GradSink::slot(SlotId id) {
  const bool accumulate = std::exchange(written_[static_cast<size_t>(id)], char{1}) != 0;
  return {store_.gradient(id), accumulate};
}

GradNorm GradSink::finish(Exec& ex) {
  GradNorm result;
  double squares = 0;
  for (size_t g = 0; g < blocks_.size(); ++g) {
    const Tensor blocks = blocks_[g];
    ops::run(ex, ops::SquaredNorm{store_.groups()[g].grad, blocks});
    if (ex.device.dry()) continue;
    for (const double block : blocks.span<double>()) squares += block;
  }
  result.norm = std::sqrt(squares);
  if (!std::isfinite(squares)) result.bad_tensor = first_bad(store_);
  return result;
}

}  // namespace trainer::params
