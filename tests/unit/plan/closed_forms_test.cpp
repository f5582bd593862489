// Published closed forms compared with the program that the trainer records: elements that a transformer block sends
// forward and backward, by strategy; and lower bounds of communication.
#include <gtest/gtest.h>

#include "config/layouts.h"
#include "config/load.h"
#include "plan/lower_bound.h"
#include "plan/planner.h"
#include "plan/program.h"
#include "unit/mesh/mesh_states.h"

namespace trainer::plan {
namespace {

using config::Config;
using config::Recompute;

/// Extents that divide over all ranks below into whole cache lines, and are so large that collectives on activations
/// and matrices use rings.
constexpr int64_t kHidden = 1536, kSeq = 64, kSequences = 96, kTokens = kSeq * kSequences;

Config block(int64_t layers, const std::vector<std::string>& sets) {
  Config config = config::load_text(
      format(
          "[model]\nn_layer = {}\nn_head = 48\nd_model = {}\nseq_len = {}\nvocab_multiple = 384\n"
          "[data]\nvocab_size = 384\n[train]\nglobal_batch = {}\nmicro_batch = {}\n[precision]\ncompute = \"fp32\"\n",
          layers, kHidden, kSeq, kSequences, kSequences),
      "block.toml", sets, {.files = false});
  return config;
}

/// Returns the elements that all ranks send in one step, by axis, including those outside layers.
std::map<std::string, int64_t> elements(const Config& config, int ranks) {
  Machine machine;
  machine.ranks = ranks;
  const StepProgram step = record_step(config, 384, machine);
  std::map<std::string, int64_t> sums;
  for (const StepProgram::Part& part : step.parts)
    for (const Event& event : part.program)
      if (event.kind == Event::Kind::start && !is_scalar_exchange(event))
        sums[step.mesh.name_of(event.key.axes)] +=
            event.wire_bytes / size_of(event.key.dtype) * (ranks / step.mesh.group_size(event.key.axes));
  return sums;
}

/// Returns the elements that a group sends in an all-reduce; few elements are sent directly instead of along a ring.
int64_t sum_of(int64_t group, int64_t elements) {
  return comm::wire_elements(CommOp::all_reduce, static_cast<int>(group), elements);
}

/// Returns the elements that one layer adds.
std::map<std::string, int64_t> of_a_block(const std::vector<std::string>& sets, int ranks, Recompute recompute) {
  const auto at = [&](int64_t layers) {
    Config config = block(layers, sets);
    config.train.recompute = recompute;
    return elements(config, ranks);
  };
  std::map<std::string, int64_t> less = at(2), more = at(3);
  for (auto& [axis, count] : more) count -= less[axis];
  return more;
}

// Totals over all ranks. Per rank 8 (t-1)/t M h; with recomputation 12 (t-1)/t M h minus the block's last reduction,
// which is not repeated.
TEST(ClosedForms, OfMegatron) {
  for (const int64_t t : {2, 4, 8})
    for (const bool rows : {false, true})
      for (const bool again : {false, true}) {
        const auto moved = of_a_block(
            {format("parallel.tensor={}", t), "parallel.data=1", format("parallel.sequence_parallel={}", rows)},
            static_cast<int>(t), again ? Recompute::full : Recompute::none);
        // With rows split, dW gathers its operand again, as specified for sequence parallelism: two more gathers. A
        // recomputed block gathers both inputs and reduces once.
        const int64_t units = (rows ? 8 + 2 : 8) + (again ? (rows ? 3 : 2) : 0);
        int64_t all = 0;
        for (const auto& [axis, count] : moved) all += count;
        const int64_t vectors = rows ? sum_of(t, 6 * kHidden) : 0;  // gradients of norms and biases of rows
        EXPECT_EQ(all - vectors, units * (t - 1) * kTokens * kHidden) << "t " << t << " rows " << rows << " " << again;
      }
}

// Totals over all ranks. Per rank 3 (q-1)/q² (7 M h + 12 h²); with recomputation 4 instead of 3, but the GEMM of down
// is not repeated. If the smaller of X and Y is sent, (q-1)/q² (12 M h + 36 h²), minus M h since one gather of dY of
// down serves two GEMMs. In addition, each norm exchanges two values per row forward and two backward, and vectors are
// all-reduced.
TEST(ClosedForms, OfOptimus) {
  for (const int64_t q : {2, 3, 4})
    for (const bool paper : {true, false})
      for (const bool again : {false, true}) {
        const auto moved =
            of_a_block({"parallel.strategy=optimus-2d", format("parallel.mesh=[{}, {}]", q, q), "parallel.data=1",
                        "parallel.panels=gather", format("parallel.stationary={}", paper ? "paper" : "auto")},
                       static_cast<int>(q * q), again ? Recompute::full : Recompute::none);
        const int64_t panels = (paper ? 21 : 11) + (again ? 3 : 0), squares = 36 + (again ? 8 : 0);
        // Each of two norms gathers and all-reduces two values per row.
        const int64_t statistics = 2 * (q * (q - 1) * 2 * kTokens + q * sum_of(q, 2 * kTokens / q));
        const int64_t vectors = q * sum_of(q, 13 * kHidden / q);
        EXPECT_EQ(moved.at("col"), (q - 1) * panels * kTokens * kHidden + statistics) << q << paper << again;
        EXPECT_EQ(moved.at("row"), (q - 1) * squares * kHidden * kHidden + vectors) << q << paper << again;
      }
}

// Totals over all ranks. Per rank 2 M h (12 (y-1) + 4 (x-1))/(xyz) + 3 (z-1)/z 12 h²/(xy) per micro-step, and
// 2 (d-1)/d 12 h²/(xyz) per step.
TEST(ClosedForms, OfAxonn) {
  for (const int64_t x : {1, 2, 4, 8, 16})
    for (int64_t y = 1; x * y <= 16; y *= 2)
      for (int64_t z = 1; x * y * z <= 16; z *= 2) {
        const int64_t d = 16 / (x * y * z), tokens = kTokens / d, square = 12 * kHidden * kHidden;
        const auto moved = of_a_block({"parallel.strategy=axonn-4d", format("parallel.grid=[{}, {}, {}]", x, y, z),
                                       format("parallel.data={}", d), format("train.micro_batch={}", kSequences / d)},
                                      16, Recompute::none);
        const auto along = [&](const char* axis) {
          const auto found = moved.find(axis);
          return found == moved.end() ? 0 : found->second;
        };
        SCOPED_TRACE(format("{} x {} x {}, data {}", x, y, z, d));
        EXPECT_EQ(along("x"), 2 * (x - 1) * 4 * tokens * kHidden * d);
        const int64_t statistics = 2 * d * x * z * (y * (y - 1) * 2 * tokens / z + sum_of(y, 2 * tokens / z));
        EXPECT_EQ(along("y"), 2 * (y - 1) * 12 * tokens * kHidden * d + statistics);
        const int64_t vectors = 7 * kHidden / x + 6 * kHidden / y;  // vectors of a rank: biases, and norms over y
        EXPECT_EQ(along("z"), d * ((z - 1) * 3 * square + x * y * sum_of(z, vectors)));
        EXPECT_EQ(along("data"), x * y * z * sum_of(d, square / (x * y * z) + vectors));
        if (y == 1 && z == 1 && x > 1) {
          const auto one =
              of_a_block({format("parallel.tensor={}", x), format("parallel.data={}", d),
                          format("train.micro_batch={}", kSequences / d), "parallel.sequence_parallel=false"},
                         16, Recompute::none);
          EXPECT_EQ(along("x"), one.at("tensor"));
          EXPECT_EQ(along("data"), d > 1 ? one.at("data") : 0);
        }
      }
}

// Bytes that each rank sends for a GEMM of 8 x 8 x 8 by routes, at 2 bytes per element.
TEST(ClosedForms, OfASmallProduct) {
  using mesh::find_route;
  using mesh::mesh_of;
  using mesh::state;
  const mesh::MeshShape square = mesh_of({2, 2}), cube = mesh_of({2, 2, 2});
  const auto bytes = [](const mesh::MeshShape& mesh, const std::string& from, const std::string& to) {
    return 2 * find_route(state(mesh, from, {8, 8}), state(mesh, to, {8, 8})).ring_elements / mesh.world_size();
  };
  EXPECT_EQ(bytes(square, "01", "0B") + bytes(square, "01", "B1"), 64) << "X over columns, W over rows of ranks";
  // Axes split rows, columns and the contraction. Each operand is stored once over all of them, W in flat pieces.
  const mesh::Layout gathered = state(cube, "B10", {8, 8});
  const int64_t weights = 2 * find_route(gathered.with("a0", mesh::kFlat), gathered).ring_elements / 8;
  EXPECT_EQ(bytes(cube, "001", "0B1") + weights + bytes(cube, "01P", "010"), 48);
}

// Words per rank. The last GEMM attains the bound on a grid of 4 x 4 x 4 ranks.
TEST(LowerBound, OfProductsOnSixtyFourRanks) {
  EXPECT_NEAR(least_words({16384, 12288, 49152}, 64), 6.126e7, 6.126e4);
  EXPECT_NEAR(least_words({2048, 12288, 49152}, 64), 1.062e7, 1.062e4);
  EXPECT_NEAR(least_words({65536, 4096, 4096}, 64), 1.132e7, 1.132e4);
  EXPECT_NEAR(least_words({8192, 8192, 8192}, 64), 3 * 8192 * 8192 * (1.0 / 16 - 1.0 / 64), 1);
}

}  // namespace
}  // namespace trainer::plan
