// Compressed text. The first byte: its lowest bit selects .gz or .zst, the other bits the size of reads. Whatever the
// size of reads, the text is the same, or the input is rejected.
#include <algorithm>

#include "data/byte_source.h"
#include "fuzz.h"
#include "rigs/files.h"

using namespace trainer;

namespace {

constexpr size_t kMost = size_t{8} << 20;  // a few bytes may unpack to gigabytes

/// Returns at most kMost bytes of the text, and whether the input was rejected.
std::pair<std::string, bool> read(const std::string& file, size_t part) {
  std::string text;
  const bool whole = fuzz::accepted({Code::data}, [&] {
    const auto source = data::open_source(file, {});
    std::string block(part, '\0');
    while (text.size() < kMost) {
      const size_t got = source->read_at(static_cast<int64_t>(text.size()), block.data(), part);
      if (got == 0) break;
      text.append(block, 0, std::min(got, kMost - text.size()));
    }
  });
  return {whole ? text : "", !whole};
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tests::TempFolder folder;
  const std::string_view input = fuzz::text_of(data, size);
  const size_t flags = input.empty() ? 0 : static_cast<uint8_t>(input[0]);
  const std::string file = folder / ((flags & 1) != 0 ? "x.zst" : "x.gz");
  tests::write(file, input.substr(std::min<size_t>(1, size)));
  const auto whole = read(file, size_t{1} << 20), parts = read(file, 100 + 40 * flags);
  // If both stop at kMost, the larger reads may reach damage that the smaller reads do not.
  TRAINER_CHECK(whole == parts || (whole.second && parts.first.size() == kMost), "{} bytes, or {} in parts",
                whole.first.size(), parts.first.size());
  return 0;
}
