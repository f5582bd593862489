#include "data/parquet_schema.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "data/thrift.h"

namespace trainer::data::parquet {
namespace {

constexpr int kDeepest = 64;
constexpr size_t kMostElements = 100'000, kLongestPath = 4096;

/// An element of the schema, which is stored depth first.
struct Element {
  std::optional<int64_t> type;
  int64_t repetition = 0;  // required, optional, repeated
  std::string name;
  int64_t children = 0;
  int64_t converted = -1;  // the older form of `logical`
  int logical = 0;
  bool is_unsigned = false;
};
enum Repetition { kRequired, kOptional, kRepeated };
enum Converted { kUtf8 = 0, kMap = 1, kMapEntries = 2, kListOf = 3, kDecimal = 5, kUint8 = 11, kUint64 = 14 };
enum Logical { kString = 1, kLogicalMap = 2, kLogicalList = 3, kLogicalDecimal = 5, kInteger = 10 };

Element read_element(Thrift& thrift) {
  Element element;
  thrift.fields([&](int id) {
    if (id == 1) element.type = thrift.integer();
    if (id == 3) element.repetition = thrift.integer();
    if (element.repetition < kRequired || element.repetition > kRepeated)
      damaged(format("the schema has an element with repetition {}", element.repetition));
    if (id == 4) element.name = thrift.text();
    if (id == 5) element.children = thrift.integer();
    if (id == 6) element.converted = thrift.integer();
    if (id == 10)
      thrift.fields([&](int logical) {
        element.logical = logical;
        if (logical == kInteger)
          thrift.fields([&](int field) {
            if (field == 2) element.is_unsigned = !thrift.boolean();
          });
      });
  });
  element.is_unsigned |= element.converted >= kUint8 && element.converted <= kUint64;
  return element;
}

/// Turns the schema's elements into a tree and counts levels and leaves. Only leaves below `wanted` get their path: one
/// long name may be above many leaves.
class SchemaReader {
 public:
  SchemaReader(const std::vector<Element>& elements, const Columns& wanted, std::vector<Leaf>& leaves)
      : elements_(elements), wanted_(wanted), leaves_(leaves) {}
  /// Returns the children of the root.
  std::vector<Node> columns() {
    if (elements_.empty()) damaged("the schema is empty");
    std::vector<Node> columns;
    for (int64_t i = 0; i < elements_[0].children; ++i) {
      is_wanted_ = std::ranges::find(wanted_, peek().name) != wanted_.end();
      columns.push_back(node(peek().repetition, {}, 0, 0, 0));
    }
    if (next_ != elements_.size()) damaged("the schema's tree does not have all of its elements");
    return columns;
  }

 private:
  const Element& peek() const {
    if (next_ >= elements_.size()) damaged("the schema ends early");
    return elements_[next_];
  }

  /// Reads the element at next_ as if it had this repetition.
  Node node(int64_t repetition, const std::string& above, int rep, int def, int depth) {
    const Element& element = peek();
    if (depth > kDeepest || element.children < 0) damaged("the schema is not a tree of at most 64 levels");
    if (repetition == kRepeated)
      return list_of(element.name, def, rep + 1, def + 1,
                     [&] { return node(kRequired, above, rep + 1, def + 1, depth + 1); });
    def += repetition == kOptional;
    const std::string path = joined(above, element.name);
    ++next_;
    Node made;
    if (element.children == 0)
      made = leaf(element, path, rep, def);
    else if (element.children == 1 && (element.converted == kListOf || element.logical == kLogicalList) &&
             peek().repetition == kRepeated)
      made = list_of(element.name, def, rep + 1, def + 1,
                     [&] { return element_of(element, path, rep + 1, def + 1, depth + 1); });
    else
      made = structure(element, path, rep, def, depth);
    return made;
  }

  template <typename Make>
  Node list_of(const std::string& name, int present, int rep, int filled, Make&& element) {
    Node made = named(name, Node::list, "list", present);
    made.rep = rep;
    made.filled = filled;
    made.first = leaves_.size();
    made.children.push_back(element());
    made.last = leaves_.size();
    return made;
  }

  /// Reads what a list's repeated child means: itself in the two-level form of old writers, else its only child.
  Node element_of(const Element& list, const std::string& path, int rep, int def, int depth) {
    const Element& repeated = peek();
    const bool has_list = next_ + 1 < elements_.size() && elements_[next_ + 1].repetition == kRepeated;
    const bool is_element =
        repeated.children != 1 || has_list || repeated.name == "array" || repeated.name == list.name + "_tuple";
    if (is_element) return node(kRequired, path, rep, def, depth);
    ++next_;
    return node(peek().repetition, joined(path, repeated.name), rep, def, depth);
  }

  Node structure(const Element& element, const std::string& path, int rep, int def, int depth) {
    const bool is_map = element.converted == kMap || element.converted == kMapEntries || element.logical == kLogicalMap;
    Node made = named(element.name, Node::structure, is_map ? "map" : "struct", def);
    if (is_map) made.unsupported = "a map is";
    made.first = leaves_.size();
    for (int64_t i = 0; i < element.children; ++i)
      made.children.push_back(node(peek().repetition, path, rep, def, depth + 1));
    made.last = leaves_.size();
    return made;
  }

  Node leaf(const Element& element, const std::string& path, int rep, int def) {
    static constexpr const char* kNames[] = {"boolean", "int32",  "int64",  "INT96",
                                             "float",   "double", "binary", "FIXED_LEN_BYTE_ARRAY"};
    const int64_t type = element.type.value_or(-1);
    if (type < 0 || type >= std::ssize(kNames)) damaged(format("column \"{}\" has type {}", path, type));
    const bool is_text = element.converted == kUtf8 || element.logical == kString;
    Node made = named(element.name, Node::leaf, is_text ? "string" : kNames[type], def);
    if (element.converted == kDecimal || element.logical == kLogicalDecimal) made.type = "DECIMAL";
    const auto physical = static_cast<Type>(type);
    if (physical == Type::int96 || physical == Type::fixed || made.type == "DECIMAL")
      made.unsupported = made.type + " is";
    made.first = leaves_.size();
    leaves_.push_back({is_wanted_ ? path : std::string(), physical, rep, def, element.is_unsigned});
    made.last = leaves_.size();
    return made;
  }

  static std::string joined(const std::string& above, const std::string& name) {
    if (above.size() + name.size() >= kLongestPath)
      damaged(format("a column has a name of more than {} bytes", kLongestPath));
    return above.empty() ? name : above + "." + name;
  }

  static Node named(const std::string& name, Node::Kind kind, const char* type, int present) {
    Node made;
    made.kind = kind;
    made.name = name;
    made.type = type;
    made.present = present;
    return made;
  }

  const std::vector<Element>& elements_;
  const Columns& wanted_;
  std::vector<Leaf>& leaves_;
  size_t next_ = 1;
  bool is_wanted_ = false;
};

Codec codec_of(int64_t number) {
  static constexpr Codec kCodecs[] = {Codec::none, Codec::snappy, Codec::gzip};
  static constexpr const char* kOthers[] = {"", "", "", "LZO", "brotli", "LZ4", "", "LZ4"};
  if (number >= 0 && number < std::ssize(kCodecs)) return kCodecs[number];
  if (number == 6) return Codec::zstd;
  const bool known = number > 0 && number < std::ssize(kOthers);
  unsupported(format("{} compression is", known ? kOthers[number] : format("this ({})", number)),
              "write the file with zstd, snappy or gzip");
}

/// Reads a column chunk; the cursor is at its struct.
Chunk read_chunk(Thrift& thrift, const Leaf& leaf, int64_t rows, int64_t file_bytes) {
  int64_t type = -1, codec = 0, bytes = -1, data = -1, dictionary = -1;
  bool encrypted = false, elsewhere = false;
  Chunk chunk;
  thrift.fields([&](int id) {
    if (id == 1) elsewhere = !thrift.text().empty();
    if (id == 8 || id == 9) encrypted = true;
    if (id == 3)
      thrift.fields([&](int field) {
        if (field == 1) type = thrift.integer();
        if (field == 4) codec = thrift.integer();
        if (field == 5) chunk.entries = thrift.integer();
        if (field == 7) bytes = thrift.integer();
        if (field == 9) data = thrift.integer();
        if (field == 11) dictionary = thrift.integer();
      });
  });
  if (encrypted) unsupported("encryption is", "write the file without it");
  if (elsewhere) unsupported("a column in a file of its own is", "write all columns to one file");
  chunk.codec = codec_of(codec);
  if (type != static_cast<int64_t>(leaf.type))
    damaged(format("type {} in a column of type {}", type, static_cast<int>(leaf.type)));
  chunk.begin = dictionary > 0 && dictionary < data ? dictionary : data;
  if (chunk.begin < 0 || bytes < 0 || chunk.begin > file_bytes || bytes > file_bytes - chunk.begin)
    damaged(format("{} bytes at byte {} of {}", bytes, chunk.begin, file_bytes));
  chunk.end = chunk.begin + bytes;
  if (chunk.entries < rows || (leaf.max_rep == 0 && chunk.entries > rows))
    damaged(format("{} entries in {} rows", chunk.entries, rows));
  return chunk;
}

/// `wanted[i]`: leaf i is read.
RowGroup read_group(Thrift& thrift, const std::vector<Leaf>& leaves, const std::vector<bool>& wanted, size_t number,
                    int64_t file_bytes) {
  RowGroup group;
  std::optional<Thrift> columns;
  thrift.fields([&](int id) {
    if (id == 1) columns = thrift;
    if (id == 3) group.rows = thrift.integer();
  });
  if (!columns || group.rows < 0) damaged(format("row group {} has {} rows", number, group.rows));
  size_t leaf = 0;
  columns->list([&] {
    if (leaf < leaves.size() && wanted[leaf]) try {
        group.chunks.push_back(read_chunk(*columns, leaves[leaf], group.rows, file_bytes));
      } catch (Error& error) {
        error.add_context(format("column \"{}\"", leaves[leaf].path));
        throw;
      }
    ++leaf;
  });
  if (leaf != leaves.size()) damaged(format("row group {} has {} columns of {}", number, leaf, leaves.size()));
  return group;
}

/// Returns the first reason for which a column cannot be read.
std::string first_unsupported(const Node& node) {
  if (!node.unsupported.empty()) return node.unsupported;
  for (const Node& child : node.children)
    if (std::string found = first_unsupported(child); !found.empty()) return found;
  return {};
}

[[noreturn]] void refuse_columns(const std::vector<Node>& nodes, const Columns& columns) {
  constexpr size_t kMostShown = 20;
  std::string wanted, found;
  for (const std::string& name : columns) wanted += format("{}\"{}\"", wanted.empty() ? "" : ", ", name);
  for (size_t i = 0; i < std::min(nodes.size(), kMostShown); ++i)
    found += format("{}{} ({})", i == 0 ? "" : ", ", nodes[i].name, nodes[i].type);
  if (nodes.size() > kMostShown) found += format(" and {} more", nodes.size() - kMostShown);
  throw Error(Code::data, format("no column {}; it has {}{}", wanted, found.empty() ? "none" : found,
                                 columns.size() == 1 ? ": set data.text_key" : ""));
}

/// Changes the numbers of the leaves below a column to those from `next`.
void renumber(Node& node, size_t first, size_t next) {
  node.first += next - first;
  node.last += next - first;
  for (Node& child : node.children) renumber(child, first, next);
}

}  // namespace

Table read_footer(std::string_view footer, const Columns& columns, int64_t file_bytes) {
  TRAINER_CHECK(std::set<std::string>(columns.begin(), columns.end()).size() == columns.size(),
                "a column is requested twice");
  std::vector<Element> elements;
  std::optional<Thrift> groups;
  Table table;
  Thrift thrift(footer);
  thrift.fields([&](int id) {
    if (id == 2)
      thrift.list([&] {
        if (elements.size() == kMostElements) damaged(format("the schema has more than {} elements", kMostElements));
        elements.push_back(read_element(thrift));
      });
    if (id == 3) table.rows = thrift.integer();
    if (id == 4) groups = thrift;
  });
  std::vector<Leaf> leaves;
  std::vector<Node> nodes = SchemaReader(elements, columns, leaves).columns();
  std::vector<bool> wanted(leaves.size());
  for (const std::string& name : columns) {
    const auto found = std::ranges::find(nodes, name, &Node::name);
    if (found == nodes.end()) continue;
    if (const std::string reason = first_unsupported(*found); !reason.empty()) {
      try {
        unsupported(reason, "write it as text or a number");
      } catch (Error& error) {
        error.add_context(format("column \"{}\"", name));
        throw;
      }
    }
    std::fill(wanted.begin() + static_cast<std::ptrdiff_t>(found->first),
              wanted.begin() + static_cast<std::ptrdiff_t>(found->last), true);
    table.columns.push_back(*found);
  }
  if (table.columns.empty()) refuse_columns(nodes, columns);
  // Chunks are in the order of leaves in the file.
  for (Node& column : table.columns)
    renumber(column, column.first,
             static_cast<size_t>(
                 std::count(wanted.begin(), wanted.begin() + static_cast<std::ptrdiff_t>(column.first), true)));
  for (size_t i = 0; i < leaves.size(); ++i)
    if (wanted[i]) table.leaves.push_back(leaves[i]);
  int64_t rows = 0;
  if (groups)
    groups->list([&] {
      table.groups.push_back(read_group(*groups, leaves, wanted, table.groups.size(), file_bytes));
      if (table.groups.back().rows > table.rows - rows)
        damaged(format("its row groups have more than {} rows", table.rows));
      rows += table.groups.back().rows;
    });
  if (rows != table.rows) damaged(format("its row groups have {} rows, expected {}", rows, table.rows));
  return table;
}

}  // namespace trainer::data::parquet
