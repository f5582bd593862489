#pragma once
// One rank: every tensor is whole. The other strategies are this file cut into pieces with communication between them.
#include "parallel/strategy.h"

namespace trainer::parallel {

class Serial final : public Strategy {
 public:
  explicit Serial(ParamStore& store) : store_(store) {}

  Tile residual(int, const Batch& batch) const override { return {.rows = batch.rows()}; }
  Heads heads(int64_t heads) const override { return {0, heads}; }
  std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec) override;
  std::unique_ptr<Norm> norm(int layer, int group, const NormSpec& spec) override;
  std::unique_ptr<Embedding> embedding(int group, const EmbeddingSpec& spec) override;
  std::unique_ptr<Head> head(int group, const EmbeddingSpec& spec, bool tied) override;

 private:
  ParamStore& store_;
  params::SlotId table_ = -1;
};

}  // namespace trainer::parallel
