#pragma once
// Requests that a run receives as signals. SIGTERM, SIGUSR1, SIGINT: the run stops at the next micro-step and saves; a
// second signal ends the process immediately with status 128 + signal. SIGHUP (the terminal was closed): the run stops
// and saves, but SIGHUP never counts as the first or second signal; if it was ignored (nohup), it stays ignored.
// SIGUSR2: the run saves after the current step and continues.
#include <csignal>

#include "comm/world.h"

namespace trainer::run {

inline constexpr int kStoppedBySignal = 75;  // exit status

/// Installs the handlers and clears earlier requests; the destructor restores the previous handlers. At most one may
/// exist in a process (checked).
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

/// While a StopsAtOnce exists, the first stop signal ends the process immediately, with the status of a stopped run and
/// the line "stopped by SIGTERM while " + `doing`. It is for long computations that have nothing to save and for which
/// no other process waits. At most one may exist in a process; it has no effect without a SignalGuard.
class StopsAtOnce {
 public:
  explicit StopsAtOnce(const char* doing);
  ~StopsAtOnce();
  StopsAtOnce(const StopsAtOnce&) = delete;
  StopsAtOnce& operator=(const StopsAtOnce&) = delete;
};

/// True once a stop has been requested. Cheap enough to be polled at every micro-step.
bool stop_requested();
/// True if a stop was requested on any rank. Collective.
bool stop_requested_on_any_rank(comm::World& world);
/// Returns the signal that requested a stop, 0 if none did.
int stop_signal();
/// True if a save was requested since the last call.
bool take_save_request();
/// Returns the name of a signal, such as "SIGTERM". For 0, which stop_signal() returns if a different rank received the
/// signal, returns "a signal to another rank".
const char* signal_name(int signal);

}  // namespace trainer::run
