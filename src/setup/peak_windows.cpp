#include "setup/peak_windows.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "base/clock.h"
#include "ops/normals.h"

namespace trainer::setup {

PeakUnit peak_unit(device::Isa isa, DType compute) {
  if (compute == DType::bf16 && isa >= device::Isa::amx)
    return {"AMX tiles", ops::peak_loops(isa).bf16_tiles, DType::bf16};
  if (compute == DType::bf16 && isa == device::Isa::avx512bf16)
    return {"AVX512-BF16 dot products", ops::peak_loops(isa).bf16_pairs, DType::bf16};
  // Other types are computed in fp32 or fp64.
  const bool wide = isa >= device::Isa::avx512, plain = isa < device::Isa::avx2;
  const ops::PeakTable& table = ops::peak_loops(isa);
  const std::string_view name = wide ? "AVX-512 fma" : plain ? "plain multiply and add" : "AVX2 fma";
  return compute == DType::f64 ? PeakUnit{name, table.f64, DType::f64} : PeakUnit{name, table.f32, DType::f32};
}

/// The state of one thread: operands and results of the loop, its work in the last window, and its CPUs.
struct PeakWindows::Worker {
  alignas(64) std::byte operands[ops::kPeakOperandBytes];
  alignas(64) std::byte sink[8192];
  double flops = 0, start = 0, end = 0;  // start and end: seconds on one clock
  int index = 0;
  cpu_set_t allowed = {};
};

namespace {

/// Pins the thread to one of its allowed CPUs, unless there are more than `requested`: the system then finds free ones.
/// The index wraps around at the number of CPUs, since each rank may be restricted to its own CPUs.
void take_one_cpu(const cpu_set_t& allowed, int worker, int requested) {
  const int count = CPU_COUNT(&allowed);
  if (count == 0 || count > requested) return;
  int left = worker % count;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || left-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof(one), &one);  // if pinning is forbidden, the window may be slower
    return;
  }
}

template <typename T>
void store(std::span<const double> draws, std::byte* to) {
  for (size_t i = 0; i < draws.size(); ++i) {
    const T value(static_cast<std::conditional_t<std::is_same_v<T, double>, double, float>>(draws[i]));
    std::memcpy(to + i * sizeof(T), &value, sizeof(T));
  }
}

}  // namespace

PeakWindows::PeakWindows(device::Device& device, DType compute, int local_rank, int local_size)
    : device_(device),
      unit_(peak_unit(device.isa(), compute)),
      first_worker_(local_rank * device.threads()),
      workers_of_host_(local_size * device.threads()) {
  // Operands are random, like those of a training step: the clock frequency may depend on the data.
  std::vector<double> draws(static_cast<size_t>(ops::kPeakOperandBytes / size_of(unit_.operands)));
  ops::fill_normals(device, philox_key(1, "peak"), 0, static_cast<int64_t>(draws.size() / 4), draws.data());
  for (int thread = 0; thread < device.threads(); ++thread) {
    workers_.push_back(std::make_unique<Worker>());
    std::byte* const to = workers_.back()->operands;
    workers_.back()->index = thread;
    unit_.operands == DType::f64   ? store<double>(draws, to)
    : unit_.operands == DType::f32 ? store<float>(draws, to)
                                   : store<bf16>(draws, to);
  }
  // One thread calibrates the rounds per window with the fastest of five trials: a disturbed trial would make all
  // windows too short.
  double seconds = 0;
  for (rounds_ = 8; seconds < kSeconds / 8; rounds_ *= 2) {
    seconds = kSeconds;
    for (int i = 0; i < 5; ++i) {
      const double start = now_seconds();
      unit_.loop(workers_[0]->operands, rounds_, workers_[0]->sink);
      seconds = std::min(seconds, now_seconds() - start);
    }
  }
  rounds_ = std::max<int64_t>(1, std::llround(static_cast<double>(rounds_ / 2) * kSeconds / seconds));
}
PeakWindows::~PeakWindows() = default;

void PeakWindows::run_on_all_threads(const std::function<void(Worker&)>& work) {
  const auto threads = static_cast<int>(workers_.size());
  std::atomic<int> arrived = 0;
  device_.host_pool().parallel_for(threads, [&](int64_t, int worker) {
    ++arrived;  // a worker that waits here takes no second task, so each thread gets exactly one
    while (arrived.load() < threads) sched_yield();
    work(*workers_[static_cast<size_t>(worker)]);
  });
}

double PeakWindows::seconds_of(int64_t rounds) {
  run_on_all_threads([&](Worker& worker) {
    worker.start = now_seconds();
    worker.flops = unit_.loop(worker.operands, rounds, worker.sink);
    worker.end = now_seconds();
  });
  double start = workers_[0]->start, end = workers_[0]->end;
  for (const auto& worker : workers_) {
    start = std::min(start, worker->start);
    end = std::max(end, worker->end);
  }
  return end - start;
}

void PeakWindows::run(std::span<double> rates) {
  run_on_all_threads([&](Worker& worker) {
    sched_getaffinity(0, sizeof(worker.allowed), &worker.allowed);
    take_one_cpu(worker.allowed, first_worker_ + worker.index, workers_of_host_);
  });
  seconds_of(rounds_);  // not counted: lets the clock frequency settle and other ranks start
  for (double& rate : rates) {
    const double seconds = seconds_of(rounds_);
    double flops = 0;
    for (const auto& worker : workers_) flops += worker->flops;
    rate = flops / seconds;
  }
  // Keeps the load up for other ranks that are still in their last window.
  if (workers_of_host_ > static_cast<int>(workers_.size())) seconds_of(rounds_);
  run_on_all_threads([&](Worker& worker) { sched_setaffinity(0, sizeof(worker.allowed), &worker.allowed); });
}

}  // namespace trainer::setup
