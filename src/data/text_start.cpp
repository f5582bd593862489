#include "data/text_start.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"

namespace trainer::data {
namespace {

using namespace std::string_view_literals;

constexpr size_t kLongest = 10;
constexpr std::string_view kUtf8Mark = "\xEF\xBB\xBF";

struct Signature {
  std::string_view bytes;
  const char* what;
};
constexpr Signature kSignatures[] = {
    {"\x1F\x8B\x08"sv, "gzip-compressed data; unpack it first (gunzip)"},
    {"\x28\xB5\x2F\xFD"sv, "Zstandard-compressed data; unpack it first (unzstd)"},
    {"\xFD\x37zXZ\0"sv, "xz-compressed data; unpack it first (unxz)"},
    {"PK\x03\x04"sv, "a ZIP archive; unpack it first (unzip)"},
    {"PAR1"sv, "a Parquet table; write each text as an object on a line of its own, as .jsonl"},
    {"\xFF\xFE"sv, "text in UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)"},
    {"\xFE\xFF"sv, "text in UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)"},
};

std::string start_of(const File& file) {
  std::string start(kLongest, '\0');
  start.resize(file.read_at(0, start.data(), start.size()));
  return start;
}

}  // namespace

int64_t byte_order_mark(const File& file) {
  return start_of(file).starts_with(kUtf8Mark) ? static_cast<int64_t>(kUtf8Mark.size()) : 0;
}

void require_text(const File& file) {
  const std::string start = start_of(file);
  const auto bzip2 = start.starts_with("BZh") && start.size() == kLongest && start.substr(4) == "1AY&SY";
  const auto found =
      std::ranges::find_if(kSignatures, [&](const Signature& each) { return start.starts_with(each.bytes); });
  if (!bzip2 && found == std::end(kSignatures)) return;
  throw Error(Code::data, fmt::format("{}: offset 0: expected text, found {}", file.path().string(),
                                      bzip2 ? "bzip2-compressed data; unpack it first (bunzip2)" : found->what));
}

int64_t line_of(const std::string& file, int64_t offset) {
  const File text = File::open_input(file);
  std::string block(size_t{1} << 20, '\0');
  int64_t lines = 1;
  for (int64_t at = 0; at < offset;) {
    const size_t wanted = std::min(block.size(), static_cast<size_t>(offset - at));
    const size_t got = text.read_at(at, block.data(), wanted);
    if (got == 0) break;
    lines += std::count(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(got), '\n');
    at += static_cast<int64_t>(got);
  }
  return lines;
}

}  // namespace trainer::data
