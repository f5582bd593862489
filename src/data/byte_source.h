#pragma once
// The text of an input as bytes: from a plain file, unpacked from .gz or .zst, or from a pipe.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace trainer::data {

/// The name under which standard input is read; `--input -` selects it.
constexpr const char* kStandardInput = "/dev/stdin";

/// True for standard input, whatever its type, and for FIFOs: their text can be read only once, from the start.
bool is_pipe(const std::string& file);

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  /// Copies the text from byte `offset`; returns fewer bytes only at the end of the text. Only plain files support
  /// seeking backwards; for other inputs `offset` must not be less than in the previous call.
  virtual size_t read_at(int64_t offset, char* out, size_t bytes) = 0;
  /// Returns how many bytes of the file on disk were read for the text before `offset`. Compressed files are read
  /// ahead.
  virtual int64_t file_bytes(int64_t offset) const = 0;
  /// Returns the checksum of the whole text of a pipe, equal to hash_file() of a file with this text; empty for other
  /// inputs.
  virtual std::string hash() const { return {}; }
};

/// Names of the members of JSON objects that a reader uses. Formats with columns give only these, in this order, and
/// leave out those that do not exist; at least one must.
using Columns = std::vector<std::string>;

/// Opens an input according to its kind and extension. When `cancelled` becomes true, reads end early, even if they
/// wait for a pipe's writer. Throws Code::data when the file is missing or neither regular nor a pipe; reads throw it
/// when files shrink, and when compressed data is damaged or truncated.
std::unique_ptr<ByteSource> open_source(const std::string& file, const Columns& columns,
                                        const std::atomic<bool>* cancelled = nullptr);

/// Returns the length of an input's text. Compressed files are read to the end for this.
int64_t text_bytes(const std::string& file, const Columns& columns);
/// Returns the whole text of an input.
std::string whole_text(const std::string& file, const Columns& columns);

}  // namespace trainer::data
