#pragma once
// Strategy: how the pieces of a layer are spread over ranks. A strategy supplies linears, norms, the embedding and the
// head per layer; attention's core, the block, the optimizer, checkpoints and the loop never ask which strategy it is.
//
// Linears are y = x·W + b with W [in, out]; parts (q, k, v; gate, up) lie side by side in one local matrix. `expand`
// linears lead out of the residual stream, `contract` linears lead back into it.
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "mesh/mesh.h"
#include "params/grad_sink.h"
#include "params/param_store.h"

namespace trainer::parallel {

using params::GradSink;
using params::ParamStore;

enum class Role { expand, contract };

struct LinearPart {
  std::string name;  // "blocks.0.attn.q": the parameters are name + ".weight" and name + ".bias"
  int64_t out = 0;
};
struct LinearSpec {
  Role role = Role::expand;
  int64_t in = 0;
  std::vector<LinearPart> parts;
  bool bias = false;
  double init_std = 0.02;
};

/// What the block fuses into a linear's product beside the bias, which is the linear's own.
struct ForwardFusion {
  ops::Activation act = ops::Activation::none;
  Tensor pre;       // receives the activation's input
  Tensor residual;  // added last
};
struct BackwardFusion {
  ops::Activation act = ops::Activation::none;
  Tensor pre;  // dx is multiplied by act'(pre): the gradient goes through the activation that produced x
};

class Linear {
 public:
  virtual ~Linear() = default;
  virtual int64_t local_in() const = 0;
  virtual int64_t local_out() const = 0;
  /// x [N, local_in] → y [N, local_out].
  virtual Scratch forward(Exec& ex, const Tensor& x, const ForwardFusion& fusion) = 0;
  /// dy [N, local_out], x as in forward → dx [N, local_in]; weight and bias gradients go to the sink.
  virtual Scratch backward(Exec& ex, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                           GradSink& grads) = 0;
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

/// A micro-batch on the device: N = sequences·seq_len token rows, batch-major.
struct Batch {
  Tensor ids, targets;  // [N] i32; targets may be empty (generation)
  Tensor weights;       // [N] accumulator type: loss weight of a row, 0 = masked
  int64_t sequences = 0, seq_len = 0;
  int64_t first_sample = 0;    // of the first sequence in the whole step's batch: names dropout masks
  int64_t first_position = 0;  // of each sequence's first row (generation with a cache)
  uint32_t step = 0;
  double loss_scale = 1;  // 1 / (unmasked tokens of the whole step)
  bool dropout = false;
  int64_t rows() const { return sequences * seq_len; }
};

class Embedding {
 public:
  virtual ~Embedding() = default;
  virtual Scratch forward(Exec& ex, const Batch& batch) = 0;
  virtual void backward(Exec& ex, const Batch& batch, const Tensor& dy, GradSink& grads) = 0;
};

/// The output head with softmax cross-entropy. Rows are walked in chunks: logits, loss and both gradients of a chunk
/// are formed while it is at hand, so logits of the whole batch never exist. Hence the loss comes out of the backward
/// pass.
class Head {
 public:
  virtual ~Head() = default;
  /// Σ_r weights[r]·loss[r], not scaled.
  virtual double loss(Exec& ex, const Batch& batch, const Tensor& x) = 0;
  /// The same sum; dx [N, H] of loss_scale·Σ; weight gradients go to the sink.
  virtual double loss_backward(Exec& ex, const Batch& batch, const Tensor& x, Scratch& dx, GradSink& grads) = 0;
  /// Logits of rows x [n, H] → [n, vocabulary padded], accumulator type.
  virtual Scratch logits(Exec& ex, const Tensor& x) = 0;
};

struct EmbeddingSpec {
  int64_t vocab = 0, d_model = 0;
  int64_t positions = 0;  // learned positions; 0: none
  int64_t vocab_multiple = 128;
  double init_std = 0.02;
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  /// Heads and key/value heads of this rank.
  virtual int64_t local_heads(int64_t heads) const = 0;
  virtual std::unique_ptr<Linear> linear(int layer, int group, const LinearSpec& spec) = 0;
  virtual std::unique_ptr<Norm> norm(int layer, int group, const std::string& name, int64_t width, bool center,
                                     bool bias, double eps) = 0;
  virtual std::unique_ptr<Embedding> embedding(int group, const EmbeddingSpec& spec) = 0;
  /// tied: shares the embedding's table, which must have been asked for before.
  virtual std::unique_ptr<Head> head(int group, const EmbeddingSpec& spec, bool tied) = 0;
};

/// The axes of the strategy named in the configuration for a world of `world` ranks: "data", outermost, and the
/// strategy's own. Throws Code::config when the strategy is not built yet or does not fit the world.
mesh::MeshShape make_mesh_shape(const config::Parallel& parallel, int world);
/// Its layers on that mesh.
std::unique_ptr<Strategy> make_strategy(const config::Parallel& parallel, mesh::Mesh& mesh, ParamStore& store);

}  // namespace trainer::parallel
