#include "data/thrift.h"

#include "base/error.h"

namespace trainer::data {
namespace {

constexpr int kDeepest = 32;

}  // namespace

void damaged(std::string_view what) { throw Error(Code::data, format("{}; the file is damaged", what)); }

uint64_t take_varint(std::string_view& rest) {
  uint64_t value = 0;
  for (unsigned shift = 0; shift < 64; shift += 7) {
    if (rest.empty()) damaged("a number continues after the end");
    const auto byte = static_cast<uint8_t>(rest.front());
    rest.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return value;
  }
  damaged("a number has more than 64 bits");
}

void Thrift::require(uint64_t bytes, const char* what) {
  is_cut_ = bytes > rest_.size();
  if (is_cut_) damaged(format("{} {} of a header, in which {} bytes are left", bytes, what, rest_.size()));
}

std::string_view Thrift::take(uint64_t bytes) {
  require(bytes, "bytes");
  const std::string_view taken = rest_.substr(0, bytes);
  rest_.remove_prefix(bytes);
  return taken;
}

uint64_t Thrift::varint() { return take_varint(rest_); }
int64_t Thrift::zigzag() { return from_zigzag(varint()); }

void Thrift::enter(uint8_t kind) {
  if (kind_ != kind && !(kind == kList && kind_ == kSet))
    damaged(format("a header has a value of type {}, expected {}", kind_, kind));
  if (++depth_ > kDeepest) damaged("a header is nested too deeply");
  kind_ = kNone;
}

void Thrift::leave() {
  --depth_;
  kind_ = kNone;
}

bool Thrift::next_field(int64_t& id) {
  const auto head = static_cast<uint8_t>(take(1).front());
  if (head == 0) return false;
  kind_ = head & 15;
  // Identifiers are small; adding only to small ones cannot overflow.
  id = head >> 4 != 0 ? id + (head >> 4) : zigzag();
  if (kind_ == kNone || kind_ > kStruct || id < -32768 || id > 32767)
    damaged(format("a header has field {} of type {}", id, kind_));
  return true;
}

Thrift::ListHead Thrift::list_head() {
  const auto head = static_cast<uint8_t>(take(1).front());
  const uint64_t size = head >> 4 == 15 ? varint() : head >> 4;
  require(size, "elements");
  return {size, static_cast<uint8_t>(head & 15)};
}

void Thrift::element(uint8_t kind) {
  if (kind == kNone || kind > kStruct) damaged(format("a header has elements of type {}", kind));
  kind_ = kind;
  if (kind <= kFalse) kind_ = take(1).front() == kTrue ? kTrue : kFalse;
}

int64_t Thrift::integer() {
  if (kind_ < kByte || kind_ > kI64) damaged(format("a header has a value of type {}, expected a number", kind_));
  const int64_t value = kind_ == kByte ? static_cast<int8_t>(take(1).front()) : zigzag();
  kind_ = kNone;
  return value;
}

bool Thrift::boolean() {
  if (kind_ != kTrue && kind_ != kFalse) damaged(format("a header has a value of type {}, expected a boolean", kind_));
  const bool value = kind_ == kTrue;
  kind_ = kNone;
  return value;
}

std::string_view Thrift::text() {
  if (kind_ != kText) damaged(format("a header has a value of type {}, expected text", kind_));
  kind_ = kNone;
  return take(varint());
}

void Thrift::skip() {
  if (kind_ <= kFalse) {
    boolean();
  } else if (kind_ <= kI64) {
    integer();
  } else if (kind_ == kDouble) {
    take(8);
    kind_ = kNone;
  } else if (kind_ == kText) {
    text();
  } else if (kind_ == kStruct) {
    fields([](int) {});
  } else if (kind_ == kList || kind_ == kSet) {
    list([] {});
  } else {  // a map: its size, types of keys and values unless it is empty, each key and its value
    enter(kMap);
    const uint64_t size = varint();
    require(size, "entries");
    const auto kinds = static_cast<uint8_t>(size > 0 ? take(1).front() : 0);
    for (uint64_t i = 0; i < 2 * size; ++i) {
      element(i % 2 == 0 ? kinds >> 4 : kinds & 15);
      skip();
    }
    leave();
  }
}

}  // namespace trainer::data
