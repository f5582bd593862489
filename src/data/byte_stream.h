#pragma once
// Sources that are read sequentially: pipes and compressed files.
#include <string>

#include "base/file_io.h"
#include "data/byte_source.h"

namespace trainer::data {

/// Keeps the text that follows the offset of the last read, so that a reader can read more from the same position.
class ByteStream : public ByteSource {
 public:
  explicit ByteStream(const std::atomic<bool>* cancelled) : cancelled_(cancelled) {}
  size_t read_at(int64_t offset, char* out, size_t bytes) final;

 protected:
  /// Reads the next bytes of the text; returns fewer only at the end of the text.
  virtual size_t pull(char* out, size_t bytes) = 0;
  bool cancelled() const { return cancelled_ != nullptr && *cancelled_; }

 private:
  const std::atomic<bool>* cancelled_;
  std::string held_;
  int64_t held_at_ = 0;
  bool ended_ = false;
};

/// A compressed file, read block by block.
class PackedFile {
 public:
  explicit PackedFile(const std::string& file) : file_(File::open_input(file)) {}
  /// Returns the next block; empty at the end.
  std::string next();
  int64_t bytes_read() const { return at_; }
  /// Throws Code::data: the data is corrupt after the byte that is `unread` bytes before the end of the last block.
  [[noreturn]] void refuse(size_t unread, const std::string& reason) const;

 private:
  File file_;
  int64_t at_ = 0;
};

std::unique_ptr<ByteSource> open_gzip(const std::string& file, const std::atomic<bool>* cancelled);
std::unique_ptr<ByteSource> open_zstd(const std::string& file, const std::atomic<bool>* cancelled);

}  // namespace trainer::data
