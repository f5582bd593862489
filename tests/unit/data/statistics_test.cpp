#include "data/statistics.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "data/model_traits.h"
#include "data/tokenize.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

TEST(Statistics, EvaluatedBytesLeaveOutTheDummyPrefix) {
  const std::string text = "It is\n a truth\nuniversally acknowledged\n\n  that\n";
  TempFolder folder;
  const std::string file = write(folder / "text.txt", text);
  for (const config::Document document : {config::Document::file, config::Document::line})
    for (const bool bos : {false, true}) {
      Tokenizer t = Tokenizer::from_bytes(small_tokenizer().bytes() + std::string(kDummyPrefix), "x");
      ASSERT_TRUE(t.dummy_prefix());
      if (bos) t.use_bos(t.name_of(1) == "<s>" ? 1 : -1);
      TokenizeOptions options{.text = {.document = document}, .from_scratch = true};
      const TokenizeResult made = tokenize_files({file}, t, folder / "o.bin", options);
      std::vector<int32_t> ids(static_cast<size_t>(made.tokens));
      TokenStream({made.tokens_file.string()}).copy(0, ids);
      TokenBatch batch;
      batch.resize(1, made.tokens);
      batch.targets = ids;
      std::ranges::copy(ids.begin(), ids.end() - 1, batch.ids.begin() + 1);
      batch.ids[0] = t.eos();
      EXPECT_EQ(evaluated_bytes(t, batch), made.text_bytes) << bos;
    }
}

}  // namespace
}  // namespace trainer::data
