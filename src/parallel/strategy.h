#pragma once
// Strategy: the layers of a model on this rank, sharded over ranks as ModelSharding (sharding/sharding.h) describes. It
// makes linears between the spreads of activations; norms, the embedding, the head and the split of attention follow
// from the spreads. The block, the optimizer, checkpoints and the loop do not depend on how the model is sharded.
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
  /// The number of attention heads that the columns belong to. Each rank has whole heads; several ranks hold the same
  /// head when there are more ranks than heads. 0: columns that may be split anywhere.
  int64_t heads = 0;
};
struct LinearSpec {
  Site site = Site::qkv;
  int64_t in = 0;
  std::vector<LinearPart> parts;
  bool bias = false;
  double init_std = 0.02;
};

/// The operations fused after x·W + b. A linear that reads the residual stream returns y = act(x·W + b), one that
/// writes it y = residual + dropout(x·W + b).
struct ForwardFusion {
  ops::Activation act = ops::Activation::none;
  Scratch* pre = nullptr;  // receives the activation's input, shaped as y
  Tensor residual;         // shaped as y
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
  /// is in the layer's stream spread. The other is in the spread of attention (qkv, out), or in the one between up and
  /// down.
  virtual Scratch forward(Exec& ex, Rows rows, const Tensor& x, const ForwardFusion& fusion) = 0;
  /// Takes dy shaped as y, and x as in forward; returns dx shaped as x. Gradients of weight and bias are passed to the
  /// sink.
  virtual Scratch backward(Exec& ex, Rows rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                           GradSink& grads) = 0;
};

class Strategy {
 public:
  /// `sharding` has the axes of the mesh (sharding::on_mesh). `overlap` false: every collective blocks immediately.
  Strategy(mesh::Mesh& mesh, ParamStore& store, sharding::ModelSharding sharding, bool overlap = true);
  /// Keeps everything on one rank, without a mesh.
  Strategy(ParamStore& store, int64_t n_layer);

  /// Returns the spread of a layer's residual stream, norms and skip connections included; for layer n_layer, that of
  /// the final norm and the head.
  Spread stream(int64_t layer) const;
  /// Makes the linear y = x·W + b with the schedule and the splits of its layer and site.
  std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec);
  std::unique_ptr<Norm> norm(int layer, int group, const NormSpec& spec);
  std::unique_ptr<Embedding> embedding(int group, const EmbeddingSpec& spec);
  /// `tied`: shares the embedding's table, which must have been made before.
  std::unique_ptr<Head> head(int n_layer, int group, const EmbeddingSpec& spec, bool tied);
  /// Returns this rank's sequences of a batch and its share of the heads and key/value heads. Ranks hold the same
  /// key/value head when there are more ranks than key/value heads.
  AttentionTile attention_tile(int layer, const Batch& batch, int64_t heads, int64_t kv_heads) const;
  const Ranks& ranks() const { return ranks_; }

 private:
  ParamStore& store_;
  const sharding::ModelSharding sharding_;
  const Ranks ranks_;
  std::optional<Table> table_;  // the embedding's table
};

/// Returns the axes of a sharding and the names of its groups.
mesh::MeshShape mesh_shape(const sharding::ModelSharding& sharding);

}  // namespace trainer::parallel
