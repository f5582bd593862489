#pragma once
// The beginning of text files: text, a byte-order mark, or the magic number of a different format.
#include <cstdint>
#include <string>
#include <string_view>

namespace trainer::data {

constexpr size_t kTextStart = size_t{1} << 20;  // bytes of a file that are examined

/// Bytes before the text: 3 for UTF-8's byte-order mark, else 0.
size_t byte_order_mark(std::string_view start);

/// Throws Code::data when `start`, the first kTextStart bytes of `file`, are not text in UTF-8: when they begin as
/// compressed data, archives, columns or UTF-16 text do, or when more than one byte in ten is invalid. `insisted`, the
/// user stated the format: then a beginning that could be text is taken as text.
void require_text(const std::string& file, std::string_view start, bool insisted);

/// The line, counted from 1, that holds byte `offset` of a file. Reads the file up to there.
int64_t line_of(const std::string& file, int64_t offset);

}  // namespace trainer::data
