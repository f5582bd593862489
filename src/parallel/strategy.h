#pragma once
// Strategy: how the layers of a model are spread over ranks. A strategy says where activations are (spreads, ranks.h)
// and makes the linears between them. Norms, the embedding, the head and the split of attention follow from the spreads
// and are the same for all. The block, the optimizer, checkpoints and the loop do not know the strategy.
//
// Linears are y = x·W + b with W [in, out]; parts (q, k, v; gate, up) lie side by side in one local matrix.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "parallel/batch.h"
#include "parallel/norm.h"
#include "parallel/vocab.h"

namespace trainer::parallel {

using params::GradSink;
using params::ParamStore;

/// The linears of a block. qkv and up read the residual stream; out and down write it, by adding to it.
enum class Site : uint8_t { qkv, out, up, down };
constexpr bool reads_residual(Site site) { return site == Site::qkv || site == Site::up; }

struct LinearPart {
  std::string name;  // "blocks.0.attn.q": the parameters are name + ".weight" and name + ".bias"
  int64_t out = 0;
  /// Attention heads whose columns these are. Each rank has whole heads; several hold the same head when there are more
  /// ranks than heads. 0: columns that may be cut anywhere.
  int64_t heads = 0;
};
struct LinearSpec {
  Site site = Site::qkv;
  int64_t in = 0;
  std::vector<LinearPart> parts;
  bool bias = false;
  double init_std = 0.02;
};

/// ForwardFusion says what follows x·W + b. A linear that reads the stream returns y = act(x·W + b), one that writes it
/// y = residual + dropout(x·W + b).
struct ForwardFusion {
  ops::Activation act = ops::Activation::none;
  Scratch* pre = nullptr;  // receives the activation's input, shaped as y
  Tensor residual;         // as y
  std::optional<ops::DropoutSite> dropout = {};
};
struct BackwardFusion {
  ops::Activation act = ops::Activation::none;
  Tensor pre;  // dx is multiplied by act'(pre): the gradient goes through the activation that produced x
};

class Linear {
 public:
  virtual ~Linear() = default;
  /// Takes x, this rank's part of [rows, in]; returns y, its part of [rows, out]. The one on the residual stream's side
  /// is in the layer's stream spread. The other is as attention has it (qkv, out), or as up and down agree.
  virtual Scratch forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) = 0;
  /// Takes dy shaped as y, and x as in forward; returns dx shaped as x. Gradients of weight and bias go to the sink.
  virtual Scratch backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                           GradSink& grads) = 0;
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  /// Where the residual stream of a layer is, norms and skips included; layer n_layer: of the final norm and the head.
  virtual Spread stream(int layer) const = 0;
  /// Where q, k, v and the output of attention are: whole sequences cut over `rows`, heads over `cols`.
  virtual Spread attention(int layer) const = 0;
  /// Where the tables of embedding and head are.
  virtual VocabSpread vocab() const = 0;
  virtual std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec) = 0;

  // The same for all.
  std::unique_ptr<Norm> norm(int layer, int group, const NormSpec& spec);
  std::unique_ptr<Embedding> embedding(int group, const EmbeddingSpec& spec);
  /// `tied`: shares the embedding's table, which must have been made before.
  std::unique_ptr<Head> head(int n_layer, int group, const EmbeddingSpec& spec, bool tied);
  /// Returns this rank's sequences of a batch and its share of the heads and key/value heads. Ranks hold the same
  /// key/value head when there are more ranks than key/value heads.
  AttentionTile attention_tile(int layer, const Batch& batch, int64_t heads, int64_t kv_heads) const;
  const Ranks& ranks() const { return ranks_; }

 protected:
  Strategy(ParamStore& store, const Ranks& ranks) : store_(store), ranks_(ranks) {}
  ParamStore& store_;
  const Ranks ranks_;

 private:
  std::optional<Table> table_;  // the embedding's table
};

/// Returns the axes of the configured strategy for a world of `world` ranks: "data", outermost, and the strategy's own.
/// Throws Code::config when the strategy does not fit the model (config/layout_rules.h).
mesh::MeshShape make_mesh_shape(const config::Config& config, int world);
/// Returns layouts in which `world` ranks can evaluate a trained model (config resolved), in order of preference:
///   - a replica on each rank;
///   - for models that one rank cannot hold, the layout of the configuration;
///   - replicas shared by as few ranks as possible.
std::vector<config::Parallel> replica_layouts(const config::Config& config, int world);
/// Returns layouts for one sequence that grows token by token: as many ranks as possible share a replica.
std::vector<config::Parallel> generation_layouts(const config::Config& config, int world);
/// Makes the configured strategy on that mesh.
std::unique_ptr<Strategy> make_strategy(const config::Config& config, mesh::Mesh& mesh, ParamStore& store);

/// StrategyFactory makes mesh and layers of a run: the configured ones, or others.
struct StrategyFactory {
  std::function<mesh::MeshShape(const config::Config&, int world)> mesh_shape = make_mesh_shape;
  std::function<std::unique_ptr<Strategy>(const config::Config&, mesh::Mesh&, ParamStore&)> strategy = make_strategy;
};

}  // namespace trainer::parallel
