#pragma once
// AdamW as a rule: one pass over the flat buffers.
#include "config/config.h"
#include "optim/rule.h"

namespace trainer::optim {

/// Returns an update with its bias corrections. Powers and cosines differ in the last bit between CPU types, so a run
/// takes these scalars from its first rank.
Update make_update(const config::Optim& optim, double lr, int64_t t, double gradient_scale);

class AdamW final : public Rule {
 public:
  /// `state` is the type of the master weights. `round_gradients` rounds gradients to bf16 first, to match runs that
  /// send gradients to the host in bf16.
  AdamW(const config::Optim& optim, DType state, bool round_gradients = false)
      : optim_(optim),
        state_(state),
        moments_(optim.moments == config::Moments::bf16 ? DType::bf16 : state),
        round_gradients_(round_gradients) {}

  bool takes(const params::Param&) const override { return true; }
  std::vector<params::StateSpec> states() const override { return {{"m", moments_}, {"v", moments_}}; }
  int64_t traffic() const override;
  std::unique_ptr<Updater> make(params::ParamStore& store, Selection selection) const override;
  void update(Exec& ex, const Update& update, bool decay, const UpdateRange& range) const override;

 private:
  const config::Optim optim_;
  const DType state_, moments_;
  const bool round_gradients_;
};

}  // namespace trainer::optim
