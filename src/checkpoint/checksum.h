#pragma once
// XXH3-128 checksums: they find damage, not forgery.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"

namespace trainer::checkpoint {

struct Checksum {
  uint64_t high = 0, low = 0;
  bool operator==(const Checksum&) const = default;
};

Checksum checksum_of(std::span<const std::byte> bytes);
Checksum checksum_of(std::string_view bytes);
/// 32 lower-case hexadecimal digits; parse_checksum takes nothing else.
std::string to_string(const Checksum& checksum);
std::optional<Checksum> parse_checksum(std::string_view text);

/// Bytes of a complete checkpoint are not those that were written: an earlier one may still be whole.
class Damage : public Error {
 public:
  explicit Damage(std::string message, std::source_location where = std::source_location::current())
      : Error(Code::checkpoint, std::move(message), where) {}
};

}  // namespace trainer::checkpoint
