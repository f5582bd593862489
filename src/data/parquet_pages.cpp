#include "data/parquet_pages.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>

#include "data/thrift.h"

namespace trainer::data::parquet {
namespace {

constexpr int64_t kLargestPage = int64_t{1} << 30, kLargestHeader = int64_t{16} << 20;
constexpr const char* kOtherEncodings = "write the file with plain or dictionary encoding";

// Numbers of encodings.
constexpr int64_t kPlain = 0, kPlainDictionary = 2, kRle = 3, kDelta = 5, kDeltaLengths = 6, kDeltaTexts = 7,
                  kDictionary = 8;

std::string encoding_name(int64_t encoding) {
  static constexpr const char* kNames[] = {
      "PLAIN",          "encoding 1",          "PLAIN_DICTIONARY",        "RLE",
      "BIT_PACKED",     "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY",
      "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"};
  return encoding >= 0 && encoding < std::ssize(kNames) ? format("{} encoding", kNames[encoding])
                                                        : format("encoding {}", encoding);
}

std::string_view take(std::string_view& rest, uint64_t bytes) {
  if (bytes > rest.size()) damaged(format("{} bytes of values, of which {} are left", bytes, rest.size()));
  const std::string_view taken = rest.substr(0, bytes);
  rest.remove_prefix(bytes);
  return taken;
}

/// Returns `bytes` bytes, little-endian, as a number.
template <typename T>
T number(std::string_view bytes) {
  T value = 0;
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

/// Returns `width` bits, at most 64, from bit `at`, which is the least significant one. Bits after the end are 0.
uint64_t bits_at(std::string_view bytes, uint64_t at, unsigned width) {
  const std::string_view from = bytes.substr(at / 8);
  const unsigned shift = at % 8;
  uint64_t value = number<uint64_t>(from) >> shift;
  if (shift > 0 && from.size() > 8) value |= static_cast<uint64_t>(static_cast<uint8_t>(from[8])) << (64 - shift);
  return width < 64 ? value & ((uint64_t{1} << width) - 1) : value;
}

/// Returns a value in PLAIN encoding; `type` is neither boolean nor unsupported.
Value plain_value(Type type, std::string_view& rest) {
  if (type == Type::bytes) return {take(rest, number<uint32_t>(take(rest, 4)))};
  if (type == Type::int32 || type == Type::float32) return {{}, number<uint32_t>(take(rest, 4))};
  return {{}, number<uint64_t>(take(rest, 8))};
}

unsigned width_of(int most) { return static_cast<unsigned>(std::bit_width(static_cast<unsigned>(most))); }

struct PageHeader {
  int64_t type = -1, unpacked = -1, packed = -1;
  std::optional<int64_t> crc;
  int64_t values = -1, encoding = -1;  // all kinds of pages have them
  int64_t def_encoding = kRle, rep_encoding = kRle;
  int64_t def_bytes = 0, rep_bytes = 0;  // version 2: levels before the values, not compressed
  bool is_compressed = true;
  size_t bytes = 0;  // the header's length
};
enum PageType { kData = 0, kIndexPage = 1, kDictionaryPage = 2, kData2 = 3 };

PageHeader parse_header(Thrift& thrift) {
  PageHeader header;
  thrift.fields([&](int id) {
    if (id == 1) header.type = thrift.integer();
    if (id == 2) header.unpacked = thrift.integer();
    if (id == 3) header.packed = thrift.integer();
    if (id == 4) header.crc = thrift.integer();
    const bool version1 = id == 5, dictionary = id == 7, version2 = id == 8;
    if (version1 || dictionary || version2)
      thrift.fields([&](int field) {
        if (field == 1) header.values = thrift.integer();
        if (field == (version2 ? 4 : 2)) header.encoding = thrift.integer();
        if (version1 && field == 3) header.def_encoding = thrift.integer();
        if (version1 && field == 4) header.rep_encoding = thrift.integer();
        if (version2 && field == 5) header.def_bytes = thrift.integer();
        if (version2 && field == 6) header.rep_bytes = thrift.integer();
        if (version2 && field == 7) header.is_compressed = thrift.boolean();
      });
  });
  header.bytes = thrift.position();
  return header;
}

}  // namespace

void unsupported(std::string_view what, std::string_view remedy) {
  throw Error(Code::data, format("{} not supported; {}", what, remedy));
}

Hybrid::Hybrid(std::string_view bytes, unsigned width) : rest_(bytes), width_(width) {
  if (width > 32) damaged(format("numbers of {} bits", width));
}

uint32_t Hybrid::next() {
  if (width_ == 0) return 0;
  if (repeats_ == 0 && at_ == size_) refill();
  if (repeats_ == 0) return group_[at_++];
  --repeats_;
  return group_[0];
}

void Hybrid::refill() {
  while (groups_ == 0 && repeats_ == 0) {
    const uint64_t head = take_varint(rest_);
    if ((head & 1) != 0) {
      groups_ = head >> 1;
    } else {
      repeats_ = head >> 1;
      group_[0] = number<uint32_t>(take(rest_, (width_ + 7) / 8));
    }
  }
  if (groups_ == 0) return;
  --groups_;
  // Some writers leave out what is not used of the last group.
  const std::string_view packed = take(rest_, std::min<size_t>(width_, rest_.size()));
  size_ = static_cast<unsigned>(packed.size() * 8 / width_);
  if (size_ == 0) damaged("levels or indices end early");
  for (at_ = 0; at_ < size_; ++at_)
    group_[at_] = static_cast<uint32_t>(bits_at(packed, uint64_t{at_} * width_, width_));
  at_ = 0;
}

Deltas::Deltas(std::string_view bytes) : rest_(bytes) {
  const uint64_t block = take_varint(rest_);
  miniblocks_ = take_varint(rest_);
  left_ = take_varint(rest_);
  value_ = static_cast<uint64_t>(from_zigzag(take_varint(rest_)));
  if (block == 0 || block > kLargestPage || miniblocks_ == 0 || block % miniblocks_ != 0 ||
      block / miniblocks_ % 8 != 0)
    damaged(format("differences in blocks of {} values and {} miniblocks", block, miniblocks_));
  miniblock_values_ = block / miniblocks_;
}

void Deltas::next_miniblock() {
  if (widths_.empty()) {
    least_ = static_cast<uint64_t>(from_zigzag(take_varint(rest_)));
    widths_ = take(rest_, miniblocks_);
  }
  width_ = static_cast<uint8_t>(take(widths_, 1).front());
  if (width_ > 64) damaged(format("differences of {} bits", width_));
  packed_ = take(rest_, miniblock_values_ / 8 * width_);
  bit_ = 0;
  left_in_miniblock_ = miniblock_values_;
}

int64_t Deltas::next() {
  if (left_ == 0) damaged("the values end early");
  --left_;
  if (!first_) {
    if (left_in_miniblock_ == 0) next_miniblock();
    --left_in_miniblock_;
    value_ += least_ + bits_at(packed_, bit_, width_);
    bit_ += width_;
  }
  first_ = false;
  return static_cast<int64_t>(value_);
}

std::string_view Deltas::after() const {
  Deltas copy = *this;
  for (uint64_t left = left_ > 0 ? left_ - 1 : 0; left > 0; left -= std::min(left, miniblock_values_))
    copy.next_miniblock();
  return copy.rest_;
}

std::span<char> Buffer::room(size_t bytes, int64_t& budget) {
  if (bytes > capacity_) {
    const auto more = static_cast<int64_t>(bytes - capacity_);
    if (more > budget) unsupported("pages of one row group that take more than 4 GiB are", "write smaller pages");
    budget -= more;
    bytes_.reset();
    bytes_.reset(new char[bytes]);
    capacity_ = bytes;
  }
  return {bytes_.get(), bytes};
}

void Dictionary::assign(Type type, Buffer buffer, std::string_view bytes, int64_t values) {
  type_ = type;
  buffer_ = std::move(buffer);
  bytes_ = bytes;
  starts_.clear();
  std::string_view rest = bytes;
  for (int64_t i = 0; i < values; ++i) {
    starts_.push_back(static_cast<uint32_t>(rest.data() - bytes.data()));
    plain_value(type, rest);
  }
  if (!rest.empty()) damaged(format("{} bytes after the dictionary's last value", rest.size()));
}

Value Dictionary::at(uint32_t index) const {
  if (index >= starts_.size()) damaged(format("dictionary index {} of {}", index, starts_.size()));
  std::string_view rest = bytes_.substr(starts_[index]);
  return plain_value(type_, rest);
}

Values::Values(Type type, int64_t encoding, std::string_view bytes, const Dictionary* dictionary)
    : type_(type),
      encoding_(encoding == kPlainDictionary ? int64_t{kDictionary} : encoding),
      rest_(bytes),
      dictionary_(dictionary) {
  const auto require = [&](bool fits) {
    if (!fits) unsupported(encoding_name(encoding) + " of this type is", kOtherEncodings);
  };
  hybrid_ = Hybrid({}, 1);
  const bool has_values = !bytes.empty();  // a page of nulls may have no bytes
  switch (encoding_) {
    case kPlain:
      break;
    case kDictionary:
      require(type != Type::boolean);
      if (dictionary == nullptr) damaged("dictionary indices without a dictionary");
      if (has_values) hybrid_ = Hybrid(bytes.substr(1), static_cast<uint8_t>(bytes.front()));
      break;
    case kRle:
      require(type == Type::boolean);
      if (has_values) hybrid_ = Hybrid(take(rest_, number<uint32_t>(take(rest_, 4))), 1);
      break;
    case kDelta:
      require(type == Type::int32 || type == Type::int64);
      if (has_values) numbers_ = Deltas(rest_);
      break;
    case kDeltaTexts:
      require(type == Type::bytes);
      if (!has_values) break;
      shared_ = Deltas(rest_);
      rest_ = shared_.after();
      [[fallthrough]];
    case kDeltaLengths:
      require(type == Type::bytes);
      if (!has_values) break;
      numbers_ = Deltas(rest_);
      rest_ = numbers_.after();
      break;
    default:
      unsupported(encoding_name(encoding) + " is", kOtherEncodings);
  }
}

Value Values::next() {
  switch (encoding_) {
    case kPlain:
      if (type_ != Type::boolean) return plain_value(type_, rest_);
      if (rest_.size() <= bit_ / 8) damaged("the values end early");
      ++bit_;
      return {{}, bits_at(rest_, bit_ - 1, 1)};
    case kDictionary:
      return dictionary_->at(hybrid_.next());
    case kRle:
      return {{}, hybrid_.next()};
    case kDelta:
      return {{}, static_cast<uint64_t>(numbers_.next())};
    case kDeltaLengths:
      return {take(rest_, static_cast<uint64_t>(numbers_.next()))};
    default: {  // kDeltaTexts
      const auto shared = static_cast<uint64_t>(shared_.next());
      if (shared > text_.size()) damaged(format("a text shares {} bytes with one of {}", shared, text_.size()));
      text_.resize(shared);
      text_ += take(rest_, static_cast<uint64_t>(numbers_.next()));
      return {text_};
    }
  }
}

void Values::finish() const {
  const bool has_texts = encoding_ == kDeltaLengths || encoding_ == kDeltaTexts;
  const size_t used = type_ == Type::boolean ? (bit_ + 7) / 8 : 0;
  if ((has_texts || encoding_ == kPlain) && rest_.size() > used)
    damaged(format("{} bytes after the last value", rest_.size() - used));
  if (!numbers_.is_at_end() || !shared_.is_at_end()) damaged("numbers after the last value");
}

Column::Column(const File& file, const Leaf& leaf, const Chunk& chunk, size_t row_group, int64_t& budget)
    : file_(file),
      leaf_(leaf),
      chunk_(chunk),
      row_group_(row_group),
      budget_(budget),
      at_(chunk.begin),
      page_at_(at_),
      left_(chunk.entries) {
  advance();
}

void Column::advance() try {
  if (ended_) damaged("fewer entries than its rows need");
  while (left_in_page_ == 0) {
    values_.finish();
    if (left_ == 0) {
      ended_ = true;
      rep_ = def_ = 0;
      return;
    }
    next_page();
  }
  --left_in_page_;
  --left_;
  const uint32_t rep = reps_.next(), def = defs_.next();
  if (rep > static_cast<uint32_t>(leaf_.max_rep)) damaged(format("repetition level {} of {}", rep, leaf_.max_rep));
  if (def > static_cast<uint32_t>(leaf_.max_def)) damaged(format("definition level {} of {}", def, leaf_.max_def));
  rep_ = static_cast<int>(rep);
  def_ = static_cast<int>(def);
  if (def_ == leaf_.max_def) value_ = values_.next();
} catch (Error& error) {
  error.add_context(format("column \"{}\", row group {}, page at byte {}", leaf_.path, row_group_, page_at_));
  throw;
}

std::string_view Column::read(int64_t offset, int64_t bytes, Buffer& buffer) const {
  const std::span<char> room = buffer.room(static_cast<size_t>(bytes), budget_);
  if (file_.read_at(offset, room.data(), room.size()) != room.size()) damaged("it ends within a page");
  return {room.data(), room.size()};
}

std::string_view Column::unpacked(std::string_view packed, int64_t bytes, Codec codec, Buffer& buffer) const {
  if (bytes == 0 || (codec == Codec::none && packed.size() == static_cast<size_t>(bytes)))
    return packed.substr(0, static_cast<size_t>(bytes));
  const std::span<char> room = buffer.room(static_cast<size_t>(bytes), budget_);
  if (const std::string fault = unpack_block(codec, packed, room); !fault.empty()) damaged(fault);
  return {room.data(), room.size()};
}

void Column::next_page() {
  page_at_ = at_;
  if (at_ >= chunk_.end) damaged(format("{} entries are missing at the end of its pages", left_));
  PageHeader header;
  // A header has statistics with texts, which some writers do not cut.
  for (int64_t window = 4096;; window *= 8) {
    const int64_t most = std::min(window, chunk_.end - at_);
    Thrift thrift(read(at_, most, packed_));
    try {
      header = parse_header(thrift);
      break;
    } catch (const Error&) {
      if (!thrift.is_cut() || most < window || window >= kLargestHeader) throw;
    }
  }
  const int64_t body = at_ + static_cast<int64_t>(header.bytes);
  if (header.packed < 0 || header.packed > chunk_.end - body)
    damaged(format("a page of {} bytes in a chunk with {}", header.packed, chunk_.end - body));
  if (header.unpacked < 0 || std::max(header.unpacked, header.packed) > kLargestPage)
    damaged(
        format("a page of {} bytes (at most {} are expected)", std::max(header.unpacked, header.packed), kLargestPage));
  at_ = body + header.packed;
  if (header.type != kData && header.type != kData2 && header.type != kDictionaryPage) return;
  if (header.values < 0 || header.values > std::numeric_limits<int32_t>::max())
    damaged(format("a page of {} values", header.values));
  std::string_view packed = read(body, header.packed, packed_);
  if (header.crc && static_cast<uint32_t>(*header.crc) !=
                        ::crc32(0, reinterpret_cast<const Bytef*>(packed.data()), static_cast<uInt>(packed.size())))
    damaged("the page's CRC differs");
  if (header.type == kDictionaryPage) return read_dictionary(packed, header.unpacked, header.values, header.encoding);
  if (header.values > left_) damaged(format("a page of {} entries, {} are expected", header.values, left_));
  std::string_view values;
  std::string_view reps, defs;
  if (header.type == kData2) {
    if (header.rep_bytes < 0 || header.def_bytes < 0 || header.rep_bytes > header.packed ||
        header.def_bytes > header.packed - header.rep_bytes || header.rep_bytes + header.def_bytes > header.unpacked)
      damaged(format("levels of {} and {} bytes in a page of {}", header.rep_bytes, header.def_bytes, header.packed));
    reps = take(packed, static_cast<uint64_t>(header.rep_bytes));
    defs = take(packed, static_cast<uint64_t>(header.def_bytes));
    values = unpacked(packed, header.unpacked - header.rep_bytes - header.def_bytes,
                      header.is_compressed ? chunk_.codec : Codec::none, body_);
  } else {
    values = unpacked(packed, header.unpacked, chunk_.codec, body_);
    const auto levels = [&](int most, int64_t encoding) -> std::string_view {
      if (most == 0) return {};
      if (encoding != kRle) unsupported(encoding_name(encoding) + " of levels is", kOtherEncodings);
      return take(values, number<uint32_t>(take(values, 4)));
    };
    reps = levels(leaf_.max_rep, header.rep_encoding);
    defs = levels(leaf_.max_def, header.def_encoding);
  }
  reps_ = Hybrid(reps, width_of(leaf_.max_rep));
  defs_ = Hybrid(defs, width_of(leaf_.max_def));
  values_ = {};
  left_in_page_ = header.values;
  if (left_in_page_ > 0)
    values_ = Values(leaf_.type, header.encoding, values, has_dictionary_ ? &dictionary_ : nullptr);
}

void Column::read_dictionary(std::string_view packed, int64_t bytes, int64_t values, int64_t encoding) {
  if (encoding != kPlain && encoding != kPlainDictionary)
    unsupported("a dictionary in " + encoding_name(encoding) + " is", kOtherEncodings);
  if (leaf_.type == Type::boolean) unsupported("a dictionary of booleans is", kOtherEncodings);
  if (has_dictionary_) damaged("a second dictionary");
  Buffer buffer;
  std::string_view body = unpacked(packed, bytes, chunk_.codec, buffer);
  if (body.data() == packed.data()) body = read(at_ - std::ssize(packed), bytes, buffer);  // not in packed_
  dictionary_.assign(leaf_.type, std::move(buffer), body, values);
  has_dictionary_ = true;
}

}  // namespace trainer::data::parquet
