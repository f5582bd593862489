// The older files of byte-level BPE: merges, a vocabulary, ranks. Accepted files become a tokenizer or are rejected as
// one.
#include <optional>

#include "data/bpe_file.h"
#include "data/tokenizer.h"
#include "fuzz.h"

using namespace trainer;

namespace {

template <typename F>
void check(F&& make_json) {
  std::string json;
  if (!fuzz::accepted({Code::data}, [&] { json = make_json(); })) return;
  std::optional<data::Tokenizer> tokenizer;
  if (!fuzz::accepted({Code::data}, [&] { tokenizer = data::Tokenizer::from_bytes(json, "x"); })) return;
  const std::string text = "the cat\n\n sat 123 \xF0\x9F\x90\x88 \xFF";
  const std::string back = tokenizer->decode(tokenizer->encode(text));
  TRAINER_CHECK(back == text, "gave back {}", back);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  check([&] { return data::json_of_gpt2(std::nullopt, text, "v", "m"); });
  check([&] { return data::json_of_gpt2(text, "t h\nth e\n", "v", "m"); });
  check([&] { return data::json_of_ranks(text, "r"); });
  return 0;
}
