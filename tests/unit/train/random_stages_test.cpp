// Four ranks with random lists of stages and a random delay of every message: the bits and bytes of one stage.
#include <gtest/gtest.h>

#include "rigs/draws.h"
#include "rigs/layouts.h"
#include "rigs/megatron.h"

namespace trainer::tests {
namespace {

using sharding::PipelineSchedule;

constexpr int64_t kSteps = 10, kAll = 200;

/// Returns two stages of two ranks, or four stages, with any split of the layers and number of micro-batches.
config::Config draw_stages(Draws& draw) {
  const int64_t stages = draw.one_of<int64_t>({2, 2, 4}), tensor = stages == 4 ? 1 : draw.one_of<int64_t>({1, 2});
  config::Config c = configure(MegatronLayout{tensor, 4 / stages / tensor, draw.below(2) == 0});
  c.model.tie_embeddings = false;
  c.model.n_layer = 4;
  c.model.seq_len = 8;
  c.train.micro_batch = 1;
  c.parallel.stages = stages;
  c.parallel.chunks = stages == 2 ? draw.one_of<int64_t>({1, 2}) : 1;
  if (c.parallel.chunks == 1)
    c.parallel.pipeline_schedule = draw.one_of<PipelineSchedule>({{}, PipelineSchedule::zb_h1});
  c.parallel.zero_stage = draw.below(2);
  std::vector<int64_t>& layers = c.parallel.stage_layers;
  layers.assign(static_cast<size_t>(stages * c.parallel.chunks), 1);
  layers.front() = layers.back() = 0;
  for (int64_t left = c.model.n_layer + 2 - std::ssize(layers); left > 0; --left)
    ++layers[static_cast<size_t>(draw.below(std::ssize(layers)))];
  const int64_t micro_batches = c.parallel.chunks == 1 ? 1 + draw.below(6) : stages * (1 + draw.below(3));
  c.train.global_batch = micro_batches * c.train.micro_batch * c.parallel.data;
  return c;
}

TEST(RandomStages, HaveTheBitsOfOneStageWithDelayedMessages) {
  Draws draw(16, "stages");
  for (int64_t steps = 0; steps < kAll; steps += kSteps) {
    const config::Config many = draw_stages(draw);
    SCOPED_TRACE(format("{}, layers {}, {} sequences", config::layout_text(many),
                        testing::PrintToString(many.parallel.stage_layers), many.train.global_batch));
    config::Config one = many;
    one.parallel.stages = one.parallel.chunks = 1;
    one.parallel.pipeline_schedule = {};
    one.parallel.stage_layers.clear();
    const Result found = train(many, DType::f32, kSteps, {.delay = draw.between_logarithms(1e-5, 1e-3)});
    expect_same_bits(found, train(one, DType::f32, kSteps));
    for (auto [measured, predicted] : found.bytes) {
      for (auto& [axis, operations] : predicted)
        for (auto& [operation, bytes] : operations) bytes *= kSteps;
      EXPECT_EQ(measured, predicted);
    }
  }
}

}  // namespace
}  // namespace trainer::tests
