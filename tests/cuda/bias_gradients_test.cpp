// Gradients of biases on a CUDA device.
#include "device/cuda/cuda_device.h"
#include "rigs/layouts.h"

namespace trainer::tests {
namespace {

std::unique_ptr<device::Device> gpu() { return device::cuda::make_device(0, 1); }
const HowToRun kOnGpu{.device = [](int) { return gpu(); }};

class BiasGradients : public testing::TestWithParam<config::Arch> {
 protected:
  void SetUp() override {
    if (device::cuda::devices().empty()) GTEST_SKIP() << device::cuda::no_device_reason();
    c.model.bias = true;
    c.model.dropout = 0;
    c.model.n_head = 2;
    c.model.n_kv_head = 2;
    c.model.seq_len = 12;
    c.parallel.data = 1;
  }
  config::Config c = tiny_config(GetParam());  // two layers, two micro-batches per step
};
INSTANTIATE_TEST_SUITE_P(Models, BiasGradients, testing::Values(config::Arch::gpt2, config::Arch::llama),
                         [](const auto& param) { return param.param == config::Arch::gpt2 ? "gpt2" : "llama"; });

TEST_P(BiasGradients, AreThoseOfTheCpuInEveryLayout) {
  const Result cpu = train(c, DType::f32, 2);
  ASSERT_TRUE(cpu.gradients.contains("blocks.0.mlp.down.bias") && cpu.gradients.contains("blocks.1.attn.o.bias"));
  std::vector<std::pair<std::string, config::Config>> layouts{{"one rank", c}};
  const auto add = [&](const std::string& name, const auto& change) {
    layouts.emplace_back(name, c);
    change(layouts.back().second.parallel);
  };
  add("tensor 2", [](config::Parallel& p) { p.tensor = 2; });
  add("tensor 2, rows cut", [](config::Parallel& p) {
    p.tensor = 2;
    p.sequence_parallel = true;
  });
  for (const auto& grid : {std::array<int64_t, 3>{2, 1, 1}, {1, 2, 1}, {1, 1, 2}})
    add(format("axonn {}x{}x{}", grid[0], grid[1], grid[2]), [&](config::Parallel& p) {
      p.strategy = config::StrategyName::axonn_4d;
      p.grid = {grid[0], grid[1], grid[2]};
    });
  add("optimus", [](config::Parallel& p) {
    p.strategy = config::StrategyName::optimus_2d;
    p.mesh = {2, 2};
  });
  for (const auto& [name, layout] : layouts) {
    SCOPED_TRACE(name);
    const Result result = train(layout, DType::f32, 2, kOnGpu);
    expect_same_gradients(result.gradients, cpu.gradients, 1e-5);
    EXPECT_NEAR(result.losses.back(), cpu.losses.back(), 1e-6 * cpu.losses.back());
  }
}

TEST_P(BiasGradients, AreThoseOfTheCpuBehindDropout) {
  c.model.dropout = 0.3;
  expect_same_gradients(train(c, DType::f32, 1, kOnGpu).gradients, train(c, DType::f32, 1).gradients, 1e-5);
}

TEST_P(BiasGradients, RepeatTheirBitsInEveryWayToRecompute) {
  const Result first = train(c, DType::bf16, 2, kOnGpu);
  for (const auto mode : {config::Recompute::selective, config::Recompute::full}) {
    c.train.recompute = mode;
    expect_same_bits(train(c, DType::bf16, 2, kOnGpu), first);
  }
}

}  // namespace
}  // namespace trainer::tests
