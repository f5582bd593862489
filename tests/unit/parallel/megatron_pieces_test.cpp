// The pieces of Megatron-1D one by one, on ranks that are threads, beside dense ones on one rank.
#include "parallel/loss.h"
#include "unit/parallel/timeline_rig.h"

namespace trainer::pieces {
namespace {

using parallel::LinearSpec;
using parallel::Site;

Rig make_rig(comm::World& world, int tensor, bool sequence_parallel, DType dtype = DType::f64) {
  config::Config c;
  c.parallel.strategy = "megatron-1d";
  c.parallel.tensor = tensor;
  c.parallel.sequence_parallel = sequence_parallel;
  return {world, on_ranks(c, world.size(), 0), dtype};
}

/// y, dx and all gradients of an expand or a contract linear with biases.
Named linear(int tensor, bool sequence_parallel, Site site, bool integers, DType type) {
  const int64_t in = reads_residual(site) ? 8 : 48, out = reads_residual(site) ? 48 : 8;
  return on_ranks(tensor, [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig = make_rig(world, tensor, sequence_parallel, type);
    LinearSpec spec{.site = site, .in = in, .parts = {}, .bias = true};
    if (reads_residual(site)) {
      spec.parts = {{"q", out / 2}, {"k", out / 4}, {"v", out / 4}};
    } else {
      spec.parts = {{"o", out}};
    }
    const auto linear = rig.strategy->linear(0, rig.store.add_group("g"), spec);
    rig.ready();
    fill_weights(rig.store, integers);
    const int64_t t = tensor, r = world.rank();
    // The residual-like side is cut by rows, if at all; the other by columns.
    const Piece rows{rig.tile(8).first_row, 0, 8};
    const Shape residual{rig.tile(8).rows, 8};
    Named own;
    Scratch x, dy;
    if (reads_residual(site)) {
      x = local(rig, "x", residual, rows, integers);
    } else {
      x = local(rig, "x", {kRows, in / t}, {0, r * in / t, in}, integers);
    }
    const Scratch add = local(rig, "residual", residual, rows, integers);
    parallel::ForwardFusion fusion;
    if (!reads_residual(site)) fusion.residual = add;
    const Scratch y = linear->forward(rig.ex, rig.batch.rows(), x, fusion);
    // Columns of parts lie side by side: dy is drawn by part and column.
    if (reads_residual(site)) {
      dy = rig.ex.take("dy", {kRows, out / t}, type);
      int64_t col = 0;
      for (const auto& part : spec.parts)
        for (int64_t c = 0; c < part.out / t; ++c, ++col)
          for (int64_t row = 0; row < kRows; ++row)
            set(dy, row * (out / t) + col, draw("d" + part.name, row * part.out + r * part.out / t + c, integers));
    } else {
      dy = local(rig, "dy", residual, rows, integers);
    }
    const Scratch dx = linear->backward(rig.ex, rig.batch.rows(), dy, x, {}, *rig.sink);
    rig.done();
    const std::lock_guard lock(mutex);
    if (reads_residual(site)) {
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
  for (const Site site : {Site::up, Site::down}) {
    const Named dense = linear(1, false, site, true, DType::f64);
    for (const int tensor : {2, 3, 4})
      for (const bool sequence_parallel : {false, true}) {
        SCOPED_TRACE(format("{} ranks, sequence parallel {}, {}", tensor, sequence_parallel, reads_residual(site)));
        const Named cut = linear(tensor, sequence_parallel, site, true, DType::f64);
        ASSERT_EQ(cut.size(), dense.size());
        for (const auto& [name, values] : dense) EXPECT_EQ(cut.at(name), values) << name;
      }
  }
}

TEST(MegatronPieces, LinearsStayNearDenseOnesInSinglePrecision) {
  for (const Site site : {Site::up, Site::down}) {
    const Named dense = linear(1, false, site, false, DType::f64);
    for (const bool sequence_parallel : {false, true})
      for (const auto& [name, values] : linear(4, sequence_parallel, site, false, DType::f32))
        EXPECT_LE(difference(values, dense.at(name)), 1e-5) << name;
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
    Rig rig = make_rig(world, ranks == 1 ? 1 : ranks, false, c.type);
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
    parallel::run(rig.ex, group.get(), op);
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
        Rig rig = make_rig(world, tensor, sequence_parallel);
        const int group = rig.store.add_group("g");
        const auto expand = rig.strategy->linear(0, group, {.site = Site::up, .in = 8, .parts = {{"up", 24}}});
        const auto contract = rig.strategy->linear(0, group, {.site = Site::down, .in = 24, .parts = {{"down", 8}}});
        rig.ready();
        fill_weights(rig.store, false);
        const Piece rows{rig.tile(8).first_row, 0, 8};
        const Shape shape{rig.tile(8).rows, 8};
        const Scratch x = local(rig, "x", shape, rows, false), dy = local(rig, "dy", shape, rows, false);
        const Scratch hidden = expand->forward(rig.ex, rig.batch.rows(), x, {});
        const Scratch y = contract->forward(rig.ex, rig.batch.rows(), hidden, {});
        const Scratch dhidden = contract->backward(rig.ex, rig.batch.rows(), dy, hidden, {}, *rig.sink);
        const Scratch dx = expand->backward(rig.ex, rig.batch.rows(), dhidden, x, {}, *rig.sink);
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

TEST(MegatronPieces, GemmsRunWhileSumsAreUnderWay) {
  for (const bool overlap : {true, false})
    for (const bool sequence_parallel : {false, true}) {
      SCOPED_TRACE(format("overlap {}, sequence parallel {}", overlap, sequence_parallel));
      config::Config c;
      c.parallel.strategy = "megatron-1d";
      c.parallel.tensor = 2;
      c.parallel.sequence_parallel = sequence_parallel;
      Timeline timeline;
      const Meter* meter = nullptr;
      NotingWorld world(2, meter, 2.0 * kRows * 8 * 12, timeline);
      Rig rig(world, on_ranks(c, 2, 0), DType::f64, overlap);
      meter = &rig.meter;
      const auto linear =
          rig.strategy->linear(0, rig.store.add_group("g"), {.site = Site::up, .in = 8, .parts = {{"up", 24}}});
      rig.ready();
      const Scratch x = rig.ex.take("x", {rig.tile(8).rows, 8}, rig.type),
                    dy = rig.ex.take("dy", {kRows, 12}, rig.type);
      linear->backward(rig.ex, rig.batch.rows(), dy, x, {}, *rig.sink);
      // The gather of x runs under dX, the sum of dX under dW.
      const double under = overlap ? 1 : 0;
      if (sequence_parallel) {
        EXPECT_EQ(timeline.at("tensor all_gather"), (std::vector<Moment>{{0, under}}));
        EXPECT_EQ(timeline.at("tensor reduce_scatter"), (std::vector<Moment>{{1, 1 + under}}));
      } else {
        EXPECT_EQ(timeline.at("tensor all_reduce"), (std::vector<Moment>{{1, 1 + under}}));
      }
    }
}

}  // namespace
}  // namespace trainer::pieces
