#include "data/positions.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace trainer::data {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little, "files of positions are little-endian");

constexpr int64_t kPosition = sizeof(int64_t), kMagicAndCount = 8 + kPosition;

fs::path positions_path(const fs::path& token_file, const PositionsKind& kind) {
  return fs::path(token_file).replace_extension(kind.extension);
}

std::string positions_header(const PositionsKind& kind, int64_t units) {
  std::string bytes(kind.magic);
  bytes.append(reinterpret_cast<const char*>(&units), sizeof units);
  return bytes;
}

void NumberReader::load(int64_t offset, int64_t bytes) const {
  constexpr auto most = static_cast<int64_t>(sizeof block_);
  end_ = 0;  // nothing, should the file be damaged
  begin_ = std::max<int64_t>(0, offset - most / 2);
  const int64_t end = std::max(offset + bytes, std::min(begin_ + most, file_.size()));
  file_.read(begin_, std::span(block_).first(static_cast<size_t>(end - begin_)));
  end_ = end;
}

PositionsFile::PositionsFile(const fs::path& path, const PositionsKind& kind, int64_t tokens)
    : file_(path), kind_(kind), tokens_(tokens) {
  const auto fail = [&](int64_t offset, const std::string& reason) {
    throw Error(Code::data, fmt::format("{}: offset {}: {}", path.string(), offset, reason));
  };
  std::string magic(kind.magic.size(), '\0');
  const bool has_header = file_.size() >= kMagicAndCount + (kind.begins_at_0 ? kPosition : 0);
  if (has_header) file_.read(0, std::as_writable_bytes(std::span(magic)));
  if (magic != kind.magic)
    fail(0, fmt::format("not a {} (expected it to start with \"{}\"); {}", kind.name, kind.magic, kind.remedy));
  units_ = numbers_.at<int64_t>(kPosition);
  const int64_t room = (file_.size() - offset_of(0)) / kPosition - kind.begins_at_0, whole = room / kind.per_unit;
  if (units_ != whole || room % kind.per_unit != 0 || file_.size() % kPosition != 0)
    fail(file_.size(),
         fmt::format("truncated: the header states {} {}, but there is room for {}", units_, kind.unit, whole));
}

int64_t PositionsFile::offset_of(int64_t n) const { return kMagicAndCount + kPosition * n; }

void PositionsFile::refuse(int64_t n, const std::string& reason) const {
  throw Error(Code::data, fmt::format("{}: offset {}: {}", file_.path().string(), offset_of(n), reason));
}

int64_t PositionsFile::at(int64_t n) const {
  const auto position = numbers_.at<int64_t>(offset_of(n));
  if (position < 0 || position > tokens_)
    refuse(n, fmt::format("one of its {} ends at token {} of {}", kind_.unit, position, tokens_));
  return position;
}

PositionsWriter::PositionsWriter(const fs::path& path, const PositionsKind& kind)
    : kind_(kind), file_(File::open_to_write(path)) {}

int64_t PositionsWriter::bytes_of(int64_t units) const {
  return kMagicAndCount + kPosition * (kind_.begins_at_0 + units * kind_.per_unit);
}

void PositionsWriter::resume_at(int64_t units) {
  file_.truncate(bytes_of(units));
  units_ = units;
}

void PositionsWriter::append(std::vector<int64_t> positions, int64_t base) {
  for (int64_t& position : positions) position += base;
  file_.write_at(bytes_of(units_), {reinterpret_cast<const char*>(positions.data()), positions.size() * kPosition});
  units_ += std::ssize(positions) / kind_.per_unit;
}

void PositionsWriter::finish() {
  file_.write_at(0, positions_header(kind_, units_) + std::string(kind_.begins_at_0 ? kPosition : 0, '\0'));
  file_.sync();
}

}  // namespace trainer::data
