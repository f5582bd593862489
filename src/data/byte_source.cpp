#include "data/byte_source.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/checksum.h"
#include "base/lfs_pointer.h"
#include "config/file_kind.h"
#include "data/byte_stream.h"
#include "data/parquet.h"

namespace trainer::data {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

class PlainFile final : public ByteSource {
 public:
  explicit PlainFile(const std::string& file) : file_(File::open_input(file)), size_(file_.size()) {}
  size_t read_at(int64_t offset, char* out, size_t bytes) override {
    const size_t requested = std::min(bytes, static_cast<size_t>(std::max<int64_t>(size_ - offset, 0)));
    if (file_.read_at(offset, out, requested) != requested)
      throw Error(Code::data,
                  format("{}: truncated while being read (expected {} bytes)", file_.path().string(), size_));
    return requested;
  }
  int64_t file_bytes(int64_t offset) const override { return offset; }

 private:
  File file_;
  int64_t size_;
};

class Pipe final : public ByteStream {
 public:
  Pipe(const std::string& file, const std::atomic<bool>* cancelled) : ByteStream(cancelled), file_(file) {
    // A socket cannot be opened by name. Opening a FIFO would wait for its writer, so it is opened non-blocking; reads
    // wait.
    fd_ = file == kStandardInput ? ::dup(STDIN_FILENO) : ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd_ < 0) fail_to("open", file, errno, Code::data);
  }
  ~Pipe() override { ::close(fd_); }
  int64_t file_bytes(int64_t offset) const override { return offset; }
  std::string hash() const override { return to_string(sum_.value()); }

 private:
  size_t pull(char* out, size_t bytes) override {
    size_t done = 0;
    while (done < bytes && !cancelled()) {
      pollfd ready{fd_, POLLIN, 0};
      // A FIFO that no writer has opened yet reports neither data nor a hang-up.
      if (::poll(&ready, 1, /*milliseconds=*/100) <= 0) continue;
      const ssize_t got = uninterrupted([&] { return ::read(fd_, out + done, bytes - done); });
      if (got < 0 && errno == EAGAIN) continue;
      if (got < 0) fail_to("read", file_, errno);
      if (got == 0) break;
      done += static_cast<size_t>(got);
    }
    sum_.add({out, done});
    return done;
  }

  std::string file_;
  RunningChecksum sum_;
  int fd_;
};

}  // namespace

size_t ByteStream::read_at(int64_t offset, char* out, size_t bytes) {
  const auto drop = [&] {
    const size_t before = std::min(static_cast<size_t>(offset - held_at_), held_.size());
    held_.erase(0, before);
    held_at_ += static_cast<int64_t>(before);
  };
  TRAINER_CHECK(offset >= held_at_, "a stream can only be read forwards: offset {} after {}", offset, held_at_);
  const int64_t end = offset + static_cast<int64_t>(bytes);
  for (drop(); !ended_; drop()) {
    const size_t held = held_.size();
    const int64_t missing = end - held_at_ - static_cast<int64_t>(held);
    if (missing <= 0) break;
    const size_t requested = std::min(kChunk, static_cast<size_t>(missing));
    held_.resize(held + requested);
    const size_t got = pull(held_.data() + held, requested);
    held_.resize(held + got);
    ended_ = got < requested || cancelled();
  }
  const size_t found = held_at_ < offset ? 0 : std::min(bytes, held_.size());
  held_.copy(out, found);
  return found;
}

std::string PackedFile::next() {
  std::string block(size_t{256} << 10, '\0');
  block.resize(file_.read_at(at_, block.data(), block.size()));
  if (at_ == 0) refuse_lfs_pointer(file_.path(), block, Code::data);
  at_ += static_cast<int64_t>(block.size());
  return block;
}

void PackedFile::refuse(size_t unread, const std::string& reason) const {
  throw Error(Code::data, format("{}: after byte {} of the compressed data: {}", file_.path().string(),
                                 at_ - static_cast<int64_t>(unread), reason));
}

bool is_pipe(const std::string& file) {
  struct stat status {};
  return file == kStandardInput || (::stat(file.c_str(), &status) == 0 && S_ISFIFO(status.st_mode));
}

std::unique_ptr<ByteSource> open_source(const std::string& file, const Columns& columns,
                                        const std::atomic<bool>* cancelled) {
  const config::Packing packing = config::packing_of(file);
  if (is_pipe(file) && packing == config::Packing::parquet) refuse_parquet_pipe(file);
  if (is_pipe(file)) return std::make_unique<Pipe>(file, cancelled);
  switch (packing) {
    case config::Packing::gzip:
      return open_gzip(file, cancelled);
    case config::Packing::zstd:
      return open_zstd(file, cancelled);
    case config::Packing::parquet:
      return open_parquet(file, columns, cancelled);
    case config::Packing::none:
      break;
  }
  return std::make_unique<PlainFile>(file);
}

int64_t text_bytes(const std::string& file, const Columns& columns) {
  if (config::packing_of(file) == config::Packing::none) return File::open_input(file).size();
  const auto source = open_source(file, columns);
  std::string block(kChunk, '\0');
  int64_t bytes = 0;
  while (const size_t got = source->read_at(bytes, block.data(), block.size())) bytes += static_cast<int64_t>(got);
  return bytes;
}

std::string whole_text(const std::string& file, const Columns& columns) {
  const auto source = open_source(file, columns);
  std::string text, block(kChunk, '\0');
  while (const size_t got = source->read_at(static_cast<int64_t>(text.size()), block.data(), block.size()))
    text.append(block, 0, got);
  return text;
}

}  // namespace trainer::data
