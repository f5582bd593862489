// Training on a CUDA device with the optimizer's state in host memory: lanes are streams of their own there, and a
// missing wait shows as another bit.
#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "rigs/layouts.h"

namespace trainer::tests {
namespace {

using config::OffloadOptimizer;
using config::OffloadOrder;

const HowToRun kOnGpu{.device = [](int) { return device::cuda::make_device(0, 2); }};

const config::Offload kPlans[] = {
    {.optimizer = OffloadOptimizer::cpu, .subgroup = 1024},
    {.optimizer = OffloadOptimizer::interleaved, .gpu_fraction = "1/2", .subgroup = 512, .slots = 2},
    {.optimizer = OffloadOptimizer::interleaved,
     .gpu_fraction = "1",
     .subgroup = 256,
     .slots = 1,
     .share_activations = true},
    {.optimizer = OffloadOptimizer::interleaved,
     .gpu_fraction = "0.7",
     .subgroup = 777,
     .slots = 3,
     .resident = 2,
     .order = OffloadOrder::zigzag},
};

struct CudaOffload : testing::Test {
  void SetUp() override {
    if (device::cuda::devices().empty()) GTEST_SKIP() << device::cuda::no_device_reason();
  }
  /// The layout of `c` with every plan has the bits of none.
  void expect_bits_of_none(const config::Config& c, DType compute, int64_t steps) {
    const Result none = train(c, compute, steps, kOnGpu);
    for (const config::Offload& plan : kPlans) {
      SCOPED_TRACE(format("plan {}, {}", &plan - kPlans, name_of(compute)));
      config::Config with = c;
      with.offload = plan;
      with.offload.grad_transport = c.offload.grad_transport;
      with.offload.early_update = c.offload.early_update;
      expect_same_bits(train(with, compute, steps, kOnGpu), none);
    }
  }
};

TEST_F(CudaOffload, EveryPlanHasTheBitsOfNone) {
  config::Config c = tiny_config();
  c.parallel.data = 1;
  for (const DType compute : {DType::f32, DType::bf16}) expect_bits_of_none(c, compute, 4);
}

TEST_F(CudaOffload, Bf16GradientsAndEarlyUpdatesToo) {
  config::Config c = tiny_config();
  c.parallel.data = 1;
  c.offload.grad_transport = config::GradTransport::bf16;
  expect_bits_of_none(c, DType::bf16, 4);
  c.offload.early_update = true;
  c.optim.grad_clip = 0;
  c.train.max_skipped_steps = 0;
  expect_bits_of_none(c, DType::bf16, 4);
}

TEST_F(CudaOffload, ReplicasThatSplitTheStateToo) {
  config::Config c = tiny_config();
  c.parallel.data = 2;
  c.parallel.zero_stage = 1;
  expect_bits_of_none(c, DType::bf16, 3);
}

}  // namespace
}  // namespace trainer::tests
