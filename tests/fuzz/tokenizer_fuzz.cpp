// A SentencePiece model. An accepted model encodes text and decodes it to the (possibly normalized) text, or rejects
// it.
#include <optional>

#include "data/tokenizer.h"
#include "fuzz.h"

using namespace trainer;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::optional<data::Tokenizer> tokenizer;
  const std::string bytes(fuzz::text_of(data, size));
  if (!fuzz::accepted({Code::data}, [&] { tokenizer = data::Tokenizer::from_bytes(bytes, "x.model"); })) return 0;
  TRAINER_CHECK(tokenizer->vocab_size() > 0 && tokenizer->eos() >= 0 && tokenizer->eos() < tokenizer->vocab_size(),
                "{} pieces, end {}", tokenizer->vocab_size(), tokenizer->eos());
  for (const std::string_view text :
       {"the cat sat", "a\n\tb  c\r\n", "na\xC3\xAFve \xE2\x96\x81 \xF0\x9F\x90\x88", "\x01\xFF"}) {
    std::vector<int32_t> ids;
    if (!fuzz::accepted({Code::data}, [&] { ids = tokenizer->encode(text); })) continue;
    for (const int32_t id : ids)
      TRAINER_CHECK(id >= 0 && id < tokenizer->vocab_size(), "token {} of {}", id, tokenizer->vocab_size());
    tokenizer->decode(ids);
  }
  return 0;
}
