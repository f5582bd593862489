#include "data/text_start.h"

#include <algorithm>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "data/parquet.h"

namespace trainer::data {
namespace {

using namespace std::string_view_literals;

struct Signature {
  std::string_view bytes;
  const char* what;
  bool ascii = false;  // text may also begin like this
};
constexpr std::string_view kParquet = "PAR1";
constexpr Signature kSignatures[] = {
    {"\x1F\x8B\x08"sv, "gzip-compressed data; name it .gz (as in a.txt.gz), or unpack it (gunzip)"},
    {"\x28\xB5\x2F\xFD"sv, "Zstandard-compressed data; name it .zst (as in a.txt.zst), or unpack it (unzstd)"},
    {"\xFD\x37zXZ\0"sv, "xz-compressed data; unpack it first (unxz)"},
    {"PK\x03\x04"sv, "a ZIP archive; unpack it first (unzip)", true},
    {kParquet, "a Parquet table; name it .parquet (as in a.parquet)", true},
    {"version https://git-lfs.github.com/spec/"sv,
     "a pointer of Git LFS, not the file itself; download the file (`git lfs pull` in its repository)", true},
    {"\xFF\xFE"sv, "text in UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)"},
    {"\xFE\xFF"sv, "text in UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)"},
};
constexpr Signature kBzip2{"BZh", "bzip2-compressed data; unpack it first (bunzip2)", true};

/// Returns the signature that a file begins with, or null.
const Signature* signature_of(std::string_view start) {
  if (start.starts_with(kBzip2.bytes) && start.size() > 4 && start.substr(4).starts_with("1AY&SY")) return &kBzip2;
  const auto found =
      std::ranges::find_if(kSignatures, [&](const Signature& each) { return start.starts_with(each.bytes); });
  return found == std::end(kSignatures) ? nullptr : found;
}

}  // namespace

size_t byte_order_mark(std::string_view start) { return start.starts_with(kUtf8Mark) ? kUtf8Mark.size() : 0; }

void require_text(const std::string& file, std::string_view start, bool insisted) {
  const Signature* found = signature_of(start);
  if (found != nullptr && found->bytes == kParquet && !insisted && is_pipe(file)) refuse_parquet_pipe(file);
  if (found != nullptr && !(insisted && found->ascii))
    throw Error(Code::data, fmt::format("{}: offset 0: expected text, found {}", file, found->what));
  std::string copy(start);
  const Utf8Repair repair = utf8_repair(copy);
  if (10 * static_cast<size_t>(repair.replaced) <= start.size()) return;
  throw Error(Code::data,
              fmt::format("{}: offset {}: {} of the first {} bytes are not UTF-8; is this text? If its encoding is a "
                          "different one, write it as UTF-8 (iconv -f ENCODING -t UTF-8)",
                          file, repair.first, repair.replaced, start.size()));
}

void refuse_empty(const std::string& file) {
  throw Error(Code::data, fmt::format("{}: the file is empty; expected text", file));
}

bool has_text(const std::string& file, const Columns& columns) {
  std::string start(kUtf8Mark.size() + 1, '\0');
  start.resize(open_source(file, columns)->read_at(0, start.data(), start.size()));
  return start.size() > byte_order_mark(start);
}

int64_t line_of(const std::string& file, int64_t offset, const Columns& columns) {
  const auto text = open_source(file, columns);
  std::string block(size_t{1} << 20, '\0');
  int64_t lines = 1;
  for (int64_t at = 0; at < offset;) {
    const size_t requested = std::min(block.size(), static_cast<size_t>(offset - at));
    const size_t got = text->read_at(at, block.data(), requested);
    if (got == 0) break;
    lines += std::count(block.begin(), block.begin() + static_cast<std::ptrdiff_t>(got), '\n');
    at += static_cast<int64_t>(got);
  }
  return lines;
}

}  // namespace trainer::data
