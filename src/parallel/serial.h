#pragma once
// Serial: the strategy of one rank. Every tensor is complete, and its linear has no communication.
#include "parallel/strategy.h"

namespace trainer::parallel {

class Serial final : public Strategy {
 public:
  explicit Serial(ParamStore& store) : Strategy(store, Ranks()) {}

  Spread stream(int) const override { return {}; }
  Spread attention(int) const override { return {}; }
  VocabSpread vocab() const override { return {}; }
  std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec) override;
};

}  // namespace trainer::parallel
