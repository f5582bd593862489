#include "checkpoint/run_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "fixture.h"

namespace trainer::checkpoint {
namespace {

TEST(RunLock, RefusesASecondRunAndNamesTheFirst) {
  TempFolder folder;
  const RunLock lock(folder.path() / "runs" / "a");
  try {
    const RunLock second(folder.path() / "runs" / "a");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(exit_status(error.code()), 2);
    EXPECT_NE(std::string(error.what()).find(format("process {} on ", ::getpid())), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("run.dir"), std::string::npos);
  }
  const RunLock other(folder.path() / "runs" / "b");
}

TEST(RunLock, IsFreeAgainWhenItsOwnerGoes) {
  TempFolder folder;
  for (int i = 0; i < 3; ++i) {
    RunLock lock(folder);
    const RunLock moved(std::move(lock));
    EXPECT_THROW(RunLock second(folder), Error);
  }
}

TEST(RunLock, OfCheckpointsNamesItsKeyAndLeavesNoFile) {
  TempFolder folder;
  {
    const RunLock run(folder.path());  // the run folder may be the same one
    const RunLock lock = RunLock::of_checkpoints(folder.path());
    try {
      const RunLock second = RunLock::of_checkpoints(folder.path());
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(exit_status(error.code()), 2);
      EXPECT_NE(std::string(error.what()).find("checkpoint.dir"), std::string::npos) << error.what();
    }
    EXPECT_TRUE(std::filesystem::exists(folder.path() / "save.lock"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "save.lock"));
  const RunLock again = RunLock::of_checkpoints(folder.path());
}

TEST(RunLock, IsReleasedByTheKernelWhenTheProcessIsKilled) {
  TempFolder folder;
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const RunLock lock(folder);
    const char byte = 1;
    if (::write(ready[1], &byte, 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  try {
    const RunLock lock(folder);
    ADD_FAILURE() << "two processes hold the lock";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(format("process {} on ", child)), std::string::npos) << error.what();
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const RunLock lock(folder);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace trainer::checkpoint
