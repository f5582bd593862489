#include "comm/nccl/fabric.h"

#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace trainer::comm::nccl {
namespace {

constexpr double kWatchInterval = 20e-3;  // interval at which the watcher checks for ended or failed operations
constexpr double kAbandonSeconds = 1;     // grace period for operations whose ticket was lost to an exception
constexpr double kFinalizeSeconds = 10;   // grace period for finalizing communicators
constexpr double kSpin =
    200e-6;  // NCCL's thread usually enqueues an operation within this time, unless ranks have yet to connect
constexpr double kShortNap = 20e-6, kLongNap = 1e-3;

void nap(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

ncclConfig_t configuration(int channels) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // a blocking call could not be aborted while it waits for a lost rank
  if (channels < kChannels) config.maxCTAs = channels;
  return config;
}

/// Makes NCCL start operations of different streams in program order if the library of every rank can do so; warns on
/// rank 0 if not. NCCL reads the variable once, so it is set before the first communicator; no other thread of this
/// process changes the environment then. Collective.
void start_in_program_order(int rank, Control& control) {
  constexpr int kFirstVersion = 22600;
  int version = 0;
  double older[] = {ncclGetVersion(&version) == ncclSuccess && version >= kFirstVersion ? 0.0 : 1.0};
  control.sum(older);
  if (older[0] == 0) {
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  } else if (rank == 0) {
    log::warning(
        "parallel.lanes > 1: NCCL is older than 2.26 on {} rank(s), so collectives of different lanes may wait for "
        "each "
        "other forever; if a run hangs, set parallel.lanes = 1",
        older[0]);
  }
}

}  // namespace

Launched::Launched(Fabric& owner, int its_stream_index) : fabric(owner), stream_index(its_stream_index) {
  device::cuda::check(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), "event");
}
Launched::~Launched() { cudaEventDestroy(done); }
Interval Launched::wait() {
  fabric.join(*this);
  return {};
}
void Launched::abandon() noexcept { fabric.abandon(*this); }

Fabric::Fabric(Engine& engine, Control& control, device::Device& device)
    : engine_(engine), device_(device), lanes_(streams_of(engine.options().lanes)) {
  using device::cuda::check;
  check(cudaSetDevice(device.gpu().ordinal), "selecting the CUDA device");
  check(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming), "event");
  for (int lane = 0; lane < lanes_; ++lane) add_stream();

  if (lanes_ > 1) start_in_program_order(engine.rank(), control);
  ncclUniqueId id{};
  control.run_on_all_ranks([&] {
    if (engine.rank() != 0) return;
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess)
      fail("ncclGetUniqueId", result, nullptr);
  });
  std::string bytes(id.internal, sizeof(id.internal));
  control.broadcast(bytes);
  std::memcpy(id.internal, bytes.data(), sizeof(id.internal));
  watcher_ = std::thread([this] { watch(); });
  try {
    ncclConfig_t config = configuration(kChannels);
    carry_out(all_, format("the connection of {} ranks", engine.size()), [&] {
      const ncclResult_t result = ncclCommInitRankConfig(&all_, engine.size(), id, engine.rank(), &config);
      if (all_ != nullptr) made_.push_back({all_, "all ranks"});
      return result;
    });
  } catch (...) {
    end();
    throw;
  }
}

Fabric::~Fabric() { end(); }

int Fabric::add_stream() {
  int lowest = 0, highest = 0;
  cudaStream_t stream = nullptr;
  device::cuda::check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "priorities of streams");
  device::cuda::check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, highest), "communication stream");
  const std::lock_guard lock(mutex_);
  streams_.push_back(stream);
  running_.emplace_back();
  free_.emplace_back();
  return static_cast<int>(streams_.size()) - 1;
}

void Fabric::end() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ending_changed_.notify_all();
  watcher_.join();
  if (engine_.failed()) abort_all();
  const double until = now_seconds() + kFinalizeSeconds;
  // An operation that is not marked as ended would block the later ones of its channel, which may be the engine's.
  const auto all_ended = [&] {
    const std::lock_guard lock(mutex_);
    take_ended();
    return std::ranges::all_of(running_, [](const auto& running) { return running.empty(); });
  };
  while (!aborted_ && !all_ended() && now_seconds() < until) nap(kLongNap);
  // Nothing is in flight now. Child communicators are finalized before the communicator from which they were split.
  for (auto made = made_.rbegin(); !aborted_ && made != made_.rend(); ++made) {
    ncclResult_t state = state_of(made->comm);
    state = state == ncclSuccess ? ncclCommFinalize(made->comm) : ncclInternalError;  // not connected, or failed
    while (state == ncclSuccess || state == ncclInProgress) {
      if (state = state_of(made->comm); state != ncclInProgress || now_seconds() > until) break;
      nap(kLongNap);
    }
    if (state == ncclSuccess) {
      ncclCommDestroy(made->comm);
    } else {
      ncclCommAbort(made->comm);
    }
  }
  cudaSetDevice(device_.gpu().ordinal);
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  cudaEventDestroy(ready_);
}

void Fabric::fail(const std::string& what, ncclResult_t result, ncclComm_t comm) const {
  const std::string details = ncclGetLastError(comm);
  throw Error(Code::comm,
              format("rank {}: NCCL failed in {}: {}{}{} (set NCCL_DEBUG=INFO for details; `trainer verify` "
                     "tests all links)",
                     engine_.rank(), what, ncclGetErrorString(result), details.empty() ? "" : ": ", details));
}

ncclResult_t Fabric::state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t queried = ncclCommGetAsyncError(comm, &state);
  return queried == ncclSuccess ? state : queried;
}

void Fabric::carry_out(ncclComm_t& comm, const std::string& what, const std::function<ncclResult_t()>& call) {
  ncclResult_t state = ncclSuccess;
  const double begin = now_seconds();
  for (bool called = false;; called = true) {
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) engine_.check();
      state = called ? state_of(comm) : call();
    }
    if (state != ncclInProgress && (called || state != ncclSuccess)) break;
    const double waited = now_seconds() - begin;
    if (engine_.failed()) engine_.check();
    if (waited > engine_.options().timeout_s)
      throw Error(Code::comm, format("rank {}: NCCL did not complete {} within {:.3g} s", engine_.rank(), what,
                                     engine_.options().timeout_s));
    if (waited < kSpin) {
      sched_yield();
    } else {
      nap(std::clamp(waited / 8, kShortNap, kLongNap));
    }
  }
  if (state != ncclSuccess) fail(what, state, comm);
}

ncclComm_t Fabric::split(int color, int key, const std::string& name, int channels) {
  // An NCCL thread stores the handle before the parent is ready again, so the variable must stay valid even if this
  // rank gives up on the split.
  ncclComm_t& made = splits_.emplace_back(nullptr);
  ncclConfig_t config = configuration(channels);
  const std::string what = format("the connection along {}", name);
  carry_out(all_, what, [&] { return ncclCommSplit(all_, color, key, &made, &config); });
  if (made == nullptr) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    made_.push_back({made, name});
  }
  carry_out(made, what, [] { return ncclSuccess; });
  return made;
}

Launched* Fabric::launch(int stream_index, ncclComm_t comm, Engine::Channel& channel, CommOp op,
                         const std::string& group, const std::function<ncclResult_t(cudaStream_t)>& calls) {
  using device::cuda::check;
  const auto index = static_cast<size_t>(stream_index);
  cudaStream_t stream = streams_[index];
  Launched* launched = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (free_[index].empty()) {
      launched = &pool_.emplace_back(*this, stream_index);
    } else {
      launched = free_[index].back();
      free_[index].pop_back();
    }
    launched->joined = launched->over = false;
  }
  launched->watched = engine_.watch(channel, op);  // the timeout starts here
  check(cudaEventRecord(ready_, device::cuda::stream_of(device_)), "event");
  check(cudaStreamWaitEvent(stream, ready_), "wait for the compute stream");
  carry_out(comm, format("{} along {}", name_of(op), group), [&] { return calls(stream); });
  check(cudaEventRecord(launched->done, stream), "event");
  const std::lock_guard lock(mutex_);
  running_[index].push_back(launched);
  return launched;
}

void Fabric::join(Launched& launched) {
  device::cuda::check(cudaStreamWaitEvent(device::cuda::stream_of(device_), launched.done), "wait for communication");
  const std::lock_guard lock(mutex_);
  launched.joined = true;
  if (launched.over) free_[static_cast<size_t>(launched.stream_index)].push_back(&launched);
  if (aborted_) engine_.check();
}

void Fabric::abandon(Launched& launched) noexcept {
  const auto over = [&] {
    const std::lock_guard lock(mutex_);
    take_ended();
    return launched.over;
  };
  const auto wait = [&](double seconds) {
    for (const double until = now_seconds() + seconds; !over() && now_seconds() < until;) nap(kLongNap);
    return over();
  };
  if (!wait(kAbandonSeconds)) {
    engine_.end_all_operations();  // the watcher then aborts the communicators
    wait(kFinalizeSeconds);
  }
  const std::lock_guard lock(mutex_);
  launched.joined = true;
  if (launched.over) free_[static_cast<size_t>(launched.stream_index)].push_back(&launched);
}

void Fabric::take_ended() {
  for (size_t stream_index = 0; stream_index < running_.size(); ++stream_index) {
    while (!running_[stream_index].empty() && cudaEventQuery(running_[stream_index].front()->done) == cudaSuccess) {
      Launched& launched = *running_[stream_index].front();
      running_[stream_index].pop_front();
      engine_.mark_ended(*launched.watched);
      launched.over = true;
      if (launched.joined) free_[stream_index].push_back(&launched);
    }
  }
}

void Fabric::look_for_errors() {
  for (const Made& made : made_) {
    const ncclResult_t state = state_of(made.comm);
    if (state == ncclSuccess || state == ncclInProgress) continue;
    try {
      fail(format("communication along {}", made.name), state, made.comm);
    } catch (const Error& error) {
      engine_.fail(error);
    }
    return;
  }
}

void Fabric::abort_all() {
  if (std::exchange(aborted_, true)) return;
  for (auto made = made_.rbegin(); made != made_.rend(); ++made) ncclCommAbort(made->comm);
}

void Fabric::watch() {
  prctl(PR_SET_NAME, "nccl watch");
  cudaSetDevice(device_.gpu().ordinal);
  const std::chrono::duration<double> watch_interval(std::min(kWatchInterval, engine_.options().timeout_s / 20));
  std::unique_lock lock(mutex_);
  while (!ending_changed_.wait_for(lock, watch_interval, [this] { return ending_; })) {
    if (aborted_) continue;
    take_ended();
    look_for_errors();
    if (engine_.failed()) abort_all();
  }
}

}  // namespace trainer::comm::nccl
