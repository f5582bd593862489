#include "bench/collectives.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/median.h"
#include "comm/engine_world.h"
#include "comm/mpi/mpi_transport.h"
#include "mesh/mesh.h"

namespace trainer::bench {
namespace {

constexpr int kWarmUp = 2;

/// Measures operations among all ranks.
class Bench {
 public:
  Bench(comm::World& world, device::Device& device, int64_t n)
      : world_(world),
        mesh_(world, device, mesh::MeshShape({{"world", world.size()}})),
        timer_(world, device, n),
        all_(mesh_.along(mesh_.shape().all(), comm::Purpose::critical)) {
    for (int from = std::max(0, world.rank() - 1); from < std::min(world.size() - 1, world.rank() + 1); ++from)
      links_.push_back(&mesh_.link(mesh_.shape().all(), from, comm::Way::forward));
    world.connect();
    // MPI's own reduction runs on the progress thread, as all MPI calls do.
    if (world.transport() == "mpi" && device.kind() == device::DeviceKind::cpu)
      library_ = dynamic_cast<comm::EngineWorld*>(&world);
    if (library_ != nullptr) values_.resize(static_cast<size_t>(n));
  }

  CollectiveRate measure(CommOp op, int64_t n, int repeats) {
    CollectiveRate rate{.op = op,
                        .bytes = n * size_of(DType::f32),
                        .microseconds = timer_.slowest([&] { run(op, n); }, repeats, kWarmUp) * 1e6};
    rate.bus_gbps = static_cast<double>(comm::wire_elements(op, world_.size(), n) * size_of(DType::f32)) /
                    world_.size() / rate.microseconds * 1e-3;
    if (op == CommOp::all_reduce && library_ != nullptr)
      rate.mpi_microseconds = 1e6 * timer_.slowest(
                                        [&] {
                                          library_->engine().run_on_progress_thread(
                                              [&] { comm::mpi_library_all_reduce(values_.data(), n); });
                                        },
                                        repeats, kWarmUp);
    return rate;
  }

 private:
  void run(CommOp op, int64_t n) {
    if (op != CommOp::send) return static_cast<void>(timer_.start(all_, op, n).join(timer_.exec()));
    std::vector<comm::Ticket> tickets;
    for (comm::Communicator* link : links_) tickets.push_back(timer_.start(*link, op, n));
    for (comm::Ticket& ticket : tickets) ticket.join(timer_.exec());
  }

  comm::World& world_;
  mesh::Mesh mesh_;
  CollectiveTimer timer_;
  comm::Communicator& all_;
  std::vector<comm::Communicator*> links_;  // from the previous rank, and to the next one
  comm::EngineWorld* library_ = nullptr;
  std::vector<float> values_;
};

}  // namespace

CollectiveTimer::CollectiveTimer(comm::World& world, device::Device& device, int64_t n)
    : world_(world),
      arena_(device, Arena::Mode::heap),
      ex_{device, arena_, meter_},
      in_(device, "benchmark", {n}, DType::f32),
      out_(device, "benchmark", {n}, DType::f32) {}

double CollectiveTimer::slowest(const std::function<void()>& action, int repeats, int warm_up) {
  std::vector<double> times;
  for (int repeat = -warm_up; repeat < repeats; ++repeat) {
    world_.control().barrier();
    const double begin = now_seconds();
    action();
    ex_.device.synchronize();
    if (repeat >= 0) times.push_back(now_seconds() - begin);
  }
  return slowest_median(std::move(times));
}

double CollectiveTimer::seconds(comm::Communicator& ranks, CommOp op, int64_t n, int repeats, int warm_up) {
  return slowest([&] { start(ranks, op, n).join(ex_); }, repeats, warm_up);
}

comm::Ticket CollectiveTimer::start(comm::Communicator& ranks, CommOp op, int64_t n) {
  const comm::Chunk mine = ranks.chunk(n);
  const auto piece = [](const Buffer& buffer, comm::Chunk range) {
    return Tensor{buffer.tensor().data + range.begin * size_of(DType::f32), {range.count}, DType::f32};
  };
  const Tensor in = piece(in_, {0, n}), out = piece(out_, {0, n});
  switch (op) {
    case CommOp::all_reduce:
      return ranks.all_reduce(ex_, in);
    case CommOp::reduce_scatter:
      return ranks.reduce_scatter(ex_, in, piece(out_, mine));
    case CommOp::all_gather:
      return ranks.all_gather(ex_, piece(in_, mine), out);
    case CommOp::broadcast:
      return ranks.broadcast(ex_, in, 0);
    case CommOp::reduce:
      return ranks.reduce(ex_, in, 0);
    case CommOp::send:
      return ranks.send(ex_, ranks.rank() == 0 ? in : out);
    case CommOp::shift:
      return ranks.shift(ex_, in, out);
    case CommOp::all_to_all:
      break;
  }
  return ranks.all_to_all(ex_, in, out);
}

double CollectiveTimer::slowest_median(std::vector<double> times) {
  const std::string mine(reinterpret_cast<const char*>(times.data()), times.size() * sizeof(double));
  for (const std::string& text : world_.control().gather(mine)) {
    std::vector<double> theirs(times.size());
    std::memcpy(theirs.data(), text.data(), text.size());
    for (size_t i = 0; i < times.size(); ++i) times[i] = std::max(times[i], theirs[i]);
  }
  return median(std::move(times));
}

std::vector<CollectiveRate> bench_collectives(comm::World& world, device::Device& device,
                                              std::span<const int64_t> payloads, int repeats) {
  if (world.size() < 2)
    throw Error(Code::usage,
                "`bench collectives` requires at least two ranks; run `mpirun -np 2 trainer bench collectives`");
  TRAINER_CHECK(repeats >= 1 && !payloads.empty(), "bench_collectives() requires repeats and payloads, not {} and {}",
                repeats, payloads.size());
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
