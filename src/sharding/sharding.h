#pragma once
// ModelSharding: the sharding of a model over ranks, as one value. Rules, the planner, checkpoints and the trainer read
// it; config/strategies.h creates it from the keys of a named strategy or from sharding specs (tables of letters).
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace trainer::sharding {

/// A set of axes: bit a represents ModelSharding::axes[a].
using AxisSet = uint32_t;

struct Axis {
  std::string name;
  int64_t size = 1;
  bool operator==(const Axis&) const = default;
};
/// A name for several axes: "col" for "col0" and "col1", "data" for "replica" and "depth".
struct Group {
  std::string name;
  AxisSet axes = 0;
  bool operator==(const Group&) const = default;
};

/// The distribution of activations: token rows are split over `rows`, columns over `cols`; ranks along all other axes
/// hold copies.
struct Spread {
  AxisSet rows = 0, cols = 0;
  bool operator==(const Spread&) const = default;
};

/// When operands that other ranks have are communicated: all before a single computation, or step by step, each step
/// overlapped with the computation on what came before (SUMMA, ring attention).
enum class Transfer : uint8_t { at_once, ring };

/// The dimensions of a linear's GEMM Y[m, n] = X[m, k] · W[k, n] that the axes split. The first three sets are
/// disjoint.
struct LinearSharding {
  AxisSet rows = 0, cols = 0, contraction = 0;  // m, n, k
  AxisSet flat = 0;                             // subset of rows over which W is stored in flat shards
  Transfer schedule = Transfer::at_once;
  bool keep = false;  // keeps a gathered W in memory until the weights change
  bool operator==(const LinearSharding&) const = default;
};

/// The sharding of the table [V, H] of an embedding or a head: rows are split over `vocab`, columns over `width`. Each
/// resulting block is split into equal shards over `flat` and gathered for use.
struct VocabSpread {
  AxisSet vocab = 0, width = 0, flat = 0;
  bool keep = false;  // keeps a gathered block in memory until the weights change
  bool operator==(const VocabSpread&) const = default;
};

/// The place of a linear in a block. qkv and up read the residual stream; out and down add to it.
enum class Site : uint8_t { qkv, out, up, down };
constexpr bool reads_residual(Site site) { return site == Site::qkv || site == Site::up; }

/// The exchange of keys and values among ranks that have different token rows of the same sequences.
struct ContextSharding {
  AxisSet axes = 0;  // subset of the axes that split attention's rows; along the other axes, sequences are whole
  Transfer schedule = Transfer::at_once;
  bool operator==(const ContextSharding&) const = default;
};

struct Layer {
  Spread stream, attention, mlp;           // residual stream and norms; q, k, v (whole heads); between up and down
  std::map<Site, LinearSharding> linears;  // those of the layer (config::linears_of); no axis splits the others
  int64_t count = 1;                       // number of consecutive layers with this sharding
  /// Axes that divide the experts of layers that have some: their linears are sharded as up and down, but along these
  /// axes ranks have different experts instead of different rows, and exchange rows. Elsewhere in the layer, the axes
  /// split rows.
  AxisSet experts = 0;
  ContextSharding context = {};

  const LinearSharding& at(Site site) const;
  LinearSharding& at(Site site) { return linears[site]; }
  /// Returns the spread of the linear's activations that are not the residual stream: its output if it reads the
  /// stream, else its input.
  const Spread& inside(Site site) const { return site == Site::qkv || site == Site::out ? attention : mlp; }
  Spread& inside(Site site) { return site == Site::qkv || site == Site::out ? attention : mlp; }
  bool operator==(const Layer&) const = default;
};

/// The order in which stages run passes (sharding/pipeline.h). 1f1b: one forward and one backward pass each; several
/// chunks per stage are interleaved. zb-h1: 1f1b in which later passes compute the weight gradients.
enum class PipelineSchedule : uint8_t { one_forward_one_backward, zb_h1 };
inline constexpr const char* kPipelineScheduleNames[] = {"1f1b", "zb-h1"};

/// Pipeline stages: chunks of consecutive layers on different ranks. Chunk c is on stage c % count. The embedding is in
/// the first chunk, final norm and head are in the last one.
struct Stages {
  int64_t count = 1, chunks = 1;  // stages; chunks per stage
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  std::vector<int64_t> layers;  // by chunk, in model order; empty: not decided yet

  int64_t last_chunk() const { return count * chunks - 1; }
  bool operator==(const Stages&) const = default;
};

/// Returns a text that distinguishes stages: "4 stages x 1 1f1b 12,13,13,10"; empty if there is one stage.
std::string text_of(const Stages& stages);

struct ModelSharding {
  /// Outermost first: ranks are numbered row-major. The axis or group "data" is found by name. It comes before all axes
  /// that split rows, since replicas have different rows.
  std::vector<Axis> axes = {{"data", 1}};
  std::vector<Group> groups;
  std::vector<Layer> layers = {Layer()};
  Spread head;  // the residual stream at the final norm and the head
  VocabSpread table;
  bool overlap = true;         // false: collectives on activations block immediately (no overlap)
  bool wide_sums = false;      // partial sums of activations are communicated in the accumulator type
  double expert_buffer = 1.5;  // rows that ranks with different experts receive per round, relative to the mean
  Stages stages;               // along stage_axis(); everything else describes the ranks of one stage

  /// Returns the product of these axes' sizes.
  int64_t ranks(AxisSet set) const;
  AxisSet all() const { return (AxisSet{1} << axes.size()) - 1; }
  /// Returns the axis or group with this name, or 0 if there is none.
  AxisSet find(std::string_view name) const;
  /// Returns the name of a group or axis, or the names of the axes joined by "+".
  std::string name_of(AxisSet set) const;
  /// Returns the axes in `set` that have more than one rank.
  AxisSet wide(AxisSet set) const;

  /// Returns the axes whose ranks process different sequences; the gradients of all weights are reduced over them.
  AxisSet data() const { return find("data"); }
  /// Return the axis that counts replicas, the outermost one of data(): its index, and the set of it.
  size_t replica_axis() const { return static_cast<size_t>(std::countr_zero(data())); }
  AxisSet replicas() const { return data() & (~data() + 1); }
  /// Returns the axis along which ranks have different stages, the outermost one; 0 if there is one stage.
  AxisSet stage_axis() const { return stages.count > 1 ? 1 : 0; }
  /// Returns the number of ranks in one replica of the model: the product of the sizes of all axes but replica_axis().
  int64_t ranks_of_replica() const { return ranks(all() & ~replicas()); }
  /// Returns the number of ranks in one stage of a replica.
  int64_t ranks_of_stage() const { return ranks_of_replica() / stages.count; }
  /// Returns the number of parts of a replica that have the same weights but process different sequences (the depth of
  /// a 2.5D mesh).
  int64_t depth() const { return ranks(depth_axes()); }
  AxisSet depth_axes() const { return data() & ~replicas(); }
  const Layer& layer(int64_t index) const;
  /// True if any linear's weights are gathered from flat shards for use.
  bool gathers_weights() const;

  bool operator==(const ModelSharding&) const = default;
};

/// Returns the same sharding on the axes of a run's mesh: an axis along which ranks share key/value heads is split in
/// two. Ranks along the outer factor hold different heads, ranks along the inner factor the same heads; groups "kv" and
/// "rep" name the outer and inner axes. Axes of size 1 are omitted, except the one that counts replicas.
ModelSharding on_mesh(ModelSharding sharding, int64_t n_kv_head);

/// Returns the sharding with stages, each of which has as many ranks as `sharding`: the axis "stage" becomes the
/// outermost one. Internal error if the sharding has several stages already.
ModelSharding add_stages(ModelSharding sharding, Stages stages);
/// Returns the sharding of one stage's ranks, as it was before add_stages().
ModelSharding inside_stage(ModelSharding sharding);

/// Returns the same sharding in a canonical form: without axes of size 1, and without the names of axes and of groups
/// other than "data". The axis that counts replicas is kept as it is. Two canonical values are equal if each rank holds
/// and computes the same under both.
ModelSharding anonymous(const ModelSharding& sharding);

}  // namespace trainer::sharding
