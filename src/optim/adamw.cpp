#include "optim/adamw.h"

#include <cmath>

#include "ops/adamw.h"

namespace trainer::optim {
namespace {

/// Returns the scalars of an update, computed on the host in double precision.
/// Reference: Loshchilov & Hutter 2019, algorithm 2, with the bias corrections folded into step size and denominator.
ops::AdamWScalars scalars_of(const config::Optim& optim, const Update& update, bool decay) {
  return {.beta1 = optim.beta1,
          .beta2 = optim.beta2,
          .inv_sqrt_correction = 1.0 / std::sqrt(update.correction2),
          .eps = optim.eps,
          .negative_step = -update.lr / update.correction1,
          .negative_decay = decay ? -update.lr * optim.weight_decay : 0.0,
          .gradient_scale = update.gradient_scale,
          .t = update.t};
}

class AdamWUpdater final : public Updater {
 public:
  AdamWUpdater(const AdamW& rule, params::ParamStore& store, Selection selection)
      : rule_(rule), store_(store), selection_(std::move(selection)) {}

  void finish(Exec& ex, const Update& update, int index) override {
    this->update(ex, update, index, store_.groups()[static_cast<size_t>(index)].held);
  }

  void update(Exec& ex, const Update& update, int index, comm::Chunk within) override {
    const params::Group& group = store_.groups()[static_cast<size_t>(index)];
    selection_.each(index, within, [&](comm::Chunk part, bool decay) {
      const Tensor states[] = {group.state("m", part), group.state("v", part)};
      rule_.update(ex, update, decay,
                   {.p = group.master_of(part),
                    .states = states,
                    .g = group.grad.range(part.begin, part.count),
                    .compute = group.compute.tensor().range(part.begin, part.count),
                    .whole = within.count < group.held.count ? group.held.count : 0});
    });
  }

 private:
  const AdamW& rule_;
  params::ParamStore& store_;
  const Selection selection_;
};

}  // namespace

Update make_update(const config::Optim& optim, double lr, int64_t t, double gradient_scale) {
  const auto steps = static_cast<double>(t);
  return {.lr = lr,
          .t = t,
          .gradient_scale = gradient_scale,
          .correction1 = 1.0 - std::pow(optim.beta1, steps),
          .correction2 = 1.0 - std::pow(optim.beta2, steps)};
}

int64_t AdamW::traffic() const { return 3 * size_of(state_) + 2 * state_bytes(*this); }

std::unique_ptr<Updater> AdamW::make(params::ParamStore& store, Selection selection) const {
  return std::make_unique<AdamWUpdater>(*this, store, std::move(selection));
}

void AdamW::update(Exec& ex, const Update& update, bool decay, const UpdateRange& range) const {
  ops::run(ex, ops::AdamW{.p = range.p,
                          .m = range.states[0],
                          .v = range.states[1],
                          .g = range.g,
                          .compute = range.compute,
                          .scalars = scalars_of(optim_, update, decay),
                          .round_gradient = round_gradients_ && range.g.dtype != DType::bf16,
                          .whole = range.whole});
}

}  // namespace trainer::optim
