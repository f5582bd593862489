// Collectives in pieces of rows (parallel/row_pieces.h): whole steps compute the same bits as with whole rows, and send
// the same bytes in more calls, as predicted.
#include "rigs/axonn.h"
#include "rigs/layouts.h"
#include "rigs/megatron.h"
#include "rigs/optimus.h"

namespace trainer::tests {
namespace {

using config::Config;

/// Sizes whose collectives are large enough for pieces: `rows` token rows in a micro-batch of four sequences.
Config sized(Config c, int64_t rows) {
  c.model.n_layer = 1;
  c.model.n_head = c.model.n_kv_head = 8;
  c.model.d_model = 256;
  c.model.d_ff = 512;
  c.model.seq_len = rows / 4;
  c.train.micro_batch = 4;
  c.train.global_batch = 8 * std::max<int64_t>(1, c.parallel.data);  // two micro-batches
  return c;
}

struct Outcome {
  Result result;
  int64_t calls = 0;  // collectives on activations in a step of the first rank
};
Outcome steps(Config c, DType type, bool overlap) {
  c.debug.overlap = overlap;
  Outcome outcome{train(c, type, 1)};
  expect_predicted_bytes(outcome.result, 1);
  const auto ranks = static_cast<int>(config::ranks_of_replica(c) * std::max<int64_t>(1, c.parallel.data));
  comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
    Tiny run(&world, c, type, 1);
    run.trainer.meter().reset();
    run.step(1);
    if (!world.first()) return;
    for (const auto& [key, count] : run.trainer.meter().comm()) outcome.calls += count.calls;
  });
  return outcome;
}

struct Case {
  std::string name;
  Config config;
  bool pieces = true;
};
std::ostream& operator<<(std::ostream& out, const Case& one) { return out << one.name; }

std::vector<Case> all_cases() {
  std::vector<Case> all;
  const auto add = [&](const auto& layout, int64_t rows, bool pieces = true) {
    all.push_back({format("{}Rows{}", to_string(layout), rows), sized(configure(layout), rows), pieces});
  };
  for (const bool sequence_parallel : {false, true}) {
    add(MegatronLayout{2, 1, sequence_parallel}, 1024);
    add(MegatronLayout{4, 1, sequence_parallel}, 1024);
  }
  add(MegatronLayout{4, 1, true}, 1280);  // pieces of 192 and 128 rows
  add(MegatronLayout{2, 2, true}, 1024);
  add(AxonnGrid{2, 2, 2}, 2048);
  add(AxonnGrid{1, 4, 1}, 1024);
  add(AxonnGrid{4, 1, 1}, 1024);
  // Not in pieces: blocks that do not begin at multiples of 64 rows, and collectives over columns.
  add(MegatronLayout{4, 1, true}, 1040, false);
  add(MegatronLayout{2, 1, false}, 12, false);
  add(Square{2, 1, 1, config::Arch::gpt2, config::Stationary::automatic, {1, 1}, config::Panels::gather}, 1024, false);
  return all;
}

class RowPieces : public testing::TestWithParam<Case> {};

TEST_P(RowPieces, ComputeTheBitsOfWholeRowsInMoreCalls) {
  for (const DType type : {DType::f64, DType::f32, DType::bf16}) {
    Config c = GetParam().config;
    c.train.recompute = type == DType::f32 ? config::Recompute::full : config::Recompute::none;
    const Outcome pieces = steps(c, type, true), whole = steps(c, type, false);
    expect_same_bits(pieces.result, whole.result);
    EXPECT_TRUE(pieces.result.gradients == whole.result.gradients) << name_of(type);
    EXPECT_EQ(pieces.result.measured, whole.result.measured) << name_of(type);
    EXPECT_EQ(pieces.calls > whole.calls, GetParam().pieces) << name_of(type) << ": " << pieces.calls << " calls";
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, RowPieces, testing::ValuesIn(all_cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace trainer::tests
