#pragma once
// Shapes: up to four int64 extents, row-major. The same letters denote sizes everywhere: B sequences, S positions, N =
// B·S token rows, H hidden, F feed-forward, V vocabulary, A heads, D head size, L layers.
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace trainer {

class Shape {
 public:
  static constexpr int kMaxDims = 4;

  Shape() = default;
  Shape(std::initializer_list<int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}
  explicit Shape(std::span<const int64_t> extents) {
    TRAINER_CHECK(extents.size() <= kMaxDims, "a shape has at most {1} dimensions, not {0}", extents.size(), kMaxDims);
    for (int64_t extent : extents) extents_[static_cast<size_t>(dims_++)] = extent;
  }

  int dims() const { return dims_; }
  std::vector<int64_t> extents() const { return {extents_.begin(), extents_.begin() + dims_}; }
  /// Returns the shape with a different extent in one dimension.
  Shape with(int dim, int64_t extent) const {
    Shape next = *this;
    next.extents_[static_cast<size_t>(dim)] = extent;
    return next;
  }
  int64_t operator[](int dim) const { return extents_[static_cast<size_t>(dim < 0 ? dims_ + dim : dim)]; }
  int64_t count() const {
    int64_t product = 1;
    for (int dim = 0; dim < dims_; ++dim) product *= extents_[static_cast<size_t>(dim)];
    return dims_ == 0 ? 0 : product;
  }
  bool operator==(const Shape&) const = default;

 private:
  std::array<int64_t, kMaxDims> extents_{};
  int dims_ = 0;
};

/// Returns text such as "[4096, 768]".
std::string to_string(const Shape& shape);

constexpr int64_t divide_up(int64_t value, int64_t by) { return (value + by - 1) / by; }
constexpr int64_t round_up(int64_t value, int64_t multiple) { return divide_up(value, multiple) * multiple; }

}  // namespace trainer
