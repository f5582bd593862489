// Splitting of documents that are longer than a piece.
#include <gtest/gtest.h>
#include <sentencepiece_trainer.h>

#include "data/token_file.h"
#include "data/tokenize.h"
#include "unit/data/fixtures.h"
#include "unit/data/small_bpe.h"

namespace trainer::data {
namespace {

using namespace testing;

std::vector<int32_t> tokens_of(const fs::path& output) {
  const TokenStream stream({output.string()});
  std::vector<int32_t> ids(static_cast<size_t>(stream.tokens()));
  stream.copy(0, ids);
  return ids;
}

TEST(Tokenize, SplitsDocumentsOnlyWhereNoTokenSpansTheCut) {
  // Words of these patterns span spaces and line ends; added tokens do, too.
  std::mt19937_64 merges(4);
  const auto byte_level = [&](const std::vector<std::string>& patterns) {
    nlohmann::json file = small_json(merges, 300, {"a", "b", "c", "Ġ", "Ċ", "."}), steps = nlohmann::json::array();
    for (const std::string& pattern : patterns)
      steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
    steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
    file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
    const auto id = file["added_tokens"][0]["id"].get<int32_t>();
    file["added_tokens"].push_back({{"id", id + 1}, {"content", "c a\nb"}, {"special", false}});
    return Tokenizer::from_bytes(file.dump(), "x");
  };
  const auto sentencepiece = [&](const nlohmann::json& settings) {
    TempFolder folder;
    std::string text;
    for (int i = 0; i < 8000; ++i) text += i % 100 == 99 ? '\n' : "abc  ."[pick(merges, 6)];
    std::unordered_map<std::string, std::string> all = {{"input", write(folder / "t.txt", text)},
                                                        {"model_prefix", (folder / "m").string()},
                                                        {"minloglevel", "2"},
                                                        {"vocab_size", "400"},
                                                        {"byte_fallback", "true"},
                                                        {"hard_vocab_limit", "false"},
                                                        {"model_type", "bpe"}};
    for (const auto& [key, value] : settings.items()) all[key] = value;
    EXPECT_TRUE(sentencepiece::SentencePieceTrainer::Train(all).ok());
    return Tokenizer::from_bytes(read_file(folder / "m.model"), "x");
  };
  const nlohmann::json identity{{"normalization_rule_name", "identity"}, {"remove_extra_whitespaces", "false"}};
  nlohmann::json spanning = identity;
  spanning["split_by_whitespace"] = "false";
  const std::vector<Tokenizer> tokenizers = {byte_level({}),
                                             byte_level({"[abc]+( [abc]+)?|\\s+"}),
                                             byte_level({"\\.", "a[^a]*a"}),
                                             sentencepiece(identity),
                                             sentencepiece(spanning),
                                             sentencepiece(nlohmann::json::object()),
                                             sentencepiece({{"split_by_whitespace", "false"}})};
  TempFolder folder;
  for (size_t i = 0; i < tokenizers.size(); ++i)
    for (uint64_t seed = 0; seed < 6; ++seed) {
      Random random(seed);
      std::string text = "a";
      while (text.size() < 40'000) {
        text += "abc"[pick(random, 3)];
        if (pick(random, 3) == 0)
          text += std::vector{" ", "  ", ".", " ", "c a\nb"}[static_cast<size_t>(pick(random, 5))];
        if (seed % 2 == 0 && pick(random, 60) == 0) text += '\n';
      }
      const std::string file = write(folder / "a.txt", text);
      std::vector<int32_t> expected = tokenizers[i].encode(text);
      expected.push_back(tokenizers[i].eos());
      for (const int64_t bytes : {2000, 5000}) {
        tokenize_files({file}, tokenizers[i], folder / "o.bin", {.from_scratch = true, .piece_bytes = bytes});
        ASSERT_EQ(tokens_of(folder / "o.bin"), expected) << "tokenizer " << i << " seed " << seed;
      }
    }
}

}  // namespace
}  // namespace trainer::data
