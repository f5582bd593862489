#pragma once
// The footer of a Parquet file: its schema, and where the values of each column are.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/byte_source.h"
#include "data/parquet_pages.h"

namespace trainer::data::parquet {

/// A value of a row: a leaf, a struct or a list.
struct Node {
  enum Kind { leaf, structure, list } kind = leaf;
  std::string name;
  std::string type;            // for messages
  std::string unsupported;     // why it cannot be read; empty if it can
  int present = 0;             // null below this definition level
  int filled = 0;              // list: empty below this one
  int rep = 0;                 // list: the repetition level of further elements
  size_t first = 0, last = 0;  // the leaves below
  std::vector<Node> children;  // list: the element
};

struct RowGroup {
  int64_t rows = 0;
  std::vector<Chunk> chunks;  // one for each leaf that is read
};

/// The footer, as far as the requested columns need it.
struct Table {
  std::vector<Node> columns;
  std::vector<Leaf> leaves;  // those below `columns`
  std::vector<RowGroup> groups;
  int64_t rows = 0;
};

/// Reads a footer. `columns`: distinct. `file_bytes`: where the footer's end marks begin, which no column may reach.
/// Throws Code::data when none of `columns` exists, when one cannot be read, and for damage.
Table read_footer(std::string_view footer, const Columns& columns, int64_t file_bytes);

}  // namespace trainer::data::parquet
