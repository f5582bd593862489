// The bytes that each strategy sends and stores, compared with the closed forms of its paper in dry runs; and the rank
// placement. layouts_test.cpp compares dry runs with real ones; unit/plan/closed_forms_test.cpp checks the traffic
// of a transformer block on more meshes.
#include "rigs/layouts.h"

namespace trainer::tests {
namespace {

using config::Panels, config::Recompute, config::Stationary, config::StrategyName;

constexpr Recompute kRecomputes[] = {Recompute::none, Recompute::selective, Recompute::full};

struct Sizes {
  int64_t b, s, h, heads, layers, vocab;  // b: sequences of a micro-batch
};

config::Config configure(const Sizes& g, StrategyName strategy, Recompute recompute = Recompute::none) {
  config::Config c = tiny_config();
  c.model.n_layer = g.layers;
  c.model.n_head = c.model.n_kv_head = g.heads;
  c.model.d_model = g.h;
  c.model.d_ff = 4 * g.h;
  c.model.seq_len = g.s;
  c.model.vocab_multiple = g.vocab;
  c.train.micro_batch = c.train.global_batch = g.b;
  c.train.recompute = recompute;
  c.parallel.strategy = strategy;
  c.parallel.data = 1;
  return c;
}

/// A run that is only planned; its vocabulary is padded by three tokens.
struct Planned {
  explicit Planned(const config::Config& c, DType compute = DType::f32, int rank = 0)
      : world(comm::dry_world(static_cast<int>(config::ranks_of_replica(c) * c.parallel.data), rank)),
        trainer(device, *world, c, c.model.vocab_multiple - 3, compute) {
    trainer.plan();
  }
  /// Returns elements and calls of an operation along an axis.
  CommCount of(const char* axis, CommOp op) {
    CommCount sum;
    for (const auto& [key, count] : trainer.meter().comm()) {
      if (key.axes == mesh::kControlAxes || trainer.store().mesh_shape().name_of(key.axes) != axis || key.op != op)
        continue;
      sum.calls += count.calls;
      sum.elements += count.elements;
    }
    return sum;
  }
  /// Returns the elements of all gradients that this rank stores.
  int64_t stored() {
    int64_t sum = 0;
    for (const params::Group& group : trainer.store().groups()) sum += group.elements;
    return sum;
  }
  /// Returns the largest sum of amount(interval) over the memory that is live at a time.
  template <typename F>
  int64_t most(F amount) {
    const auto& taken = trainer.arena().programs().at("train").intervals;
    int64_t most = 0;
    for (const Arena::Interval& at : taken) {
      int64_t live = 0;
      for (const Arena::Interval& each : taken)
        if (each.first <= at.first && at.first < each.last) live += amount(each);
      most = std::max(most, live);
    }
    return most;
  }
  device::DryDevice device{1};
  const std::unique_ptr<comm::World> world;
  train::Trainer trainer;
};

TEST(ClosedForms, OfMegatron) {
  for (const auto& [t, g] : {std::pair{2, Sizes{4, 8, 16, 4, 2, 64}}, {4, Sizes{4, 8, 32, 8, 3, 128}}})
    for (const bool sequence_parallel : {false, true})
      for (const Recompute recompute : kRecomputes) {
        SCOPED_TRACE(format("t = {}, {}, recompute {}", t, sequence_parallel, static_cast<int>(recompute)));
        config::Config c = configure(g, StrategyName::megatron_1d, recompute);
        c.parallel.tensor = t;
        c.parallel.sequence_parallel = sequence_parallel;
        Planned planned(c);
        const int64_t rows = g.b * g.s * g.h, loss = 3 * g.b * g.s, again = recompute == Recompute::full ? g.layers : 0;
        // Each layer has two reductions forward and two backward; embedding and head have one each.
        const int64_t sums = rows * (4 * g.layers + 2 + again);
        // The inputs of qkv and up are gathered again for dW; that of the head is not. Gradients of vectors are reduced
        // once per step.
        const int64_t gathers = rows * (6 * g.layers + 2 + 2 * again), vectors = (6 * g.layers + 2 + g.s) * g.h;
        EXPECT_EQ(planned.of("tensor", CommOp::all_gather).elements, sequence_parallel ? gathers : 0);
        EXPECT_EQ(planned.of("tensor", CommOp::reduce_scatter).elements, sequence_parallel ? sums : 0);
        EXPECT_EQ(planned.of("tensor", CommOp::all_reduce).elements, loss + (sequence_parallel ? vectors : sums));
      }
}

TEST(ClosedForms, OfAxonn) {
  struct AxonnGrid {
    int64_t x, y, z, data;
    Sizes of_a_rank;
  };
  for (const auto& [x, y, z, data, g] : {AxonnGrid{2, 2, 1, 1, {4, 8, 16, 4, 2, 64}},
                                         {2, 2, 2, 2, {2, 8, 32, 8, 3, 128}},
                                         {3, 2, 4, 1, {2, 8, 12, 6, 2, 48}}})
    for (const auto& [recompute, kept, both] : {std::tuple{Recompute::none, int64_t{0}, false},
                                                {Recompute::none, int64_t{1}, true},
                                                {Recompute::selective, g.layers, false},
                                                {Recompute::full, int64_t{0}, true},
                                                {Recompute::full, int64_t{1}, false},
                                                {Recompute::full, g.layers, true}}) {
      SCOPED_TRACE(format("[{}, {}, {}] x {}, recompute {}, kept {}, vocabulary over y {}", x, y, z, data,
                          static_cast<int>(recompute), kept, both));
      config::Config c = configure(g, StrategyName::axonn_4d, recompute);
      c.parallel.vocab_axes = both ? config::VocabAxes::xy : config::VocabAxes::x;
      c.train.micro_batch = g.b * z;
      c.train.global_batch = g.b * z * data;
      c.parallel.grid = {x, y, z};
      c.parallel.data = data;
      c.parallel.cache_layers = kept;
      Planned planned(c);
      const bool again = recompute == Recompute::full;
      const int64_t m = g.b * g.s, r = again ? 2 : 1, layers = g.layers, norms = 2 * layers + 1;
      const int64_t linears = (2 * r + 2) * layers;
      // A recomputed block stops before its last GEMM. In addition to the linears: look-up, dx of the head and two of
      // the loss; logits and, of each norm, one backward. If the vocabulary is split over y as well, the head's
      // features and the embedding's dy are gathered, look-up and dx reduce-scattered, and there are no partial
      // logits.
      const char* const split = both ? "xy" : "x";
      const CommCount loss = planned.of(split, CommOp::all_reduce);
      const int64_t logits = both ? 0 : m * g.vocab / x, moved = both ? 2 : 0;
      EXPECT_EQ(planned.of("x", CommOp::all_reduce).elements + (both ? loss.elements : 0),
                m * g.h / y * (linears + 2) + 3 * m - (again ? m * g.h / y * layers : 0));
      EXPECT_EQ(planned.of("x", CommOp::all_reduce).calls + (both ? loss.calls : 0),
                linears + 4 - (again ? layers : 0));
      EXPECT_EQ(planned.of("y", CommOp::all_reduce).elements,
                m * g.h / x * (7 * r + 5) * layers + logits + 2 * m * norms);
      EXPECT_EQ(planned.of("y", CommOp::all_reduce).calls, linears + norms + !both);
      EXPECT_EQ(planned.of("y", CommOp::reduce_scatter).elements, moved * m * g.h);
      EXPECT_EQ(planned.of("y", CommOp::reduce_scatter).calls, moved);
      // Norms keep their statistics: they exchange them once, recomputed or not.
      EXPECT_EQ(planned.of("y", CommOp::all_gather).elements, y * 2 * m * norms + moved * m * g.h);
      EXPECT_EQ(planned.of("y", CommOp::all_gather).calls, norms + moved);
      // Gathered: each block's matrices for forward and backward (three of four again for a recomputed forward), or
      // once where they are kept; the table for the look-up and the head, or once.
      const int64_t cut = z > 1, square = g.h * g.h / (x * y), table = g.vocab * g.h / (x * y);
      const int64_t gathers = (layers - kept) * (24 + (again ? 8 : 0)) * square + kept * 12 * square;
      const int64_t tables = kept > 0 ? 1 : 2;
      EXPECT_EQ(planned.of("z", CommOp::all_gather).elements, cut * (gathers + tables * table));
      EXPECT_EQ(planned.of("z", CommOp::all_gather).calls,
                cut * ((layers - kept) * (8 + (again ? 3 : 0)) + kept * 4 + tables));
      EXPECT_EQ(planned.of("z", CommOp::reduce_scatter).elements, cut * (12 * layers * square + table));
      EXPECT_EQ(planned.of("z", CommOp::reduce_scatter).calls, cut * (4 * layers + 1));
      // Gradients of vectors, once per step and group.
      const int64_t vectors = layers * (7 * g.h / x + 6 * g.h / y) + (g.s + 2) * g.h / y;
      EXPECT_EQ(planned.of("z", CommOp::all_reduce).elements, cut * vectors);
      EXPECT_EQ(planned.of("z", CommOp::all_reduce).calls, cut * (layers + 2));
      EXPECT_EQ(planned.of("data", CommOp::all_reduce).elements, data == 1 ? 0 : planned.stored());
      EXPECT_EQ(planned.of("data", CommOp::all_reduce).calls, data == 1 ? 0 : layers + 2);
    }
}

struct Square {
  int64_t q, depth;
  Sizes sizes;  // one square's
  config::Config config(Stationary stationary, Panels panels, Recompute recompute = Recompute::none) const {
    config::Config c = configure(sizes, StrategyName::optimus_2d, recompute);
    c.train.micro_batch = c.train.global_batch = sizes.b * depth;
    c.parallel.mesh = {q, q, depth};
    c.parallel.stationary = stationary;
    c.parallel.panels = panels;
    return c;
  }
};
const Square kSquares[] = {{2, 1, {4, 8, 16, 4, 2, 64}}, {4, 1, {8, 8, 32, 8, 2, 128}}, {3, 2, {6, 8, 12, 6, 3, 48}}};

TEST(ClosedForms, OfOptimus) {
  for (const Square& square : kSquares)
    for (const bool paper : {false, true})
      for (const bool ring : {false, true})
        for (const auto& [recompute, keeps] : {std::pair{Recompute::none, false},
                                               {Recompute::none, true},
                                               {Recompute::selective, false},
                                               {Recompute::full, false},
                                               {Recompute::full, true}}) {
          const auto& [q, depth, g] = square;
          SCOPED_TRACE(format("q = {}, depth = {}, paper {}, ring {}, recompute {}, keeps {}", q, depth, paper, ring,
                              static_cast<int>(recompute), keeps));
          config::Config c = square.config(paper ? Stationary::paper : Stationary::automatic,
                                           ring ? Panels::ring : Panels::gather, recompute);
          c.parallel.cache_layers = keeps ? g.layers : 0;
          Planned planned(c);
          // Linears send in q ring steps or, like everything else, in one collective.
          const auto expect = [&, q = q](const char* axis, CommOp step, CommOp whole, CommCount linears,
                                         CommCount rest) {
            SCOPED_TRACE(format("{} {}", axis, name_of(whole)));
            const CommCount steps = planned.of(axis, step), wholes = planned.of(axis, whole);
            EXPECT_EQ(steps.elements, ring ? linears.elements : 0);
            EXPECT_EQ(steps.calls, ring ? q * linears.calls : 0);
            EXPECT_EQ(wholes.elements, rest.elements + (ring ? 0 : linears.elements));
            EXPECT_EQ(wholes.calls, rest.calls + (ring ? 0 : linears.calls));
          };
          const bool again = recompute == Recompute::full;
          const int64_t rows = g.b * g.s / q, panel = rows * g.h, layers = g.layers, norms = 2 * layers + 1;
          const int64_t weight = g.h * g.h / q, table = g.vocab * g.h / q;
          // Along col, of each layer: the inputs of qkv, out and up (and down), forward, for dW, and of a recomputed
          // forward, which stops before down; dY of down serves two GEMMs. In addition, the head's features and the
          // embedding's dY, and two values of each row of the norms.
          const int64_t forward = paper ? 7 : 3, backward = paper ? 7 : 4, repeated = again ? 3 : 0;
          expect("col", CommOp::broadcast, CommOp::all_gather,
                 {.calls = layers * ((paper ? 4 : 3) + 4 + repeated),
                  .elements = layers * (forward + backward + repeated) * panel},
                 {.calls = 2 + norms, .elements = 2 * panel + norms * 2 * rows * q});
          // Reductions of dX of the same linears, or of Y of down; of the head's dX and the looked-up rows.
          expect("col", CommOp::reduce, CommOp::reduce_scatter,
                 {.calls = layers * 4, .elements = layers * (paper ? 7 : 4) * panel},
                 {.calls = 2, .elements = 2 * panel});
          // Two values of each row backward of each norm, three of the loss.
          EXPECT_EQ(planned.of("col", CommOp::all_reduce).elements, (2 * norms + 3) * rows);
          EXPECT_EQ(planned.of("col", CommOp::all_reduce).calls, norms + 2);
          // Along row: weights forward and backward, or once if gathered ones are kept, their gradients; the table's
          // gradient, and the table twice, or once next to rings, since nothing else is gathered between look-up and
          // head.
          const int64_t tables = ring || keeps ? 1 : 2;
          const bool once = keeps && !ring;
          expect("row", CommOp::broadcast, CommOp::all_gather,
                 {.calls = layers * (once ? 4 : 8 + repeated),
                  .elements = layers * (once ? 12 : 24 + (again ? 8 : 0)) * weight},
                 {.calls = tables, .elements = tables * table});
          expect("row", CommOp::reduce, CommOp::reduce_scatter, {.calls = layers * 4, .elements = layers * 12 * weight},
                 {.calls = 1, .elements = table});
          // Gradients of vectors, once per step and group.
          EXPECT_EQ(planned.of("row", CommOp::all_reduce).elements, (13 * layers * g.h + 2 * g.h + g.s * g.h) / q);
          EXPECT_EQ(planned.of("row", CommOp::all_reduce).calls, layers + 2);
          EXPECT_EQ(planned.of("data", CommOp::all_reduce).elements, depth == 1 ? 0 : planned.stored()) << "depth";
          EXPECT_EQ(planned.of("data", CommOp::all_reduce).calls, depth == 1 ? 0 : layers + 2);
        }
}

TEST(Memory, OfMegatronIsTwoWholeTensorsAtMostNextToTheShards) {
  // With sequence parallelism, tensors of all token rows and all of H are live only while gathered or reduced.
  const Sizes g{2, 8, 32, 8, 3, 64};
  config::Config c = configure(g, StrategyName::megatron_1d);
  c.parallel.tensor = 4;
  const int64_t whole = g.b * g.s * g.h * size_of(DType::f32);
  const std::vector<std::string> tags = {"linear.x",          "linear.dx_all", "linear.dy",    "linear.partial",
                                         "embedding.partial", "rows",          "redistribute", "head.dx_all"};
  EXPECT_EQ(Planned(c).most([&](const Arena::Interval& each) {
    return each.bytes == whole && std::ranges::find(tags, each.tag) != tags.end() ? whole : 0;
  }),
            2 * whole);
}

TEST(Memory, OfAxonnIsTwoGatheredMatricesAndTwoOutgoingGradientsAtMost) {
  for (const Recompute recompute : kRecomputes)
    for (const int64_t vocab : {64, 2048}) {
      const Sizes g{4, 8, 32, 8, 3, vocab};
      config::Config c = configure(g, StrategyName::axonn_4d, recompute);
      c.train.global_batch = 16;
      c.parallel.grid = {2, 2, 2};
      c.parallel.data = 2;
      Planned planned(c, DType::bf16);
      const int64_t square = g.h * g.h / 4, table = vocab * g.h / 4, outgoing = table * size_of(DType::f32);
      const auto is = [](const Arena::Interval& each, const char* tag) { return each.tag == tag; };
      EXPECT_EQ(planned.most([&](const auto& each) { return is(each, "weights.gathered"); }), 2);
      // The matrices of up and down, or of down and the table.
      EXPECT_EQ(planned.most([&](const auto& each) { return is(each, "weights.gathered") ? each.bytes : 0; }),
                (4 * square + std::max(4 * square, table)) * size_of(DType::bf16));
      EXPECT_EQ(planned.most([&](const auto& each) { return is(each, "gradient.outgoing") && each.bytes != outgoing; }),
                2);
      EXPECT_EQ(std::ranges::count_if(
                    planned.trainer.arena().programs().at("train").intervals,
                    [&](const auto& each) { return is(each, "gradient.outgoing") && each.bytes == outgoing; }),
                1)
          << "head and embedding write one gradient";
    }
}

TEST(Memory, OfOptimusRingsIsTwoPanelsOfEachOperand) {
  for (const Square& square : kSquares)
    for (const Stationary stationary : {Stationary::automatic, Stationary::paper})
      for (int rank = 0; rank < square.q * square.q; ++rank) {
        SCOPED_TRACE(format("q = {}, rank {}, {}", square.q, rank, static_cast<int>(stationary)));
        Planned planned(square.config(stationary, Panels::ring), DType::bf16, rank);
        const auto most = [&](const char* tag) {
          return planned.most([&](const Arena::Interval& each) { return each.tag == tag; });
        };
        for (const char* tag : {"summa.weight", "summa.x", "summa.dy", "summa.partial"}) EXPECT_LE(most(tag), 2) << tag;
        EXPECT_GE(most("summa.weight"), 1);
        EXPECT_LE(most("summa.dweight"), 4) << "two of the linear before are on their way";
      }
}

/// Returns the bytes that are live when the head begins its backward pass, gathered weights left out.
int64_t saved_bytes(const config::Config& c) {
  Planned planned(c);
  const auto& taken = planned.trainer.arena().programs().at("train").intervals;
  const auto head = std::ranges::find(taken, "head.dx", &Arena::Interval::tag);
  TRAINER_CHECK(head != taken.end(), "no head");
  int64_t bytes = 0;
  for (const Arena::Interval& each : taken)
    if (each.first <= head->first && head->first < each.last && each.tag != "weights.gathered") bytes += each.bytes;
  return bytes;
}

TEST(SavedActivations, OfMegatronAreTheDocumentedList) {
  // Memory of one layer between forward and backward, in elements of f32: residual rows n = N/t, all rows N.
  constexpr int64_t kT = 4, kBatch = 2, kLength = 8, kHidden = 32, kHeads = 8, kAll = kBatch * kLength;
  for (const bool sequence_parallel : {false, true})
    for (const Recompute recompute : kRecomputes) {
      const int64_t n = sequence_parallel ? kAll / kT : kAll;
      const bool keeps = recompute == Recompute::none;
      // All are whole cache lines here except statistics of small batches.
      const int64_t x = n * kHidden, stats = 2 * round_up(n, 16), norm = keeps ? x : 0,
                    attention = kAll * 4 * kHidden / kT, lse = kBatch * kHeads / kT * kLength,
                    pre = kAll * 4 * kHidden / kT, z = keeps ? pre : 0;
      const int64_t expected =
          recompute == Recompute::full ? x : x + stats + norm + attention + lse + x + stats + norm + pre + z;
      const auto saved = [&](int64_t layers) {
        config::Config c =
            configure({kBatch, kLength, kHidden, kHeads, layers, 64}, StrategyName::megatron_1d, recompute);
        c.parallel.tensor = kT;
        c.parallel.sequence_parallel = sequence_parallel;
        return saved_bytes(c);
      };
      EXPECT_EQ((saved(3) - saved(2)) / 4, expected) << sequence_parallel << " " << static_cast<int>(recompute);
    }
}

TEST(SavedActivations, OfOptimusAreTheDocumentedListSharedOutOverAllRanks) {
  constexpr int64_t kBatch = 8, kLength = 64, kHidden = 192, kHeads = 16, kLayers = 3;
  for (const auto& [q, depth] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {4, 1}, {2, 2}, {1, 4}})
    for (const Panels panels : {Panels::ring, Panels::gather})
      for (const Recompute recompute : kRecomputes) {
        SCOPED_TRACE(format("q = {}, depth = {}, recompute {}", q, depth, static_cast<int>(recompute)));
        const Square square{q, depth, {kBatch / depth, kLength, kHidden, kHeads, kLayers, 96}};
        config::Config c = square.config(Stationary::automatic, panels, recompute);
        c.model.dropout = 0;
        const int64_t rows = kBatch * kLength / (q * depth), panel = rows * kHidden / q;
        // A layer's tensors: x, norm, q‖k‖v, context, x1, norm, the activation's input and its output; or less of it.
        const int64_t layer = recompute == Recompute::none ? 16 : recompute == Recompute::selective ? 10 : 1;
        // Two values of each row of a norm (kept by full recomputation where ranks share rows), one of each head's.
        const int64_t norms = recompute == Recompute::full && q == 1 ? 1 : 2 * kLayers + 1;
        const int64_t heads = recompute == Recompute::full ? 0 : kLayers * rows * kHeads / q;
        EXPECT_EQ(saved_bytes(c), 4 * ((layer * kLayers + 3) * panel + norms * 2 * rows + heads));
      }
}

mesh::MeshShape shape_of(const config::Config& c) {
  sharding::ModelSharding s = config::sharding_of(c);
  s.axes.front().size = c.parallel.data;
  return parallel::mesh_shape(sharding::on_mesh(std::move(s), c.model.n_kv_head));
}

TEST(Ranks, OfAxonnAreCountedInTheConfiguredOrder) {
  for (size_t i = 0; i < std::size(config::kAxisOrderNames); ++i) {
    const std::string order = config::kAxisOrderNames[i];
    config::Config c = configure({4, 8, 24, 6, 2, 48}, StrategyName::axonn_4d);
    c.parallel.grid = {2, 3, 4};
    c.parallel.order = static_cast<config::AxisOrder>(i);
    c.parallel.data = 2;
    const mesh::MeshShape shape = shape_of(c);
    ASSERT_EQ(shape.world_size(), 48);
    int stride = 1;
    for (const char axis : order) {
      const auto set = shape.set(axis == 'd' ? "data" : std::string(1, axis));
      const int size = axis == 'y' ? 3 : axis == 'z' ? 4 : 2;
      EXPECT_EQ(shape.group_size(set), size);
      for (int rank = 0; rank < 48; ++rank) EXPECT_EQ(shape.index(rank, set), rank / stride % size) << order << axis;
      stride *= size;
    }
  }
}

TEST(Ranks, OfOptimusAreReplicaDepthRowColumnOrTilesOfNeighbours) {
  struct Place {
    int64_t q, depth, data, kv;
    std::vector<int64_t> tile;
  };
  for (const Place& p :
       {Place{3, 2, 2, 6, {1, 1}}, Place{4, 2, 1, 8, {2, 2}}, Place{4, 1, 2, 2, {2, 2}}, Place{4, 1, 1, 2, {1, 4}},
        Place{4, 1, 1, 1, {2, 1}}, Place{6, 1, 1, 3, {3, 2}}, Place{8, 2, 2, 4, {2, 4}}, Place{1, 4, 2, 1, {1, 1}}}) {
    config::Config c = configure({4, 8, 24, 24, 1, 48}, StrategyName::optimus_2d);
    c.model.n_kv_head = p.kv;
    c.parallel.mesh = {p.q, p.q, p.depth};
    c.parallel.node_tile = p.tile;
    c.parallel.data = p.data;
    const mesh::MeshShape shape = shape_of(c);
    const int64_t r = p.tile[0], cols = p.tile[1], square = p.q * p.q;
    ASSERT_EQ(shape.world_size(), square * p.depth * p.data);
    for (int rank = 0; rank < shape.world_size(); ++rank) {
      SCOPED_TRACE(format("q {}, depth {}, kv {}, tile {}x{}, rank {}", p.q, p.depth, p.kv, r, cols, rank));
      const int64_t at = rank % square, tile = at / (r * cols), inside = at % (r * cols);
      const int64_t col = tile % (p.q / cols) * cols + inside % cols;
      if (p.q > 1) {
        EXPECT_EQ(shape.index(rank, shape.set("row")), tile / (p.q / cols) * r + inside / cols);
        EXPECT_EQ(shape.index(rank, shape.set("col")), col);
      }
      EXPECT_EQ(shape.index(rank, shape.set("data")), rank / square);
      if (p.depth > 1) {
        EXPECT_EQ(shape.index(rank, shape.set("depth")), rank / square % p.depth);
      }
      if (p.kv > 1 && p.q > p.kv) {
        EXPECT_EQ(shape.index(rank, shape.set("kv")), col / (p.q / p.kv)) << "ranks of a head are neighbours";
        EXPECT_EQ(shape.index(rank, shape.set("rep")), col % (p.q / p.kv));
      }
    }
  }
}

}  // namespace
}  // namespace trainer::tests
