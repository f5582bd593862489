// What AxoNN-4D sends and holds: closed forms against dry runs (and these against real ones, in axonn_test.cpp).
#include "comm/bytes.h"
#include "rigs/axonn.h"

namespace trainer::tests {
namespace {

using config::Arch;
using config::Recompute;

struct Golden {
  int64_t x, y, z, data;
  int64_t b, s, h, heads, layers, vocab;  // b: sequences of a rank
  int64_t along_x, along_y, gathered_y, vectors_z;
};
// Of the specification's simulation: one micro-batch, nothing recomputed; vectors: once a step.
const Golden kGoldens[] = {{2, 2, 1, 1, 4, 8, 16, 4, 2, 64, 2656, 7488, 320, 0},
                           {2, 2, 2, 2, 2, 8, 32, 8, 3, 128, 3632, 10464, 224, 784},
                           {3, 2, 4, 1, 2, 8, 12, 6, 2, 48, 1008, 1952, 160, 188}};

config::Config configure(const Golden& g, int64_t accumulation) {
  config::Config c = tiny_config();
  c.model.n_layer = g.layers;
  c.model.n_head = c.model.n_kv_head = g.heads;
  c.model.d_model = g.h;
  c.model.d_ff = 4 * g.h;
  c.model.seq_len = g.s;
  c.model.vocab_multiple = g.vocab;
  c.train.micro_batch = g.b * g.z;
  c.train.global_batch = c.train.micro_batch * g.data * accumulation;
  c.parallel.strategy = "axonn-4d";
  c.parallel.grid = {g.x, g.y, g.z};
  c.parallel.data = g.data;
  return c;
}

using Counts = std::map<std::string, std::map<CommOp, int64_t>>;

/// Elements by axis and operation.
Counts elements(train::Trainer& trainer) {
  Counts sums;
  for (const auto& [key, count] : trainer.meter().comm())
    if (key.axes != mesh::kControlAxes) sums[trainer.store().mesh_shape().name_of(key.axes)][key.op] += count.elements;
  return sums;
}
/// The same of calls: a group of one makes none.
Counts calls(train::Trainer& trainer) {
  Counts sums;
  for (const auto& [key, count] : trainer.meter().comm())
    if (key.axes != mesh::kControlAxes) sums[trainer.store().mesh_shape().name_of(key.axes)][key.op] += count.calls;
  return sums;
}
/// Bytes on the wire of a step, from elements of `dtype`.
int64_t wire(CommOp op, int64_t group, int64_t elements, DType dtype) {
  return comm::wire_elements(op, static_cast<int>(group), elements) * size_of(dtype);
}

TEST(AxonnCounts, AreTheClosedForms) {
  for (const Golden& g : kGoldens)
    for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
      for (const int64_t kept : {int64_t{0}, int64_t{1}, g.layers}) {
        SCOPED_TRACE(format("[{}, {}, {}] x {}, recompute {}, kept {}", g.x, g.y, g.z, g.data,
                            static_cast<int>(recompute), kept));
        config::Config c = configure(g, 1);
        c.train.recompute = recompute;
        c.parallel.cache_layers = kept;
        device::DryDevice device(1);
        const auto world = comm::dry_world(static_cast<int>(g.x * g.y * g.z * g.data));
        train::Trainer trainer(device, *world, c, g.vocab - 3, DType::f32, true);
        trainer.plan();
        Counts counted = elements(trainer);
        const bool again = recompute == Recompute::full;
        const int64_t m = g.b * g.s, r = again ? 2 : 1, plane = g.x * g.y;
        // A recomputed block stops before its last product.
        const int64_t skipped = again ? m * g.h / g.y * g.layers : 0;
        EXPECT_EQ(m * g.h / g.y * (4 * g.layers + 2) + 3 * m, g.along_x);
        EXPECT_EQ(counted["x"][CommOp::all_reduce], m * g.h / g.y * ((2 * r + 2) * g.layers + 2) + 3 * m - skipped);
        EXPECT_EQ(m * g.h / g.x * 12 * g.layers + m * g.vocab / g.x + 2 * m * (2 * g.layers + 1), g.along_y);
        EXPECT_EQ(counted["y"][CommOp::all_reduce],
                  m * g.h / g.x * (7 * r + 5) * g.layers + m * g.vocab / g.x + 2 * m * (2 * g.layers + 1));
        // Norms keep their statistics: they exchange them once, recomputed or not.
        EXPECT_EQ(2 * m * (2 * g.layers + 1), g.gathered_y);
        EXPECT_EQ(counted["y"][CommOp::all_gather], g.y * g.gathered_y);
        Counts called = calls(trainer);
        const int64_t layers = g.layers, linears = (2 * r + 2) * layers;
        // Beside the linears: look-up, dx of the head and two of the loss; logits and, of each norm, one backward.
        EXPECT_EQ(called["x"][CommOp::all_reduce], linears + 4 - (again ? layers : 0));
        EXPECT_EQ(called["y"][CommOp::all_reduce], linears + 2 * layers + 2);
        EXPECT_EQ(called["y"][CommOp::all_gather], 2 * layers + 1);
        if (g.z > 1) {
          EXPECT_EQ(called["z"][CommOp::all_gather], (layers - kept) * (8 + (again ? 3 : 0)) + kept * 4 + 2);
          EXPECT_EQ(called["z"][CommOp::reduce_scatter], 4 * layers + 1);
          EXPECT_EQ(called["z"][CommOp::all_reduce], layers + 2) << "vectors, by group, once a step";
        }
        EXPECT_EQ(called["data"][CommOp::all_reduce], g.data == 1 ? 0 : layers + 2);
        if (g.z == 1) {
          EXPECT_FALSE(counted.contains("z"));
          continue;
        }
        // Gathered: each block's matrices for forward and backward (three of four again for a recomputed forward), or
        // once where they are kept; the table for the look-up and the head.
        const int64_t square = g.h * g.h / plane, table = g.vocab * g.h / plane;
        const int64_t gathers = (g.layers - kept) * (24 + (again ? 8 : 0)) * square + kept * 12 * square;
        EXPECT_EQ(counted["z"][CommOp::all_gather], gathers + 2 * table);
        EXPECT_EQ(counted["z"][CommOp::reduce_scatter], 12 * g.layers * square + table);
        EXPECT_EQ(g.layers * (7 * g.h / g.x + 6 * g.h / g.y) + (g.s + 2) * g.h / g.y, g.vectors_z);
        EXPECT_EQ(counted["z"][CommOp::all_reduce], g.vectors_z);
        int64_t flat = 0;
        for (const params::Group& group : trainer.store().groups()) flat += group.elements;
        EXPECT_EQ(counted.size(), g.data == 1 ? 3u : 4u);
        EXPECT_EQ(counted["data"][CommOp::all_reduce], g.data == 1 ? 0 : flat);
      }
}

TEST(AxonnCounts, OfAStepKnowItsFirstMicroBatch) {
  // Kept weights are gathered in the first micro-batch; everything else of z is of each.
  const Golden& g = kGoldens[1];
  const int64_t square = g.h * g.h / 4, table = g.vocab * g.h / 4;
  for (const int64_t accumulation : {1, 2, 5})
    for (const int64_t kept : {0, 2}) {
      config::Config c = configure(g, accumulation);
      c.parallel.cache_layers = kept;
      device::DryDevice device(1);
      const auto world = comm::dry_world(16);
      train::Trainer trainer(device, *world, c, g.vocab - 3, DType::f32, true);
      trainer.plan();
      const auto& bytes = trainer.comm_bytes_per_step();
      const int64_t each = (g.layers - kept) * 24 * square + 2 * table;
      EXPECT_EQ(bytes.at("z").at("all_gather"),
                wire(CommOp::all_gather, g.z, accumulation * each + kept * 12 * square, DType::f32));
      EXPECT_EQ(bytes.at("z").at("reduce_scatter"),
                wire(CommOp::reduce_scatter, g.z, accumulation * (12 * g.layers * square + table), DType::f32));
    }
}

TEST(AxonnMemory, HasTwoGatheredMatricesAndTwoOutgoingGradientsAtMost) {
  const Golden g = kGoldens[1];
  for (const Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
    for (const int64_t vocab : {g.vocab / 2, 16 * g.vocab}) {
      config::Config c = configure(g, 2);
      c.model.vocab_multiple = vocab;
      c.train.recompute = recompute;
      device::DryDevice device(1);
      const auto world = comm::dry_world(16);
      train::Trainer trainer(device, *world, c, vocab - 3, DType::bf16, true);
      trainer.plan();
      const int64_t square = g.h * g.h / 4, table = vocab * g.h / 4, outgoing_table = table * size_of(DType::f32);
      int64_t most = 0, largest = 0, most_gradients = 0, tables = 0;
      const auto& taken = trainer.arena().programs().at("train").intervals;
      for (const Arena::Interval& at : taken) {
        int64_t gathered = 0, bytes = 0, gradients = 0;
        for (const Arena::Interval& each : taken) {
          if (at.first < each.first || each.last <= at.first) continue;
          if (each.tag == "weights.gathered") {
            ++gathered;
            bytes += each.bytes;
          }
          gradients += each.tag == "gradient.outgoing" && each.bytes != outgoing_table;
        }
        most = std::max(most, gathered);
        largest = std::max(largest, bytes);
        most_gradients = std::max(most_gradients, gradients);
        tables += at.tag == "gradient.outgoing" && at.bytes == outgoing_table;
      }
      EXPECT_EQ(most, 2);
      EXPECT_EQ(most_gradients, 2);
      EXPECT_EQ(tables, 1) << "head and embedding write one gradient";
      // Up and down, or down and the table.
      EXPECT_EQ(largest, (4 * square + std::max(4 * square, table)) * size_of(DType::bf16));
    }
}

TEST(AxonnDegenerate, GridsAreMegatronAndFullySharded) {
  const auto counted = [](const config::Config& c) {
    device::DryDevice device(1);
    const auto world = comm::dry_world(static_cast<int>(config::ranks_of_replica(c) * c.parallel.data));
    train::Trainer trainer(device, *world, c, kTinyVocab, DType::f32, true);
    trainer.plan();
    return trainer.comm_bytes_per_step();
  };
  for (const int64_t t : {1, 2, 4, 8})
    for (const int64_t data : {1, 2}) {
      const config::Config axonn = configure(Grid{t, 1, 1, data});
      config::Config megatron = on_one_rank(axonn);
      megatron.parallel.tensor = t;
      megatron.parallel.data = data;
      megatron.parallel.sequence_parallel = false;
      CommBytes a = counted(axonn), m = counted(megatron);
      EXPECT_EQ(a.size(), (t > 1 ? 1u : 0u) + (data > 1 ? 1u : 0u)) << "a group of one sends nothing";
      if (t > 1) {
        EXPECT_EQ(a.at("x"), m.at("tensor"));
      }
      EXPECT_EQ(a.contains("data"), data == 2);
      if (data == 2) {
        EXPECT_EQ(a.at("data"), m.at("data"));
      }
    }
  // Fully sharded: every matrix gathered for forward and for backward, its gradient scattered.
  const config::Config c = configure(Grid{1, 1, 4, 1});
  const CommBytes bytes = counted(c);
  const int64_t h = c.model.d_model, f = c.model.d_ff, rounds = c.train.global_batch / c.train.micro_batch;
  const int64_t matrices = c.model.n_layer * (4 * h * h + 2 * h * f), table = 48 * h;
  EXPECT_EQ(bytes.size(), 1u);
  EXPECT_EQ(bytes.at("z").at("all_gather"), rounds * 3 * 4 * (2 * matrices + 2 * table));
  EXPECT_EQ(bytes.at("z").at("reduce_scatter"), rounds * 3 * 4 * (matrices + table));
}

TEST(AxonnDegenerate, OneRowOfRanksIsMegatron) {
  for (const Arch arch : {Arch::gpt2, Arch::llama}) {
    const config::Config axonn = configure(Grid{4, 1, 1, 1, arch});
    config::Config megatron = on_one_rank(axonn);
    megatron.parallel.tensor = 4;
    megatron.parallel.sequence_parallel = false;
    const Result a = train(axonn, DType::f64, 10), m = train(megatron, DType::f64, 10);
    expect_same_run(a, m);
    EXPECT_EQ(a.measured.at("x"), m.measured.at("tensor"));
  }
}

TEST(AxonnRanks, AreCountedInTheOrderThatWasAskedFor) {
  config::Parallel parallel;
  parallel.grid = {2, 3, 4};
  for (const std::string order : {"yxzd", "xyzd", "yzxd", "zyxd", "xzyd", "zxyd"}) {
    parallel.order = order;
    config::Config c = configure(Grid{2, 3, 4, 2, Arch::gpt2, order.c_str()});
    const mesh::MeshShape shape = parallel::mesh_shape(config::sharding_on(c, 48));
    std::vector<int> seen(48);
    int stride = 1;
    for (const char axis : order) {
      const std::string name = axis == 'd' ? "data" : std::string(1, axis);
      const std::vector<int> group = shape.members(0, shape.set(name));
      const int size = axis == 'x' ? 2 : axis == 'y' ? 3 : axis == 'z' ? 4 : 2;
      ASSERT_EQ(group.size(), static_cast<size_t>(size)) << order;
      for (int i = 0; i < size; ++i) EXPECT_EQ(group[static_cast<size_t>(i)], i * stride) << order << " " << name;
      stride *= size;
    }
    for (int rank = 0; rank < 48; ++rank) {
      const int index = shape.index(rank, shape.all());
      ++seen[static_cast<size_t>(index)];
    }
    EXPECT_EQ(seen, std::vector<int>(48, 1));
  }
}

}  // namespace
}  // namespace trainer::tests
