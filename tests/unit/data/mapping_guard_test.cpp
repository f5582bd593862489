#include "data/mapping_guard.h"

#include <sys/wait.h>

#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

TEST(MappingGuard, ReadsZerosWhereAPageIsGoneAndRemembersIt) {
  TempFolder folder;
  const std::string path = write(folder / "x", std::string(3 * 4096, 'a'));
  const MappedFile file(path), other(write(folder / "y", std::string(4096, 'b')));
  file.require_whole(/*ask=*/true);
  EXPECT_TRUE(mappings_are_whole());
  fs::resize_file(path, 4096);
  EXPECT_FALSE(mappings_are_whole()) << "the system reports the new size";
  file.require_whole();  // no lost page has been read yet
  EXPECT_EQ(static_cast<char>(file.data()[4095]), 'a');
  EXPECT_EQ(static_cast<char>(file.data()[4096]), '\0');
  EXPECT_EQ(static_cast<char>(file.data()[3 * 4096 - 1]), '\0');
  for (const bool ask : {false, true})
    expect_error(Code::data, {path, "it had 12288 bytes, there are 4096 now"}, [&] { file.require_whole(ask); });
  other.require_whole(/*ask=*/true);
  fs::resize_file(path, 3 * 4096);
  EXPECT_FALSE(mappings_are_whole()) << "zeros were read before";
}

TEST(MappingGuard, TakesAFileThatWasReplacedForWhole) {
  TempFolder folder;
  const std::string path = write(folder / "x", std::string(8192, 'a'));
  const MappedFile file(path);
  fs::rename(write(folder / "new", "short"), path);
  file.require_whole(/*ask=*/true);
  EXPECT_TRUE(mappings_are_whole());
  fs::remove(path);
  EXPECT_TRUE(mappings_are_whole());
  EXPECT_EQ(static_cast<char>(file.data()[8191]), 'a');
}

TEST(MappingGuard, ForgetsMappingsThatAreGone) {
  TempFolder folder;
  for (int i = 0; i < 3; ++i) {
    const std::string path = write(folder / "x", std::string(8192, 'a'));
    {
      const MappedFile file(path);
      fs::resize_file(path, 0);
      EXPECT_FALSE(mappings_are_whole());
      EXPECT_EQ(static_cast<char>(file.data()[0]), '\0');
      EXPECT_FALSE(mappings_are_whole());
    }
    EXPECT_TRUE(mappings_are_whole());
  }
}

TEST(MappingGuard, LeavesOtherFaultsAsTheyAre) {
  const pid_t child = fork();
  if (child == 0) {
    TempFolder folder;
    const MappedFile file(write(folder / "x", "a"));  // the guard's signal handler is installed
    raise(SIGBUS);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace trainer::data
