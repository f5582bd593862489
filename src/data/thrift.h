#pragma once
// Thrift's compact protocol, as far as reading Parquet's footer and page headers needs it.
#include <cstdint>
#include <string_view>

namespace trainer::data {

/// A cursor over structs and lists; what the caller does not read is skipped. Every length is checked against the bytes
/// that are left and nesting is limited, so any bytes end in a value or an Error (Code::data, "… the file is damaged").
/// Copies continue independently from the same place.
class Thrift {
 public:
  /// The bytes begin with a struct and may continue after it.
  explicit Thrift(std::string_view bytes) : begin_(bytes.data()), rest_(bytes) {}
  /// Reads a struct: calls use(id) for each field. `use` reads the value with one of these functions, or not at all.
  template <typename Use>
  void fields(Use&& use) {
    enter(kStruct);
    for (int64_t id = 0; next_field(id);) {
      use(static_cast<int>(id));
      if (kind_ != kNone) skip();
    }
    leave();
  }
  /// Reads a list or set: calls use() for each element. Its size is at most the number of bytes that are left.
  template <typename Use>
  void list(Use&& use) {
    enter(kList);
    const auto [size, kind] = list_head();
    for (uint64_t i = 0; i < size; ++i) {
      element(kind);
      use();
      if (kind_ != kNone) skip();
    }
    leave();
  }
  int64_t integer();
  bool boolean();
  /// A view of the bytes.
  std::string_view text();
  /// After an error: true if the bytes ended early, so that more of them may be a whole header.
  bool is_cut() const { return is_cut_ || rest_.empty(); }
  /// Returns the number of bytes read so far.
  size_t position() const { return static_cast<size_t>(rest_.data() - begin_); }

 private:
  enum Kind : uint8_t { kNone = 0, kTrue, kFalse, kByte, kI16, kI32, kI64, kDouble, kText, kList, kSet, kMap, kStruct };
  struct ListHead {
    uint64_t size;
    uint8_t kind;
  };

  void enter(uint8_t kind);
  void leave();
  bool next_field(int64_t& id);
  ListHead list_head();
  /// Makes an element the value that is read next.
  void element(uint8_t kind);
  void skip();
  /// Throws if fewer bytes are left.
  void require(uint64_t bytes, const char* what);
  std::string_view take(uint64_t bytes);
  uint64_t varint();
  int64_t zigzag();

  const char* begin_;
  std::string_view rest_;
  uint8_t kind_ = kStruct;  // the value that is read next; kNone: it has been read
  int depth_ = 0;
  bool is_cut_ = false;
};

/// Reads a number in 7-bit groups, least significant first, from the start of `rest`. Throws Code::data.
uint64_t take_varint(std::string_view& rest);
/// Signed numbers are stored as 0, -1, 1, -2, …
constexpr int64_t from_zigzag(uint64_t stored) { return static_cast<int64_t>(stored >> 1 ^ (~(stored & 1) + 1)); }
/// Throws Code::data: "WHAT; the file is damaged".
[[noreturn]] void damaged(std::string_view what);

}  // namespace trainer::data
