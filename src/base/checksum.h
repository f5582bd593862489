#pragma once
// XXH3-128 checksums: they detect corruption, not tampering.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/file_io.h"

namespace trainer {

struct Checksum {
  uint64_t high = 0, low = 0;
  bool operator==(const Checksum&) const = default;
};

Checksum checksum_of(std::span<const std::byte> bytes);
Checksum checksum_of(std::string_view bytes);
/// Returns the checksum of the whole file.
Checksum checksum_of(const File& file);
/// Computes a checksum incrementally.
class RunningChecksum {
 public:
  RunningChecksum();
  void add(std::string_view bytes);
  Checksum value() const;

 private:
  std::shared_ptr<void> state_;
};
/// Returns 32 lower-case hexadecimal digits, the only form that parse_checksum accepts.
std::string to_string(const Checksum& checksum);
std::optional<Checksum> parse_checksum(std::string_view text);

/// Returns the XXH3-64 hash.
uint64_t hash64(std::span<const std::byte> bytes);

}  // namespace trainer
