#pragma once
// Strategy: how the pieces of a layer are spread over ranks. A strategy supplies linears, norms, the embedding and the
// head per layer; attention's core, the block, the optimizer, checkpoints and the loop never ask which strategy it is.
//
// Linears are y = x·W + b with W [in, out]; parts (q, k, v; gate, up) lie side by side in one local matrix. `expand`
// linears lead out of the residual stream, `contract` linears lead back into it.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "config/config.h"
#include "mesh/mesh.h"
#include "ops/elementwise.h"
#include "params/grad_sink.h"
#include "params/param_store.h"

namespace trainer::parallel {

using params::GradSink;
using params::ParamStore;

enum class Role { expand, contract };

struct LinearPart {
  std::string name;  // "blocks.0.attn.q": the parameters are name + ".weight" and name + ".bias"
  int64_t out = 0;
  /// Attention heads whose columns these are: ranks share them out whole, and hold the same one when there are more
  /// ranks than heads. 0: columns that may be cut anywhere.
  int64_t heads = 0;
};
struct LinearSpec {
  Role role = Role::expand;
  int64_t in = 0;
  std::vector<LinearPart> parts;
  bool bias = false;
  double init_std = 0.02;
};

/// What is done with a product's result beside adding the bias, which is the linear's own: y = act(x·W + b) of an
/// expand linear, y = residual + dropout(x·W + b) of a contract linear.
struct ForwardFusion {
  ops::Activation act = ops::Activation::none;
  Tensor pre;       // receives the activation's input
  Tensor residual;  // layout of y
  std::optional<ops::DropoutSite> dropout = {};
};
struct BackwardFusion {
  ops::Activation act = ops::Activation::none;
  Tensor pre;  // dx is multiplied by act'(pre): the gradient goes through the activation that produced x
};

/// Where a rank's part of the residual stream begins, and its rows.
struct Tile {
  int64_t first_row = 0, rows = 0, first_col = 0;
};

/// A micro-batch on the device: N = sequences·seq_len token rows, batch-major.
struct Batch {
  Tensor ids, targets;  // [N] i32; targets may be empty (generation)
  Tensor weights;       // [N] accumulator type: loss weight of a row, 0 = masked
  /// [N] f64: where the losses of all rows are left, so that nobody waits for their sum within the pass, which then
  /// returns 0. Empty: it returns the sum.
  Tensor losses = {};
  int64_t sequences = 0, seq_len = 0;
  int64_t first_sample = 0;    // of the first sequence in the whole step's batch: names dropout masks
  int64_t first_position = 0;  // of each sequence's first row (generation with a cache)
  uint32_t step = 0;
  double loss_scale = 1;  // 1 / (unmasked tokens of the whole step)
  bool dropout = false;
  bool whole_rows = false;  // generation: no rank holds a share of the rows only
  Tile residual;            // this rank's part of the residual stream [N, H]; the model asks Strategy::residual for it
  int64_t rows() const { return sequences * seq_len; }
};

class Linear {
 public:
  virtual ~Linear() = default;
  virtual int64_t local_in() const = 0;
  virtual int64_t local_out() const = 0;
  /// expand: x is residual-like [batch.residual], y [N, local_out] has every row of the batch; contract: the other way
  /// round.
  virtual Scratch forward(Exec& ex, const Batch& batch, const Tensor& x, const ForwardFusion& fusion) = 0;
  /// dy as y, x as in forward → dx as x; weight and bias gradients go to the sink.
  virtual Scratch backward(Exec& ex, const Batch& batch, const Tensor& dy, const Tensor& x,
                           const BackwardFusion& fusion, GradSink& grads) = 0;
};

struct NormSpec {
  std::string name;  // the parameters are name + ".gain" and name + ".bias"
  int64_t width = 0;
  bool center = true;  // layer norm; false: RMS norm
  bool bias = true;
  double eps = 1e-5;
};
struct NormStats {
  Scratch mean, rstd;  // [N] accumulator type; mean only for layer norm
};
class Norm {
 public:
  virtual ~Norm() = default;
  /// x [N, H local] → y; keeps the statistics unless `stats` is null.
  virtual Scratch forward(Exec& ex, const Tensor& x, NormStats* stats) = 0;
  /// y again from kept statistics, bit-identical (selective recomputation).
  virtual Scratch apply(Exec& ex, const Tensor& x, const NormStats& stats) = 0;
  /// dx = residual + dNorm(dy); residual may be empty.
  virtual Scratch backward(Exec& ex, const Tensor& dy, const Tensor& x, const NormStats& stats, const Tensor& residual,
                           GradSink& grads) = 0;
};

/// Norms work on batch.residual tiles.
class Embedding {
 public:
  virtual ~Embedding() = default;
  /// → y [batch.residual].
  virtual Scratch forward(Exec& ex, const Batch& batch) = 0;
  virtual void backward(Exec& ex, const Batch& batch, const Tensor& dy, GradSink& grads) = 0;
};

/// The output head with softmax cross-entropy. Rows are walked in chunks: logits, loss and both gradients of a chunk
/// are formed while it is at hand, so logits of the whole batch never exist. Hence the loss comes out of the backward
/// pass. x and dx are [batch.residual]; losses are sums over all rows of the batch, equal on all ranks of a replica.
class Head {
 public:
  virtual ~Head() = default;
  /// Σ_r weights[r]·loss[r], not scaled.
  virtual double loss(Exec& ex, const Batch& batch, const Tensor& x) = 0;
  /// The same sum; dx [N, H] of loss_scale·Σ; weight gradients go to the sink.
  virtual double loss_backward(Exec& ex, const Batch& batch, const Tensor& x, Scratch& dx, GradSink& grads) = 0;
  /// Logits of one row x [1, H] that all ranks have → [1, vocabulary padded], accumulator type.
  virtual Scratch logits(Exec& ex, const Tensor& x) = 0;
};

struct EmbeddingSpec {
  int64_t vocab = 0, d_model = 0;
  int64_t positions = 0;       // learned positions; 0: none
  int64_t vocab_multiple = 0;  // the vocabulary is padded to a multiple of it; 0: the strategy decides
  double init_std = 0.02;
};

/// Rows of a table that `splits` ranks share: the vocabulary padded to spec.vocab_multiple, or 128·splits. Padding is
/// neither stored nor given probability.
inline int64_t padded_vocab(const EmbeddingSpec& spec, int64_t splits) {
  return round_up(spec.vocab, spec.vocab_multiple > 0 ? spec.vocab_multiple : 128 * splits);
}

class Strategy {
 public:
  virtual ~Strategy() = default;
  /// This rank's part of the residual stream of a batch.
  virtual Tile residual(int layer, const Batch& batch) const = 0;
  /// This rank's share of so many attention heads (or key/value heads).
  struct Heads {
    int64_t first, count;
  };
  virtual Heads heads(int64_t heads) const = 0;
  virtual std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec) = 0;
  virtual std::unique_ptr<Norm> norm(int layer, int group, const NormSpec& spec) = 0;
  virtual std::unique_ptr<Embedding> embedding(int group, const EmbeddingSpec& spec) = 0;
  /// tied: shares the embedding's table, which must have been asked for before.
  virtual std::unique_ptr<Head> head(int group, const EmbeddingSpec& spec, bool tied) = 0;
};

/// The axes of the strategy named in the configuration for a world of `world` ranks: "data", outermost, and the
/// strategy's own. Throws Code::config when the strategy is not built yet or does not fit the world.
mesh::MeshShape make_mesh_shape(const config::Config& config, int world);
/// Layouts for a trained model (config resolved), whatever it was trained in: each of `world` ranks has a replica, or
/// as many as can share one do, for one sequence that grows token by token.
void lay_out_replicas(config::Config& config, int world);
void lay_out_for_generation(config::Config& config, int world);
/// Its layers on that mesh.
std::unique_ptr<Strategy> make_strategy(const config::Config& config, mesh::Mesh& mesh, ParamStore& store);

}  // namespace trainer::parallel
