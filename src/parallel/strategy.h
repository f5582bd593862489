#pragma once
// Strategy: the layers of a model on this rank, sharded over ranks as ModelSharding (sharding/sharding.h) describes. It
// creates linears between the spreads of activations; norms, the embedding, the head and the split of attention follow
// from the spreads. The block, the optimizer, checkpoints and the training loop do not depend on how the model is
// sharded.
//
// Linears are y = x·W + b with W [in, out]; parts (q, k, v; gate, up) are stored side by side in one local matrix.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/block_linears.h"
#include "config/train.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "parallel/batch.h"
#include "parallel/norm.h"
#include "parallel/vocab.h"

namespace trainer::parallel {

using params::GradSink;
using params::ParamStore;

using config::LinearPart;
using LinearSpec = config::BlockLinear;
using sharding::reads_residual;
using sharding::Site;

/// The operations fused after x·W + b. A linear that reads the residual stream returns y = act(x·W + b); a linear that
/// writes it returns y = residual + dropout(x·W + b).
struct ForwardFusion {
  ops::Activation act = ops::Activation::none;
  Scratch* pre = nullptr;  // receives the activation's input, of y's shape
  Tensor residual;         // the same shape as y
  std::optional<ops::DropoutSite> dropout = {};
};
struct BackwardFusion {
  ops::Activation act = ops::Activation::none;
  Tensor pre;  // dx is multiplied by act'(pre), the derivative of the activation that produced x
};

class Linear {
 public:
  virtual ~Linear() = default;
  /// Computes y, this rank's part of [rows, out], from x, its part of [rows, in]. Whichever of the two is the residual
  /// stream is in the layer's stream spread. The other is in the spread of attention (qkv, out) or in the spread
  /// between up and down.
  virtual Scratch forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) = 0;
  /// Returns dx from dy and from the x that forward() got, with their shapes. Passes the gradients of weight and bias
  /// to the sink; with `late`, the weight's is left to weight_gradient().
  virtual Scratch backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                           GradSink& grads, bool late) = 0;
  /// Passes the gradient of the weight to the sink.
  virtual void weight_gradient(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, GradSink& grads) = 0;
};

/// A tensor that the callee frees after its last use, if it is passed the owner.
struct Operand {
  Operand() = default;
  Operand(const Tensor& borrowed) : x(borrowed) {}
  Operand(Scratch&& owned) : owner(std::move(owned)), x(owner.tensor()) {}
  operator const Tensor&() const { return x; }
  void reset() {
    owner.reset();
    x = {};
  }
  Scratch owner;
  Tensor x;
};

/// Dropout of a layer's residual stream, `width` columns wide.
struct StreamDropout {
  /// Returns this rank's part of the mask; empty without dropout.
  std::optional<ops::DropoutSite> of(const Batch& batch) const;
  Ranks ranks;
  Spread stream;
  int64_t width = 0;
  double p = 0;
  PhiloxKey key{0, 0};
};

/// A layer of a resolved model.
struct LayerSpec {
  int layer = 0, group = 0;  // group: in the store
  const config::Model& model;
  config::Recompute recompute;
  uint64_t seed = 0;                   // seed of the dropout masks
  std::shared_ptr<const Buffer> rope;  // cos and sin of every position, which layers share; null: not rotated
  std::string name() const { return format("blocks.{}.", layer); }
  PhiloxKey dropout_key(const char* site) const { return philox_key(seed, format("dropout.{}.{}", layer, site)); }
  /// Returns the layer's linear with a site and a role, with the names of its parameters in the store.
  LinearSpec linear(Site site, config::Role role = config::Role::dense) const;
};

class Attention;
class Mlp;

class Strategy {
 public:
  /// `sharding` must be on the axes of the mesh (sharding::on_mesh). `overlap` false: every collective blocks
  /// immediately.
  Strategy(mesh::Mesh& mesh, ParamStore& store, sharding::ModelSharding sharding, bool overlap = true);
  /// The strategy of a single rank, without a mesh.
  Strategy(ParamStore& store, int64_t n_layer);

  /// Returns the spread of a layer's residual stream (norms and skip connections); for layer n_layer, the spread at the
  /// final norm and the head.
  Spread stream(int64_t layer) const;
  /// Returns the spread in which the stream of a layer, of `rows` token rows, is sent from stage to stage: axes along
  /// which ranks have copies split rows, too, if each rank's rows are then among those that it had.
  Spread boundary(int64_t layer, int64_t rows) const;
  /// Returns the axes over which the rows are split when losses are computed (Head::loss_axes()), on ranks without a
  /// head, too.
  AxisSet loss_axes() const;
  /// Creates the linear y = x·W + b with the schedule and sharding of its layer and site.
  std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec);
  std::unique_ptr<Norm> norm(int layer, int group, const NormSpec& spec);
  /// Create the attention and the MLP of a layer.
  std::unique_ptr<Attention> attention(const LayerSpec& spec);
  std::unique_ptr<Mlp> mlp(const LayerSpec& spec);
  /// Creates a layer's norm of queries or keys, of each head or, with QkNorm::full, of all `heads` together, which may
  /// be on several ranks.
  std::unique_ptr<Norm> head_norm(const LayerSpec& spec, const std::string& name, int64_t heads);
  std::unique_ptr<Embedding> embedding(int group, const EmbeddingSpec& spec);
  /// `tied`: shares the embedding's table, which must be created first if it is on this rank. If it is not, there is a
  /// copy of the table in `group`.
  std::unique_ptr<Head> head(int n_layer, int group, const EmbeddingSpec& spec, bool tied);
  const Ranks& ranks() const { return ranks_; }

 private:
  ParamStore& store_;
  const sharding::ModelSharding sharding_;
  const Ranks ranks_;
  std::optional<Table> table_;  // the embedding's table
};

/// Returns the norm of the residual stream.
inline NormSpec norm_of(const config::Model& m, std::string name) {
  return {std::move(name),     m.d_model,  /*center=*/m.family.norm == config::NormKind::layer,
          m.bias.value(),      m.norm_eps, 1,
          m.family.gain_offset};
}

/// Returns the mesh of a sharding: its axes, with its groups as aliases.
mesh::MeshShape mesh_shape(const sharding::ModelSharding& sharding);

}  // namespace trainer::parallel
