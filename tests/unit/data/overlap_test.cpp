#include "data/overlap.h"

#include "data/token_file.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

TEST(Overlap, IsFoundWhereverTheValidationTokensLie) {
  TempFolder folder;
  Random random(3);
  std::vector<uint16_t> tokens(3'000'000);  // the search reads them in three blocks
  for (uint16_t& token : tokens) token = static_cast<uint16_t>(random() % 1000);
  const auto stream = [&](const char* name, const std::vector<uint16_t>& values) {
    return std::make_shared<TokenStream>(std::vector{write(folder / name, packed<uint16_t>(values))});
  };
  const auto train = stream("train.bin", tokens);
  const TokenDataset all(train, 16, 1), begin(train, 16, 1, 0, 1'000'000);
  for (const int64_t at : {int64_t{0}, int64_t{1'048'000}, int64_t{2'990'000}}) {
    const std::vector<uint16_t> part(tokens.begin() + at, tokens.begin() + at + 10'000);
    const TokenDataset val(stream("val.bin", part), 16, 1);
    EXPECT_NE(overlap_of(all, val).find("8 of 8 sampled passages"), std::string::npos) << at;
    EXPECT_EQ(overlap_of(begin, val).empty(), at > 0) << "only what is trained on counts";
  }
  std::vector<uint16_t> half(tokens.begin(), tokens.begin() + 10'000);
  for (size_t i = 5'000; i < half.size(); ++i) half[i] = static_cast<uint16_t>(random() % 1000);
  EXPECT_NE(overlap_of(all, TokenDataset(stream("half.bin", half), 16, 1)).find("4 of 8"), std::string::npos);
  for (uint16_t& token : half) token = static_cast<uint16_t>(random() % 1000);
  EXPECT_EQ(overlap_of(all, TokenDataset(stream("other.bin", half), 16, 1)), "");
  const std::vector<uint16_t> few(tokens.begin(), tokens.begin() + 100);
  EXPECT_EQ(overlap_of(all, TokenDataset(stream("few.bin", few), 16, 1)), "") << "too few to tell";
}

}  // namespace
}  // namespace trainer::data
