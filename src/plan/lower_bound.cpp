#include "plan/lower_bound.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

namespace trainer::plan {

double least_words(const Product& product, int64_t ranks) {
  std::array<double, 3> sorted = {product.m, product.k, product.n};
  std::ranges::sort(sorted, std::greater<>());
  const auto [a, b, c] = sorted;
  const auto p = static_cast<double>(ranks);
  const double needed = p <= a / b           ? (a * b + a * c) / p + b * c
                        : p <= a * b / c / c ? 2 * c * std::sqrt(a * b / p) + a * b / p
                                             : 3 * std::pow(a * b * c / p, 2.0 / 3);
  return needed - (a * b + a * c + b * c) / p;
}

}  // namespace trainer::plan
