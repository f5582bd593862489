#pragma once
// The beginning of text files: text, a byte-order mark, or the magic number of a different format.
#include <cstdint>
#include <string>
#include <string_view>

#include "data/byte_source.h"

namespace trainer::data {

constexpr size_t kTextStart = size_t{1} << 20;  // bytes at the start of a file that are examined

constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";

/// Returns the number of bytes before the text: 3 for UTF-8's byte-order mark, else 0.
size_t byte_order_mark(std::string_view start);

/// Throws Code::data when `start`, the first kTextStart bytes of `file`, is not UTF-8 text: when it looks like
/// compressed data, an archive, a columnar format or UTF-16 text, or when more than one byte in ten is invalid.
/// `insisted`: the user stated that it is plain text, so a start that could be text is accepted.
void require_text(const std::string& file, std::string_view start, bool insisted);

/// Throws Code::data for a file without text.
[[noreturn]] void refuse_empty(const std::string& file);
/// True if the file, unpacked, contains anything but a byte-order mark. Reads only its start.
bool has_text(const std::string& file, const Columns& columns);

/// Returns the line, counted from 1, that contains byte `offset` of a file. Reads the file up to there.
int64_t line_of(const std::string& file, int64_t offset, const Columns& columns);

}  // namespace trainer::data
