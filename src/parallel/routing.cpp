#include "parallel/routing.h"

#include <algorithm>

namespace trainer::parallel {

Routing::Routing(device::Device& device, DType accumulator, int64_t layers, int64_t experts)
    : device_(device),
      experts_(experts),
      counts_(static_cast<size_t>(layers * experts)),
      rounds_(static_cast<size_t>(layers)),
      written_(static_cast<size_t>(layers)),
      sums_(device, "data", {layers, 3}, accumulator) {}

void Routing::begin_step() {
  std::ranges::fill(counts_, 0);
  std::ranges::fill(rounds_, 0);
  for (auto& [axes, bytes] : unplanned_) bytes = 0;
  std::fill(written_.begin(), written_.end(), false);
}

void Routing::count(int64_t layer, std::span<const int32_t> counts) {
  int64_t* const own = counts_.data() + layer * experts_;
  for (size_t i = 0; i < counts.size(); ++i) own[static_cast<int64_t>(i) % experts_] += counts[i];
}

void Routing::exchanged(int64_t layer, int64_t rounds, mesh::AxisSet axes, int64_t bytes) {
  int64_t& most = rounds_[static_cast<size_t>(layer)];
  most = std::max(most, rounds);
  unplanned_[axes] += bytes;
}

Routing::Sums Routing::sums(int64_t layer) {
  const Tensor sums = sums_.tensor().row_range(layer, 1).reshape({3});
  const auto l = static_cast<size_t>(layer);
  const bool accumulate = written_[l];
  written_[l] = true;
  return {sums, accumulate};
}

RouterTerms Routing::terms() {
  RouterTerms terms;
  const Tensor& all = on_host_.get(device_, sums_);
  for (size_t layer = 0; layer < written_.size(); ++layer) {
    if (!written_[layer]) continue;
    for (size_t t = 0;
         double RouterTerms::*term : {&RouterTerms::balance, &RouterTerms::z_loss, &RouterTerms::entropy}) {
      const size_t i = 3 * layer + t++;
      terms.*term += all.dtype == DType::f64 ? all.as<double>()[i] : static_cast<double>(all.as<float>()[i]);
    }
  }
  return terms;
}

}  // namespace trainer::parallel
