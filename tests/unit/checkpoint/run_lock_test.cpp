#include "checkpoint/run_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include "fixture.h"

namespace trainer::checkpoint {
namespace {

TEST(RunLock, RejectsASecondRunAndNamesTheFirst) {
  TempFolder folder;
  const RunLock lock(folder / "runs" / "a");
  expect_error(Code::usage, {format("process {} on ", ::getpid()), "run.dir"},
               [&] { RunLock second(folder / "runs" / "a"); });
  const RunLock other(folder / "runs" / "b");
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
    const RunLock run(folder.path());  // the run may use the same folder
    const RunLock lock = RunLock::of_checkpoints(folder.path());
    expect_error(Code::usage, {"checkpoint.dir"}, [&] { RunLock::of_checkpoints(folder); });
    EXPECT_TRUE(std::filesystem::exists(folder / "save.lock"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder / "save.lock"));
  const RunLock again = RunLock::of_checkpoints(folder.path());
}

TEST(RunLock, IsVisibleInItsOwnFolderOnly) {
  TempFolder folder;
  const RunLock run(folder / "a"), checkpoints = RunLock::of_checkpoints(folder / "a");
  EXPECT_NE(run.content(), checkpoints.content());
  EXPECT_TRUE(RunLock::is_visible(folder / "a", false, run.content(), 0));
  EXPECT_TRUE(RunLock::is_visible(folder / "a", true, checkpoints.content(), 0));
  EXPECT_FALSE(RunLock::is_visible(folder / "a", true, run.content(), 0));
  EXPECT_FALSE(RunLock::is_visible(folder / "missing", false, run.content(), 0));
  const std::string first = RunLock(folder / "b").content();  // by the same process
  EXPECT_TRUE(RunLock::is_visible(folder / "b", false, first, 0)) << "the file stays";
  const RunLock second(folder / "b");
  EXPECT_FALSE(RunLock::is_visible(folder / "b", false, first, 0)) << "but not its content";
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
  expect_error(Code::usage, {format("process {} on ", child)}, [&] { RunLock lock(folder); });
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const RunLock lock(folder);
  ::close(ready[0]);
  ::close(ready[1]);
}

}  // namespace
}  // namespace trainer::checkpoint
