// Token files. The first byte selects the kind of the rest: 'b' a token file; 'd' its document index and 'i' a Megatron
// index, where one more byte is the number of tokens in the file next to it.
#include <algorithm>

#include "data/token_file.h"
#include "fuzz.h"
#include "rigs/files.h"

using namespace trainer;
namespace fs = std::filesystem;

namespace {

void read_everything(const std::string& path) {
  const data::TokenStream stream({path});
  TRAINER_CHECK(stream.tokens() > 0 && stream.tokens() <= static_cast<int64_t>(fs::file_size(path)), "{} tokens",
                stream.tokens());
  std::vector<int32_t> tokens(static_cast<size_t>(stream.tokens()));
  stream.copy(0, tokens);
  stream.fingerprint();
  std::vector<int64_t> starts;
  stream.append_starts(0, tokens, 0, starts);
  TRAINER_CHECK(!starts.empty() && starts.front() == 0 && starts.back() < stream.tokens() &&
                    std::ranges::is_sorted(starts, std::less_equal<>()),
                "{} starts of {} tokens", starts.size(), stream.tokens());
  for (int64_t position = 0; position <= stream.tokens(); position += std::max<int64_t>(stream.tokens() / 16, 1)) {
    for (const int64_t distance : {int64_t{0}, int64_t{3}, stream.tokens()}) {
      const auto end = stream.document_end_near(position, distance);
      TRAINER_CHECK(!end || (*end > 0 && *end < stream.tokens() && std::abs(*end - position) <= distance),
                    "a document ends at {} of {}, {} from {}", *end, stream.tokens(), distance, position);
    }
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tests::TempFolder folder;
  std::string_view input = fuzz::text_of(data, size);
  const char kind = input.empty() ? 'b' : input[0];
  input = input.substr(std::min<size_t>(1, size));
  const fs::path tokens = folder / "x.bin", documents = folder / "x.docs", megatron = folder / "x.idx";
  fs::remove(documents);
  fs::remove(megatron);
  if (kind == 'd' || kind == 'i') {
    const size_t count = input.empty() ? 0 : static_cast<uint8_t>(input[0]);
    tests::write(tokens, std::string(2 * count, '\1'));
    tests::write(kind == 'd' ? documents : megatron, input.substr(std::min<size_t>(1, input.size())));
  } else {
    tests::write(tokens, input);
  }
  fuzz::accepted({Code::data}, [&] { read_everything(tokens); });
  return 0;
}
