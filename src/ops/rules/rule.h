#pragma once
// The interface of rules. A rule is the formula of one element's update, written once for all devices: a
// struct with
//   name      for messages
//   flops     operations per element, for costs
//   states    its states in their order, each with the way in which it is rounded where it is stored in bf16
//   scalars   the number of its scalars; an enumeration gives them names
//   element   updates the states in place and returns the new weight, from the scalars k, the weight p, the states s
//             and the gradient g, which is scaled already
// M has the operations that are rounded once on every device: fused(a, b, c) = a·b + c; square_root(x);
// where_at_least(x, floor, y): y, or 0 where x is below floor, a scalar of the rule. Besides them a rule may use *, /
// and unary minus only, and no constants: all scalars are computed on the host in double, and then rounded to T. So all
// devices compute the same bits.
#include <array>
#include <cstddef>

#if defined(__CUDACC__)
#define TRAINER_ELEMENTWISE __host__ __device__ inline
#else
#define TRAINER_ELEMENTWISE [[gnu::always_inline]] inline
#endif

namespace trainer::ops::rules {

/// stochastic: up or down at random bits (ops/update.h), for averages that change by less than half a unit in the last
/// place, which rounding to nearest would freeze.
enum class Narrow { nearest, stochastic };
struct StateRule {
  const char* suffix;  // the state is stored in checkpoints as NAME#suffix
  Narrow narrow;
};

}  // namespace trainer::ops::rules
