// Ranks that are processes and share one CUDA device. Their collectives go through host memory, and give the bits of
// ranks that are threads, which tests/cuda/training_test.cpp compares with one rank.
#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "mpi/mpi_main.h"
#include "rigs/layouts.h"

namespace trainer::tests {
namespace {

std::unique_ptr<device::Device> gpu() { return device::cuda::make_device(0, 1); }

TEST(MpiRanksOnOneDevice, TrainAsThreadsDo) {
  if (device::cuda::devices().empty()) GTEST_SKIP() << device::cuda::no_device_reason();
  comm::World& world = comm::test_world();
  config::Config c = tiny_config(config::Arch::gpt2);
  c.model.n_head = c.model.n_kv_head = 4;
  c.model.seq_len = 12;
  c.parallel.tensor = world.size() % 2 == 0 ? 2 : 1;  // a world has one mesh, so the layout depends on its size
  c.parallel.data = world.size() / c.parallel.tensor;
  c.parallel.zero_stage = c.parallel.data > 1 ? 1 : 0;
  c.train.global_batch = 4 * c.parallel.data;
  const Result threads = train(c, DType::bf16, 2, {.device = [](int) { return gpu(); }});
  world.control().barrier();  // ranks may arrive here further apart than the timeout

  Tiny run(&world, c, DType::bf16, gpu());
  Tensors start, state;
  for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), false))
    collect(start, slice);
  expect_same_where_owned(start, threads.start);
  for (int64_t n = 1; n <= 2; ++n) {
    const auto outcome = run.step(n);
    EXPECT_EQ(outcome.loss, threads.losses[static_cast<size_t>(n - 1)]) << "step " << n;
    EXPECT_EQ(outcome.norm.norm, threads.norms[static_cast<size_t>(n - 1)]) << "step " << n;
  }
  for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), true))
    collect(state, slice);
  expect_same_where_owned(state, threads.state);
}

}  // namespace
}  // namespace trainer::tests
