#pragma once
// AdamW as a rule.
#include "config/optim.h"
#include "optim/elementwise.h"

namespace trainer::optim {

class AdamW final : public ElementwiseRule {
 public:
  /// `round_gradients` rounds gradients to bf16 first, to match runs that send gradients to the host in bf16.
  AdamW(const config::Optim& optim, DType master, bool round_gradients = false)
      : ElementwiseRule(master),
        optim_(optim),
        moments_(optim.moments == config::Moments::bf16 ? DType::bf16 : master),
        round_gradients_(round_gradients) {}

  std::string_view name() const override { return "adamw"; }
  std::vector<params::StateSpec> states() const override { return {{"m", moments_}, {"v", moments_}}; }
  /// Returns the bias corrections.
  std::optional<Agreed> agreed(int64_t t) const override;
  void update(Exec& ex, const Update& update, bool decay, const UpdateRange& range) const override;

 private:
  const config::Optim optim_;
  const DType moments_;
  const bool round_gradients_;
};

}  // namespace trainer::optim
