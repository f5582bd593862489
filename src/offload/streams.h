#pragma once
// Streams: runs lists of operations concurrently with the compute thread, one thread per stream. An operation is done
// when its function returns. Operations wait only for other operations and for the events of a step (schedule.h), so
// CPU, emulated device and GPU differ only in that function.
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "offload/schedule.h"

namespace trainer::offload {

/// The times of a list.
struct Measured {
  Seconds busy{};       // busy time
  double update_s = 0;  // time from knowing the norm until the last compute weights are updated
};

/// A completed operation.
struct Done {
  OperationKind kind = OperationKind::flush;
  int subgroup = 0;
  Interval time = {};
};

class Streams {
 public:
  /// The functions that run operations. Both are called on the thread of the operation's stream.
  struct Work {
    std::function<void(const Operation&)> prepare;                // waits for the device; not counted as busy time
    std::function<void(const Operation&, int64_t list)> perform;  // performs the operation
  };
  Streams(Work work, std::span<const Subgroup> subgroups, int groups);
  /// Completes the operations that have begun, and drops the others.
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  // The following functions must all be called from the same thread.

  /// Queues a list, which starts when the previous list is done and must stay valid until its own end. Blocks until the
  /// list before the previous one is done. Returns the number of the list.
  int64_t start(const Schedule& schedule);
  /// Signal events of the list started last: a group's gradient is complete; the norm is known.
  void gradient_complete(int group);
  void norm_known();
  /// Drops the operations of the list started last that have not begun, and waits for the others.
  void cancel();
  /// Calls cancel() and discards the exceptions of operations.
  void recover();

  // These functions block, and rethrow the exception of an operation in that list. The list's other operations are then
  // dropped, and so are all later lists until recover().

  void wait_for_weights(int64_t list, int group);
  void wait_for_gradient(int64_t list, int group);  // on the host
  void wait_for_all(int64_t list);

  /// Returns the times of the last completed list that was not cancelled.
  Measured measured();
  /// Starts or stops recording operations.
  void record(bool on);
  /// Returns the recorded operations in order of completion, and clears them.
  std::vector<Done> recorded();

 private:
  /// The progress of a list.
  struct Progress {
    const Schedule* schedule = nullptr;
    std::vector<char> done;                       // by operation
    std::vector<char> gradients;                  // by group: true if the gradient is complete
    std::vector<int> weights_left, flushes_left;  // by group
    bool norm_known = false, cancelled = false;
    int streams_left = 0;
    double norm_at = 0, weights_at = 0;  // on the clock of now_seconds()
    Seconds busy{};
    std::exception_ptr error;
  };
  Progress& progress_of(int64_t list) { return progress_[static_cast<size_t>(list % 2)]; }
  int group_of(const Operation& op) const { return subgroups_[static_cast<size_t>(op.subgroup)].group; }
  /// Adds `change` to the counts of remaining operations that include `op`.
  void count(Progress& progress, const Operation& op, int change) const;
  bool is_ready(const Progress& progress, const Operation& op) const;
  void work_all(Stream stream);
  void work_on(int64_t list, Stream stream, std::unique_lock<std::mutex>& lock);
  template <typename Reached>
  void wait(int64_t list, Reached&& reached);

  const Work work_;
  const std::vector<Subgroup> subgroups_;
  const size_t groups_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::array<Progress, 2> progress_;
  int64_t started_ = 0, finished_ = 0;  // numbers of lists
  Measured measured_;
  bool recording_ = false;
  std::vector<Done> recorded_;
  bool ending_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace trainer::offload
