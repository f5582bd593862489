// Training runs whose ranks have a device each and NCCL between them.
#include "comm/nccl/nccl_world.h"
#include "device/cuda/cuda_device.h"
#include "nccl.h"
#include "unit/train/layouts.h"

namespace trainer::tests {
namespace {

class TrainingByNccl : public testing::TestWithParam<config::Arch> {};
INSTANTIATE_TEST_SUITE_P(Models, TrainingByNccl, testing::Values(config::Arch::gpt2, config::Arch::llama),
                         [](const auto& param) { return param.param == config::Arch::gpt2 ? "gpt2" : "llama"; });

TEST_P(TrainingByNccl, FollowsOneRankInEveryLayout) {
  emulator::set_devices(4);
  const HowToRun alone{.device = [](int rank) { return device::cuda::make_device(rank, 1); }};
  HowToRun by_nccl = alone;
  by_nccl.carrier = [](comm::World& world, device::Device& device) { return comm::nccl::make_world(world, device); };
  config::Config c = tiny_config(GetParam());
  c.optim.lr = 1e-3;
  c.model.n_head = 2;
  c.model.n_kv_head = 2;
  c.model.seq_len = 12;
  const Result one = train(c, DType::f32, 2, alone);
  for (const auto& [tensor, data, zero, sequence] : {std::tuple{2, 1, 0, false},
                                                     {2, 1, 0, true},
                                                     {1, 2, 0, false},
                                                     {1, 2, 1, false},
                                                     {2, 2, 0, true},
                                                     {2, 2, 1, true}}) {
    if (GetParam() == config::Arch::llama && tensor * data < 4) continue;
    SCOPED_TRACE(format("tensor {} data {} zero {} sequence {}", tensor, data, zero, sequence));
    config::Config many = c;
    many.parallel.tensor = tensor;
    many.parallel.data = data;
    many.parallel.zero_stage = zero;
    many.parallel.sequence_parallel = sequence;
    const Result result = train(many, DType::f32, 2, by_nccl);
    EXPECT_EQ(emulator::live_nccl_communicators(), 0);
    for (int rank = 0; rank < tensor * data; ++rank) EXPECT_FALSE(emulator::take_nccl_log(rank).empty());
    EXPECT_TRUE(result.start == one.start);
    expect_same_gradients(result.gradients, one.gradients, 1e-5);
    for (size_t n = 0; n < one.losses.size(); ++n) EXPECT_NEAR(result.losses[n], one.losses[n], 1e-6 * one.losses[n]);
    train::CommBytes predicted = result.predicted;
    for (auto& [axis, operations] : predicted)
      for (auto& [operation, count] : operations) count *= 2;
    EXPECT_EQ(result.measured, predicted);
    if (data * tensor == 4 && zero == 1) expect_same_bits(train(many, DType::f32, 2, by_nccl), result);  // once more
  }
}

}  // namespace
}  // namespace trainer::tests
