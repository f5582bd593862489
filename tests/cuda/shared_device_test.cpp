// Ranks that share a GPU, which communicate through host memory; and micro-steps that are replayed as CUDA graphs.
#include <gtest/gtest.h>

#include "device/cuda/cuda_device.h"
#include "device/cuda/runtime.h"
#include "emulator.h"
#include "rigs/layouts.h"
#include "unit/comm/link_cases.h"

namespace trainer::tests {
namespace {

std::unique_ptr<device::Device> gpu() { return device::cuda::make_device(0, 1); }

/// A rank's device and its memory.
struct GpuRig {
  std::unique_ptr<device::Device> device = gpu();
  Arena arena{*device, Arena::Mode::heap};
  Meter meter;
  Exec ex{*device, arena, meter};

  Buffer put(const std::vector<int32_t>& data) {
    Buffer buffer(*device, "test", {static_cast<int64_t>(data.size())}, DType::i32);
    device->copy_to_device(buffer.tensor().data, data.data(), buffer.tensor().bytes());
    return buffer;
  }
  std::vector<int32_t> get(const Tensor& tensor) {
    std::vector<int32_t> data(static_cast<size_t>(tensor.count()));
    device->copy_to_host(data.data(), tensor.data, tensor.bytes());
    return data;
  }
};

TEST(SharedDevice, OperationsThroughTheHostAreExact) {
  for (const int ranks : {2, 3})
    comm::run_on_threads(ranks, {.timeout_s = 60}, [&](comm::World& world) {
      GpuRig rig;
      const auto all = world.communicator(*rig.device, comm::group_of(world, ranks), comm::Purpose::grads);
      for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{1001}, comm::kDirectElements + 5, int64_t{200'001}}) {
        const comm::Chunk own = all->chunk(n);
        std::vector<int32_t> sum(static_cast<size_t>(n)), joined;
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<int32_t> x = comm::values<int32_t>(rank, n);
          for (size_t i = 0; i < sum.size(); ++i)
            sum[i] = static_cast<int32_t>(static_cast<uint32_t>(sum[i]) + static_cast<uint32_t>(x[i]));
          const comm::Chunk piece = comm::chunk_of(n, ranks, rank);
          joined.insert(joined.end(), x.begin() + piece.begin, x.begin() + piece.begin + piece.count);
        }
        const std::vector<int32_t> mine = comm::values<int32_t>(world.rank(), n);
        const std::vector<int32_t> equal(static_cast<size_t>(ranks) * 100, world.rank());
        Buffer a = rig.put(mine), b = rig.put(mine), c = rig.put(mine), d = rig.put(mine), e = rig.put(equal),
               f = rig.put(equal), g = rig.put(mine), h = rig.put(mine);
        // All in flight at once.
        comm::Ticket tickets[] = {
            all->all_reduce(rig.ex, a),
            all->reduce_scatter(rig.ex, b, b.tensor().range(own.begin, own.count)),
            all->all_gather(rig.ex, c.tensor().range(own.begin, own.count), c),
            all->broadcast(rig.ex, d, ranks - 1),
            all->all_to_all(rig.ex, f, e),
            all->shift(rig.ex, g, h),
        };
        for (comm::Ticket& ticket : tickets) ticket.join(rig.ex);
        EXPECT_EQ(rig.get(a), sum);
        EXPECT_EQ(rig.get(b.tensor().range(own.begin, own.count)),
                  std::vector<int32_t>(sum.begin() + own.begin, sum.begin() + own.begin + own.count));
        EXPECT_EQ(rig.get(c), joined);
        EXPECT_EQ(rig.get(d), comm::values<int32_t>(ranks - 1, n));
        for (int rank = 0; rank < ranks; ++rank)
          EXPECT_EQ(rig.get(e.tensor().range(rank * 100, 100)), std::vector<int32_t>(100, rank));
        EXPECT_EQ(rig.get(h), comm::values<int32_t>((world.rank() + ranks - 1) % ranks, n));
      }
    });
}

TEST(SharedDevice, MessagesThroughTheHostAreExact) {
  comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
    GpuRig rig;
    const int me = world.rank(), before = (me + 2) % 3;
    const auto link = [&](int from) {
      return world.communicator(*rig.device, comm::link_group(world, from, comm::Way::forward),
                                comm::Purpose::critical);
    };
    const auto out = link(me), in = link(before);
    std::vector<Buffer> sent, received;
    std::vector<comm::Ticket> tickets;
    const std::vector<int64_t> sizes = {1, 200'001, 7, 0, 1001};
    for (const int64_t n : sizes) {
      sent.push_back(rig.put(comm::values<int32_t>(me, n)));
      received.push_back(rig.put(std::vector<int32_t>(static_cast<size_t>(n), -1)));
      tickets.push_back(in->send(rig.ex, received.back()));
      tickets.push_back(out->send(rig.ex, sent.back()));
    }
    for (comm::Ticket& ticket : tickets) ticket.join(rig.ex);
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(rig.get(received[i]), comm::values<int32_t>(before, sizes[i]));
      EXPECT_EQ(rig.get(sent[i]), comm::values<int32_t>(me, sizes[i])) << "overwritten by a join";
    }
  });
}

TEST(SharedDevice, AReceiveDoesNotWaitForTheComputeStream) {
  comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
    GpuRig rig;
    const auto link =
        world.communicator(*rig.device, comm::link_group(world, 0, comm::Way::forward), comm::Purpose::critical);
    Buffer x = rig.put(std::vector<int32_t>(5000, 1 + world.rank()));
    if (world.rank() == 1) {
      emulator::Hold hold(device::cuda::stream_of(*rig.device));  // as if a long kernel ran
      comm::Ticket ticket = link->send(rig.ex, x);
      world.control().barrier();  // rank 0 has joined its send
      hold.release();
      ticket.join(rig.ex);
    } else {
      link->send(rig.ex, x).join(rig.ex);
      world.control().barrier();
    }
    EXPECT_EQ(rig.get(x), std::vector<int32_t>(5000, 1));
  });
}

TEST(SharedDevice, StartingAnOperationWaitsForNothing) {
  comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
    GpuRig rig;
    const auto all = world.communicator(*rig.device, comm::group_of(world, 2), comm::Purpose::critical);
    Buffer x = rig.put(std::vector<int32_t>(5000, 1 + world.rank())), y = rig.put(std::vector<int32_t>(5000));
    emulator::Hold hold(device::cuda::stream_of(*rig.device));  // the kernels launched next do not run until release()
    rig.device->copy_rows(y.tensor().data, 0, x.tensor().data, 0, 1, x.tensor().bytes());
    comm::Ticket ticket = all->all_reduce(rig.ex, y);
    rig.device->clear(x.tensor().data, x.tensor().bytes());  // work launched later runs concurrently with it
    hold.release();
    ticket.join(rig.ex);
    EXPECT_EQ(rig.get(y), std::vector<int32_t>(5000, 3));
    EXPECT_EQ(rig.get(x), std::vector<int32_t>(5000));
  });
}

/// Results of six steps of four micro-steps, with evaluations in between. Different numbers of targets count in steps.
struct Course {
  std::vector<double> losses, norms, evaluations;
  std::vector<std::byte> state;
  std::string text;
  int64_t replays = 0;
};
Course course(config::Config c, bool graphs, DType compute) {
  c.train.cuda_graph = graphs;
  Tiny run(nullptr, c, compute, gpu());
  Course result;
  data::TokenBatch batch;
  run.batches(100, c.train.micro_batch, batch);
  for (int64_t n = 1; n <= 6; ++n) {
    const auto outcome = run.trainer.step({.step = n,
                                           .first_sample = (n - 1) * c.train.global_batch,
                                           .adam_step = n,
                                           .micro_batches = run.trainer.accumulation(),
                                           .lr = 1e-3 / static_cast<double>(n),
                                           .unmasked_tokens = 10 * n},
                                          run.batches);
    result.losses.push_back(outcome.loss);
    result.norms.push_back(outcome.norm.norm);
    if (n % 2 == 0) result.evaluations.push_back(run.trainer.loss_sum(batch));
  }
  result.state = run.state();
  result.text = run.trainer.graphs().text();
  result.replays = run.trainer.graphs().replays();
  return result;
}
void expect_same(const Course& a, const Course& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.evaluations, b.evaluations);
  EXPECT_TRUE(a.state == b.state);
}

class Graphs : public testing::TestWithParam<config::Arch> {};
INSTANTIATE_TEST_SUITE_P(Models, Graphs, testing::Values(config::Arch::gpt2, config::Arch::llama),
                         [](const auto& param) { return param.param == config::Arch::gpt2 ? "gpt2" : "llama"; });

TEST_P(Graphs, ChangeNoBitOverAccumulationEvaluationsAndLearningRates) {
  config::Config c = tiny_config(GetParam());
  c.model.dropout = 0;
  for (const int64_t micro_batches : {4, 1})  // a single one has its gradients in the arena
    for (const DType compute : {DType::f32, DType::bf16}) {
      c.train.micro_batch = c.train.global_batch / micro_batches;
      const Course with = course(c, true, compute), without = course(c, false, compute);
      expect_same(with, without);
      EXPECT_EQ(with.text, "every micro-step");
      EXPECT_EQ(without.text, "");
      // Each kind (first, middle and last of a step, or the only one) runs once without a graph and is recorded once.
      EXPECT_EQ(with.replays, micro_batches == 1 ? 6 - 2 : 24 - 3 * 2);
      EXPECT_EQ(without.replays, 0);
    }
}

TEST(GraphsAreLeftOut, WithDropoutAndExpertsAndOnCpusAndWhenOperatorsAreTimed) {
  config::Config c = tiny_config(config::Arch::gpt2);
  c.train.micro_batch = 1;
  const Course with = course(c, true, DType::f32);
  expect_same(with, course(c, false, DType::f32));
  EXPECT_TRUE(with.text.starts_with("none: the masks of model.dropout")) << with.text;
  EXPECT_EQ(with.replays, 0);

  c.train.cuda_graph = true;
  Tiny cpu(c, DType::f32, 1);
  EXPECT_EQ(cpu.trainer.graphs().text(), "none: the device is a CPU");

  c.model.dropout = 0;
  Tiny timed(nullptr, c, DType::f32, gpu());
  timed.trainer.meter().timed = &timed.device;
  for (int64_t n = 1; n <= 4; ++n) timed.step(n);
  EXPECT_EQ(timed.trainer.graphs().replays(), 0);

  config::Config e = tiny_experts();
  e.train.cuda_graph = true;
  Tiny experts(nullptr, e, DType::f32, gpu());
  EXPECT_EQ(experts.trainer.graphs().text(), "none: experts need row counts on the host");
}

TEST(GraphsAreLeftOut, WhereRanksCommunicate) {
  config::Config c = tiny_config(config::Arch::gpt2);
  c.model.dropout = 0;
  c.model.n_head = c.model.n_kv_head = 2;
  c.train.micro_batch = 1;
  const auto losses_of = [&](bool graphs, int64_t tensor, int64_t data, std::string& text, int64_t& replays) {
    c.train.cuda_graph = graphs;
    c.parallel.tensor = tensor;
    c.parallel.data = data;
    c.parallel.sequence_parallel = false;
    std::vector<double> losses;
    comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f32, gpu());
      for (int64_t n = 1; n <= 4; ++n) {
        const double loss = run.step(n).loss;
        if (world.first()) losses.push_back(loss);
      }
      if (!world.first()) return;
      text = run.trainer.graphs().text();
      replays = run.trainer.graphs().replays();
    });
    return losses;
  };
  std::string text;
  int64_t replays = 0;
  const auto plain = losses_of(false, 1, 2, text, replays);
  EXPECT_EQ(losses_of(true, 1, 2, text, replays), plain);
  EXPECT_EQ(text, "every micro-step except the last of a step, in which ranks communicate");
  EXPECT_EQ(replays, 2);  // the first of two micro-steps, from the third step on
  losses_of(true, 2, 1, text, replays);
  EXPECT_TRUE(text.starts_with("none: ranks communicate")) << text;
  EXPECT_EQ(replays, 0);
}

}  // namespace
}  // namespace trainer::tests
