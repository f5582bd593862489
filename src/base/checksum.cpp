#include "base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <vector>

namespace trainer {

Checksum checksum_of(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Checksum checksum_of(std::string_view bytes) { return checksum_of(std::as_bytes(std::span(bytes))); }

RunningChecksum::RunningChecksum()
    : state_(XXH3_createState(), [](void* state) { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }) {
  XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}

void RunningChecksum::add(std::string_view bytes) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_.get()), bytes.data(), bytes.size());
}

Checksum RunningChecksum::value() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_.get()));
  return {hash.high64, hash.low64};
}

Checksum checksum_of(const File& file) {
  RunningChecksum sum;
  std::vector<char> block(static_cast<size_t>(std::clamp<int64_t>(file.size(), 1, 1 << 20)));
  int64_t offset = 0;
  while (const size_t got = file.read_at(offset, block.data(), block.size())) {
    sum.add({block.data(), got});
    offset += static_cast<int64_t>(got);
  }
  return sum.value();
}

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

uint64_t hash64(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

}  // namespace trainer
