#pragma once
// Requests that reach a run as signals. SIGTERM, SIGUSR1, SIGINT: stop at the next micro-step and save; a second one
// ends the process at once with 128 + signal. SIGHUP (a terminal that closed): the same, but it never counts as first
// or second; where it is ignored (nohup) it stays so. SIGUSR2: save after this step and go on.
#include <csignal>

namespace trainer::train {

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

/// A stop was asked for; stays true. Cheap: polled at every micro-step.
bool stop_requested();
/// The signal that asked for it, 0 when none did.
int stop_signal();
/// A save was asked for since the last call.
bool take_save_request();
/// "SIGTERM"
const char* signal_name(int signal);

}  // namespace trainer::train
