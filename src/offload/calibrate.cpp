#include "offload/calibrate.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "base/limits.h"
#include "base/median.h"
#include "device/stream.h"
#include "ops/cpu/peak.h"
#include "ops/operands.h"
#include "tensor/buffer.h"

namespace trainer::offload {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 20;
constexpr int kRepeats = 3;
constexpr double kTogetherSeconds = 0.05;

/// Returns the median seconds of a call, after one warm-up call.
double seconds_of(const std::function<void()>& call) {
  std::vector<double> seconds;
  for (int i = 0; i <= kRepeats; ++i) {
    const double start = now_seconds();
    call();
    if (i > 0) seconds.push_back(std::max(1e-9, now_seconds() - start));
  }
  return median(seconds);
}

/// Repeats a call until the time is up, at least once; returns the mean seconds per call.
double seconds_while(const std::function<void()>& call, const std::atomic<bool>& ended) {
  const double start = now_seconds();
  double calls = 0;
  while (calls == 0 || !ended) {
    call();
    ++calls;
  }
  return std::max(1e-9, (now_seconds() - start) / calls);
}

/// Repeats all calls concurrently, the first one on this thread; returns the seconds per call of each.
std::vector<double> seconds_together(const std::vector<std::function<void()>>& calls) {
  std::atomic<bool> ended = false;
  std::vector<double> seconds(calls.size());
  std::vector<std::jthread> threads;
  struct End {  // runs before the threads are joined, even if an exception is thrown
    std::atomic<bool>& ended;
    ~End() { ended = true; }
  } const at_the_end{ended};
  for (size_t i = 1; i < calls.size(); ++i)
    threads.push_back(start_thread("calibration", [&, i] { seconds[i] = seconds_while(calls[i], ended); }));
  std::vector<double> mine;
  for (const double start = now_seconds(); mine.size() < kRepeats || now_seconds() - start < kTogetherSeconds;) {
    const double begin = now_seconds();
    calls.front()();
    mine.push_back(std::max(1e-9, now_seconds() - begin));
  }
  ended = true;
  for (std::jthread& thread : threads) thread.join();
  seconds.front() = median(mine);
  return seconds;
}

/// `state`: master weights, states and the gradient of some elements, one after the other.
void update(device::Device& where, const Buffer& state, int64_t elements, DType master,
            const optim::ElementwiseRule& rule) {
  Arena none(where, Arena::Mode::heap);
  Meter meter;
  Exec ex{where, none, meter};
  std::byte* at = state.tensor().data;
  const auto next = [&](DType type) {
    return Tensor{std::exchange(at, at + elements * size_of(type)), {elements}, type, 0};
  };
  const Tensor p = next(master);
  std::vector<Tensor> states;
  for (const params::StateSpec& spec : rule.states()) states.push_back(next(spec.type));
  rule.update(ex, {.lr = 1e-6, .agreed = rule.agreed(1).value_or(optim::Agreed())}, optim::ParamClass::vector,
              {.p = p, .states = states, .g = next(master), .compute = {}});
  where.synchronize();
}

/// Returns the host's memory bandwidth in bytes/s, using all host threads.
double memory_rate(device::Device& host, const Buffer& state) {
  const int64_t bytes = state.tensor().bytes();
  constexpr int64_t kPiece = 1 << 18;
  std::byte* const data = state.tensor().data;
  const double copy =
      static_cast<double>(bytes) / seconds_of([&] {
        host.host_pool().parallel_for(divide_up(bytes / 2, kPiece), [&](int64_t piece) {
          const int64_t at = piece * kPiece;
          std::memcpy(data + bytes / 2 + at, data + at, static_cast<size_t>(std::min(kPiece, bytes / 2 - at)));
        });
      });
  Arena none(host, Arena::Mode::heap);
  Meter meter;
  Exec ex{host, none, meter};
  const ops::TrafficLoop traffic = ops::peak_loops(ex.device.isa()).traffic;
  const int64_t floats = bytes / 16;  // elements of each of four arrays
  const auto array = [&](int64_t which) { return reinterpret_cast<float*>(data) + which * floats; };
  const double loop = 28.0 * static_cast<double>(floats) / seconds_of([&] {
                        ops::for_elements(ex, floats, [&](int64_t first, int64_t n) {
                          traffic(array(0) + first, array(1) + first, array(2) + first, array(3) + first, n);
                        });
                      });
  return std::max(copy, loop);
}

/// Returns the start-up time of an operation.
double start_seconds(device::Device& device, device::Device& host) {
  const std::unique_ptr<device::Event> event = device::make_event(device);
  return seconds_of([&] {
    host.host_pool().parallel_for(host.threads(), [](int64_t) {});
    event->set();
    event->wait();
  });
}

/// Returns the bytes/s of blocking copies from a GPU to host memory that is not pinned.
double pageable_rate(device::Device& device, const Buffer& from) {
  std::vector<std::byte> memory(static_cast<size_t>(from.tensor().bytes()));
  const double seconds =
      seconds_of([&] { device.copy_to_host(memory.data(), from.tensor().data, from.tensor().bytes()); });
  return static_cast<double>(memory.size()) / seconds;
}

}  // namespace

Rates measure_rates(device::Device& device, device::Device& host, int64_t elements, DType master,
                    const optim::ElementwiseRule& rule) {
  const int64_t n = std::min(elements, kMostElements), bytes_each = 2 * size_of(master) + optim::state_bytes(rule);
  const auto on = [&](device::Device& where) { return Buffer(where, "calibration", {n * bytes_each}, DType::u8); };
  const Buffer here = on(host), sent = on(host), received = on(host);
  const Buffer there = on(device), back = on(device);
  if (device.dry()) return {.to_device = 1, .to_host = 1, .host = 1, .device = 1, .memory = 1};
  device.synchronize();  // the memory must be zeroed before streams write to it
  const std::unique_ptr<device::Device> in = device::make_stream(device), out = device::make_stream(device);
  const auto count = static_cast<double>(n), bytes = static_cast<double>(here.tensor().bytes());
  const auto copy_in = [&] {
    in->copy_to_device(there.tensor().data, sent.tensor().data, sent.tensor().bytes());
    in->synchronize();
  };
  const auto copy_out = [&] { out->copy_to_host(received.tensor().data, back.tensor().data, back.tensor().bytes()); };
  Rates rates;
  rates.memory = memory_rate(host, here);
  rates.device = count / seconds_of([&] { update(*in, there, n, master, rule); });
  const std::vector<double> together =
      seconds_together({[&] { update(host, here, n, master, rule); }, copy_in, copy_out});
  rates.host = count / together[0];
  rates.to_device = bytes / together[1];
  rates.to_host = bytes / together[2];
  rates.start = start_seconds(device, host);
  if (device.kind() == device::DeviceKind::cuda) rates.pageable = pageable_rate(device, back);
  return rates;
}

}  // namespace trainer::offload
