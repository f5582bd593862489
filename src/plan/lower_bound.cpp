#include "plan/lower_bound.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>

namespace trainer::plan {
namespace {

/// Words of all operands that a rank holds.
double held(const Product& p, double ranks) { return (p.m * p.k + p.k * p.n + p.m * p.n) / ranks; }

}  // namespace

double least_words(const Product& product, int64_t ranks) {
  std::array<double, 3> sorted = {product.m, product.k, product.n};
  std::ranges::sort(sorted, std::greater<>());
  const auto [a, b, c] = sorted;
  const auto p = static_cast<double>(ranks);
  const double needed = p <= a / b           ? (a * b + a * c) / p + b * c
                        : p <= a * b / c / c ? 2 * c * std::sqrt(a * b / p) + a * b / p
                                             : 3 * std::pow(a * b * c / p, 2.0 / 3);
  return needed - held(product, p);
}

double grid_words(const Product& product, const Grid& grid) {
  const auto rows = static_cast<double>(grid.rows), cols = static_cast<double>(grid.cols),
             depth = static_cast<double>(grid.depth);
  return product.m * product.k / (rows * depth) + product.k * product.n / (cols * depth) +
         product.m * product.n / (rows * cols) - held(product, rows * cols * depth);
}

Grid best_grid(const Product& product, int64_t ranks) {
  Grid best;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t rows = 1; rows <= ranks; ++rows) {
    if (ranks % rows != 0) continue;
    for (int64_t cols = 1; cols <= ranks / rows; ++cols) {
      if (ranks / rows % cols != 0) continue;
      const Grid grid{rows, cols, ranks / rows / cols};
      const double words = grid_words(product, grid);
      if (words >= least) continue;
      least = words;
      best = grid;
    }
  }
  return best;
}

}  // namespace trainer::plan
