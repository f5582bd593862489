#pragma once
// Operators on tensors that the ranks of a mesh share, each with what mesh axes may do to its tensors. Every rank works
// on what it holds; what an operator exchanges between ranks is handed over here.
#include <algorithm>
#include <functional>

#include "ops/activation.h"
#include "ops/adamw.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/norm.h"
#include "ops/split_norm.h"
#include "unit/plan/sharded.h"

namespace trainer::signatures {

using Tensors = std::vector<Sharded>;

inline constexpr int64_t kRows = 16, kCols = 24, kVocab = 24;
inline constexpr int64_t kLength = 5, kSequences = 8, kHeads = 16, kKvHeads = 8, kHeadDim = 4;

struct Operator {
  const char* name;
  std::vector<Shape> shapes;  // of its tensors: inputs, then outputs
  size_t inputs;
  /// What the tensors are along one axis, in that order: B copies, P partial sums, 0 and 1 cut rows and columns.
  std::vector<std::string> signatures;
  std::function<void(Exec&, const Tensors&)> run;  // on all ranks
  int tokens = -1;                                 // the input that holds tokens of the vocabulary
  bool integers = false;
};

/// A rank's tensors, and the element of the whole with which each begins.
struct Part {
  std::vector<Tensor> t;
  std::vector<int64_t> first;
};
using OfARank = std::function<void(Exec&, const Part&)>;

inline Part part_of(const Tensors& tensors, int rank) {
  Part part;
  for (const Sharded& tensor : tensors) {
    part.t.push_back(tensor[rank]);
    part.first.push_back(tensor.first(rank));
  }
  return part;
}
/// Each rank by itself.
inline std::function<void(Exec&, const Tensors&)> alone(const OfARank& run) {
  return [run](Exec& ex, const Tensors& tensors) {
    for (int rank = 0; rank < tensors.front().ranks(); ++rank) run(ex, part_of(tensors, rank));
  };
}

inline Scratch tokens_of(Exec& ex, const Tensor& values) {
  Scratch tokens = ex.take("tokens", values.shape, DType::i32);
  for (int64_t i = 0; i < values.count(); ++i)
    tokens.tensor().as<int32_t>()[i] = static_cast<int32_t>(values.as<double>()[i]);
  return tokens;
}

/// The ranks that share the columns of the first tensor's rows, and what they exchange.
struct Sharers {
  explicit Sharers(const Tensors& tensors)
      : layout(tensors.front().layout()), axes(layout.axes(mesh::split(1))), size(layout.mesh().group_size(axes)) {}
  Scratch gathered(Exec& ex, int rank, const std::vector<Scratch>& each) const {
    const int64_t count = each.front().tensor().count();
    Scratch all = ex.take("gathered", {size * count}, DType::f64);
    int64_t place = 0;
    for (const int member : layout.mesh().members(rank, axes)) {
      const Tensor& own = each[static_cast<size_t>(member)];
      std::copy_n(own.as<double>(), count, all.tensor().as<double>() + count * place++);
    }
    return all;
  }
  template <typename F>
  Scratch reduced(Exec& ex, int rank, const std::vector<Scratch>& each, F&& combine) const {
    const int64_t count = each.front().tensor().count();
    const Scratch all = gathered(ex, rank, each);
    Scratch result = ex.take("reduced", {count}, DType::f64);
    const double* from = all.tensor().as<double>();
    double* to = result.tensor().as<double>();
    std::copy_n(from, count, to);
    for (int64_t i = count; i < size * count; ++i) to[i % count] = combine(to[i % count], from[i]);
    return result;
  }
  mesh::Layout layout;
  mesh::AxisSet axes;
  int size;
};
inline double sum(double a, double b) { return a + b; }
inline double larger(double a, double b) { return std::max(a, b); }

/// x, gain, bias, dy → y, dx, dgain, dbias
inline void norm(Exec& ex, const Tensors& tensors, bool center) {
  constexpr double kEps = 1e-5;
  const Sharers sharers(tensors);
  std::vector<Part> parts;
  std::vector<Scratch> means, rstds, moments, sums;
  for (int rank = 0; rank < tensors.front().ranks(); ++rank) {
    parts.push_back(part_of(tensors, rank));
    const std::vector<Tensor>& t = parts.back().t;
    const int64_t rows = t[0].rows();
    means.push_back(center ? ex.take("mean", {rows}, DType::f64) : Scratch());
    rstds.push_back(ex.take("rstd", {rows}, DType::f64));
    if (sharers.size == 1) {
      ops::run(ex, ops::NormForward{t[0], t[1], t[2], t[4], means.back(), rstds.back(), kEps, center});
      ops::run(ex, ops::NormBackward{.dy = t[3],
                                     .x = t[0],
                                     .gain = t[1],
                                     .mean = means.back(),
                                     .rstd = rstds.back(),
                                     .dx = t[5],
                                     .dgain = t[6],
                                     .dbias = t[7],
                                     .center = center});
      continue;
    }
    moments.push_back(ex.take("moments", {ops::norm_planes(center) * rows}, DType::f64));
    ops::run(ex, ops::NormMoments{t[0], moments.back(), center});
  }
  if (sharers.size == 1) return;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::vector<Tensor>& t = parts[i].t;
    const Scratch all = sharers.gathered(ex, static_cast<int>(i), moments);
    ops::run(ex, ops::NormMerge{all, means[i], rstds[i], t[0].cols(), kEps, center});
    ops::run(ex, ops::NormApply{t[0], t[1], t[2], means[i], rstds[i], t[4], center});
    sums.push_back(ex.take("sums", {ops::norm_planes(center) * t[0].rows()}, DType::f64));
    ops::run(ex, ops::SplitNormSums{t[3], t[0], t[1], means[i], rstds[i], sums.back(), center});
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::vector<Tensor>& t = parts[i].t;
    const Scratch all = sharers.reduced(ex, static_cast<int>(i), sums, sum);
    ops::run(ex, ops::SplitNormBackward{.dy = t[3],
                                        .x = t[0],
                                        .gain = t[1],
                                        .mean = means[i],
                                        .rstd = rstds[i],
                                        .sums = all,
                                        .dx = t[5],
                                        .dgain = t[6],
                                        .dbias = t[7],
                                        .hidden = kCols,
                                        .center = center});
  }
}

/// logits, targets → loss, dlogits. Softmax over cut classes is one sum of largest values and one of exponentials; with
/// the latter comes the target's logit, so that every rank has the whole loss.
inline void cross_entropy(Exec& ex, const Tensors& tensors) {
  constexpr double kScale = 0.5;
  const Sharers sharers(tensors);
  std::vector<Part> parts;
  std::vector<ops::CrossEntropyShard> shards;
  std::vector<Scratch> targets, largest, sums, largest_of_all;
  for (int rank = 0; rank < tensors.front().ranks(); ++rank) {
    parts.push_back(part_of(tensors, rank));
    const Part& part = parts.back();
    const int64_t rows = part.t[0].rows(), classes = part.t[0].cols();
    targets.push_back(tokens_of(ex, part.t[1]));
    if (sharers.size == 1) {
      ops::run(ex, ops::CrossEntropy{.logits = part.t[0],
                                     .targets = targets.back(),
                                     .loss = part.t[2],
                                     .dlogits = part.t[3],
                                     .vocab = kVocab,
                                     .scale = kScale});
      continue;
    }
    shards.push_back({part.t[0], targets.back(), part.first[0] % kVocab, classes});
    largest.push_back(ex.take("largest", {rows}, DType::f64));
    sums.push_back(ex.take("sums", {2 * rows}, DType::f64));
    ops::run(ex, ops::ShardSums{shards.back(), largest.back(), sums.back()});
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    largest_of_all.push_back(sharers.reduced(ex, static_cast<int>(i), largest, larger));
    ops::run(ex, ops::ShardRescale{shards[i], largest[i], largest_of_all[i], sums[i]});
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    const Scratch all = sharers.reduced(ex, static_cast<int>(i), sums, sum);
    ops::run(ex, ops::ShardLoss{.shard = shards[i],
                                .largest = largest_of_all[i],
                                .sums = all,
                                .loss = parts[i].t[2],
                                .dlogits = parts[i].t[3],
                                .vocabulary = kVocab,
                                .scale = kScale});
  }
}

/// q, k, v, dout → out, dq, dk, dv; probabilities are dropped by their place in the whole.
inline void attention(Exec& ex, const Part& part) {
  const std::vector<Tensor>& t = part.t;
  const ops::AttentionShape shape{.batch = t[0].rows() / kLength,
                                  .q_len = kLength,
                                  .k_len = kLength,
                                  .heads = t[0].cols() / kHeadDim,
                                  .kv_heads = t[1].cols() / kHeadDim,
                                  .head_dim = kHeadDim};
  constexpr int64_t kWidth = kHeads * kHeadDim;
  const ops::AttentionDropout dropout{.p = 0.25,
                                      .key = philox_key(3, "attention"),
                                      .step = 2,
                                      .first_sample = part.first[0] / kWidth / kLength,
                                      .first_head = part.first[0] % kWidth / kHeadDim,
                                      .heads_global = kHeads};
  const Scratch lse = ex.take("lse", {shape.batch * shape.heads, kLength}, DType::f64);
  ops::run(ex, ops::AttentionForward{t[0], t[1], t[2], t[4], lse, shape, 0.5, dropout});
  ops::run(ex, ops::AttentionBackward{t[0], t[1], t[2], t[4], lse, t[3], t[5], t[6], t[7], shape, 0.5, dropout});
}

/// ids, table, dy → y, dtable
inline void embedding(Exec& ex, const Part& part) {
  const Scratch ids = tokens_of(ex, part.t[0]);
  const ops::TableShard shard{.first_id = part.first[1] / kCols, .vocabulary = kVocab};
  ops::run(ex, ops::EmbeddingForward{.ids = ids, .table = part.t[1], .y = part.t[3], .shard = shard});
  ops::run(ex, ops::EmbeddingBackward{.ids = ids, .dy = part.t[2], .dtable = part.t[4], .shard = shard});
}

/// p, m, v, g → p, m, v
inline void adamw(Exec& ex, const Part& part) {
  const std::vector<Tensor>& t = part.t;
  for (size_t i = 0; i < 3; ++i) std::copy_n(t[i].as<double>(), t[i].count(), t[i + 4].as<double>());
  for (double& v : t[6].span<double>()) v = std::abs(v);
  ops::run(ex, ops::AdamW{.p = t[4],
                          .m = t[5],
                          .v = t[6],
                          .g = t[3],
                          .scalars = {.beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .inv_sqrt_correction = 1.5,
                                      .eps = 1e-8,
                                      .negative_step = -1e-3,
                                      .negative_decay = -1e-4,
                                      .gradient_scale = 0.7}});
}

inline std::vector<Operator> operators() {
  const Shape matrix{kRows, kCols}, row{kCols}, column{kRows}, queries{kSequences * kLength, kHeads * kHeadDim},
      keys{kSequences * kLength, kKvHeads * kHeadDim};
  const std::vector<std::string> rows_or_columns = {"0000", "1111", "BBBB"};
  const auto norm_of = [](bool center) {
    return [center](Exec& ex, const Tensors& tensors) { norm(ex, tensors, center); };
  };
  std::vector<Operator> all;
  all.push_back({"gelu", {matrix, matrix, matrix, matrix}, 2, rows_or_columns, alone([](Exec& ex, const Part& part) {
                   ops::run(ex,
                            ops::BiasActivation{
                                .x = part.t[0], .bias = {}, .pre = {}, .y = part.t[2], .act = ops::Activation::gelu});
                   ops::run(ex, ops::GeluBackward{part.t[1], part.t[0], part.t[3]});
                 })});
  all.push_back({"dropout", {matrix, matrix}, 1, {"00", "11", "BB"}, alone([](Exec& ex, const Part& part) {
                   const ops::DropoutSite site{.p = 0.3,
                                               .key = philox_key(3, "mask"),
                                               .step = 2,
                                               .first_row = part.first[0] / kCols,
                                               .first_col = part.first[0] % kCols,
                                               .width = kCols};
                   ops::run(ex, ops::DropoutAdd{.x = part.t[0], .y = part.t[1], .site = site});
                 })});
  all.push_back({"cast",
                 {matrix, matrix},
                 1,
                 {"00", "11", "BB", "PP"},
                 alone([](Exec& ex, const Part& part) {
                   const Scratch narrow = ex.take("narrow", part.t[0].shape, DType::f32);
                   ops::run(ex, ops::Cast{part.t[0], narrow});
                   ops::run(ex, ops::Cast{narrow, part.t[1]});
                 }),
                 -1,
                 true});
  all.push_back(
      {"add", {matrix, matrix, matrix}, 2, {"000", "111", "BBB", "PPP"}, alone([](Exec& ex, const Part& part) {
         ops::run(ex, ops::Add{part.t[0], part.t[1], part.t[2]});
       })});
  // x, bias, dy → y, dbias. Where y is a partial sum, so is the bias.
  all.push_back({"bias",
                 {matrix, row, matrix, matrix, row},
                 3,
                 {"0B00P", "10110", "BBBBB", "PPBPB"},
                 alone([](Exec& ex, const Part& part) {
                   ops::run(ex, ops::BiasActivation{.x = part.t[0], .bias = part.t[1], .y = part.t[3]});
                   ops::run(ex, ops::ColumnSum{.x = part.t[2], .sums = part.t[4]});
                 })});
  // gate, up, dy → y, dgate, dup: a product of two, one of them through a function.
  all.push_back({"swiglu",
                 {matrix, matrix, matrix, matrix, matrix, matrix},
                 3,
                 {"000000", "111111", "BBBBBB", "BPBPPB"},
                 alone([](Exec& ex, const Part& part) {
                   ops::run(ex, ops::SwigluForward{part.t[0], part.t[1], part.t[3]});
                   ops::run(ex, ops::SwigluBackward{part.t[2], part.t[0], part.t[1], part.t[4], part.t[5]});
                 })});
  for (const bool center : {true, false})
    all.push_back({center ? "layer norm" : "RMS norm",
                   {matrix, row, row, matrix, matrix, matrix, row, row},
                   4,
                   {"0BB000PP", "10011100", "BBBBBBBB"},
                   norm_of(center)});
  all.push_back({"softmax and cross-entropy",
                 {{kRows, kVocab}, column, column, {kRows, kVocab}},
                 2,
                 {"0000", "1BB1", "BBBB"},
                 cross_entropy,
                 1});
  all.push_back({"embedding",
                 {column, {kVocab, kCols}, matrix, matrix, {kVocab, kCols}},
                 3,
                 {"0B00P", "B0BP0", "B1111", "BBBBB"},
                 alone(embedding),
                 0});
  all.push_back({"attention",
                 {queries, keys, keys, queries, queries, queries, keys, keys},
                 4,
                 {"00000000", "11111111", "BBBBBBBB"},
                 alone(attention)});
  all.push_back({"optimizer", {row, row, row, row, row, row, row}, 4, {"0000000", "BBBBBBB"}, alone(adamw)});
  return all;
}

}  // namespace trainer::signatures
