#include "run/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

namespace trainer::run {
namespace {

/// Returns the exit status of `body` run in a child process; −signal if a signal killed it.
template <typename Body>
int status_of(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(Signals, AskForAStopAndReportWhichOneItWas) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    const SignalGuard guard;
    EXPECT_FALSE(stop_requested());
    EXPECT_EQ(stop_signal(), 0);
    raise(signal);
    EXPECT_TRUE(stop_requested());
    EXPECT_TRUE(stop_requested()) << "a stop is not taken back by asking";
    EXPECT_EQ(stop_signal(), signal);
    EXPECT_FALSE(take_save_request());
  }
}

TEST(Signals, EndAtOnceWhatHasNothingToSave) {
  for (const int signal : {SIGTERM, SIGUSR1, SIGINT, SIGHUP}) {
    EXPECT_EQ(status_of([&] {
                const SignalGuard guard;
                const StopsAtOnce at_once("planning");
                raise(signal);
              }),
              kStoppedBySignal);
    EXPECT_EQ(status_of([&] {
                const SignalGuard guard;
                raise(signal);
                const StopsAtOnce at_once("planning");  // also acts on an earlier signal
              }),
              kStoppedBySignal);
    const SignalGuard guard;
    { const StopsAtOnce at_once("planning"); }
    raise(signal);
    EXPECT_EQ(stop_signal(), signal) << "what comes after is for those who poll";
  }
}

TEST(Signals, AskForASaveOncePerSignal) {
  const SignalGuard guard;
  raise(SIGUSR2);
  EXPECT_TRUE(take_save_request());
  EXPECT_FALSE(take_save_request());
  EXPECT_FALSE(stop_requested());
  raise(SIGUSR2);
  raise(SIGUSR2);
  EXPECT_TRUE(take_save_request());
  EXPECT_FALSE(take_save_request());
}

TEST(Signals, ASecondStopEndsTheProcessWithItsStatus) {
  const auto twice = [](int first, int second) {
    return status_of([=] {
      const SignalGuard guard;
      raise(first);
      if (!stop_requested()) _exit(99);
      raise(second);
    });
  };
  EXPECT_EQ(twice(SIGTERM, SIGTERM), 128 + SIGTERM);
  EXPECT_EQ(twice(SIGINT, SIGINT), 128 + SIGINT);
  EXPECT_EQ(twice(SIGHUP, SIGHUP), 0) << "a terminal that closes sends it twice";
  EXPECT_EQ(twice(SIGHUP, SIGTERM), 0);
  EXPECT_EQ(twice(SIGTERM, SIGHUP), 0);
  EXPECT_EQ(twice(SIGTERM, SIGUSR1), 128 + SIGUSR1);
  EXPECT_EQ(twice(SIGTERM, SIGUSR2), 0) << "asking for a save does not end the process";
}

TEST(Signals, RestoreWhatWasThereBefore) {
  EXPECT_EQ(status_of([] {
              { const SignalGuard guard; }
              raise(SIGTERM);
            }),
            -SIGTERM);
  EXPECT_EQ(status_of([] {
              signal(SIGINT, SIG_IGN);
              { const SignalGuard guard; }
              raise(SIGINT);
            }),
            0);
}

TEST(Signals, AreInstalledOnceAtATime) {
  const SignalGuard guard;
  EXPECT_THROW(SignalGuard(), Error);
  raise(SIGTERM);
  EXPECT_EQ(stop_signal(), SIGTERM) << "the first guard still works";
}

TEST(Signals, HaveNames) {
  for (const auto& [signal, name] :
       {std::pair{SIGTERM, "SIGTERM"}, {SIGUSR1, "SIGUSR1"}, {SIGINT, "SIGINT"}, {SIGUSR2, "SIGUSR2"}})
    EXPECT_STREQ(signal_name(signal), name);
}

}  // namespace
}  // namespace trainer::run
