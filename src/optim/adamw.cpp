#include "optim/adamw.h"

#include <cmath>

namespace trainer::optim {
namespace {

Tensor piece(const Tensor& flat, int64_t offset, int64_t count) {
  if (!flat) return {};
  return {flat.data == nullptr ? nullptr : flat.data + offset * size_of(flat.dtype), {count}, flat.dtype, 0};
}

}  // namespace

ops::AdamWScalars adamw_scalars(const config::Optim& optim, double lr, int64_t t, double gradient_scale, bool decay) {
  const double steps = static_cast<double>(t);
  return {.beta1 = optim.beta1,
          .beta2 = optim.beta2,
          .inv_sqrt_correction = 1.0 / std::sqrt(1.0 - std::pow(optim.beta2, steps)),
          .eps = optim.eps,
          .negative_step = -lr / (1.0 - std::pow(optim.beta1, steps)),
          .negative_decay = decay ? -lr * optim.weight_decay : 0.0,
          .gradient_scale = gradient_scale};
}

AdamW::AdamW(const params::ParamStore& store) {
  for (params::SlotId slot = 0; slot < store.slots(); ++slot) {
    const int group = store.group_of(slot);
    const auto [offset, count] = store.range_of(slot);
    if (!ranges_.empty() && ranges_.back().group == group && ranges_.back().decay == store.decays(slot)) {
      ranges_.back().count = offset + count - ranges_.back().offset;  // the padding between slots stays zero
    } else {
      ranges_.push_back({group, offset, count, store.decays(slot)});
    }
  }
}

void AdamW::step(Exec& ex, params::ParamStore& store, const config::Optim& optim, double lr, int64_t t,
                 double gradient_scale) {
  for (const Range& range : ranges_) {
    const params::Group& group = store.groups()[static_cast<size_t>(range.group)];
    ops::run(ex, ops::AdamW{.p = piece(group.master, range.offset, range.count),
                            .m = piece(group.m, range.offset, range.count),
                            .v = piece(group.v, range.offset, range.count),
                            .g = piece(group.grad, range.offset, range.count),
                            .compute = piece(group.compute, range.offset, range.count),
                            .scalars = adamw_scalars(optim, lr, t, gradient_scale, range.decay)});
  }
  store.weights_changed();
}

}  // namespace trainer::optim
