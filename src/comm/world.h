#pragma once
// World: the ranks of a run and their transport. A rank is a process started by mpirun, a thread of this process, or
// this process itself. main() passes the world down; there are no globals.
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
  /// Seconds after which an operation fails with Code::comm, counted from its start on this rank or from the end of the
  /// previous operation on the same communicator, whichever is later. Control operations wait longer for ranks that are
  /// busy, but not for ranks that wait for each other.
  double timeout_s = 600;
  int lanes = 0;  // 1: critical, weights and grads share one queue; 0: 1 with NCCL, else 3
  /// For tests of ordering: returns a delay in seconds, called for each message before it is sent. Called by progress
  /// threads.
  std::function<double(int rank)> delay;
};

/// Blocking exchange of small host data among all ranks (axis `control`). Collective: every rank must call.
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
  /// Ends a set-up step that can fail on some ranks. Every rank passes its error, if any. If any rank has failed, all
  /// ranks throw the error of the lowest failed rank (Scope::all_ranks; prefixed with "rank 3: " unless that is rank
  /// 0).
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
  /// The rank's index among the ranks on this host, which share its cores.
  int local_rank() const { return local_rank_; }
  int local_size() const { return local_size_; }
  bool first() const { return rank_ == 0; }
  virtual std::string_view transport() const = 0;  // "self", "threads", "mpi", "nccl", "dry"

  virtual Control& control() = 0;
  /// Creates a communicator for `group` and `purpose`; not collective. The communicator's staging memory is allocated
  /// on `device` as "communication", unless `device` is a GPU.
  virtual std::unique_ptr<Communicator> communicator(device::Device& device, Group group, Purpose purpose) = 0;
  /// Connects the communicators created so far; must be called before the first operation on them. Collective, even for
  /// ranks without a communicator.
  virtual void connect() {}

  /// Sets the options, which must be the same on every rank, before any communicator is created.
  virtual void configure(const WorldOptions& /*options*/) {}

  /// Notifies every rank that this rank is about to stop. Pending and later operations on the other ranks throw this
  /// error (Scope::another_rank, "rank 2 stopped: …") instead of waiting for the timeout. Does not throw.
  virtual void fail(Code /*code*/, const std::string& /*why*/) noexcept {}
  /// Waits at the end of the program, for at most `seconds`, until all ranks have called this function; returns false
  /// if some have not. No operation may start afterwards: waiting for a rank that has ended is an error.
  virtual bool wait_for_all_ranks(double /*seconds*/) noexcept { return true; }
  /// Returns the bytes that this rank has sent in all operations except those of NCCL, which does not report them.
  virtual int64_t bytes_sent() const { return 0; }

 protected:
  World(int rank, int size, int local_rank, int local_size)
      : rank_(rank), size_(size), local_rank_(local_rank), local_size_(local_size) {}

 private:
  int rank_, size_, local_rank_, local_size_;
};

/// Creates a world of one rank.
std::unique_ptr<World> solo_world();
/// Creates a world that represents rank `rank` of `size` without the other ranks: operations are only counted. Control
/// calls return immediately, with this rank's data in place of every rank's.
std::unique_ptr<World> dry_world(int size, int rank = 0);
/// Runs `body` on `ranks` threads of this process, each with its own World; returns when all have ended. An exception
/// in a body fails the world; the first one is rethrown here.
void run_on_threads(int ranks, const WorldOptions& options, const std::function<void(World&)>& body);

/// Returns the number of ranks that mpirun (or srun with PMI) started; empty if it did not start this process.
std::optional<int> launched_ranks();
/// Throws Code::usage if this process is one of several tasks that srun started without PMI, so that no MPI library can
/// connect them. Not for processes in an interactive shell.
void require_launcher();
/// Returns the version of MPI for --version; empty if MPI is not compiled in.
std::optional<std::string> mpi_version();
/// Returns the MPI modules of this build, one of which a launched program loads; empty if MPI is linked or missing.
std::vector<std::string> mpi_modules();
/// Starts MPI and a progress thread. Throws Code::usage if MPI is not compiled in. May be called once per process; the
/// destructor finalizes MPI, unless a peer was lost.
std::unique_ptr<World> mpi_world(const WorldOptions& options);

}  // namespace trainer::comm
