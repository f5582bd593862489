#pragma once
// LayerCosts: what a layout costs, taken apart into its linears and the moves between them. It is the additive model
// that the search minimises; layouts that win are then recorded and priced as whole programs (plan/price.h), which is
// exact in bytes and in what overlaps.
//
//   variable                 choices                           node                                  edges to
//   stream                   Spread                            norms and residuals of both branches  qkv, out, up, down
//   qkv, out, up, down       LinearSharding                    three GEMMs; matrix gathered and      its two spreads
//                                                              gradients scattered over flat axes,
//                                                              all-reduced over other axes of rows
//   attention, hidden        Spread                            attention; the activation function    two linears each
//
// An edge is what moves activations between a spread and a linear, forward and backward. Moves are overlapped with the
// GEMMs that the trainer runs next to them. A layer's variables form two cycles through `stream`; without it they are
// two chains, so the least cost of a layer is found exactly (search.h).
#include <array>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "config/config.h"
#include "plan/cluster.h"
#include "plan/price.h"
#include "plan/route_shares.h"
#include "plan/search.h"

namespace trainer::plan {

using sharding::AxisSet;
using sharding::LinearSharding;
using sharding::ModelSharding;
using sharding::Site;
using sharding::Spread;

class LayerCosts {
 public:
  /// config resolved, with parallel.data; `axes` as ModelSharding has them, "data" first. Costs are of one micro-step;
  /// what happens once a step counts by its share.
  LayerCosts(const Cluster& cluster, const config::Config& config, int64_t vocab, DType compute,
             const ModelSharding& axes, RouteShares& routes);

  /// Returns the seconds of a step of the whole model. A ring schedule counts as one GEMM at once does.
  double step_seconds(const ModelSharding& layout);
  /// Returns the layout of the least cost, the same in all layers, whose rules hold and whose layers keep at most `cap`
  /// bytes with the tables; none when no layout does.
  std::optional<ModelSharding> best(double cap);
  /// The choices of the variables.
  struct Choices {
    std::vector<Spread> stream, attention, hidden;
    std::array<std::vector<LinearSharding>, 4> linears;  // by Site
  };
  /// Returns the problem of one layer. Its variables: stream, qkv, attention, out, up, hidden, down.
  SearchProblem problem(Choices& choices);
  /// Returns about how many bytes a rank needs: weights, gradients and optimizer state, what backward passes need of
  /// all layers, and what one layer needs while it computes.
  double bytes(const ModelSharding& layout) const;

 private:
  struct Matrix {
    double in, out;
  };
  struct Products {
    double forward, dx, dw;
  };
  double ranks(AxisSet axes) const { return static_cast<double>(axes_.ranks(axes)); }
  GroupShape group(AxisSet axes);
  double collective(AxisSet axes, CommOp op, DType dtype, double elements);
  /// Seconds to move a matrix of `elements` of the replica between two placements.
  double move(const Placement& from, const Placement& to, double elements);
  Matrix matrix_of(Site site) const;
  const Products& products(Site site, const LinearSharding& linear);
  double linear(Site site, const LinearSharding& linear);
  /// Returns what communication along these axes, which takes so many seconds on its own, adds to compute.
  double added(AxisSet axes, double communication, double compute);
  double read(Site site, const Spread& spread, const LinearSharding& linear);
  double write(Site site, const LinearSharding& linear, const Spread& spread);
  double stream(const Spread& spread);
  double attention(const Spread& spread);
  double hidden(const Spread& spread);
  double vocabulary(const Spread& stream, const sharding::VocabSpread& table);
  double traffic(OpKind kind, double bytes) const {
    return cluster_.seconds_of(compute_, {.kind = kind, .cost = {0, bytes}, .product = {}, .attention = {}});
  }
  /// Returns bytes of weights, gradients and optimizer state of one matrix.
  double matrix_bytes(AxisSet cut, double in, double out) const;
  /// Returns bytes that a layer keeps for its backward pass, by where the activations are.
  double stream_bytes(const Spread& spread) const;
  double attention_bytes(const Spread& spread) const;
  double hidden_bytes(const Spread& spread) const;
  bool divides(const Spread& spread, double rows, double cols) const;

  const Cluster& cluster_;
  const config::Config& config_;
  const DType compute_;
  const ModelSharding axes_;  // its axes only
  const mesh::MeshShape mesh_;
  double rows_, width_, wide_, heads_, kv_width_, vocab_;  // of a replica's micro-batch; of the model
  double element_, accumulation_;
  bool gated_;
  std::map<AxisSet, GroupShape> groups_;
  RouteShares& routes_;
  std::map<double, std::unordered_map<uint64_t, double>> moves_;  // by elements
  std::unordered_map<uint64_t, Products> products_;
};

}  // namespace trainer::plan
