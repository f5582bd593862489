#pragma once
// Parquet tables as JSON lines.
#include <memory>
#include <string>

#include "data/byte_source.h"

namespace trainer::data {

/// Throws Code::data: a pipe cannot be a Parquet file.
[[noreturn]] void refuse_parquet_pipe(const std::string& file);

/// Opens a Parquet file: its text is one JSON object per row, with those of `columns` that exist in the order of
/// `columns`, as UTF-8 without escapes but those of ", \ and control characters, and "\n" after each. Numbers are
/// written in full; dates and times as the numbers that the file has. Reads only pages of these columns; memory is one
/// page (at most 1 GiB) and one dictionary for each column of values below them, 4 GiB for all of them together,
/// besides a footer of at most 256 MiB and a row, whose text may be 1 GiB. `columns`: distinct. Throws Code::data when
/// the file is not Parquet, has none of the columns, or one of them is of a type or compression that is not supported;
/// reads throw it naming column, row group (counted from 0) and the page's offset in the file.
std::unique_ptr<ByteSource> open_parquet(const std::string& file, const Columns& columns,
                                         const std::atomic<bool>* cancelled);

}  // namespace trainer::data
