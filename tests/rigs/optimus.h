#pragma once
// Tiny models for tests of Optimus-2D.
#include <ostream>

#include "rigs/layouts.h"

namespace trainer::tests {

struct Square {
  int64_t q = 1, depth = 1, data = 1;
  config::Arch arch = config::Arch::gpt2;
  config::Stationary stationary = config::Stationary::automatic;
  std::vector<int64_t> tile = {1, 1};
  config::Panels panels = config::Panels::ring;
  int64_t ranks() const { return q * q * depth * data; }
};
inline std::string to_string(const Square& s) {
  return format("Q{}Depth{}Data{}{}{}{}Tile{}x{}", s.q, s.depth, s.data,
                s.arch == config::Arch::gpt2 ? "Gpt2" : "Llama",
                s.stationary == config::Stationary::automatic ? "Auto" : "Paper",
                s.panels == config::Panels::ring ? "Ring" : "Gather", s.tile[0], s.tile[1]);
}
inline std::ostream& operator<<(std::ostream& out, const Square& s) { return out << to_string(s); }

/// Llama has two key/value heads, or one if q = 3; more ranks than that share them. With fewer than 12 ranks, a step
/// has two micro-batches.
inline config::Config configure(const Square& s) {
  config::Config c = wide_config(s.arch, s.q == 3 ? 1 : 2);
  c.train.micro_batch = s.q * s.depth;
  c.train.global_batch = s.q * s.depth * s.data * (s.ranks() < 12 ? 2 : 1);
  c.parallel.strategy = config::StrategyName::optimus_2d;
  c.parallel.mesh = s.depth == 1 ? std::vector<int64_t>{s.q, s.q} : std::vector<int64_t>{s.q, s.q, s.depth};
  c.parallel.stationary = s.stationary;
  c.parallel.panels = s.panels;
  c.parallel.node_tile = s.tile;
  c.parallel.data = s.data;
  return c;
}

}  // namespace trainer::tests
