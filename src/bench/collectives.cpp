#include "bench/collectives.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/clock.h"
#include "comm/engine_world.h"
#include "comm/mpi/mpi_transport.h"
#include "tensor/buffer.h"

namespace trainer::bench {
namespace {

constexpr int kWarmUp = 2;

class Bench {
 public:
  Bench(comm::World& world, device::Device& device, int64_t n)
      : world_(world),
        arena_(device, Arena::Mode::heap),
        ex_{device, arena_, meter_},
        in_(device, "benchmark", {n}, DType::f32),
        out_(device, "benchmark", {n}, DType::f32) {
    comm::Group group{.axes = 1,
                      .name = "world",
                      .members = std::vector<int>(static_cast<size_t>(world.size())),
                      .index = world.rank()};
    std::iota(group.members.begin(), group.members.end(), 0);
    all_ = world.communicator(device, std::move(group), comm::Lane::critical);
    world.connect();
  }

  CollectiveRate measure(CommOp op, int64_t n, int repeats) {
    // MPI's own sum runs on the progress thread, as all MPI calls do.
    const bool comparable =
        op == CommOp::all_reduce && world_.transport() == "mpi" && ex_.device.kind() == device::Kind::cpu;
    auto* engine_world = comparable ? dynamic_cast<comm::EngineWorld*>(&world_) : nullptr;
    std::vector<double> ours, library;
    for (int repeat = -kWarmUp; repeat < repeats; ++repeat) {
      const double mine = timed([&] { run(op, n); });
      if (repeat >= 0) ours.push_back(mine);
      if (engine_world == nullptr) continue;
      const double theirs = timed([&] {
        engine_world->engine().run_on_progress_thread(
            [&] { comm::mpi_library_all_reduce(in_.tensor().as<float>(), n); });
      });
      if (repeat >= 0) library.push_back(theirs);
    }
    CollectiveRate rate{.op = op, .bytes = n * size_of(DType::f32), .microseconds = slowest_median(ours) * 1e6};
    rate.bus_gbps = static_cast<double>(comm::wire_elements(op, world_.size(), n) * size_of(DType::f32)) /
                    world_.size() / rate.microseconds * 1e-3;
    if (!library.empty()) rate.mpi_microseconds = slowest_median(library) * 1e6;
    return rate;
  }

 private:
  template <typename Action>
  double timed(const Action& action) {
    world_.control().barrier();
    const double begin = now_seconds();
    action();
    ex_.device.synchronize();
    return now_seconds() - begin;
  }

  void run(CommOp op, int64_t n) {
    const comm::Chunk mine = all_->chunk(n);
    const auto piece = [](const Buffer& buffer, comm::Chunk range) {
      return Tensor{buffer.tensor().data + range.begin * size_of(DType::f32), {range.count}, DType::f32};
    };
    const Tensor in = piece(in_, {0, n}), out = piece(out_, {0, n});
    const auto start = [&] {
      switch (op) {
        case CommOp::all_reduce:
          return all_->all_reduce(ex_, in);
        case CommOp::reduce_scatter:
          return all_->reduce_scatter(ex_, in, piece(out_, mine));
        case CommOp::all_gather:
          return all_->all_gather(ex_, piece(in_, mine), out);
        case CommOp::broadcast:
          return all_->broadcast(ex_, in, 0);
        case CommOp::reduce:
          return all_->reduce(ex_, in, 0);
        case CommOp::all_to_all:
          return all_->all_to_all(ex_, in, out);
        case CommOp::send_recv:
          break;
      }
      return all_->send_recv(ex_, in, out, 1);
    };
    start().join(ex_);
  }

  /// Returns the median over repeats of the slowest rank's time.
  double slowest_median(std::vector<double> times) {
    const std::string mine(reinterpret_cast<const char*>(times.data()), times.size() * sizeof(double));
    for (const std::string& text : world_.control().gather(mine)) {
      std::vector<double> theirs(times.size());
      std::memcpy(theirs.data(), text.data(), text.size());
      for (size_t i = 0; i < times.size(); ++i) times[i] = std::max(times[i], theirs[i]);
    }
    std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
  }

  comm::World& world_;
  Arena arena_;
  Meter meter_;
  Exec ex_;
  Buffer in_, out_;
  std::unique_ptr<comm::Communicator> all_;
};

}  // namespace

std::vector<CollectiveRate> bench_collectives(comm::World& world, device::Device& device,
                                              std::span<const int64_t> payloads, int repeats) {
  if (world.size() < 2)
    throw Error(Code::usage, "`bench collectives` needs two ranks or more: mpirun -np 2 trainer bench collectives");
  TRAINER_CHECK(repeats >= 1 && !payloads.empty(), "{} repeats of {} payloads", repeats, payloads.size());
  const auto elements = [&](int64_t bytes) {
    const int64_t g = world.size();
    return std::max<int64_t>(1, bytes / size_of(DType::f32) / g) * g;
  };
  Bench bench(world, device, elements(*std::max_element(payloads.begin(), payloads.end())));
  std::vector<CollectiveRate> rates;
  for (int op = 0; op < kCommOps; ++op)
    for (const int64_t bytes : payloads)
      rates.push_back(bench.measure(static_cast<CommOp>(op), elements(bytes), repeats));
  return rates;
}

}  // namespace trainer::bench
