#include "data/dataset.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <iostream>
#include <set>

#include "data/mixture.h"
#include "data/positions.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

TEST(FeistelPermutation, HitsEveryIndexOnce) {
  for (const uint64_t n : {1,  2,   3,   4,   5,   7,    8,    9,    15,   16,   17,    31,    32,    33,    63,    64,
                           65, 100, 255, 256, 257, 1000, 1023, 1024, 1025, 4097, 10007, 65535, 65536, 65537, 200003}) {
    for (const uint64_t epoch : {0, 1, 5}) {
      const FeistelPermutation permutation(n, 42, epoch);
      std::vector<bool> hit(n);
      for (uint64_t i = 0; i < n; ++i) {
        const uint64_t image = permutation(i);
        ASSERT_LT(image, n);
        ASSERT_FALSE(hit[image]) << "n " << n << " epoch " << epoch << " index " << i;
        hit[image] = true;
      }
    }
  }
}

TEST(FeistelPermutation, StaysInRangeForHugeSizes) {
  for (const uint64_t n : {uint64_t{1} << 32, (uint64_t{1} << 40) + 12345, uint64_t{1} << 62}) {
    const FeistelPermutation permutation(n, 1, 0);
    std::set<uint64_t> images;
    for (uint64_t i = 0; i < 1000; ++i) images.insert(permutation(i));
    EXPECT_EQ(images.size(), 1000u);
    EXPECT_LT(*images.rbegin(), n);
  }
}

TEST(FeistelPermutation, DiffersBetweenEpochsAndSeedsAndFromTheIdentity) {
  const uint64_t n = 1000;
  const auto agreements = [&](const FeistelPermutation& a, const FeistelPermutation& b) {
    int same = 0;
    for (uint64_t i = 0; i < n; ++i) same += a(i) == b(i);
    return same;
  };
  const FeistelPermutation first(n, 1, 0), next_epoch(n, 1, 1), other_seed(n, 2, 0);
  EXPECT_LT(agreements(first, next_epoch), 10);  // Poisson distribution with mean 1
  EXPECT_LT(agreements(first, other_seed), 10);
  int fixed = 0;
  for (uint64_t i = 0; i < n; ++i) fixed += first(i) == i;
  EXPECT_LT(fixed, 10);
}

TEST(FeistelPermutation, GivesTheNumbersOfAnIndependentProgram) {
  using List = std::vector<uint64_t>;
  const auto first_eight = [](const FeistelPermutation& permutation) {
    List images;
    for (uint64_t i = 0; i < 8; ++i) images.push_back(permutation(i));
    return images;
  };
  EXPECT_EQ(first_eight({10, 0, 0}), (List{7, 9, 5, 2, 4, 0, 1, 8}));
  EXPECT_EQ(first_eight({10, 0, 1}), (List{6, 4, 7, 5, 1, 0, 3, 8}));
  EXPECT_EQ(first_eight({1000003, 1234567890123, 2}),
            (List{119031, 417312, 7094, 568974, 649120, 772487, 959334, 92025}));
  EXPECT_EQ(first_eight({(uint64_t{1} << 40) + 1, 7, 3}),
            (List{542140773187, 654831847146, 781696955412, 1094237142043, 938432511839, 763887042912, 24714557985,
                  257824225291}));
}

TEST(FeistelPermutation, LooksRandom) {
  // Mean and serial correlation of n images are within five standard deviations of a random permutation's.
  const int n = 20000;
  const FeistelPermutation permutation(n, 3, 0);
  double lag = 0, half = 0;
  for (int i = 0; i < n; ++i) {
    const double x = (static_cast<double>(permutation(i)) + 0.5) / n - 0.5;
    const double y = (static_cast<double>(permutation((i + 1) % n)) + 0.5) / n - 0.5;
    lag += 12 * x * y;
    if (i < n / 2) half += x;
  }
  EXPECT_LT(std::abs(lag) / n, 5 / std::sqrt(n));
  EXPECT_LT(std::abs(half) / (n / 2), 5 * std::sqrt(1.0 / 12 / n));
}

std::shared_ptr<const TokenStream> counting_stream(const TempFolder& folder, int tokens) {
  std::vector<int> ids(tokens);
  for (int i = 0; i < tokens; ++i) ids[i] = i;
  return std::make_shared<TokenStream>(std::vector{write(folder / "count.bin", packed<uint16_t>(ids))});
}

TEST(TokenDataset, MakesWindowsThatShareOneToken) {
  TempFolder folder;
  const auto stream = counting_stream(folder, 1000);
  for (const int64_t seq_len : {1, 3, 10, 16, 333, 999}) {
    const TokenDataset dataset(stream, seq_len, 0);
    EXPECT_EQ(dataset.windows(), 999 / seq_len);
    TokenBatch batch;
    dataset.eval_batch(0, dataset.windows(), batch);
    EXPECT_EQ(batch.seq_len, seq_len);
    for (int64_t row = 0; row < dataset.windows() * seq_len; ++row) {
      ASSERT_EQ(batch.ids[row], row);
      ASSERT_EQ(batch.targets[row], row + 1);
      ASSERT_EQ(batch.weights[row], 1.0f);
    }
  }
}

TEST(TokenDataset, KeepsToItsPartOfTheStream) {
  TempFolder folder;
  const auto stream = counting_stream(folder, 1000);
  const TokenDataset dataset(stream, 10, 0, 500, 545);
  EXPECT_EQ(dataset.tokens(), 45);
  EXPECT_EQ(dataset.windows(), 4);
  TokenBatch batch;
  dataset.train_batch(0, 4, batch);
  EXPECT_EQ(*std::ranges::min_element(batch.ids), 500);
  EXPECT_EQ(*std::ranges::max_element(batch.targets), 540);
  expect_error(Code::data, {"count.bin", "11", "starting at token 500"},
               [&] { TokenDataset(stream, 10, 0, 500, 510); });
  EXPECT_EQ(TokenDataset(stream, 10, 0, 500, 511).windows(), 1);
}

TEST(TokenDataset, TrainsEachWindowOnceAnEpochInAnOrderOfItsOwn) {
  TempFolder folder;
  const TokenDataset dataset(counting_stream(folder, 1001), 10, 5);
  std::vector<int64_t> epochs[2];
  for (int64_t n = 0; n < 200; ++n) epochs[n / 100].push_back(dataset.window_of(n));
  EXPECT_NE(epochs[0], epochs[1]);
  for (auto& epoch : epochs) {
    std::ranges::sort(epoch);
    for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(epoch[i], i);
  }
}

TEST(TokenDataset, GivesTheSameSequencesHoweverTheyAreGrouped) {
  TempFolder folder;
  const TokenDataset dataset(counting_stream(folder, 1001), 7, 5);
  TokenBatch whole, part;
  dataset.train_batch(120, 60, whole);  // crosses an epoch
  for (int64_t n = 0; n < 60; n += 4) {
    dataset.train_batch(120 + n, 4, part);
    ASSERT_TRUE(std::equal(part.ids.begin(), part.ids.end(), whole.ids.begin() + n * 7));
    ASSERT_TRUE(std::equal(part.targets.begin(), part.targets.end(), whole.targets.begin() + n * 7));
  }
}

TEST(TokenDataset, MasksWindowsPastTheEnd) {
  TempFolder folder;
  const TokenDataset dataset(counting_stream(folder, 41), 10, 0);
  TokenBatch batch;
  dataset.eval_batch(3, 4, batch);
  EXPECT_EQ(std::count(batch.weights.begin(), batch.weights.end(), 1.0f), 10);
  EXPECT_EQ(batch.weights[9], 1.0f);
  EXPECT_EQ(batch.weights[10], 0.0f);
  EXPECT_EQ(batch.ids[0], 30);
  dataset.eval_batch(9, 2, batch);
  EXPECT_EQ(std::count(batch.weights.begin(), batch.weights.end(), 0.0f), 20);
}

TEST(TokenDataset, MarksTheRowsAtWhichDocumentsStart) {
  TempFolder folder;
  std::vector<int> ids(1001);
  Random random(7);
  for (int& id : ids) id = static_cast<int>(pick(random, 12));  // 0 ends documents
  const std::string header = token_header({1001, 12, 0, ""});
  const auto stream =
      std::make_shared<TokenStream>(std::vector{write(folder / "a.bin", header + packed<uint16_t>(ids))});
  for (const int64_t seq_len : {1, 7, 10, 1000}) {
    const TokenDataset dataset(stream, seq_len, 5, 0);
    TokenBatch batch;
    std::vector<int64_t> expected;
    const auto expect_row = [&](int64_t row, int64_t window) {
      for (int64_t t = 0; t < seq_len; ++t)
        if (const int64_t at = window * seq_len + t; at == 0 || ids[at - 1] == 0) expected.push_back(row * seq_len + t);
    };
    const int64_t windows = dataset.windows();
    for (int again = 0; again < 2; ++again) {  // the second time into a used batch
      dataset.train_batch(3, windows, batch);
      expected.clear();
      for (int64_t row = 0; row < windows; ++row) expect_row(row, dataset.window_of(3 + row));
      EXPECT_EQ(batch.starts, expected) << seq_len;
    }
    dataset.eval_batch(windows - 1, 3, batch);  // two windows are past the end
    expected.clear();
    expect_row(0, windows - 1);
    EXPECT_EQ(batch.starts, expected) << seq_len;
  }
}

// The times are printed for tests/bench/RESULTS.md: processor time, since machines are shared.
TEST(TokenDataset, FindsSamplesAndStartsInMicroseconds) {
  TempFolder folder;
  constexpr int64_t kTokens = 500'000'000, kSeqLen = 1024, kLookUps = 50'000;
  std::vector<int64_t> ends = {0};
  Random random(1);
  while (ends.back() < kTokens) ends.push_back(std::min(kTokens, ends.back() + 1 + pick(random, 1000)));
  const std::string index = positions_header(kDocuments, static_cast<int64_t>(ends.size()) - 1) + packed<int64_t>(ends);
  write(folder / "a.docs", index);
  const auto sparse = [&](const char* name) {  // a sparse file: zeros, none of which ends a document
    const std::string file = write(folder / name, token_header({kTokens, 300, 2, ""}));
    fs::resize_file(file, static_cast<uintmax_t>(kTokenHeaderBytes + 2 * kTokens));
    return std::make_shared<TokenStream>(std::vector{file});
  };
  const auto indexed = sparse("a.bin"), plain = sparse("b.bin");
  WeightsByName weights;
  for (int i = 0; i < 100; ++i) weights["source-" + std::to_string(i)] = i + 1;
  const Mixture mixture({}, 0, {{0, weights}});
  const TokenDataset dataset(indexed, kSeqLen, 1);
  std::vector<int64_t> starts;
  std::vector<int32_t> ids(kSeqLen);
  const auto timed = [&](const char* what, auto&& act) {
    const std::clock_t start = std::clock();
    int64_t sum = 0;
    for (int64_t n = 0; n < kLookUps; ++n) sum += act(n + 1'000'000'000'000);
    const double each = 1e9 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / kLookUps;
    std::cout << what << ": " << each << " ns\n";
    EXPECT_LT(each, 50'000) << what << sum;
  };
  const auto starts_of = [&](const TokenStream& stream, int64_t windows) {
    return [&, windows](int64_t n) {
      starts.clear();
      stream.append_starts(n * 7919 % windows * kSeqLen, ids, 0, starts);
      return static_cast<int64_t>(starts.size());
    };
  };
  timed("window of a sample of 100 sources", [&](int64_t n) { return dataset.window_of(mixture.at(n).index); });
  timed("starts in a window of 1024, by an index of a million documents", starts_of(*indexed, kTokens / kSeqLen));
  timed("starts in a window of 1024, by the end-of-text token",
        starts_of(*plain, 100));  // 100 windows: in training their pages were just read
}

TEST(TokenDataset, ReadsAheadWithoutHarm) {
  TempFolder folder;
  const TokenDataset dataset(counting_stream(folder, 1001), 10, 5);
  dataset.prefetch(95, 20);
}

}  // namespace
}  // namespace trainer::data
