#pragma once
// LayerCosts: what a layout costs, taken apart into its linears and the moves between them. It is the additive model
// that the search minimises; layouts that win are then recorded and priced as whole programs (plan/price.h), which is
// exact in bytes and in what overlaps.
//
//   variable                 choices                     node                                        edges to
//   stream                   spreads: r c - by axis      norms and residuals of both branches        qkv, out, up, down
//   qkv, out, up, down       grids: r f c k by axis      three products; matrix gathered and         its two spreads
//                                                        gradients scattered over f, summed over r
//   attention, hidden        spreads                     the core; the activation function           two linears each
//
// An edge is what moves activations between a spread and a linear, forward and backward. Moves hide under the products
// that the trainer runs beside them. A layer's variables form two cycles through `stream`; without it they are two
// chains, so the least cost of a layer is found exactly (search.h).
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "config/tags.h"
#include "plan/cluster.h"
#include "plan/price.h"
#include "plan/route_shares.h"
#include "plan/search.h"

namespace trainer::plan {

using config::TagLayout;

class LayerCosts {
 public:
  /// config resolved, with parallel.data; `axes` of a replica. Costs are of one micro-step; what happens once a step
  /// counts by its share.
  LayerCosts(const Cluster& cluster, const config::Config& config, int64_t vocab, DType compute,
             std::vector<config::TagAxis> axes, RouteShares& routes);

  /// Returns the seconds of a step of the whole model in this layout.
  double step_seconds(const TagLayout& layout);
  /// Returns the layout of the least cost whose rules hold (config::tag_rules) in at most `cap` bytes of weights,
  /// gradients and optimizer state; none when no layout does.
  std::optional<TagLayout> best(double cap);
  /// Returns the problem of one layer, and the tags of each variable's choices: stream, qkv, attention, out, up,
  /// hidden, down.
  SearchProblem problem(std::vector<std::vector<std::string>>& choices);
  /// Returns bytes of weights, gradients and optimizer state of one layer's linear. Where ZeRO may be used it is.
  double matrix_bytes(const std::string& grid, double in, double out) const;
  /// Returns bytes that a rank needs at least, with as much recomputation as may be used: the state, the inputs of all
  /// layers, and the widest activations of one.
  double least_bytes(const TagLayout& layout) const;

 private:
  using Set = mesh::AxisSet;  // axes of the replica as bits, the first one lowest
  struct Matrix {
    double in, out;
  };
  struct Products {
    double forward, dx, dw;
  };
  int64_t ranks(Set axes) const;
  Set with(const std::string& tags, std::string_view letters) const { return config::axes_with(tags, letters); }
  GroupShape group(Set mesh_axes);
  /// `axes` of the mesh, "data" the lowest.
  double collective(Set axes, CommOp op, DType dtype, double elements);
  /// Seconds to move a matrix of `elements` of the replica between two placements: by axis 'r', 'c', 'p' or '-'.
  double move(const std::string& from, const std::string& to, double elements);
  Matrix matrix_of(size_t site) const;
  const Products& products(size_t site, const std::string& grid);
  double linear(size_t site, const std::string& grid);
  /// Returns what communication along these axes of the mesh, which takes so many seconds alone, adds to compute.
  double added(Set axes, double communication, double compute);
  double read(size_t site, const std::string& spread, const std::string& grid);
  double write(size_t site, const std::string& grid, const std::string& spread);
  double stream(const std::string& spread);
  double attention(const std::string& spread);
  double hidden(const std::string& spread);
  double node(size_t variable, const std::string& tags);
  double edge(size_t a, size_t b, const std::string& tags_of_a, const std::string& tags_of_b);
  double vocabulary(const std::string& stream, const std::string& table);
  double traffic(OpKind kind, double bytes) const {
    return cluster_.seconds_of(compute_, {.kind = kind, .cost = {0, bytes}, .product = {}, .attention = {}});
  }
  bool divides(const std::string& spread, double rows, double cols) const;

  const Cluster& cluster_;
  const config::Config& config_;
  const DType compute_;
  const std::vector<config::TagAxis> axes_;
  mesh::MeshShape mesh_;                                   // "data" and the axes
  double rows_, width_, wide_, heads_, kv_width_, vocab_;  // of a replica's micro-batch; of the model
  double element_, accumulation_;
  bool gated_, splits_state_;
  std::map<Set, GroupShape> groups_;
  RouteShares& routes_;
  std::unordered_map<std::string, double> moves_;
  std::unordered_map<std::string, Products> products_;
};

}  // namespace trainer::plan
