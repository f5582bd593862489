#pragma once
// A strategy from a table of tags. For every layer, tags say where its activations are, and what every mesh axis cuts
// of each of its linears. Neighbours may disagree: activations then move between them. The named strategies are points
// of this space, apart from how they schedule their work.
//
// Tags are written as one letter for each axis of the mesh but "data", outermost first:
//   spreads     r rows        c columns       - copies
//   linears     r rows        c columns       k contraction     f rows, the matrix in flat pieces     - nothing
//   the table   v vocabulary  h hidden        f flat pieces     - copies
#include <optional>

#include "config/layout_rules.h"
#include "parallel/grid_linear.h"

namespace trainer::parallel {

struct LayerTags {
  std::string stream, attention;
  std::string hidden;  // between up and down
  std::string qkv, out, up, down;
  const std::string& of(Site site) const;
};
struct TagTable {
  std::vector<LayerTags> layers;
  std::string last;   // stream of the final norm and the head
  std::string vocab;  // table of the embedding and the head
  /// See GridLinear::Place.
  std::optional<DType> sums = {};
};

/// Returns what letters say. Internal error when there are not as many as axes, or others than these.
Spread spread_of(const mesh::MeshShape& shape, std::string_view tags);
Grid grid_of(const mesh::MeshShape& shape, std::string_view tags);
VocabSpread vocab_of(const mesh::MeshShape& shape, std::string_view tags);

/// Returns what a table asks of the model and the batch, in the order in which mistakes are reported.
std::vector<config::LayoutRule> tag_rules(const mesh::MeshShape& shape, const TagTable& table,
                                          const config::Config& config);

class Tagged final : public Strategy {
 public:
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
};

}  // namespace trainer::parallel
