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

#include "config/config.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "parallel/batch.h"
#include "parallel/norm.h"
#include "parallel/vocab.h"

namespace trainer::parallel {

using params::GradSink;
using params::ParamStore;

using sharding::reads_residual;
using sharding::Site;

struct LinearPart {
  std::string name;  // "blocks.0.attn.q": the parameters are name + ".weight" and name + ".bias"
  int64_t out = 0;
  /// The number of attention heads that the columns form. Each rank has whole heads; if there are more ranks than
  /// heads, several ranks hold the same head. 0: columns may be split anywhere.
  int64_t heads = 0;
};
struct LinearSpec {
  Site site = Site::qkv;
  int64_t in = 0;
  std::vector<LinearPart> parts;
  bool bias = false;
  double init_std = 0.02;
};

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
  /// to the sink.
  virtual Scratch backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                           GradSink& grads) = 0;
};

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
  /// Creates the linear y = x·W + b with the schedule and sharding of its layer and site.
  std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec);
  std::unique_ptr<Norm> norm(int layer, int group, const NormSpec& spec);
  /// Creates a norm of queries or keys. `heads` 0: of each head, so that ranks hold different rows or heads, all with
  /// the same gain. Otherwise of all of these heads together, which may be on several ranks.
  std::unique_ptr<Norm> head_norm(int layer, int group, const NormSpec& spec, int64_t heads);
  std::unique_ptr<Embedding> embedding(int group, const EmbeddingSpec& spec);
  /// `tied`: shares the embedding's table; the embedding must be created first.
  std::unique_ptr<Head> head(int n_layer, int group, const EmbeddingSpec& spec, bool tied);
  /// Returns this rank's sequences of a batch and its share of the heads and key/value heads. If there are more ranks
  /// than key/value heads, several ranks hold the same key/value head.
  AttentionTile attention_tile(int layer, const Batch& batch, int64_t heads, int64_t kv_heads) const;
  const Ranks& ranks() const { return ranks_; }

 private:
  ParamStore& store_;
  const sharding::ModelSharding sharding_;
  const Ranks ranks_;
  std::optional<Table> table_;  // the embedding's table
};

/// Returns the mesh of a sharding: its axes, with its groups as aliases.
mesh::MeshShape mesh_shape(const sharding::ModelSharding& sharding);

}  // namespace trainer::parallel
