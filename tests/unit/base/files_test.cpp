#include "base/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "base/name_lock.h"
#include "rigs/files.h"
#include "rigs/messages.h"

namespace trainer {
namespace {

namespace fs = std::filesystem;
using tests::content_of;

class Files : public testing::Test {
 protected:
  fs::path at(const char* name) const { return folder_ / name; }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename());
    return names;
  }
  static void expect_refused(const fs::path& path, std::vector<std::string> parts, const std::string& bytes = "new") {
    parts.push_back(path);
    tests::expect_error(Code::io, parts, [&] { replace_file(path, bytes); });
  }

 private:
  const tests::TempFolder folder_;
};

/// While this object exists, files cannot grow beyond `bytes`, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : ignored_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, ignored_);
  }

 private:
  void (*ignored_)(int);
  rlimit before_{};
};

TEST_F(Files, AreCreatedAndReplacedWithoutLeftOvers) {
  replace_file(at("f"), "old");
  EXPECT_EQ(content_of(at("f")), "old");
  replace_file(at("f"), std::string("new\0and longer", 14));
  EXPECT_EQ(content_of(at("f")), std::string("new\0and longer", 14));
  replace_file(at("f"), "");
  EXPECT_EQ(content_of(at("f")), "");
  EXPECT_EQ(names(), std::set<std::string>{"f"});
}

TEST_F(Files, AreCheckedBeforeTheWorkThatFillsThem) {
  replace_file(at("f"), "old");
  require_replaceable(at("f"));
  require_replaceable(at("new"));
  EXPECT_EQ(content_of(at("f")), "old");
  EXPECT_EQ(names(), std::set<std::string>{"f"}) << "nothing is left";
  for (const char* const impossible : {"no folder/f", "."}) EXPECT_THROW(require_replaceable(at(impossible)), Error);
}

TEST_F(Files, KeepTheOldContentForThoseWhoHaveThemOpen) {
  replace_file(at("f"), "old");
  std::ifstream reader(at("f"));
  replace_file(at("f"), "new");
  std::string text;
  reader >> text;
  EXPECT_EQ(text, "old");
}

TEST_F(Files, AreLockedByOneHolderAtATime) {
  std::optional<NameLock> first = NameLock::take(at("lock"));
  ASSERT_TRUE(first);
  EXPECT_TRUE(first->is_exclusive());
  EXPECT_FALSE(NameLock::take(at("lock")));
  first.reset();
  EXPECT_EQ(names(), std::set<std::string>{});
  EXPECT_TRUE(NameLock::take(at("lock")));
}

TEST_F(Files, AreNamedUntilTheirNameIsRemovedOrGivenAway) {
  const File first = File::open_to_write(at("lock"));
  EXPECT_TRUE(is_named(first.descriptor(), first.path()));
  fs::remove(at("lock"));
  EXPECT_FALSE(is_named(first.descriptor(), first.path()));
  const File second = File::open_to_write(at("lock"));
  EXPECT_FALSE(is_named(first.descriptor(), first.path()));
  EXPECT_TRUE(is_named(second.descriptor(), second.path()));
}

TEST_F(Files, SurviveAFullDisk) {
  replace_file(at("f"), "old");
  {
    const FullDisk full(1000);
    expect_refused(at("f"), {"File too large", "ulimit -f"}, std::string(5000, 'x'));
  }
  EXPECT_EQ(content_of(at("f")), "old");
  EXPECT_EQ(names(), std::set<std::string>{"f"});
}

TEST_F(Files, SurviveAFolderWithoutTheRightToWrite) {
  constexpr uid_t kNobody = 65534;
  replace_file(at("f"), "old");
  ::chmod(at("").c_str(), 0555);
  const bool root = ::geteuid() == 0;  // root may write everywhere
  if (root) {
    ASSERT_EQ(::seteuid(kNobody), 0);
  }
  expect_refused(at("f"), {"Permission denied"});
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  ::chmod(at("").c_str(), 0700);
  EXPECT_EQ(content_of(at("f")), "old");
}

TEST_F(Files, AreRejectedIfTheFolderIsMissing) {
  expect_refused(at("no/f"), {"No such file or directory"});
  EXPECT_EQ(names(), std::set<std::string>());
}

TEST_F(Files, AreRejectedIfSomethingElseHasTheName) {
  fs::create_directories(at("taken/full"));
  ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  ASSERT_LT(at("socket").string().size(), sizeof address.sun_path);
  std::ranges::copy(at("socket").string(), address.sun_path);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  fs::create_symlink("pipe", at("link"));
  for (const auto& [name, what] :
       {std::pair{"taken", "a folder"}, {"pipe", "a pipe"}, {"socket", "a socket"}, {"link", "a pipe"}})
    expect_refused(at(name), {what, "expected a regular file"});
  EXPECT_TRUE(fs::is_fifo(at("pipe")));
  EXPECT_TRUE(fs::is_socket(at("socket")));
  EXPECT_TRUE(fs::is_symlink(at("link")));
  EXPECT_TRUE(fs::exists(at("taken/full")));
  EXPECT_EQ(names(), (std::set<std::string>{"link", "pipe", "socket", "taken"}));
  ::close(socket);
}

TEST_F(Files, AreReplacedThroughLinks) {
  fs::create_directory(at("there"));
  replace_file(at("there/f"), "old");
  fs::create_symlink("there/f", at("f"));
  fs::create_symlink("f", at("again"));
  replace_file(at("again"), "new");
  EXPECT_EQ(content_of(at("there/f")), "new");
  EXPECT_EQ(content_of(at("f")), "new");
  EXPECT_TRUE(fs::is_symlink(at("f")));
  fs::remove(at("there/f"));  // dangling links are replaced by the file
  replace_file(at("f"), "alone");
  EXPECT_EQ(content_of(at("f")), "alone");
  EXPECT_FALSE(fs::is_symlink(at("f")));
  EXPECT_EQ(names(), (std::set<std::string>{"again", "f", "there"}));
}

TEST_F(Files, ThatCannotBeReadNameWhatWasExpected) {
  replace_file(at("f"), std::string("a\0b\n", 4));
  EXPECT_EQ(read_text_file(at("f"), "a text"), std::string("a\0b\n", 4));
  for (const auto& [path, reason] : {std::pair{at("no"), "No such file or directory"},
                                     {at(""), "a folder"},
                                     {std::string("/dev/zero"), "larger than 64 MiB"}})
    tests::expect_error(Code::config, {path, reason, "songs/ has some"},
                        [&] { read_text_file(path, "a song, of which songs/ has some"); });
  tests::expect_error(Code::usage, {at("no")}, [&] { read_text_file(at("no"), "a text", Code::usage); });
}

TEST_F(Files, ThatArePipesAreReadAndReportedWhileTheyAreSilent) {
  const std::string pipe = at("pipe"), text(300'000, 'x');  // more than a pipe's buffer holds
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const bool early : {true, false}) {
    std::promise<std::string> reported;
    const log::Sink before = log::set_sink([&](log::Level, const std::string& line) { reported.set_value(line); });
    std::jthread writer([&] {
      if (!early) tests::expect_parts(reported.get_future().get(), {pipe, "waiting for this pipe's writer"});
      std::ofstream(pipe, std::ios::binary) << text;
    });
    EXPECT_EQ(read_text_file(pipe, "a text"), text);
    writer.join();
    log::set_sink(before);
  }
}

TEST_F(Files, NameTheRemedyOfAFullDisk) {
  tests::expect_parts(system_reason(ENOSPC), {"No space left on device", "free space"});
  EXPECT_EQ(system_reason(ENOENT), "No such file or directory");
}

}  // namespace
}  // namespace trainer
