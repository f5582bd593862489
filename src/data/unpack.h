#pragma once
// Decompression of blocks in memory. Streams: data/byte_stream.h.
#include <span>
#include <string>
#include <string_view>

namespace trainer::data {

enum class Codec { none, snappy, gzip, zstd };

/// Unpacks a whole block, which must fill `out` exactly. Returns why it does not; empty if it does.
std::string unpack_block(Codec codec, std::string_view packed, std::span<char> out);

}  // namespace trainer::data
