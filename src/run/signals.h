#pragma once
// Requests that reach a run as signals. SIGTERM, SIGUSR1, SIGINT: stop at the next micro-step and save; a second one
// ends the process at once with 128 + signal. SIGHUP (a terminal that closed): the same, but it never counts as first
// or second. Where it is ignored (nohup) it stays ignored. SIGUSR2: save after this step and continue.
#include <csignal>

#include "comm/world.h"

namespace trainer::run {

inline constexpr int kStoppedBySignal = 75;  // exit status

/// Installs the handlers; the destructor restores what was there before. One at a time in a process (checked).
/// Construction clears earlier requests.
class SignalGuard {
 public:
  SignalGuard();
  ~SignalGuard();
  SignalGuard(const SignalGuard&) = delete;
  SignalGuard& operator=(const SignalGuard&) = delete;

 private:
  static constexpr int kSignals[] = {SIGTERM, SIGUSR1, SIGINT, SIGHUP, SIGUSR2};
  struct sigaction previous_[5];
};

/// While a StopsAtOnce lives, the first stop ends the process, with the status of a stopped run and the line "stopped
/// by SIGTERM while " + `doing`. It is for long computing with nothing to save, where no other process waits for this
/// one. One at a time in a process; does nothing without a SignalGuard.
class StopsAtOnce {
 public:
  explicit StopsAtOnce(const char* doing);
  ~StopsAtOnce();
  StopsAtOnce(const StopsAtOnce&) = delete;
  StopsAtOnce& operator=(const StopsAtOnce&) = delete;
};

/// Returns whether a stop was requested; stays true. Cheap: polled at every micro-step.
bool stop_requested();
/// Returns whether a stop was requested on any rank. Collective.
bool stop_requested_on_any_rank(comm::World& world);
/// Returns the signal that requested a stop, 0 when none did.
int stop_signal();
/// Returns whether a save was requested since the last call.
bool take_save_request();
/// "SIGTERM"; for 0, which stop_signal() returns on a rank that stops because of another one: "a signal to another
/// rank".
const char* signal_name(int signal);

}  // namespace trainer::run
