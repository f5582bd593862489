#pragma once
// The pages of a Parquet column: their headers, compression, levels and encodings. Every number that a file states is
// checked before it is used; damage throws Code::data.
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_io.h"
#include "data/unpack.h"

namespace trainer::data::parquet {

/// Physical types, with the format's numbers.
enum class Type { boolean, int32, int64, int96, float32, float64, bytes, fixed };

/// A column that has values.
struct Leaf {
  std::string path;  // "messages.list.element.role"
  Type type = Type::bytes;
  int max_rep = 0, max_def = 0;  // the largest repetition and definition level
  bool is_unsigned = false;
};

/// A leaf's part of a row group.
struct Chunk {
  int64_t begin = 0, end = 0;  // bytes of the file
  int64_t entries = 0;         // values, nulls and empty lists
  Codec codec = Codec::none;
};

/// Throws Code::data: "WHAT not supported; REMEDY".
[[noreturn]] void unsupported(std::string_view what, std::string_view remedy);

struct Value {
  std::string_view text;  // Type::bytes; valid until the next value
  uint64_t bits = 0;      // the other types, in their own form
};

/// The hybrid of runs and bit-packed groups of eight, one number at a time.
class Hybrid {
 public:
  Hybrid() = default;
  /// `width`: bits of a number, 0 to 32.
  Hybrid(std::string_view bytes, unsigned width);
  uint32_t next();

 private:
  void refill();

  std::string_view rest_;
  unsigned width_ = 0;
  uint64_t repeats_ = 0, groups_ = 0;  // the rest of the run: repetitions of group_[0], or groups
  uint32_t group_[8] = {};
  unsigned at_ = 0, size_ = 0;  // the next number in group_ and their count
};

/// DELTA_BINARY_PACKED: differences in blocks of miniblocks with a width each, one number at a time.
class Deltas {
 public:
  Deltas() = default;
  explicit Deltas(std::string_view bytes);
  int64_t next();
  bool is_at_end() const { return left_ == 0; }
  /// Returns the bytes after the numbers, of which none has been read yet.
  std::string_view after() const;

 private:
  void next_miniblock();

  std::string_view rest_, packed_;
  uint64_t miniblocks_ = 0, miniblock_values_ = 0;
  uint64_t left_ = 0, left_in_miniblock_ = 0, bit_ = 0;
  std::string_view widths_;  // bit widths of the block's next miniblocks
  unsigned width_ = 0;
  uint64_t value_ = 0, least_ = 0;
  bool first_ = true;
};

/// Bytes that are not initialised.
class Buffer {
 public:
  /// Returns room for `bytes`; discards what was in it. Takes what it grows by from `budget`; throws Code::data if that
  /// is less.
  std::span<char> room(size_t bytes, int64_t& budget);

 private:
  std::unique_ptr<char[]> bytes_;
  size_t capacity_ = 0;
};

class Dictionary {
 public:
  /// Reads the values of a dictionary page, which `buffer` holds.
  void assign(Type type, Buffer buffer, std::string_view bytes, int64_t values);
  Value at(uint32_t index) const;

 private:
  Type type_ = Type::bytes;
  Buffer buffer_;
  std::string_view bytes_;
  std::vector<uint32_t> starts_;
};

/// The values of a data page. Nothing is decoded before it is needed: a page of some bytes may state a billion values.
class Values {
 public:
  Values() = default;
  Values(Type type, int64_t encoding, std::string_view bytes, const Dictionary* dictionary);
  Value next();
  /// Throws if the page has more values. Indices, and booleans in runs, are not checked: their last run may be longer
  /// than the page.
  void finish() const;

 private:
  Type type_ = Type::bytes;
  int64_t encoding_ = 0;
  std::string_view rest_;
  const Dictionary* dictionary_ = nullptr;
  Hybrid hybrid_;            // indices, booleans
  Deltas numbers_, shared_;  // numbers or lengths; bytes shared with the text before
  std::string text_;
  unsigned bit_ = 0;
};

/// The memory that the open pages and dictionaries of a row group's columns may take.
constexpr int64_t kMostOpen = int64_t{4} << 30;

/// A cursor over the entries of a chunk. Memory: one page and one dictionary.
class Column {
 public:
  /// Stands at the first entry. `budget`: the rest of kMostOpen, for all columns that are open. The references must
  /// outlive the column.
  Column(const File& file, const Leaf& leaf, const Chunk& chunk, size_t row_group, int64_t& budget);
  /// True after the last entry; both levels are 0 then.
  bool ended() const { return ended_; }
  int rep() const { return rep_; }
  int def() const { return def_; }
  /// The entry's value if its definition level is the largest.
  const Value& value() const { return value_; }
  /// Moves to the next entry. Throws Code::data naming column, row group and page.
  void advance();

 private:
  void next_page();
  void read_dictionary(std::string_view packed, int64_t bytes, int64_t values, int64_t encoding);
  std::string_view read(int64_t offset, int64_t bytes, Buffer& buffer) const;
  std::string_view unpacked(std::string_view packed, int64_t bytes, Codec codec, Buffer& buffer) const;

  const File& file_;
  const Leaf& leaf_;
  Chunk chunk_;
  size_t row_group_;
  int64_t& budget_;
  int64_t at_, page_at_;  // the next page and the current one
  int64_t left_ = 0, left_in_page_ = 0;
  bool ended_ = false;
  Buffer packed_, body_;
  Dictionary dictionary_;
  bool has_dictionary_ = false;
  Hybrid reps_, defs_;
  Values values_;
  Value value_;
  int rep_ = 0, def_ = 0;
};

}  // namespace trainer::data::parquet
