#pragma once
// Requests that reach a run as signals. SIGTERM, SIGUSR1, SIGINT: the run stops at the next micro-step and saves; a
// second one ends the process immediately with 128 + signal. SIGHUP (a terminal was closed): the same, but it never
// counts as the first or second signal; if it is ignored (nohup), it stays ignored. SIGUSR2: the run saves after this
// step and continues.
#include <csignal>

#include "comm/world.h"

namespace trainer::run {

inline constexpr int kStoppedBySignal = 75;  // exit status

/// Installs the handlers; the destructor restores the previous ones. Only one may exist in a process (checked).
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

/// While a StopsAtOnce exists, the first stop signal ends the process, with the status of a stopped run and the line
/// "stopped by SIGTERM while " + `doing`. It is for long computations with nothing to save, when no other process waits
/// for this one. Only one may exist in a process; it does nothing without a SignalGuard.
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
/// Returns "SIGTERM"; for 0, which stop_signal() returns on a rank that stops because of a different rank: "a signal to
/// another rank".
const char* signal_name(int signal);

}  // namespace trainer::run
