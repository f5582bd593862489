// What Optimus-2D sends and holds: closed forms against dry runs (and these against real ones, in optimus_test.cpp).
#include "comm/bytes.h"
#include "rigs/optimus.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Recompute;

struct Sizes {
  int64_t q, depth, b, s, h, heads, layers, vocab;  // b: sequences of a square
};
const Sizes kSizes[] = {{2, 1, 4, 8, 16, 4, 2, 64}, {4, 1, 8, 8, 32, 8, 2, 128}, {3, 2, 6, 8, 12, 6, 3, 48}};

config::Config configure(const Sizes& g, const char* stationary, const char* panels, int64_t accumulation = 1) {
  config::Config c = tiny_config();
  c.model.n_layer = g.layers;
  c.model.n_head = c.model.n_kv_head = g.heads;
  c.model.d_model = g.h;
  c.model.d_ff = 4 * g.h;
  c.model.seq_len = g.s;
  c.model.vocab_multiple = g.vocab;
  c.train.micro_batch = g.b * g.depth;
  c.train.global_batch = c.train.micro_batch * accumulation;
  c.parallel.strategy = "optimus-2d";
  c.parallel.mesh = {g.q, g.q, g.depth};
  c.parallel.stationary = stationary;
  c.parallel.panels = panels;
  c.parallel.data = 1;
  return c;
}

/// A run that is planned and not made.
struct Planned {
  Planned(const config::Config& c, int64_t vocab, DType compute, int rank = 0)
      : world(comm::dry_world(static_cast<int>(config::ranks_of_replica(c) * c.parallel.data), rank)),
        trainer(device, *world, c, vocab, compute, true) {
    trainer.plan();
  }
  /// Elements and calls of an operation along an axis.
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
  device::DryDevice device{1};
  const std::unique_ptr<comm::World> world;
  train::Trainer trainer;
};

/// Bytes on the wire of one operation.
int64_t wire(CommOp op, int64_t group, int64_t elements, DType dtype) {
  return comm::wire_elements(op, static_cast<int>(group), elements) * size_of(dtype);
}

TEST(OptimusCounts, OfGatheredPanelsAreTheClosedForms) {
  for (const Sizes& g : kSizes)
    for (const char* stationary : {"auto", "paper"})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        SCOPED_TRACE(
            format("q = {}, depth = {}, {}, recompute {}", g.q, g.depth, stationary, static_cast<int>(recompute)));
        config::Config c = configure(g, stationary, "gather");
        c.train.recompute = recompute;
        Planned planned(c, g.vocab - 3, DType::f32);
        const bool again = recompute == Recompute::full, paper = stationary == std::string_view("paper");
        const int64_t rows = g.b * g.s / g.q, panel = rows * g.h, layers = g.layers, norms = 2 * layers + 1;
        const int64_t square = g.h * g.h / g.q, table = g.vocab * g.h / g.q;
        // Along col, of each layer: the inputs of qkv, out and up (and down), forward, for dW, and of a recomputed
        // forward, which stops before down; dY of down serves two products. Beside them the head's features and the
        // embedding's dY, and two values of each row of the norms.
        const int64_t forward = paper ? 7 : 3, backward = paper ? 7 : 4, repeated = again ? 3 : 0;
        EXPECT_EQ(planned.of("col", CommOp::all_gather).elements,
                  (layers * (forward + backward + repeated) + 2) * panel + norms * 2 * rows * g.q);
        EXPECT_EQ(planned.of("col", CommOp::all_gather).calls, layers * ((paper ? 4 : 3) + 4 + repeated) + 2 + norms);
        // Sums of dX of the same linears, or of Y of down; of the head's dX and the looked-up rows.
        EXPECT_EQ(planned.of("col", CommOp::reduce_scatter).elements, (layers * (paper ? 7 : 4) + 2) * panel);
        EXPECT_EQ(planned.of("col", CommOp::reduce_scatter).calls, layers * 4 + 2);
        // Two values of each row backward of each norm, three of the loss.
        EXPECT_EQ(planned.of("col", CommOp::all_reduce).elements, (2 * norms + 3) * rows);
        EXPECT_EQ(planned.of("col", CommOp::all_reduce).calls, norms + 2);
        // Along row: weights forward and backward, their gradients; the table twice, its gradient once; vectors, once a
        // step by group.
        EXPECT_EQ(planned.of("row", CommOp::all_gather).elements, layers * (24 + (again ? 8 : 0)) * square + 2 * table);
        EXPECT_EQ(planned.of("row", CommOp::reduce_scatter).elements, layers * 12 * square + table);
        EXPECT_EQ(planned.of("row", CommOp::all_reduce).elements, (13 * layers * g.h + 2 * g.h + g.s * g.h) / g.q);
        EXPECT_EQ(planned.of("row", CommOp::all_reduce).calls, layers + 2);
        int64_t flat = 0;
        for (const params::Group& group : planned.trainer.store().groups()) flat += group.elements;
        EXPECT_EQ(planned.of("data", CommOp::all_reduce).elements, g.depth == 1 ? 0 : flat) << "depth";
        EXPECT_EQ(planned.of("data", CommOp::all_reduce).calls, g.depth == 1 ? 0 : layers + 2);
      }
}

/// Of the specification's simulation, one micro-batch, nothing recomputed, with the vocabulary and vectors moved as
/// matrices are, and each product for itself.
struct Golden {
  Sizes sizes;
  const char* stationary;
  int64_t col_broadcast, col_reduce, row_broadcast, row_reduce;
};
const Golden kGoldens[] = {{kSizes[0], "paper", 9216, 4608, 7968, 4384},
                           {kSizes[0], "auto", 4608, 2304, 7456, 3872},
                           {kSizes[1], "paper", 18432, 9216, 15648, 8480},
                           {kSizes[1], "auto", 9216, 4608, 14624, 7456}};

TEST(OptimusCounts, OfRingsAreThoseOfTheSpecification) {
  for (const Golden& golden : kGoldens) {
    const Sizes& g = golden.sizes;
    SCOPED_TRACE(format("q = {}, {}", g.q, golden.stationary));
    Planned planned(configure(g, golden.stationary, "ring"), g.vocab - 3, DType::f32);
    const bool paper = golden.stationary == std::string_view("paper");
    const int64_t panel = g.b * g.s * g.h / g.q, logits = g.b * g.s * g.vocab / g.q, table = g.vocab * g.h / g.q;
    const int64_t vectors = (13 * g.layers * g.h + 2 * g.h + g.s * g.h) / g.q;
    // The table is gathered, and its gradient scattered; vectors are added up at once; dY of down is broadcast once.
    const int64_t head = paper ? logits : panel, twice = paper ? 0 : g.layers * panel;
    EXPECT_EQ(planned.of("col", CommOp::broadcast).elements, golden.col_broadcast - 2 * head - twice);
    EXPECT_EQ(planned.of("col", CommOp::reduce).elements, golden.col_reduce - head);
    EXPECT_EQ(planned.of("row", CommOp::broadcast).elements, golden.row_broadcast - vectors - (paper ? 3 : 2) * table);
    EXPECT_EQ(planned.of("row", CommOp::reduce).elements, golden.row_reduce - vectors - (paper ? 2 : 1) * table);
    EXPECT_EQ(planned.of("row", CommOp::all_reduce).elements, vectors);
    EXPECT_EQ(planned.of("row", CommOp::all_gather).elements, table) << "nothing else is gathered in between: it stays";
    EXPECT_EQ(planned.of("row", CommOp::reduce_scatter).elements, table);
    EXPECT_EQ(planned.of("col", CommOp::send_recv).calls, 0);
  }
}

TEST(OptimusCounts, OfRingsAreThoseOfGatheredPanelsInSoManySteps) {
  for (const Sizes& g : kSizes)
    for (const char* stationary : {"auto", "paper"})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        SCOPED_TRACE(
            format("q = {}, depth = {}, {}, recompute {}", g.q, g.depth, stationary, static_cast<int>(recompute)));
        const auto counted = [&](const char* panels) {
          config::Config c = configure(g, stationary, panels);
          c.train.recompute = recompute;
          return std::make_unique<Planned>(c, g.vocab - 3, DType::f32);
        };
        const auto ring = counted("ring"), gathered = counted("gather");
        const int64_t table = g.vocab * g.h / g.q;
        for (const char* axis : {"row", "col"})
          for (const auto& [step, whole] :
               {std::pair{CommOp::broadcast, CommOp::all_gather}, {CommOp::reduce, CommOp::reduce_scatter}}) {
            // Between look-up and head nothing else is gathered: one table serves both.
            const bool kept = step == CommOp::broadcast && std::string_view(axis) == "row";
            const CommCount steps = ring->of(axis, step), rest = ring->of(axis, whole), all = gathered->of(axis, whole);
            EXPECT_EQ(steps.elements + rest.elements, all.elements - (kept ? table : 0))
                << axis << " " << name_of(step);
            EXPECT_EQ(steps.calls, g.q * (all.calls - rest.calls - (kept ? 1 : 0))) << axis << " " << name_of(step);
          }
        for (const char* axis : {"row", "col", "data"})
          EXPECT_EQ(ring->of(axis, CommOp::all_reduce).elements, gathered->of(axis, CommOp::all_reduce).elements);
        const CommBytes &a = ring->trainer.comm_bytes_per_step(), &b = gathered->trainer.comm_bytes_per_step();
        const auto total = [](const CommBytes& bytes) {
          int64_t sum = 0;
          for (const auto& [axis, operations] : bytes)
            for (const auto& [operation, count] : operations) sum += count;
          return sum;
        };
        EXPECT_EQ(total(a), total(b) - wire(CommOp::all_gather, g.q, table, DType::f32));
      }
}

TEST(OptimusCounts, OfAStepAreThoseOfItsMicroBatches) {
  const Sizes& g = kSizes[0];
  const auto bytes = [&](int64_t accumulation) {
    return Planned(configure(g, "auto", "ring", accumulation), g.vocab - 3, DType::f32).trainer.comm_bytes_per_step();
  };
  const CommBytes one = bytes(1), five = bytes(5);
  for (const auto& [axis, operations] : one)
    for (const auto& [operation, count] : operations) {
      const bool of_a_step = axis == "row" && operation == "all_reduce";
      EXPECT_EQ(five.at(axis).at(operation), (of_a_step ? 1 : 5) * count) << axis << " " << operation;
    }
}

TEST(OptimusMemory, OfARingIsTwoPanelsOfEachOperand) {
  for (const Sizes& g : kSizes)
    for (const char* stationary : {"auto", "paper"})
      for (int rank = 0; rank < g.q * g.q; ++rank) {
        SCOPED_TRACE(format("q = {}, rank {}, {}", g.q, rank, stationary));
        Planned planned(configure(g, stationary, "ring"), g.vocab - 3, DType::bf16, rank);
        const auto& taken = planned.trainer.arena().programs().at("train").intervals;
        std::map<std::string, int64_t> most;
        for (const Arena::Interval& at : taken) {
          std::map<std::string, int64_t> live;
          for (const Arena::Interval& each : taken)
            if (each.first <= at.first && at.first < each.last) ++live[each.tag];
          for (const auto& [tag, count] : live) most[tag] = std::max(most[tag], count);
        }
        for (const char* tag : {"summa.weight", "summa.x", "summa.dy", "summa.partial"}) EXPECT_LE(most[tag], 2) << tag;
        EXPECT_GE(most["summa.weight"], 1);
        EXPECT_LE(most["summa.dweight"], 4) << "two of the linear before are on their way";
      }
}

/// Bytes that are live when the head begins its backward pass, gathered weights left out.
int64_t saved_bytes(const config::Config& c) {
  Planned planned(c, 90, DType::f32);
  const auto& taken = planned.trainer.arena().programs().at("train").intervals;
  const auto head = std::ranges::find(taken, "head.dx", &Arena::Interval::tag);
  TRAINER_CHECK(head != taken.end(), "no head");
  int64_t bytes = 0;
  for (const Arena::Interval& each : taken)
    if (each.first <= head->first && head->first < each.last && each.tag != "weights.gathered") bytes += each.bytes;
  return bytes;
}

TEST(OptimusMemory, OfActivationsIsTheDocumentedListSharedOutOverAllRanks) {
  constexpr int64_t kBatch = 8, kLength = 64, kHidden = 192, kHeads = 16, kLayers = 3;
  for (const auto& [q, depth] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {4, 1}, {2, 2}, {1, 4}})
    for (const char* panels : {"ring", "gather"})
      for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
        SCOPED_TRACE(format("q = {}, depth = {}, recompute {}", q, depth, static_cast<int>(recompute)));
        config::Config c = configure({q, depth, kBatch / depth, kLength, kHidden, kHeads, kLayers, 96}, "auto", panels);
        c.model.dropout = 0;
        c.train.recompute = recompute;
        const int64_t rows = kBatch * kLength / (q * depth), panel = rows * kHidden / q;
        // Of a layer: x, norm, q‖k‖v, context, x1, norm, the activation's input and its output; or less of it.
        const int64_t layer = recompute == Recompute::none ? 16 : recompute == Recompute::selective ? 10 : 1;
        // Two values of each row of a norm (kept by full recomputation where ranks share rows), one of each head's.
        const int64_t norms = recompute == Recompute::full && q == 1 ? 1 : 2 * kLayers + 1;
        const int64_t heads = recompute == Recompute::full ? 0 : kLayers * rows * kHeads / q;
        EXPECT_EQ(saved_bytes(c), 4 * ((layer * kLayers + 3) * panel + norms * 2 * rows + heads));
      }
}

}  // namespace
}  // namespace trainer::tests
