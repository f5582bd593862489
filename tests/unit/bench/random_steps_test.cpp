#include "bench/random_steps.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "config/load.h"
#include "data/token_file.h"
#include "rigs/files.h"

namespace trainer::bench {
namespace {

/// A file of the tokens 0, 1, …: each sequence of a batch counts up, from a multiple of seq_len.
struct FileBatches : testing::Test {
  tests::TempFolder folder;
  std::string file = [this] {
    std::string bytes = data::token_header({.tokens = 41, .vocab_size = 41});
    for (int id = 0; id < 41; ++id) bytes += {static_cast<char>(id), '\0'};
    return tests::write(folder / "tokens.bin", bytes);
  }();
  config::Config config = config::load_text(
      "[model]\nn_layer = 1\nseq_len = 8\n[data]\nvocab_size = 41\n[train]\nsteps = 1\nglobal_batch = 4\n"
      "micro_batch = 2\n",
      "", {}, {.files = false});
};

TEST_F(FileBatches, HaveTheTokensOfTheFileAndRepeatThoseOfTheFirstStep) {
  const train::BatchSource source = file_batches(config, {file}, 1);
  std::vector<int32_t> starts;
  data::TokenBatch batch, again;
  for (const int64_t sample : {0, 2}) {
    source(sample, 2, batch);
    for (size_t row = 0; row < 16; ++row) {
      if (row % 8 == 0) starts.push_back(batch.ids[row]);
      EXPECT_EQ(batch.ids[row], starts.back() + static_cast<int32_t>(row % 8));
      EXPECT_EQ(batch.targets[row], batch.ids[row] + 1);
    }
    source(sample + 4, 2, again);
    EXPECT_EQ(again.ids, batch.ids);
  }
  std::ranges::sort(starts);
  EXPECT_TRUE(std::ranges::adjacent_find(starts) == starts.end()) << "a window occurs twice in a step";
  for (const int32_t start : starts) EXPECT_TRUE(start % 8 == 0 && start <= 32) << start;
}

TEST_F(FileBatches, RefuseTextAndTokensOutsideTheVocabulary) {
  const auto code_of = [&](const std::string& name) {
    try {
      file_batches(config, {name}, 1);
    } catch (const Error& error) {
      return error.code();
    }
    return Code::internal;
  };
  EXPECT_EQ(code_of(tests::write(folder / "text.txt", "She had never")), Code::usage);
  config.data.vocab_size = 40;
  EXPECT_EQ(code_of(file), Code::data);
}

}  // namespace
}  // namespace trainer::bench
