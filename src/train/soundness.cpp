#include "train/soundness.h"

#include <cmath>
#include <vector>

#include "ops/squared_norm.h"

namespace trainer::train {

bool weights_are_finite(ModelRunner& runner) {
  runner.store().settle();
  device::Device& home = runner.store().home();
  Exec ex{home, runner.arena(), runner.meter()};
  bool finite = true;
  for (const params::Group& group : runner.store().groups()) {
    const Tensor weights = group.master.tensor();
    if (weights.count() == 0) continue;
    const Buffer sums(home, "data", {divide_up(weights.count(), ops::kNormBlock)}, DType::f64);
    ops::run(ex, ops::SquaredNorm{.x = weights, .blocks = sums.tensor()});
    std::vector<double> squares(static_cast<size_t>(sums.tensor().count()));
    home.copy_to_host(squares.data(), sums.tensor().data, sums.tensor().bytes());
    for (const double square : squares) finite &= std::isfinite(square);
  }
  return !runner.scalars().is_true_on_any_rank(!finite);
}

}  // namespace trainer::train
