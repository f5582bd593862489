#pragma once
// LayerCosts: the cost of a layout as a sum over its linears and the redistributions between them. The search
// minimises this additive model; the best layouts are then recorded and simulated as whole programs (plan/price.h),
// with exact bytes and overlap.
//
//   variable                 choices                           node                                  edges to
//   stream                   Spread                            norms and residuals of both           qkv, out, up, down
//                                                              branches, tables' share of one layer
//   qkv, out, up, down       LinearSharding                    three GEMMs; matrix gathered and      its two spreads
//                                                              gradients scattered over flat axes,
//                                                              all-reduced over other axes of rows
//   attention, hidden        Spread                            attention; the activation function;   two linears each
//                                                              experts: routing and exchange of rows
//
// An edge is the redistribution of activations between a spread and a linear, forward and backward. It is overlapped
// with the GEMMs that the trainer runs next to them. A layer's variables form two cycles through `stream`; without it
// they are two chains, so the least cost of a layer is found exactly (search.h). In models with experts, the axis that
// divides these, if any, is one more variable: each of its choices is a search of its own, with fewer choices of
// others. If only some layers have experts, a layer costs the mean of both kinds.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "config/config.h"
#include "params/param_store.h"
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

/// The placements of a linear's input, of its output before and after the reduction, and of the input gradient before
/// the reduction.
inline MatrixPlacement placed(const Spread& spread) { return {spread.rows, spread.cols, 0}; }
inline MatrixPlacement input_of(const LinearSharding& l) { return {l.rows, l.contraction, 0}; }
inline MatrixPlacement partial_output_of(const LinearSharding& l) { return {l.rows, l.cols, l.contraction}; }
inline MatrixPlacement output_of(const LinearSharding& l) { return {l.rows, l.cols, 0}; }
inline MatrixPlacement input_gradient_of(const LinearSharding& l) { return {l.rows, l.contraction, l.cols}; }
/// Returns the axes that split a linear's stored matrix.
inline AxisSet cut_of(const LinearSharding& l) { return l.contraction | l.cols | l.flat; }
/// Returns the axes along which two placements differ.
inline AxisSet moved(const MatrixPlacement& from, const MatrixPlacement& to) {
  return (from.rows ^ to.rows) | (from.cols ^ to.cols) | (from.partial ^ to.partial);
}

class LayerCosts {
 public:
  using Gradients = params::ParamStore::Gradients;
  /// `config` must be resolved and have parallel.data; of `axes`, which describe one stage, only axes and groups are
  /// read. Costs are per micro-step; work done once per step counts with the share of one micro-step.
  LayerCosts(const Cluster& cluster, const config::Config& config, int64_t vocab, DType compute,
             const ModelSharding& axes, RouteShares& routes);

  /// Returns the seconds of a step of the whole model: micro-steps and an update. A ring schedule costs the same as a
  /// single GEMM.
  double step_seconds(const ModelSharding& layout) { return micro_seconds(layout) + update(); }
  /// Returns the seconds of a step's micro-steps, which depend on recomputation, but not on ZeRO and offload.
  double micro_seconds(const ModelSharding& layout);
  /// Returns the seconds of an update beyond its share of the micro-steps: Muon's orthogonalization.
  double update() const;
  /// Returns the cheapest legal layout, the same in all layers, whose layers and tables need at most `cap` bytes, and
  /// the cheapest ones with other spreads, `most` in all; empty if no layout does.
  std::vector<ModelSharding> best(double cap, size_t most = 1);
  /// Returns an estimate of the bytes per rank: weights, gradients and optimizer state, the activations saved by
  /// all layers for the backward pass, and the temporary tensors of one layer. With several stages, that of the first
  /// stage, which holds most micro-batches, with the head's temporary tensors.
  double bytes(const ModelSharding& layout) const { return bytes(layout, gradients()); }
  /// Returns what it would be if gradients were stored as specified.
  double bytes(const ModelSharding& layout, Gradients stored) const;

 private:
  /// The matrices of one of a site's linears. In layers with experts a site has several linears.
  struct Matrix {
    double in, out;
    std::vector<double> parts;     // columns of each part; empty: no axis splits them, whatever the site's sharding is
    double count = 1, active = 1;  // matrices, and those that compute a token
    double share = 1;              // part of the layers that has them
    bool of_experts = false;
    uint8_t index = 0;  // distinguishes them all
  };
  struct Products {
    double forward, dx, dw;
  };
  /// The optimizer's costs for a matrix, in bytes per element: memory traffic of an update, and states.
  struct Kept {
    double traffic = 0, states = 0;
  };
  /// The search for the sharding of one layer. Variables: stream, qkv, attention, out, up, hidden, down.
  struct LayerSearch {
    AxisSet experts = 0;                                  // Layer::experts
    std::vector<Spread> stream, attention, hidden;        // choices
    std::map<Site, std::vector<LinearSharding>> linears;  // choices
    SearchProblem problem;
    std::vector<Assignment> free;              // see search()
    std::vector<std::vector<int>> by_spreads;  // the cheapest choices for different spreads, ignoring memory
  };
  /// Returns the search with the memory of config_'s ZeRO stage and offload. Costs depend on recomputation and experts
  /// only, and are computed once for each.
  LayerSearch& layer_search(Gradients stored, AxisSet experts);
  void add_choices(LayerSearch& layer) const;
  void add_costs(LayerSearch& layer);
  void set_memory(LayerSearch& layer, Gradients stored) const;
  /// Returns the layouts of best(); the search counts gradients only if they are stored in memory of their own.
  std::vector<ModelSharding> best(double cap, size_t most, Gradients stored);
  /// Returns those with one choice of the axis that divides the experts, with the seconds of the search.
  std::vector<std::pair<double, ModelSharding>> best(double cap, size_t most, Gradients stored, AxisSet experts);
  double ranks(AxisSet axes) const { return static_cast<double>(axes_.ranks(axes)); }
  GroupShape group(AxisSet axes);
  double collective(AxisSet axes, CommOp op, DType dtype, double elements);
  /// Returns the seconds to redistribute a matrix of `elements` elements (over the whole replica) between two
  /// placements.
  double move(const MatrixPlacement& from, const MatrixPlacement& to, double elements);
  /// Returns the type in which a matrix with this placement is communicated.
  DType type_of(const MatrixPlacement& from) const {
    const bool wide = config_.parallel.sum_dtype == DType::f32 && ranks(from.partial) > 1;
    return wide ? accumulator_of(compute_) : compute_;
  }
  static constexpr double kIllegal = std::numeric_limits<double>::infinity();  // seconds of what a rule forbids
  /// Returns the matrix of a site that has only one, or one with the same input and, of `down`, output.
  const Matrix& matrix_of(Site site) const { return matrices_.at(site).front(); }
  /// True for the MLP of layers with experts: x and dx are moved as a whole, and nothing between its linears.
  bool routes(Site site) const { return routed_ > 0 && (site == Site::up || site == Site::down); }
  /// Returns the rows of the rank whose experts have most, relative to the mean; axes in `experts` divide the experts.
  /// If one rank has all rows, it is the number of these ranks.
  double load(AxisSet experts) const { return std::min(cluster_.imbalance, ranks(experts)); }
  /// Returns the axes that split a stored matrix.
  static AxisSet cut_of(const Matrix& matrix, LinearSharding linear, AxisSet experts) {
    if (matrix.parts.empty()) linear.cols = 0;
    return plan::cut_of(linear) | (matrix.of_experts ? experts : 0);
  }
  /// Returns the seconds of a matrix's GEMMs. `linear` is the sharding of the matrix itself.
  const Products& products(const Matrix& matrix, const LinearSharding& linear, AxisSet experts);
  /// Returns the seconds of the GEMMs that a redistribution at the site overlaps with.
  Products products_next_to(Site site, const LinearSharding& linear);
  double linear(Site site, const LinearSharding& linear, AxisSet experts);
  double linear(const Matrix& matrix, LinearSharding linear, AxisSet experts);
  /// Returns the seconds that communication along these axes adds to `compute` seconds of compute. `communication` is
  /// the number of seconds that it takes on its own.
  double added(AxisSet axes, double communication, double compute);
  /// A redistribution in two pieces of rows (parallel/row_pieces.h), overlapping with a linear's GEMM.
  struct Pieces {
    AxisSet axes = 0;
    double each = 0;  // seconds
  };
  std::optional<Pieces> pieces(bool gathers, Site site, const LinearSharding& linear, const MatrixPlacement& from,
                               const MatrixPlacement& to, double elements);
  /// Return the seconds that a redistribution adds to a GEMM of `gemm` seconds that follows it, or that precedes it and
  /// is followed by `next` seconds of other compute.
  double gather_before(Site site, const LinearSharding& linear, const MatrixPlacement& from, const MatrixPlacement& to,
                       double elements, double gemm);
  double reduce_after(Site site, const LinearSharding& linear, const MatrixPlacement& from, const MatrixPlacement& to,
                      double elements, double gemm, double next);
  double read(Site site, const Spread& spread, const LinearSharding& linear);
  double write(Site site, const LinearSharding& linear, const Spread& spread);
  double stream(const Spread& spread);
  double attention(const Spread& spread, const sharding::ContextSharding& context);
  double attention_flops(const Spread& spread, double keys) const;
  double attention_seconds(double flops, bool backward) const;
  /// The keys and values of a layer that the ranks of a context exchange, for this rank's heads.
  struct KeysAndValues {
    double elements = 0;  // that a rank needs, its own included
    double sent = 0;      // payload of the exchange
    double steps = 1;     // parts, of some heads each, in which they are gathered
  };
  /// Returns those of a layer in which a query sees `window` keys; 0: all.
  KeysAndValues keys_and_values(const Spread& spread, const sharding::ContextSharding& context, int64_t window) const;
  /// Returns the seconds that exchanging keys, values and their gradients adds to attention.
  double exchange(const Spread& spread, const sharding::ContextSharding& context);
  double hidden(const Spread& spread, AxisSet experts);
  /// Returns the seconds of sorting, gathering, exchanging and combining the rows of experts.
  double routing(AxisSet rows, AxisSet experts);
  double vocabulary(const Spread& stream, const sharding::VocabSpread& table);
  /// Returns the seconds of head and embedding without redistributions to and from the stream; `near`: the axes that
  /// split rows next to the table.
  double next_to_table(AxisSet near, const sharding::VocabSpread& table);
  /// Returns the cheapest legal placement of a layout's tables and its seconds, which grow fast above `cap` bytes;
  /// infinity: none is legal.
  std::pair<sharding::VocabSpread, double> best_table(ModelSharding layout, double cap);
  double traffic(OpKind kind, double bytes) const {
    return cluster_.seconds_of(compute_, {.kind = kind, .cost = {0, bytes}, .product = {}, .attention = {}});
  }
  /// Returns the share of the layers whose whole forward pass is recomputed. Costs are means over all layers.
  double repeated() const {
    return static_cast<double>(recomputed_layers(config_)) / static_cast<double>(config_.model.n_layer);
  }
  /// Returns where a run with config_ stores its gradients.
  Gradients gradients() const;
  /// Returns the bytes of one matrix's weights, optimizer state and, if it has memory of its own, gradient.
  double matrix_bytes(AxisSet cut, double in, double out, const Kept& kept, Gradients gradients) const;
  double site_bytes(Site site, const LinearSharding& linear, AxisSet experts, Gradients gradients) const;
  /// Returns the number of tables that a rank has at most.
  double tables() const { return config_.parallel.stages > 1 || config_.model.tie_embeddings.value_or(true) ? 1 : 2; }
  bool rebuilds() const { return config_.train.recompute == config::Recompute::selective; }
  /// Returns the bytes of the residual stream, and how many tensors of its shape a layer saves for its backward pass
  /// unless all of it is recomputed.
  double stream_bytes(const Spread& spread) const;
  double kept_streams() const;
  /// Return the bytes that such a layer saves of attention and between up and down. `rebuilds`: backward rebuilds
  /// outputs of norms and activation functions.
  double attention_bytes(const Spread& spread, bool rebuilds) const;
  double hidden_bytes(const Spread& spread, bool rebuilds, AxisSet experts) const;
  /// Returns the bytes of a layer's temporary keys, values and gradients that ranks exchange.
  double exchange_bytes(const Spread& spread, const sharding::ContextSharding& context) const;
  /// Returns the bytes of a layer's temporary rows of experts.
  double routed_bytes(const Spread& spread, AxisSet experts) const;
  /// Returns the rows that a rank's experts may receive at once.
  double received_rows(const Spread& spread, AxisSet experts) const;
  bool divides(const Spread& spread, double rows, double cols) const;

  const Cluster& cluster_;
  const config::Config& config_;
  const DType compute_;
  const ModelSharding axes_;  // only the axes are used
  const mesh::MeshShape mesh_;
  double rows_, width_, wide_, heads_, kv_heads_, queries_, keys_,
      vocab_;  // rows_ counts those of a replica's micro-batch
  double element_, accumulation_;
  double share_, in_flight_;  // the first stage's share of the layers; the micro-batches in flight there
  Kept linears_, tables_;
  bool gated_;
  double routed_ = 0;                             // the share of the layers that have experts
  std::map<Site, std::vector<Matrix>> matrices_;  // those of a layer
  std::map<AxisSet, GroupShape> groups_;
  RouteShares& routes_;
  std::map<double, std::unordered_map<uint64_t, double>> moves_;  // seconds by elements and placements
  std::unordered_map<uint64_t, Products> products_;
  std::unordered_map<uint64_t, double> tables_at_;           // see next_to_table()
  std::map<std::pair<AxisSet, AxisSet>, double> at_stream_;  // seconds of the best tables per layer, by the stream
  std::map<std::pair<config::Recompute, AxisSet>, LayerSearch> searches_;
};

}  // namespace trainer::plan
