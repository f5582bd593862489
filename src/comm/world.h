#pragma once
// World: the ranks of a run and their transport. A rank is a process started by mpirun, a thread of this process, or
// this process itself. main passes the world down; there are no globals.
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace trainer::comm {

struct WorldOptions {
  /// Seconds after which an operation fails with Code::comm. The time counts from its start on this rank, or from the
  /// end of the previous one on the same communicator. Control operations wait longer for ranks that are busy, but not
  /// for ranks that wait for each other.
  double timeout_s = 600;
  int lanes = 0;  // 1: critical, weights and grads share one queue; 0: depends on the transport, 1 with NCCL, else 3
  /// Returns the seconds to wait before a message is sent, drawn for each message; for tests of ordering. Called by
  /// progress threads.
  std::function<double(int rank)> delay;
};

/// Exchanges small host data among all ranks and blocks (axis `control`). Collective: every rank must call.
class Control {
 public:
  virtual ~Control() = default;
  virtual void barrier() = 0;
  /// Broadcasts the bytes of rank `root`, of any length.
  virtual void broadcast(std::string& bytes, int root = 0) = 0;
  /// Returns every rank's bytes, in rank order, on every rank.
  virtual std::vector<std::string> gather(const std::string& bytes) = 0;
  /// values ← Σ over ranks, added in rank order: bitwise identical on all ranks.
  virtual void sum(std::span<double> values) = 0;
  /// Ends a set-up step that can fail on one rank. Every rank passes its error, if it has one. If any rank has one, all
  /// ranks throw the error of the lowest such rank (Scope::all_ranks; "rank 3: …" unless it is rank 0).
  void throw_if_any_failed(const std::optional<Error>& problem);
  /// Runs `action` on every rank, then calls throw_if_any_failed() with its exception.
  void run_on_all_ranks(const std::function<void()>& action);
};

class World {
 public:
  virtual ~World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// The rank's index on this host, for sharing its cores.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  bool first() const { return rank_ == 0; }
  virtual std::string_view transport() const = 0;  // "self", "threads", "mpi", "nccl", "dry"

  virtual Control& control() = 0;
  /// Makes a communicator of `group` on `lane`; not collective. Its staging memory is counted on `device` as
  /// "communication", unless `device` is a GPU.
  virtual std::unique_ptr<Communicator> communicator(device::Device& device, Group group, Lane lane) = 0;
  /// Connects the communicators made so far; must be called before the first operation on them. Collective, even for
  /// ranks without a communicator.
  virtual void connect() {}

  /// Sets timeout, lanes and delay, the same on every rank, before any communicator is made.
  virtual void configure(const WorldOptions& /*options*/) {}

  /// Notifies every rank that this one is about to stop. Their pending and later operations throw this error
  /// (Scope::another_rank, "rank 2 stopped: …") instead of waiting for the timeout. Does not throw.
  virtual void fail(Code /*code*/, const std::string& /*why*/) noexcept {}
  /// Waits at the end of the program, for at most `seconds`, until all ranks have called it; returns false when some
  /// have not. No operation may start afterwards: waiting for a rank that has called it is an error.
  virtual bool wait_for_all_ranks(double /*seconds*/) noexcept { return true; }
  /// Returns the bytes that this rank has sent in operations of all its communicators except NCCL's, which does not
  /// report them.
  virtual int64_t bytes_sent() const { return 0; }

 protected:
  World(int rank, int size, int local_rank, int local_size)
      : rank_(rank), size_(size), local_rank_(local_rank), local_size_(local_size) {}

 private:
  int rank_, size_, local_rank_, local_size_;
};

/// Makes a world of one rank.
std::unique_ptr<World> solo_world();
/// Makes a world that represents rank `rank` of `size` without the other ranks: communicators only count. Control calls
/// return immediately, with this rank's data in place of every rank's.
std::unique_ptr<World> dry_world(int size, int rank = 0);
/// Runs `body` on `ranks` threads of this process, each with its own World; returns when all have ended. An exception
/// in a body fails the world; the first one is rethrown here.
void run_on_threads(int ranks, const WorldOptions& options, const std::function<void(World&)>& body);

/// Returns the number of ranks that mpirun (or srun with PMI) started; empty if it did not start this process.
std::optional<int> launched_ranks();
/// Returns the version of MPI for --version; empty if MPI is not compiled in.
std::optional<std::string> mpi_version();
/// Starts MPI and a progress thread. Throws Code::usage if MPI is not compiled in. May be called once per process; the
/// destructor finalizes MPI, unless a peer was lost.
std::unique_ptr<World> mpi_world(const WorldOptions& options);

}  // namespace trainer::comm
