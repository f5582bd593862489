// The pieces of Megatron-1D one by one, on ranks that are threads, beside dense ones on one rank.
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "base/philox.h"
#include "parallel/megatron1d.h"
#include "parallel/serial.h"
#include "parallel/vocab.h"

using namespace trainer;
using parallel::Batch;
using parallel::LinearSpec;
using parallel::Megatron1D;
using parallel::Role;
using params::GradSink;
using params::ParamStore;

namespace {

constexpr int64_t kSequences = 2, kLength = 12, kRows = kSequences * kLength;

/// A rank's store, strategy and sink, or those of one rank alone.
struct Rig {
  Rig(comm::World& world, int tensor, bool sequence_parallel, DType dtype = DType::f64)
      : type(dtype), mesh(world, device, Megatron1D::mesh_shape(world.size(), tensor, 0)), store(device, dtype, &mesh) {
    if (tensor == 1) {
      strategy = std::make_unique<parallel::Serial>(store);
    } else {
      strategy = std::make_unique<Megatron1D>(mesh, store, sequence_parallel, true);
    }
    batch.sequences = kSequences;
    batch.seq_len = kLength;
    batch.residual = strategy->residual(0, batch);
  }
  void ready() {
    store.allocate(true);
    sink = std::make_unique<GradSink>(store);
    sink->prepare(device);
    sink->begin_step();
    sink->begin_micro(true);
  }
  void done() {
    for (size_t g = store.groups().size(); g-- > 0;) sink->group_done(ex, static_cast<int>(g));
    sink->end_micro(ex);
    sink->finish(ex);
  }
  DType type;
  device::CpuDevice device{1};
  mesh::Mesh mesh;
  ParamStore store;
  std::unique_ptr<parallel::Strategy> strategy;
  std::unique_ptr<GradSink> sink;
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
  Batch batch;
};

using Values = std::vector<double>;
using Named = std::map<std::string, Values>;

double draw(const std::string& name, int64_t i, bool integers) {
  const uint32_t bits = philox_at(philox_key(11, name), static_cast<uint64_t>(i));
  return integers ? static_cast<double>(bits % 5) - 2 : static_cast<double>(bits) * 0x1p-31 - 1;
}

void set(const Tensor& t, int64_t i, double value) {
  if (t.dtype == DType::f64) {
    t.as<double>()[i] = value;
  } else {
    t.as<float>()[i] = static_cast<float>(value);
  }
}
double get(const Tensor& t, int64_t i) {
  return t.dtype == DType::f64 ? t.as<double>()[i] : static_cast<double>(t.as<float>()[i]);
}

void fill_weights(ParamStore& store, bool integers) {
  for (const params::Param& param : store.params()) {
    const Tensor flat = store.groups()[static_cast<size_t>(param.group)].master;
    for (const mesh::Run& run : param.runs)
      for (int64_t i = 0; i < run.length; ++i)
        set(flat, run.local + i * run.stride, draw(param.name, run.global + i, integers));
  }
  store.weights_changed();
}

/// Element (row, col) of a local tensor is element (first_row + row, first_col + col) of the global one, `width` wide.
struct Piece {
  int64_t first_row, first_col, width;
};
Scratch local(Rig& rig, const char* name, Shape shape, Piece at, bool integers) {
  Scratch t = rig.ex.take(name, shape, rig.type);
  for (int64_t r = 0; r < shape[0]; ++r)
    for (int64_t c = 0; c < shape[1]; ++c)
      set(t, r * shape[1] + c, draw(name, (at.first_row + r) * at.width + at.first_col + c, integers));
  return t;
}
void collect(Named& all, const std::string& name, const Tensor& t, Piece at, int64_t rows) {
  Values& out = all[name];
  out.resize(static_cast<size_t>(rows * at.width), NAN);
  for (int64_t r = 0; r < t.rows(); ++r)
    for (int64_t c = 0; c < t.cols(); ++c) {
      double& element = out[static_cast<size_t>((at.first_row + r) * at.width + at.first_col + c)];
      const double value = get(t, r * t.cols() + c);
      if (!std::isnan(element)) {
        EXPECT_EQ(element, value) << name << ": ranks that share an element";
      }
      element = value;
    }
}
void collect_gradients(Named& all, const ParamStore& store) {
  for (const params::Param& param : store.params()) {
    Values& out = all["d" + param.name];
    out.resize(static_cast<size_t>(param.count()), NAN);
    const Tensor flat = store.groups()[static_cast<size_t>(param.group)].grad;
    for (const mesh::Run& run : param.runs)
      for (int64_t i = 0; i < run.length; ++i) {
        double& element = out[static_cast<size_t>(run.global + i)];
        const double value = get(flat, run.local + i * run.stride);
        if (!std::isnan(element)) {
          EXPECT_EQ(element, value) << param.name << ": ranks that share an element";
        }
        element = value;
      }
  }
}

template <typename F>
Named on_ranks(int tensor, F&& body) {
  Named all;
  std::mutex mutex;
  comm::run_on_threads(tensor, {.timeout_s = 60}, [&](comm::World& world) { body(world, all, mutex); });
  return all;
}

/// Largest difference relative to the largest element.
double difference(const Values& a, const Values& b) {
  double largest = 0, size = 1e-300;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    if (!(d <= largest)) largest = d;
    size = std::max(size, std::abs(b[i]));
  }
  return largest / size;
}

/// y, dx and all gradients of an expand or a contract linear with biases.
Named linear(int tensor, bool sequence_parallel, Role role, bool integers, DType type) {
  const int64_t in = role == Role::expand ? 8 : 48, out = role == Role::expand ? 48 : 8;
  return on_ranks(tensor, [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig(world, tensor, sequence_parallel, type);
    LinearSpec spec{.role = role, .in = in, .parts = {}, .bias = true};
    if (role == Role::expand) {
      spec.parts = {{"q", out / 2}, {"k", out / 4}, {"v", out / 4}};
    } else {
      spec.parts = {{"o", out}};
    }
    const auto linear = rig.strategy->linear(0, rig.store.add_group("g"), spec);
    rig.ready();
    fill_weights(rig.store, integers);
    const int64_t t = tensor, r = world.rank();
    // The residual-like side is cut by rows, if at all; the other by columns.
    const Piece rows{rig.batch.residual.first_row, 0, 8};
    const Shape residual{rig.batch.residual.rows, 8};
    Named own;
    Scratch x, dy;
    if (role == Role::expand) {
      x = local(rig, "x", residual, rows, integers);
    } else {
      x = local(rig, "x", {kRows, in / t}, {0, r * in / t, in}, integers);
    }
    const Scratch add = local(rig, "residual", residual, rows, integers);
    parallel::ForwardFusion fusion;
    if (role == Role::contract) fusion.residual = add;
    const Scratch y = linear->forward(rig.ex, rig.batch, x, fusion);
    // Columns of parts lie side by side: dy is drawn by part and column.
    if (role == Role::expand) {
      dy = rig.ex.take("dy", {kRows, out / t}, type);
      int64_t col = 0;
      for (const auto& part : spec.parts)
        for (int64_t c = 0; c < part.out / t; ++c, ++col)
          for (int64_t row = 0; row < kRows; ++row)
            set(dy, row * (out / t) + col, draw("d" + part.name, row * part.out + r * part.out / t + c, integers));
    } else {
      dy = local(rig, "dy", residual, rows, integers);
    }
    const Scratch dx = linear->backward(rig.ex, rig.batch, dy, x, {}, *rig.sink);
    rig.done();
    const std::lock_guard lock(mutex);
    if (role == Role::expand) {
      int64_t col = 0;
      for (const auto& part : spec.parts) {
        const int64_t width = part.out / t;
        Scratch columns = rig.ex.take("columns", {kRows, width}, type);
        ops::run(rig.ex, ops::Copy{y.tensor().col_range(col, width), columns});
        collect(all, "y." + part.name, columns, {0, r * width, part.out}, kRows);
        col += width;
      }
      collect(all, "dx", dx, rows, kRows);
    } else {
      collect(all, "y", y, rows, kRows);
      collect(all, "dx", dx, {0, r * in / t, in}, kRows);
    }
    collect_gradients(all, rig.store);
  });
}

TEST(MegatronPieces, LinearsEqualDenseOnesBitForBitOnIntegers) {
  for (const Role role : {Role::expand, Role::contract}) {
    const Named dense = linear(1, false, role, true, DType::f64);
    for (const int tensor : {2, 3, 4})
      for (const bool sequence_parallel : {false, true}) {
        SCOPED_TRACE(format("{} ranks, sequence parallel {}, {}", tensor, sequence_parallel, role == Role::expand));
        const Named cut = linear(tensor, sequence_parallel, role, true, DType::f64);
        ASSERT_EQ(cut.size(), dense.size());
        for (const auto& [name, values] : dense) EXPECT_EQ(cut.at(name), values) << name;
      }
  }
}

TEST(MegatronPieces, LinearsStayNearDenseOnesInSinglePrecision) {
  for (const Role role : {Role::expand, Role::contract}) {
    const Named dense = linear(1, false, role, false, DType::f64);
    for (const bool sequence_parallel : {false, true})
      for (const auto& [name, values] : linear(4, sequence_parallel, role, false, DType::f32))
        EXPECT_LE(difference(values, dense.at(name)), 1e-5) << name;
  }
}

/// Forward and backward of the embedding with positions.
Named embedding(int tensor, bool sequence_parallel, const std::vector<int32_t>& ids, DType type) {
  return on_ranks(tensor, [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig(world, tensor, sequence_parallel, type);
    const auto embedding = rig.strategy->embedding(
        rig.store.add_group("g"), {.vocab = 37, .d_model = 6, .positions = kLength, .vocab_multiple = 48});
    rig.ready();
    fill_weights(rig.store, false);
    std::vector<int32_t> own = ids;
    rig.batch.ids = {reinterpret_cast<std::byte*>(own.data()), {kRows}, DType::i32};
    const Scratch y = embedding->forward(rig.ex, rig.batch);
    const Piece rows{rig.batch.residual.first_row, 0, 6};
    const Scratch dy = local(rig, "dy", {rig.batch.residual.rows, 6}, rows, false);
    embedding->backward(rig.ex, rig.batch, dy, *rig.sink);
    rig.done();
    const std::lock_guard lock(mutex);
    collect(all, "y", y, rows, kRows);
    collect_gradients(all, rig.store);
  });
}

TEST(MegatronPieces, TheEmbeddingIsExactAtTheEdgesOfItsShards) {
  // 48 rows over 4 ranks: shards begin at 0, 12, 24 and 36, which holds one token.
  const std::vector<int32_t> edges = {0, 11, 12, 35, 36, 23, 24, 36, 0, 0, 12, 11,
                                      5, 5,  5,  36, 35, 24, 23, 1,  2, 3, 0,  36};
  for (const DType type : {DType::f64, DType::f32}) {
    const Named dense = embedding(1, false, edges, type);
    for (const int tensor : {2, 3, 4})
      for (const bool sequence_parallel : {false, true}) {
        SCOPED_TRACE(format("{} ranks, sequence parallel {}", tensor, sequence_parallel));
        const Named cut = embedding(tensor, sequence_parallel, edges, type),
                    again = embedding(tensor, sequence_parallel, edges, type);
        EXPECT_EQ(cut.at("y"), dense.at("y"));
        EXPECT_EQ(cut.at("dwte"), dense.at("dwte"));  // in order of rows, wherever they come from
        EXPECT_LE(difference(cut.at("dwpe"), dense.at("dwpe")), 1e-6);
        EXPECT_TRUE(cut == again);
      }
  }
}

struct LossCase {
  int64_t rows, vocab, padded;
  double offset;
  DType type = DType::f64;
};

/// Losses and dlogits of logits cut into `ranks` shards of columns.
Named sharded_loss(int ranks, const LossCase& c, bool masked) {
  return on_ranks(ranks, [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig(world, ranks == 1 ? 1 : ranks, false, c.type);
    std::vector<int> members(static_cast<size_t>(ranks));
    for (int i = 0; i < ranks; ++i) members[static_cast<size_t>(i)] = i;
    const auto group = world.communicator(rig.device, {1, "tensor", members, world.rank()}, comm::Lane::critical);
    const int64_t width = c.padded / ranks, first = world.rank() * width;
    const Scratch logits = rig.ex.take("logits", {c.rows, width}, c.type);
    for (int64_t r = 0; r < c.rows; ++r)
      for (int64_t v = 0; v < width; ++v)
        // What padding holds must not count.
        set(logits, r * width + v,
            first + v < c.vocab ? 4 * draw("logits", r * c.vocab + first + v, false) + c.offset : 1e30);
    std::vector<int32_t> targets;
    const Scratch weights = rig.ex.take("weights", {c.rows}, c.type);
    for (int64_t r = 0; r < c.rows; ++r) {
      const bool mask = masked && r % 3 == 1;
      targets.push_back(mask ? -100 : static_cast<int32_t>(r * 7919 % c.vocab));
      set(weights, r, mask ? 0 : 1 + 0.5 * static_cast<double>(r));
    }
    const Scratch loss = rig.ex.take("loss", {c.rows}, DType::f64);
    const parallel::ShardedLoss op{
        .shard = {.logits = logits,
                  .targets = {reinterpret_cast<std::byte*>(targets.data()), {c.rows}, DType::i32},
                  .first = first,
                  .vocab = std::clamp<int64_t>(c.vocab - first, 0, width)},
        .weights = weights,
        .loss = loss,
        .dlogits = logits,  // in place
        .vocabulary = c.vocab,
        .scale = 0.25};
    parallel::run(rig.ex, *group, op);
    const std::lock_guard lock(mutex);
    Scratch row = rig.ex.take("row", {1, c.rows}, DType::f64);
    ops::run(rig.ex, ops::Copy{loss.tensor().reshape({1, c.rows}), row});
    collect(all, "loss", row, {0, 0, c.rows}, 1);
    collect(all, "dlogits", logits, {0, first, c.padded}, c.rows);
  });
}

TEST(MegatronPieces, ShardedLossEqualsTheDenseFormula) {
  for (const LossCase& c : {LossCase{7, 37, 48, 0}, LossCase{5, 90, 96, 1e4}, LossCase{3, 5, 48, -1e4}})
    for (const bool masked : {false, true})
      for (const int ranks : {1, 2, 3, 4, 8}) {
        SCOPED_TRACE(format("{} of {} over {} ranks, offset {}", c.vocab, c.padded, ranks, c.offset));
        const Named found = sharded_loss(ranks, c, masked);
        for (int64_t r = 0; r < c.rows; ++r) {
          using Long = long double;
          const auto logit = [&](int64_t v) {
            return static_cast<Long>(4 * draw("logits", r * c.vocab + v, false) + c.offset);
          };
          Long sum = 0;
          for (int64_t v = 0; v < c.vocab; ++v) sum += std::exp(logit(v) - c.offset);
          const bool mask = masked && r % 3 == 1;
          const double weight = mask ? 0 : 1 + 0.5 * static_cast<double>(r);
          const int64_t target = r * 7919 % c.vocab;
          const Long loss = weight * (std::log(sum) + c.offset - logit(target));
          EXPECT_NEAR(found.at("loss")[static_cast<size_t>(r)], static_cast<double>(loss),
                      1e-11 * (1 + std::abs(static_cast<double>(loss))));
          for (int64_t v = 0; v < c.padded; ++v) {
            const Long softmax = v < c.vocab ? std::exp(logit(v) - c.offset) / sum : 0;
            const Long want = v < c.vocab ? weight * 0.25L * (softmax - (v == target ? 1 : 0)) : 0;
            EXPECT_NEAR(found.at("dlogits")[static_cast<size_t>(r * c.padded + v)], static_cast<double>(want), 1e-11);
          }
        }
      }
}

TEST(MegatronPieces, ShardedLossInSinglePrecisionIsWithinAMillionthOfDense) {
  const LossCase exact{16, 90, 96, 0}, single{16, 90, 96, 0, DType::f32};
  const Named dense = sharded_loss(1, exact, false);
  for (const int ranks : {2, 4}) {
    const Named found = sharded_loss(ranks, single, false);
    EXPECT_LE(difference(found.at("loss"), dense.at("loss")), 1e-6);
    EXPECT_LE(difference(found.at("dlogits"), dense.at("dlogits")), 1e-6);
  }
}

TEST(MegatronPieces, PaddingOfTheVocabularyChangesNothing) {
  const Named little = sharded_loss(4, {7, 37, 40, 0}, false), much = sharded_loss(4, {7, 37, 160, 0}, false);
  EXPECT_LE(difference(little.at("loss"), much.at("loss")), 1e-15);
}

TEST(MegatronPieces, BackwardIsTheAdjointOfForward) {
  // x → expand → contract → y is linear in x, with the operators f, f̄, g, ḡ at its ends: <L(x), y> = <x, L*(y)>.
  for (const int tensor : {2, 4})
    for (const bool sequence_parallel : {false, true}) {
      double forward = 0, backward = 0;
      std::mutex mutex;
      comm::run_on_threads(tensor, {.timeout_s = 60}, [&](comm::World& world) {
        Rig rig(world, tensor, sequence_parallel);
        const int group = rig.store.add_group("g");
        const auto expand = rig.strategy->linear(0, group, {.role = Role::expand, .in = 8, .parts = {{"up", 24}}});
        const auto contract =
            rig.strategy->linear(0, group, {.role = Role::contract, .in = 24, .parts = {{"down", 8}}});
        rig.ready();
        fill_weights(rig.store, false);
        const Piece rows{rig.batch.residual.first_row, 0, 8};
        const Shape shape{rig.batch.residual.rows, 8};
        const Scratch x = local(rig, "x", shape, rows, false), dy = local(rig, "dy", shape, rows, false);
        const Scratch hidden = expand->forward(rig.ex, rig.batch, x, {});
        const Scratch y = contract->forward(rig.ex, rig.batch, hidden, {});
        const Scratch dhidden = contract->backward(rig.ex, rig.batch, dy, hidden, {}, *rig.sink);
        const Scratch dx = expand->backward(rig.ex, rig.batch, dhidden, x, {}, *rig.sink);
        rig.done();
        const auto dot = [](const Tensor& a, const Tensor& b) {
          double sum = 0;
          for (int64_t i = 0; i < a.count(); ++i) sum += a.as<double>()[i] * b.as<double>()[i];
          return sum;
        };
        const std::lock_guard lock(mutex);
        // Without sequence parallelism every rank holds the same whole tensors.
        const double share = sequence_parallel ? 1 : 1.0 / tensor;
        forward += share * dot(y, dy);
        backward += share * dot(x, dx);
      });
      EXPECT_NEAR(forward, backward, 1e-13 * (1 + std::abs(forward)) * 100);
    }
}

/// Does every operation at once, and notes how many FLOPs of products ran between its start and the wait for it.
class Watched final : public comm::Communicator {
 public:
  Watched(std::unique_ptr<comm::Communicator> inner, device::Device& device, const Meter& meter,
          std::vector<double>& hidden)
      : Communicator(inner->group()), inner_(std::move(inner)), device_(device), meter_(meter), hidden_(hidden) {}

 protected:
  comm::Pending* start(const Request& request) override {
    Arena arena(device_, Arena::Mode::heap);
    Meter own;
    Exec ex{device_, arena, own};
    switch (request.op) {
      case CommOp::all_reduce:
        inner_->all_reduce(ex, request.out, request.reduce).join(ex);
        break;
      case CommOp::all_gather:
        inner_->all_gather(ex, request.in, request.out).join(ex);
        break;
      case CommOp::reduce_scatter:
        inner_->reduce_scatter(ex, request.in, request.out).join(ex);
        break;
      default:
        TRAINER_CHECK(false, "{} is not watched", name_of(request.op));
    }
    waits_.push_back(std::make_unique<Wait>(*this, meter_.matmul_flops()));
    return waits_.back().get();
  }

 private:
  struct Wait final : comm::Pending {
    Wait(Watched& owner, double flops) : watched(owner), at_start(flops) {}
    void wait() override { watched.hidden_.push_back(watched.meter_.matmul_flops() - at_start); }
    void abandon() noexcept override {}
    Watched& watched;
    double at_start;
  };
  std::unique_ptr<comm::Communicator> inner_;
  device::Device& device_;
  const Meter& meter_;
  std::vector<double>& hidden_;
  std::vector<std::unique_ptr<Wait>> waits_;
};

TEST(MegatronPieces, ProductsRunWhileSumsAreUnderWay) {
  const double product = 2.0 * kRows * 8 * 24 / 2;  // of one of two ranks
  for (const bool overlap : {true, false})
    for (const bool sequence_parallel : {false, true})
      comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
        Rig rig(world, 2, sequence_parallel);
        std::vector<double> hidden;
        Watched ranks(world.communicator(rig.device, {1, "tensor", {0, 1}, world.rank()}, comm::Lane::critical),
                      rig.device, rig.meter, hidden);
        Megatron1D strategy({.store = rig.store,
                             .ranks = ranks,
                             .axes = 2,
                             .sequence_parallel = sequence_parallel,
                             .overlap = overlap});
        const auto linear =
            strategy.linear(0, rig.store.add_group("g"), {.role = Role::expand, .in = 8, .parts = {{"up", 24}}});
        rig.ready();
        const Shape shape{rig.batch.residual.rows, 8};
        const Scratch x = local(rig, "x", shape, {0, 0, 8}, false),
                      dy = local(rig, "dy", {kRows, 12}, {0, 0, 24}, false);
        linear->backward(rig.ex, rig.batch, dy, x, {}, *rig.sink);
        rig.done();
        // The gather runs under dx, the sum of dx under dW.
        const std::vector<double> expected(sequence_parallel ? 2 : 1, overlap ? product : 0);
        EXPECT_EQ(hidden, expected) << "overlap " << overlap << ", sequence parallel " << sequence_parallel;
      });
}

}  // namespace
