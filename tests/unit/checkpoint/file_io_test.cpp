#include "base/file_io.h"

#include <gtest/gtest.h>

#include "base/checksum.h"
#include "fixture.h"

namespace trainer::checkpoint {
namespace {

/// Interrupts each call once and never transfers more than three bytes.
class SlowCalls : public SystemCalls {
 public:
  ssize_t write(int fd, const void* data, size_t bytes) override {
    return interrupted() ? -1 : SystemCalls::write(fd, data, std::min<size_t>(bytes, 3));
  }
  ssize_t pread(int fd, void* data, size_t bytes, int64_t offset) override {
    return interrupted() ? -1 : SystemCalls::pread(fd, data, std::min<size_t>(bytes, 3), offset);
  }
  int fsync(int fd) override { return interrupted() ? -1 : SystemCalls::fsync(fd); }

 private:
  bool interrupted() {
    errno = EINTR;
    return odd_ = !odd_;
  }
  bool odd_ = false;
};

TEST(FileIo, ContinuesInterruptedAndShortTransfers) {
  TempFolder folder;
  SlowCalls calls;
  const std::string text = "sixteen bytes ok";
  write_file(folder / "f", text, calls);
  EXPECT_EQ(content_of(folder / "f"), text);
  EXPECT_EQ(read_file(folder / "f", 100, calls), text);
}

TEST(FileIo, ReportsPathOperationReasonAndRemedy) {
  TempFolder folder;
  FaultyCalls calls(FaultyCalls::Fault::error, 1, ENOSPC);
  expect_error(Code::io, {folder / "f", "cannot write", "No space left on device", "the disk is full"},
               [&] { write_file(folder / "f", "text", calls); });
}

TEST(FileIo, DoesNotOverwriteOrReadTooMuchOrTooLittle) {
  TempFolder folder;
  const fs::path path = folder / "f";
  write_file(path, "1234");
  EXPECT_THROW(write_file(path, "5"), Error);
  EXPECT_THROW(read_file(path, 3), Error);
  const File file = File::open(path);
  std::byte bytes[4];
  EXPECT_THROW(file.read(1, bytes), Error);
  EXPECT_THROW(File::open(folder / "absent"), Error);
}

TEST(FileIo, RemovesTreesButNotWhatLinksPointTo) {
  TempFolder folder;
  fs::create_directories(folder / "keep");
  write(folder / "keep/file", "x");
  make_folders(folder / "go/a/b");
  write(folder / "go/a/file", "x");
  fs::create_directory_symlink(folder / "keep", folder / "go/a/link");
  remove_tree(folder / "go");
  remove_tree(folder / "absent");
  EXPECT_EQ(names_in(folder), (std::vector<std::string>{"keep"}));
  EXPECT_TRUE(fs::exists(folder / "keep/file"));
}

TEST(FileIo, ReportsThatAFolderIsInTheWay) {
  TempFolder folder;
  write(folder / "file", "x");
  EXPECT_THROW(make_folders(folder / "file"), Error);
  EXPECT_THROW(make_folders(folder / "file/below"), Error);
}

TEST(Checksum, ReadsItsOwnTextOnly) {
  const Checksum checksum = checksum_of("");
  EXPECT_EQ(to_string(checksum),
            "99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing, seed 0 (xxHash's own value)
  EXPECT_EQ(parse_checksum(to_string(checksum)), checksum);
  for (const char* text : {"", "99aa06d3014798d86001c324468d497", "99aa06d3014798d86001c324468d497f0",
                           "99AA06d3014798d86001c324468d497f", "g9aa06d3014798d86001c324468d497f"}) {
    EXPECT_FALSE(parse_checksum(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace trainer::checkpoint
