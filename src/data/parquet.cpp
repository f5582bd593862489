#include "data/parquet.h"

#include <cmath>
#include <cstring>
#include <deque>

#include "base/file_io.h"
#include "base/lfs_pointer.h"
#include "data/byte_stream.h"
#include "data/parquet_pages.h"
#include "data/parquet_schema.h"
#include "data/thrift.h"

namespace trainer::data {
namespace {

using namespace parquet;

constexpr size_t kLongestRow = size_t{1} << 30;
constexpr uint32_t kLargestFooter = uint32_t{256} << 20;

void append_literal(std::string_view text, std::string& out) {
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (size_t begin = 0;;) {
    size_t at = begin;
    while (at < text.size() && static_cast<uint8_t>(text[at]) >= 0x20 && text[at] != '"' && text[at] != '\\') ++at;
    out.append(text, begin, at - begin);
    if (at == text.size()) break;
    const char c = text[at];
    static constexpr std::string_view kShort = "\"\"\\\\\nn\rr\tt\bb\ff";  // pairs
    size_t known = 0;
    while (known < kShort.size() && kShort[known] != c) known += 2;
    out += '\\';
    if (known < kShort.size())
      out += kShort[known + 1];
    else
      out.append("u00").append(1, kHex[c >> 4]).append(1, kHex[c & 15]);
    begin = at + 1;
  }
  out += '"';
}

class ParquetSource final : public ByteStream {
 public:
  ParquetSource(const std::string& name, const Columns& columns, const std::atomic<bool>* cancelled)
      : ByteStream(cancelled), file_(File::open_input(name)), bytes_(file_.size()) {
    in_file([&] { table_ = read_footer(footer(), columns, bytes_ - 8); });
  }
  int64_t file_bytes(int64_t) const override {
    if (rows_read_ == table_.rows) return bytes_;
    return static_cast<int64_t>(static_cast<double>(bytes_) * static_cast<double>(rows_read_) /
                                static_cast<double>(table_.rows));
  }

 private:
  size_t pull(char* out, size_t bytes) override {
    size_t done = 0;
    in_file([&] {
      while (done < bytes && !cancelled()) {
        if (at_ == row_.size() && !next_row()) break;
        const size_t part = row_.copy(out + done, bytes - done, at_);
        at_ += part;
        done += part;
      }
    });
    return done;
  }

  /// Adds the file's name to errors.
  template <typename Use>
  void in_file(Use&& use) try {
    use();
  } catch (Error& error) {
    error.add_context(file_.path().string());
    throw;
  }

  /// Returns the bytes of the footer.
  std::string footer() {
    const auto at = [&](int64_t offset, size_t bytes) {
      std::string text(bytes, '\0');
      text.resize(file_.read_at(offset, text.data(), bytes));
      return text;
    };
    const std::string start = at(0, 64), end = at(std::max<int64_t>(bytes_ - 8, 0), 8);
    refuse_lfs_pointer(file_.path(), start, Code::data);
    if (start.starts_with("PARE") || end.ends_with("PARE")) unsupported("encryption is", "write the file without it");
    if (bytes_ < 12 || end.size() < 8 || !end.ends_with("PAR1"))
      throw Error(Code::data,
                  format("does not end with PAR1; it is truncated or not a Parquet file ({} bytes)", bytes_));
    if (!start.starts_with("PAR1")) throw Error(Code::data, "does not begin with PAR1; it is not a Parquet file");
    uint32_t size = 0;
    std::memcpy(&size, end.data(), sizeof size);
    if (size > bytes_ - 12) damaged(format("a footer of {} bytes in a file of {}", size, bytes_));
    if (size > kLargestFooter) damaged(format("a footer of {} bytes (at most {} are expected)", size, kLargestFooter));
    return at(bytes_ - 8 - size, size);
  }

  /// Writes the next row to row_; returns false after the last one.
  bool next_row() {
    for (; row_in_group_ == rows_in_group_; ++group_) {
      for (size_t i = 0; i < columns_.size(); ++i)
        if (!columns_[i].ended())
          damaged(format("column \"{}\", row group {}: more entries than its {} rows need", table_.leaves[i].path,
                         group_ - 1, rows_in_group_));
      columns_.clear();
      budget_ = kMostOpen;
      if (group_ == table_.groups.size()) return false;
      const RowGroup& group = table_.groups[group_];
      row_in_group_ = 0;
      rows_in_group_ = group.rows;
      for (size_t i = 0; i < table_.leaves.size(); ++i)
        columns_.emplace_back(file_, table_.leaves[i], group.chunks[i], group_, budget_);
    }
    row_ = "{";
    at_ = 0;
    for (const Node& column : table_.columns) {
      if (&column != &table_.columns.front()) row_ += ',';
      append_name(column);
      require_rep(column, 0);
      append(column);
    }
    row_ += "}\n";
    ++row_in_group_;
    ++rows_read_;
    return true;
  }

  [[noreturn]] void damaged_row(const Node& node, const char* what) const {
    damaged(format("column \"{}\", row group {}, row {}: {}", table_.leaves[node.first].path, group_ - 1, row_in_group_,
                   what));
  }
  /// The entries of all leaves below `node` begin at this level.
  void require_rep(const Node& node, int rep) const {
    for (size_t i = node.first; i < node.last; ++i)
      if (columns_[i].rep() != rep) damaged_row(node, "its columns disagree on the lengths of lists");
  }
  /// Values of this definition level or a higher one are at the cursors of all leaves below `node`.
  void require_def(const Node& node, int level) const {
    for (size_t i = node.first; i < node.last; ++i)
      if (columns_[i].def() < level) damaged_row(node, "its columns disagree on what is null");
  }
  void require_length(const Node& node) const {
    if (row_.size() > kLongestRow) damaged_row(node, "a row of more than 1 GiB");
  }
  /// Moves all leaves below a value that is null or empty past it.
  void pass(const Node& node, int level) {
    for (size_t i = node.first; i < node.last; ++i) {
      if (columns_[i].def() >= level) damaged_row(node, "its columns disagree on what is null");
      columns_[i].advance();
    }
  }

  /// Appends the value at the cursors, which it moves past it: the assembly of records in Melnik et al. 2010 (Dremel).
  void append(const Node& node) {
    const Column& first = columns_[node.first];
    require_length(node);
    if (first.ended()) damaged_row(node, "it ends early");
    if (first.def() < node.present) {
      row_ += "null";
      return pass(node, node.present);
    }
    require_def(node, node.present);
    if (node.kind == Node::leaf) {
      append_value(table_.leaves[node.first], first.value());
      require_length(node);
      return columns_[node.first].advance();
    }
    if (node.kind == Node::structure) {
      for (const Node& child : node.children) {
        row_ += &child == &node.children.front() ? '{' : ',';
        append_name(child);
        append(child);
      }
      row_ += '}';
      return;
    }
    row_ += '[';
    if (first.def() < node.filled) {
      pass(node, node.filled);
    } else {
      require_def(node, node.filled);
      append(node.children.front());
      while (first.rep() >= node.rep) {
        require_rep(node, node.rep);
        require_def(node, node.filled);
        row_ += ',';
        append(node.children.front());
      }
    }
    row_ += ']';
  }

  void append_name(const Node& node) {
    append_literal(node.name, row_);
    row_ += ':';
  }

  void append_value(const Leaf& leaf, const Value& value) {
    const auto number = [&](auto from) {
      decltype(from) as = 0;
      std::memcpy(&as, &value.bits, sizeof as);
      if constexpr (std::is_floating_point_v<decltype(from)>)
        row_ += std::isfinite(as) ? format("{}", as) : "null";
      else
        row_ += std::to_string(as);
    };
    if (leaf.type == Type::bytes) return append_literal(value.text, row_);
    if (leaf.type == Type::boolean) return void(row_ += value.bits != 0 ? "true" : "false");
    if (leaf.type == Type::int32) return leaf.is_unsigned ? number(uint32_t{}) : number(int32_t{});
    if (leaf.type == Type::int64) return leaf.is_unsigned ? number(uint64_t{}) : number(int64_t{});
    leaf.type == Type::float32 ? number(float{}) : number(double{});
  }

  File file_;
  int64_t bytes_;
  Table table_;
  std::deque<Column> columns_;  // the current row group's leaves
  int64_t budget_ = kMostOpen;  // bytes that columns_ may still open
  size_t group_ = 0;            // the row groups before have been opened
  int64_t row_in_group_ = 0, rows_in_group_ = 0, rows_read_ = 0;
  std::string row_;
  size_t at_ = 0;  // bytes of row_ that have been read
};

}  // namespace

void refuse_parquet_pipe(const std::string& file) {
  throw Error(Code::data,
              format("{}: a Parquet file has its index at the end and cannot be read from a pipe; use a file",
                     file == kStandardInput ? "standard input" : file));
}

std::unique_ptr<ByteSource> open_parquet(const std::string& file, const Columns& columns,
                                         const std::atomic<bool>* cancelled) {
  return std::make_unique<ParquetSource>(file, columns, cancelled);
}

}  // namespace trainer::data
