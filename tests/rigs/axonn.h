#pragma once
// Tiny models for tests of AxoNN-4D.
#include <ostream>

#include "rigs/layouts.h"

namespace trainer::tests {

struct AxonnGrid {
  int64_t x = 1, y = 1, z = 1, data = 1;
  config::Arch arch = config::Arch::gpt2;
  config::AxisOrder order = config::AxisOrder::yxzd;
  config::VocabAxes vocab_axes = config::VocabAxes::x;
};
inline std::string to_string(const AxonnGrid& g) {
  return format("X{}Y{}Z{}Data{}{}{}{}", g.x, g.y, g.z, g.data, g.arch == config::Arch::gpt2 ? "Gpt2" : "Llama",
                g.order == config::AxisOrder::yxzd ? "" : config::kAxisOrderNames[static_cast<size_t>(g.order)],
                g.vocab_axes == config::VocabAxes::x ? "" : "VocabXY");
}
inline std::ostream& operator<<(std::ostream& out, const AxonnGrid& g) { return out << to_string(g); }

/// Llama has two key/value heads, or three if x = 3; more ranks than that share them.
inline config::Config configure(const AxonnGrid& g) {
  config::Config c = wide_config(g.arch, g.x == 3 ? 3 : 2);
  c.train.micro_batch = g.z;
  c.train.global_batch = g.z * g.data * (g.z * g.data < 4 ? 2 : 1);
  c.parallel.strategy = config::StrategyName::axonn_4d;
  c.parallel.grid = {g.x, g.y, g.z};
  c.parallel.order = g.order;
  c.parallel.vocab_axes = g.vocab_axes;
  c.parallel.data = g.data;
  return c;
}

}  // namespace trainer::tests
