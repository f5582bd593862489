#pragma once
// The beginning of text files: text, a byte-order mark, or the magic number of a different format.
#include <string>

#include "data/files.h"

namespace trainer::data {

/// Bytes before the text: 3 for UTF-8's byte-order mark, else 0.
int64_t byte_order_mark(const File& file);

/// Throws Code::data when the file begins as compressed data, archives, columns or UTF-16 text do.
void require_text(const File& file);

/// The line, counted from 1, that holds byte `offset` of a file. Reads the file up to there.
int64_t line_of(const std::string& file, int64_t offset);

}  // namespace trainer::data
