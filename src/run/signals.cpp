#include "run/signals.h"

#include <unistd.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace trainer::run {
namespace {

std::atomic<int> stop_flag{0};
std::atomic<bool> save_flag{false};
std::atomic<bool> installed{false};
std::atomic<const char*> at_once{nullptr};  // the activity that a stop signal ends immediately
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free &&
                  std::atomic<const char*>::is_always_lock_free,
              "signal handlers may only access lock-free atomics");

/// Ends the process from within a signal handler.
[[noreturn]] void end_at_once(int signal, const char* doing) {
  for (const char* text : {"stopped by ", signal_name(signal), " while ", doing, "\n"})
    if (write(STDERR_FILENO, text, std::strlen(text)) < 0) break;
  _exit(kStoppedBySignal);
}

extern "C" void handle_stop(int signal) {
  if (const char* doing = at_once.load()) end_at_once(signal, doing);
  const int before = stop_flag.exchange(signal);
  if (before != 0 && before != SIGHUP) _exit(128 + signal);
}
// When a terminal closes, SIGHUP arrives twice, from the system and from the shell, and session managers then send
// SIGTERM. So SIGHUP requests a stop, but does not count towards the two signals that end the process immediately.
extern "C" void handle_hang_up(int signal) {
  if (const char* doing = at_once.load()) end_at_once(signal, doing);
  int none = 0;
  stop_flag.compare_exchange_strong(none, signal);
}
extern "C" void handle_save(int) { save_flag.store(true); }

}  // namespace

SignalGuard::SignalGuard() {
  TRAINER_CHECK(!installed.exchange(true), "at most one SignalGuard may exist in a process");
  stop_flag = 0;
  save_flag = false;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    struct sigaction action = {};
    action.sa_handler = kSignals[i] == SIGUSR2 ? handle_save : kSignals[i] == SIGHUP ? handle_hang_up : handle_stop;
    action.sa_flags = SA_RESTART;  // interrupted system calls are restarted
    sigemptyset(&action.sa_mask);
    TRAINER_CHECK(sigaction(kSignals[i], &action, &previous_[i]) == 0, "sigaction of {}", signal_name(kSignals[i]));
    const bool under_nohup = kSignals[i] == SIGHUP && previous_[i].sa_handler == SIG_IGN;
    if (under_nohup) sigaction(SIGHUP, &previous_[i], nullptr);
  }
}

SignalGuard::~SignalGuard() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &previous_[i], nullptr);
  installed = false;
}

StopsAtOnce::StopsAtOnce(const char* doing) {
  TRAINER_CHECK(at_once.exchange(doing) == nullptr, "at most one StopsAtOnce may exist in a process");
  if (stop_requested()) end_at_once(stop_signal(), doing);
}

StopsAtOnce::~StopsAtOnce() { at_once = nullptr; }

bool stop_requested() { return stop_flag.load(std::memory_order_relaxed) != 0; }

bool stop_requested_on_any_rank(comm::World& world) {
  double stops[] = {stop_requested() ? 1.0 : 0.0};
  world.control().sum(stops);
  return stops[0] > 0;
}

int stop_signal() { return stop_flag.load(); }
bool take_save_request() { return save_flag.exchange(false); }

const char* signal_name(int signal) {
  static constexpr std::pair<int, const char*> kNames[] = {
      {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}};
  for (const auto& [number, name] : kNames)
    if (number == signal) return name;
  return "a signal to another rank";
}

}  // namespace trainer::run
