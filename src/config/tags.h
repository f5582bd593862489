#pragma once
// Tables of tags, with which strategy "autoddl" says what every axis of ranks cuts, layer by layer. Tags are written as
// one letter for each axis, outermost first:
//   stream, attention, hidden    r rows        c columns       - copies
//   qkv, out, up, down           r rows        c columns       k contraction     f rows, the matrix in flat pieces
//                                - nothing
//   head                         as stream: of the final norm and the head
//   table                        v vocabulary  h hidden        f flat pieces     - copies
// parallel/tagged.h runs them. The named strategies are points of this space (parallel/tagged.h).
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "config/config.h"
#include "config/layout_rules.h"

namespace trainer::config {

/// A member of LayerTags by its name, with the letters that it takes.
struct TagMember {
  const char* name;
  std::string LayerTags::*member;
  const char* letters;
};
inline constexpr const char *kSpreadLetters = "rc-", *kLinearLetters = "rckf-", *kTableLetters = "vhf-";
inline constexpr std::array<TagMember, 7> kTagMembers = {{{"stream", &LayerTags::stream, kSpreadLetters},
                                                          {"attention", &LayerTags::attention, kSpreadLetters},
                                                          {"hidden", &LayerTags::hidden, kSpreadLetters},
                                                          {"qkv", &LayerTags::qkv, kLinearLetters},
                                                          {"out", &LayerTags::out, kLinearLetters},
                                                          {"up", &LayerTags::up, kLinearLetters},
                                                          {"down", &LayerTags::down, kLinearLetters}}};
/// nullptr when there is none.
const TagMember* find_tag_member(std::string_view name);
/// Returns the names of all keys of [[parallel.layer]].
std::vector<std::string> tag_member_names();

/// The tags of every layer of a model, and of what follows them.
struct TagTable {
  std::vector<LayerTags> layers;
  std::string last;   // stream of the final norm and the head
  std::string vocab;  // table of the embedding and the head
  /// The type in which linears form and add partial sums; none: the compute type.
  std::optional<DType> sums = {};
};
/// Expands parallel.layer to one entry for each layer, and fills in the head and the table. Entries that do not make
/// n_layer layers give another number of them, which tag_rules() reports.
TagTable tag_table(const Config& config);

struct TagAxis {
  std::string name;
  int64_t size = 1;
};
/// Returns the axes of strategy "autoddl", named a, b, c …
std::vector<TagAxis> tag_axes(const Parallel& parallel);

/// One layout as tags, the same in all layers.
struct TagLayout {
  std::vector<TagAxis> axes;  // of a replica, outermost first
  LayerTags layer;
  std::string last, table;
};
/// Returns the configured layout as tags (config resolved, its rules hold). Axes that share key/value heads and tiles
/// of neighbours are not told apart. Of tables for several kinds of layers it is the first.
TagLayout tag_layout(const Config& config);
/// Sets strategy "autoddl" with this layout, without axes of one rank.
void set_tag_layout(Config& config, const TagLayout& layout);

/// Returns the axes, as bits, whose letter is one of these.
uint32_t axes_with(std::string_view tags, std::string_view letters);

/// Returns what a table asks of the model and the batch (config resolved), in the order in which messages name it.
std::vector<LayoutRule> tag_rules(const std::vector<TagAxis>& axes, const TagTable& table, const Config& config);
/// The rules of strategy "autoddl": those of the letters first, then the above.
std::vector<LayoutRule> autoddl_rules(const Config& config);

}  // namespace trainer::config
