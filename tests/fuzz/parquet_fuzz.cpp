// Parquet files. Whatever the size of reads, the rows are the same JSON objects, or the input is rejected.
#include <algorithm>

#include "data/parquet.h"
#include "fuzz.h"
#include "rigs/files.h"

using namespace trainer;

namespace {

constexpr size_t kMost = size_t{1} << 20;  // a few bytes may state a billion rows

/// Returns at most kMost bytes of the rows, and whether the input was rejected.
std::pair<std::string, bool> read(const std::string& file, size_t part) {
  std::string text;
  const bool whole = fuzz::accepted({Code::data}, [&] {
    const auto source = data::open_parquet(file, {"text", "messages", "id"}, nullptr);
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
  const std::string file = folder / "x.parquet";
  tests::write(file, fuzz::text_of(data, size));
  const auto whole = read(file, size_t{1} << 16), parts = read(file, 777);
  // If both stop at kMost, the larger reads may reach damage that the smaller reads do not.
  TRAINER_CHECK(whole == parts || (whole.second && parts.first.size() == kMost), "{} bytes, or {} in parts",
                whole.first.size(), parts.first.size());
  TRAINER_CHECK(whole.first.empty() || whole.first.starts_with("{\""), "rows begin with {:.20}", whole.first);
  return 0;
}
