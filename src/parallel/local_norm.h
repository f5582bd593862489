#pragma once
// A norm whose ranks hold whole rows: nothing is communicated but the gradients of gain and bias, where ranks of a
// replica hold different rows.
#include "parallel/strategy.h"

namespace trainer::parallel {

/// `sum_over`: axes whose ranks hold different rows (params::Part::sum_over).
std::unique_ptr<Norm> local_norm(ParamStore& store, int group, const NormSpec& spec, mesh::AxisSet sum_over = 0);

}  // namespace trainer::parallel
