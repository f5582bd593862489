#pragma once
// One rank: every tensor is whole. The other strategies are this file cut into pieces with communication between them.
#include "parallel/strategy.h"

namespace trainer::parallel {

class Serial final : public Strategy {
 public:
  explicit Serial(ParamStore& store) : store_(store) {}

  int64_t local_heads(int64_t heads) const override { return heads; }
  std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec) override;
  std::unique_ptr<Norm> norm(int layer, int group, const std::string& name, int64_t width, bool center, bool bias,
                             double eps) override;
  std::unique_ptr<Embedding> embedding(int group, const EmbeddingSpec& spec) override;
  std::unique_ptr<Head> head(int group, const EmbeddingSpec& spec, bool tied) override;

 private:
  ParamStore& store_;
  params::SlotId table_ = -1;
};

}  // namespace trainer::parallel
