#pragma once
// The text of an input as bytes: of a plain file, unpacked from .gz or .zst, or of a pipe.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace trainer::data {

/// The name under which standard input is read; `--input -` means it.
constexpr const char* kStandardInput = "/dev/stdin";

/// True for standard input, whatever it is, and for FIFOs: their text can be read once and from the start only.
bool is_pipe(const std::string& file);

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Copies the text from byte `offset` on; fewer bytes only at its end. Only plain files go back: otherwise `offset`
  /// is at least that of the call before.
  virtual size_t read_at(int64_t offset, char* out, size_t bytes) = 0;
  /// Returns how many bytes of the file, as it is on the disk, the text before `offset` took. Compressed files are read
  /// ahead of it.
  virtual int64_t file_bytes(int64_t offset) const = 0;
  /// Returns the checksum of all text of a pipe that was read, as hash_file() has it for a file; else empty.
  virtual std::string hash() const { return {}; }
};

/// Opens an input by its kind and its extension. Where `cancelled` becomes true, reads end early, also those that wait
/// for a pipe's writer. Throws Code::data when the file is missing or neither regular nor a pipe; so do reads of files
/// that shrink, and of compressed data that is damaged or cut short.
std::unique_ptr<ByteSource> open_source(const std::string& file, const std::atomic<bool>* cancelled = nullptr);

/// Returns the length of an input's text. Compressed files are read to their end for it.
int64_t text_bytes(const std::string& file);

}  // namespace trainer::data
