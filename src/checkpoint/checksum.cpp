#include "checkpoint/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/format.h"

namespace trainer::checkpoint {

Checksum checksum_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Checksum checksum_of(std::string_view bytes) { return checksum_of(std::as_bytes(std::span(bytes))); }

std::string to_string(const Checksum& checksum) { return format("{:016x}{:016x}", checksum.high, checksum.low); }

std::optional<Checksum> parse_checksum(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  uint64_t words[2] = {0, 0};
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool digit = c >= '0' && c <= '9', letter = c >= 'a' && c <= 'f';
    if (!digit && !letter) return std::nullopt;
    words[i / 16] = words[i / 16] << 4 | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return Checksum{words[0], words[1]};
}

}  // namespace trainer::checkpoint
