// The table of elementwise rules.
#include <cmath>

#include "optim/elementwise.h"

namespace trainer::optim {
namespace {

std::optional<Agreed> adamw_agreed(const Settings& settings, int64_t t) {
  const auto steps = static_cast<double>(t);
  return Agreed{1.0 - std::pow(settings.optim.beta1, steps), 1.0 - std::pow(settings.optim.beta2, steps)};
}
void adamw_scalars(const Settings& settings, const Update& update, const Step& step, double* k) {
  using K = ops::rules::AdamW;
  const config::Optim& optim = settings.optim;
  k[K::b1] = optim.beta1;
  k[K::b2] = optim.beta2;
  k[K::ob1] = 1 - optim.beta1;
  k[K::ob2] = 1 - optim.beta2;
  k[K::isq2] = 1.0 / std::sqrt(update.agreed[1]);
  k[K::eps] = optim.eps;
  k[K::nstep] = -step.lr / update.agreed[0];
  k[K::nwd] = step.negative_decay;
  k[K::floor] = step.floor;
}

bool is_sgd(const Settings& settings) { return settings.optim.name == config::OptimizerName::sgd; }
std::optional<Agreed> none_agreed(const Settings&, int64_t) { return {}; }
void sgd_scalars(const Settings& settings, const Update&, const Step& step, double* k) {
  using K = ops::rules::Sgd;  // as the other two
  k[K::mu] = settings.sgd.momentum;
  k[K::nstep] = -step.lr;
  k[K::nwd] = step.negative_decay;
  k[K::floor] = step.floor;
}

constexpr Row kRows[] = {
    {ops::RuleId::Sgd, "sgd", [](const Settings& s) { return is_sgd(s) && s.sgd.momentum == 0; }, none_agreed,
     sgd_scalars},
    {ops::RuleId::SgdMomentum, "sgd", [](const Settings& s) { return is_sgd(s) && !s.sgd.nesterov; }, none_agreed,
     sgd_scalars},
    {ops::RuleId::SgdNesterov, "sgd", is_sgd, none_agreed, sgd_scalars},
    {ops::RuleId::AdamW, "adamw", [](const Settings&) { return true; }, adamw_agreed, adamw_scalars},
};

}  // namespace

std::span<const Row> rows() { return kRows; }

}  // namespace trainer::optim
