#pragma once
// Lanes: does lists of operations beside the thread that computes, one thread for each lane. An operation is done when
// the function that does it returns; that, and the two moments of a step (schedule.h), are all that anybody waits for.
// So a CPU, an emulated device and a GPU differ in what that function does alone.
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "offload/schedule.h"

namespace trainer::offload {

class Lanes {
 public:
  /// `perform` is called on the thread of the operation's lane.
  Lanes(std::function<void(const Operation&)> perform, std::span<const Subgroup> subgroups, int groups);
  /// Ends what has begun; the rest is left out.
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // What follows is of one thread.

  /// Begins with the list, which outlives it, once the one before is done. Waits for the one before that. Returns its
  /// number.
  int64_t start(const Schedule& schedule);
  /// In the list started last: the group's gradient is complete; the norm is known.
  void gradient_complete(int group);
  void scalars_known();
  /// Leaves out what has not begun of the list started last, and waits for the rest.
  void cancel();
  /// cancel(), and what operations threw is forgotten.
  void recover();

  // Waiting; all throw what `perform` threw in that list, whose other operations are left out then, as are all lists
  // after it until recover().

  void wait_for_weights(int64_t list, int group);
  void wait_for_gradient(int64_t list, int group);  // on the host
  void wait_for_all(int64_t list);

  /// Seconds at work by lane, of the newest list that is done.
  std::array<double, kLanes> busy();

 private:
  struct Run {
    const Schedule* schedule = nullptr;
    std::vector<char> done;                       // by operation
    std::vector<char> gradients;                  // by group: complete
    std::vector<int> weights_left, flushes_left;  // by group
    bool scalars = false, cancelled = false;
    int lanes_left = 0;
    std::array<double, kLanes> busy{};
    std::exception_ptr error;
  };
  Run& run(int64_t list) { return runs_[static_cast<size_t>(list % 2)]; }
  int group_of(const Operation& op) const { return subgroups_[static_cast<size_t>(op.subgroup)].group; }
  bool ready(const Run& run, const Operation& op) const;
  void work(Lane lane);
  void work_on(Run& run, Lane lane, std::unique_lock<std::mutex>& lock);
  template <typename Reached>
  void wait(int64_t list, Reached&& reached);

  const std::function<void(const Operation&)> perform_;
  const std::vector<Subgroup> subgroups_;
  const size_t groups_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::array<Run, 2> runs_;
  int64_t started_ = 0, finished_ = 0;  // lists
  std::array<double, kLanes> busy_{};
  bool ending_ = false;
  std::vector<std::jthread> threads_;
};

}  // namespace trainer::offload
