#pragma once
// Muon (Jordan 2024; Moonlight, arXiv 2502.16982) as a rule: the weight matrices of the blocks' linears are updated by
// their orthogonalized momentum. Momentum and update are elementwise, on the flat buffers. The orthogonalization needs
// whole matrices: in rounds, each rank receives the pieces of one matrix, orthogonalizes it and sends the result to all
// ranks that store it (ownership.h). The same operations on the same bits in every layout.
#include "config/forward.h"
#include "config/optim.h"
#include "optim/orthogonalize.h"
#include "optim/rule.h"

namespace trainer::optim {

class Muon final : public Rule {
 public:
  /// `config` must be resolved. `compute` is the type in which the run computes.
  Muon(const config::Config& config, DType compute);

  std::string_view name() const override { return "muon"; }
  bool takes(const params::Param& param) const override { return param.hidden && param.whole_matrix; }
  std::vector<params::StateSpec> states() const override { return {{"momentum", state_}}; }
  int64_t traffic() const override;
  bool needs_same_kernels() const override { return true; }
  std::unique_ptr<Updater> make(params::ParamStore& store, Selection selection) const override;

  const config::Muon& config() const { return muon_; }
  NewtonSchulz iterations() const { return {muon_.coefficients, static_cast<int>(muon_.steps)}; }
  double scale_of(const Shape& shape) const { return update_scale(muon_.scale, shape); }
  /// The type of the matrices while they are sent and orthogonalized.
  DType type() const { return type_; }
  bool overlaps() const { return overlaps_; }
  double floor() const { return floor_; }  // Step::floor

 private:
  const config::Muon muon_;
  const DType state_, type_;
  const bool overlaps_;
  const double floor_;
};

}  // namespace trainer::optim
