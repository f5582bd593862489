#pragma once
// A strategy from a table of tags. For every layer, tags say where its activations are, and what every mesh axis cuts
// of each of its linears. Neighbours may disagree: activations then move between them. The named strategies are points
// of this space, apart from how they schedule their work.
//
// Tags have one letter for each axis of the mesh but "data", outermost first (config/tags.h). As tables they are
//
//   axes             stream  attention  hidden  qkv  out  up   down  head  table
//   Megatron-1D t    r       c          c       c    k    c    k     r     v       without sequence parallelism: - for
//   r Optimus row col  rc      rc         rc      fc   fc   fc   fk    rc    fv      "paper": down fc AxoNN z x y r-c
//   rc-        rc-     fck  fkc  fck  fkc   r-c   fvh
#include <optional>

#include "config/tags.h"
#include "parallel/grid_linear.h"

namespace trainer::parallel {

using config::LayerTags;
using config::TagTable;

/// Returns what letters say. Internal error when there are not as many as axes, or others than these.
Spread spread_of(const mesh::MeshShape& shape, std::string_view tags);
Grid grid_of(const mesh::MeshShape& shape, std::string_view tags);
VocabSpread vocab_of(const mesh::MeshShape& shape, std::string_view tags);

/// Returns config::tag_rules() on the axes of this mesh but "data".
std::vector<config::LayoutRule> tag_rules(const mesh::MeshShape& shape, const TagTable& table,
                                          const config::Config& config);

class Tagged final : public Strategy {
 public:
  /// "data", outermost, and the axes of parallel.axes, named a, b, c …
  static mesh::MeshShape mesh_shape(int world, const config::Parallel& parallel);
  /// The mesh has the axis "data", outermost, and one axis for each letter. Throws Code::config with the first rule
  /// that does not hold.
  Tagged(mesh::Mesh& mesh, ParamStore& store, const TagTable& table, const config::Config& config);

  Spread stream(int layer) const override;
  Spread attention(int layer) const override { return layers_[static_cast<size_t>(layer)].attention; }
  VocabSpread vocab() const override { return vocab_; }
  std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec) override;

 private:
  struct Layer {
    Spread stream, attention, hidden;
    Grid linears[4];  // by site
  };
  std::vector<Layer> layers_;
  Spread last_;
  VocabSpread vocab_;
  std::optional<DType> sums_;
  const int64_t cache_layers_;
};

}  // namespace trainer::parallel
