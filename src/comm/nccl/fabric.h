#pragma once
// Fabric: the state that all NCCL communicators of a rank share (streams, events, the watcher thread), and their
// shutdown.
#include <nccl.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/engine.h"
#include "comm/nccl/links.h"
#include "device/cuda/runtime.h"

namespace trainer::comm::nccl {

class Fabric;

/// An operation enqueued on its stream.
struct Launched final : Pending {
  Launched(Fabric& owner, int stream_index);
  ~Launched() override;
  Interval wait() override;  // makes the compute stream wait; the host continues
  void abandon() noexcept override;

  Fabric& fabric;
  int stream_index;
  Engine::Operation* watched = nullptr;
  cudaEvent_t done = nullptr;
  bool joined = false, over = false;  // guarded by the fabric
};

class Fabric {
 public:
  /// Connects all ranks. Collective.
  Fabric(Engine& engine, Control& control, device::Device& device);
  /// Finalizes the communicators, or aborts them if the world has failed.
  ~Fabric();
  Fabric(const Fabric&) = delete;
  Fabric& operator=(const Fabric&) = delete;

  /// Returns the number of streams for groups, which parallel.lanes determines.
  int streams() const { return lanes_; }
  /// Adds a stream of the highest priority, for a link; returns its number.
  int add_stream();
  Engine& engine() { return engine_; }

  /// Returns a communicator of the ranks that pass the same color, ordered by `key`; null for NCCL_SPLIT_NOCOLOR.
  /// Collective.
  ncclComm_t split(int color, int key, const std::string& name, int channels = kChannels);

  /// Makes the NCCL calls of `calls`, for one communicator, on stream number `stream_index`, after the work enqueued so
  /// far on the compute stream.
  Launched* launch(int stream_index, ncclComm_t comm, Engine::Channel& channel, CommOp op, const std::string& group,
                   const std::function<ncclResult_t(cudaStream_t)>& calls);

 private:
  friend struct Launched;
  struct Made {
    ncclComm_t comm;
    std::string name;
  };

  /// Makes a non-blocking NCCL call, and returns once the communicator has completed it.
  void carry_out(ncclComm_t& comm, const std::string& what, const std::function<ncclResult_t()>& call);
  ncclResult_t state_of(ncclComm_t comm);
  [[noreturn]] void fail(const std::string& what, ncclResult_t result, ncclComm_t comm) const;
  void end() noexcept;
  void join(Launched& launched);
  void abandon(Launched& launched) noexcept;

  void watch();
  void take_ended();
  void look_for_errors();
  void abort_all();

  Engine& engine_;
  device::Device& device_;
  const int lanes_;
  cudaEvent_t ready_ = nullptr;  // an event on the compute stream
  std::vector<cudaStream_t> streams_;

  std::mutex mutex_;  // guards the members below, and NCCL calls (all non-blocking)
  std::condition_variable ending_changed_;
  ncclComm_t all_ = nullptr;
  std::vector<Made> made_;
  std::deque<ncclComm_t> splits_;
  bool aborted_ = false, ending_ = false;
  std::vector<std::deque<Launched*>> running_;  // by stream, in start order
  std::vector<std::vector<Launched*>> free_;    // by stream
  std::deque<Launched> pool_;

  std::thread watcher_;
};

}  // namespace trainer::comm::nccl
