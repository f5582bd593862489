#pragma once
// Engine: a rank's progress thread. It takes operations from the compute thread and runs them as flows of messages
// (collective.h) over a transport. It also watches them: when an operation times out, the engine queries the other
// ranks of the group and fails with an error that names the missing ranks. The thread sleeps while there is nothing to
// do.
#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/collective.h"
#include "comm/transport.h"
#include "comm/world.h"

namespace trainer::comm {

/// A progress thread that has not run for this long was suspended (SIGSTOP, a sleeping machine), or starved.
inline constexpr double kSuspendedSeconds = 1;

class Engine {
 public:
  /// Opens the transport on the new progress thread; rethrows the transport's exceptions.
  Engine(std::unique_ptr<Transport> transport, const WorldOptions& options);
  /// Closes the transport cleanly if all ranks have called wait_for_all_ranks().
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  int rank() const { return transport_->rank(); }
  int size() const { return transport_->size(); }
  /// Must be called before any channel except the control channel is created.
  void configure(const WorldOptions& options);
  /// Sets where ranks are, for messages: "host a, process 4711".
  void set_places(std::vector<std::string> places);
  /// Implements comm::name_stages().
  void name_stages(int stages) { stages_.store(stages, std::memory_order_relaxed); }

  /// The queue of a group's operations for one purpose. Members and purpose are the same on all ranks of the group.
  struct Channel;
  Channel& channel(const Group& group, Purpose purpose);
  /// Starts an operation. Throws Code::comm if the world has failed. The collective's memory must stay valid until
  /// wait() returns. If wait() throws, messages may still be in flight: the memory must then be that of a device, or
  /// never be freed.
  Pending* start(Channel& channel, const Collective& collective);

  /// Starts to watch an operation that runs outside the engine, for example in NCCL. Throws like start(). mark_ended()
  /// ends the watch, from any thread. The operations of a channel are either all watched or all run by the engine,
  /// until the last of them has ended.
  struct Operation;
  Operation* watch(Channel& channel, CommOp op);
  void mark_ended(Operation& operation) noexcept;

  bool failed();
  /// Throws the world's error if it has failed.
  void check();
  void fail(Code code, const std::string& why) noexcept;
  /// Fails with this rank's own error, which main() prints, and notifies the other ranks.
  void fail(const Error& error) noexcept;
  /// Ends all operations of this rank without notifying the other ranks, which fail() does.
  void end_all_operations() noexcept;
  const WorldOptions& options() const { return options_; }
  /// Implements World::wait_for_all_ranks().
  bool wait_for_all_ranks(double seconds) noexcept;
  /// Runs the job on the progress thread, between messages, and waits until it is done.
  void run_on_progress_thread(const std::function<void()>& job);
  /// Returns the number of bytes that this rank has sent in all operations so far.
  int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }

 private:
  class Poster;
  struct Delayed {
    double due;
    int peer, tag;
    const std::byte* data;
    int64_t bytes;
    int* open;
  };
  struct Probe {
    Channel* channel = nullptr;  // the probed channel; null: no probe is in flight
    int64_t number = 0;
    double sent = 0, until = 0;
    std::vector<int64_t> answers;  // by position in the group: operations started by the rank; -1: no answer
    std::vector<double> waits;     // by position in the group: ControlMessage::waits
  };

  // The progress thread.
  void run();
  bool poll_once(uint32_t seen);
  bool take_requests();
  bool advance_channels();
  bool advance_channel(Channel& channel);
  bool has_arrived(const Collective& collective);
  static void finish(Operation& operation, uint32_t state);
  void drop_ended();
  void send(int peer, int tag, const std::byte* data, int64_t bytes, int* open);
  bool send_delayed(double now);
  void sleep_until_notified(uint32_t seen);
  bool is_busy() const;
  // The watchdog, which runs on the progress thread as well.
  void watch(double now);
  /// Extends all deadlines by the time for which this process was suspended: other ranks could not be heard meanwhile.
  void skip_suspension(double now);
  void conclude_probe(double now);
  /// Decides whether a patient operation whose ranks are all alive may wait longer. True if a missing rank or this rank
  /// is busy, or may be waiting for a busy rank. False if all missing ranks have themselves waited too long; if no rank
  /// is missing, true only the first time.
  bool may_wait_longer(double now);
  /// Returns this rank's value for ControlMessage::waits.
  double waits_since(double now) const;
  /// Returns "rank 1 (stage 1, host a)"; "rank 1" without stages and place.
  std::string name_of_rank(int rank, std::string place = {}) const;
  /// Returns "rank 1 (stage 1) has been waiting for rank 0 (stage 0) for 3 s in send along stage (operation 2 of link
  /// 1)"
  std::string describe_wait(double now) const;
  std::string describe_missing();
  bool receive_control_messages();
  void send_to_all_ranks(const ControlMessage& message) noexcept;
  /// Ends all operations of this rank with the error. `tell`: notifies the other ranks, which then end theirs.
  void fail_here(const Error& error, bool tell) noexcept;
  void complete_barrier();

  // Runs on the compute thread.
  Interval wait(Operation& operation);
  void abandon(Operation& operation) noexcept;
  void recycle(Operation& operation);
  Operation& submit(Channel& channel, const Collective& collective, bool watched);

  std::unique_ptr<Transport> transport_;
  WorldOptions options_;  // changed only by configure(), on the progress thread
  std::atomic<int64_t> bytes_sent_{0};
  std::atomic<int64_t> watched_{0};  // watched operations that have not ended
  std::atomic<int> stages_{1};       // pipeline stages, blocks of consecutive ranks

  std::mutex mutex_;  // guards the members from here to "End of the members"
  std::condition_variable answered_;
  std::map<std::pair<uint32_t, int>, std::unique_ptr<Channel>> channels_;
  std::vector<std::unique_ptr<Operation>> pool_;
  Operation *free_ = nullptr, *submitted_ = nullptr, *last_submitted_ = nullptr;
  std::optional<Error> stop_reason_;  // set by fail()
  bool gave_up_ = false;              // set by abandon()
  const std::function<void()>* job_ = nullptr;
  bool in_barrier_ = false, barrier_done_ = false, ending_ = false, opened_ = false;
  std::exception_ptr open_error_;
  std::optional<Error> failure_;
  std::vector<std::string> places_;
  // End of the members guarded by the mutex.

  // Used only by the progress thread.
  std::vector<Channel*> active_;  // critical channels first
  std::vector<Delayed> delayed_;
  std::vector<bool> arrived_;  // ranks that called wait_for_all_ranks()
  bool failed_ = false, failure_reported_ = false, barrier_reported_ = false;
  bool expecting_ = false;  // true while a device is copying data to be sent
  Probe probe_;
  uint32_t heard_ = 0;
  int idle_turns_ = 0;
  double moved_at_ = 0, next_watch_ = 0, turned_at_ = 0;
  std::thread thread_;
};

}  // namespace trainer::comm
