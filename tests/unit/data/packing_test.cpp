#include "data/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/philox.h"
#include "data/positions.h"
#include "data/training_data.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

constexpr int kEos = 9000;

/// Writes documents of these lengths as a token file whose tokens are their positions, with an index of documents, and
/// with these loss spans, if there are any.
std::shared_ptr<const TokenStream> stream_of(const TempFolder& folder, const std::vector<int64_t>& lengths,
                                             const std::vector<TokenRange>& spans = {}) {
  std::vector<int> ids;
  std::vector<uint64_t> ends = {0}, bounds;
  for (const int64_t length : lengths) {
    for (int64_t i = 0; i < length; ++i) ids.push_back(static_cast<int>(ids.size()));
    ends.push_back(ids.size());
  }
  for (const auto& [begin, end] : spans) bounds.insert(bounds.end(), {uint64_t(begin), uint64_t(end)});
  const auto file = folder / "tokens.bin";
  write(file, token_header({.tokens = std::ssize(ids), .vocab_size = kEos + 1, .eos = kEos, .spans = !spans.empty()}) +
                  packed<uint16_t>(ids));
  const auto positions = [](const std::vector<uint64_t>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * 8);
  };
  write(positions_path(file, kDocuments), positions_header(kDocuments, std::ssize(lengths)) + positions(ends));
  if (!spans.empty())
    write(positions_path(file, kSpans), positions_header(kSpans, std::ssize(spans)) + positions(bounds));
  return std::make_shared<const TokenStream>(std::vector{file.string()});
}

TokenDataset packed_set(const TempFolder& folder, const std::shared_ptr<const TokenStream>& stream, int64_t seq_len,
                        int64_t begin = 0, int64_t end = -1, int64_t block = int64_t{1} << 20) {
  if (end < 0) end = stream->tokens();
  const auto path = folder / "tokens.pack";
  return {stream,
          seq_len,
          1,
          begin,
          end,
          "data.permutation",
          packing_index(
              stream, seq_len, begin, end, path, [&] { return path; }, {}, block)};
}

using Window = std::vector<Excerpt>;
std::vector<Window> windows_of(const TokenDataset& set) {
  std::vector<Window> windows;
  for (int64_t w = 0; w < set.windows(); ++w) windows.push_back(set.excerpts(w));
  return windows;
}

const std::vector<int64_t> kLengths = {5, 20, 3, 8, 2, 1, 9, 4, 6, 2};

// From an independent program.
TEST(Packing, PutsDocumentsOfTextIntoTheWindowsWithTheLeastRoomThatIsEnough) {
  TempFolder folder;
  const TokenDataset set = packed_set(folder, stream_of(folder, kLengths), 7);
  EXPECT_EQ(windows_of(set), (std::vector<Window>{{{0, 5}, {25, 3}},
                                                  {{5, 8}},
                                                  {{12, 8, true}},
                                                  {{19, 6, true}, {36, 2}},
                                                  {{28, 8}},
                                                  {{39, 8}},
                                                  {{46, 2, true}, {52, 6}},
                                                  {{48, 4}, {58, 2}}}));
  EXPECT_EQ(set.packing()->tokens(), 62);
  TokenBatch batch;
  set.eval_batch(0, 8, batch);
  const auto row = [&](int64_t w, const auto& values) {
    return std::vector<int>(values.begin() + 7 * w, values.begin() + 7 * (w + 1));
  };
  EXPECT_EQ(row(0, batch.ids), (std::vector<int>{0, 1, 2, 3, 4, 25, 26}));
  EXPECT_EQ(row(0, batch.targets), (std::vector<int>{1, 2, 3, 4, 25, 26, 27}));
  EXPECT_EQ(row(6, batch.weights), (std::vector<int>{1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(row(7, batch.ids), (std::vector<int>{48, 49, 50, 51, 58, 59, kEos}));
  EXPECT_EQ(row(7, batch.weights), (std::vector<int>{1, 1, 1, 1, 1, 0, 0}));
  std::vector<int64_t> starts;
  for (const int64_t start : batch.starts)
    if (start >= 49) starts.push_back(start - 49);
  EXPECT_EQ(starts, (std::vector<int64_t>{0, 4, 6}));
  EXPECT_EQ(set.counted(7), 5);
}

TEST(Packing, KeepsTheBeginningOfEachConversation) {
  TempFolder folder;
  const TokenDataset all =
      packed_set(folder, stream_of(folder, kLengths, {{0, 60}}), 7);  // from an independent program
  EXPECT_EQ(
      windows_of(all),
      (std::vector<Window>{{{0, 5}, {25, 3}}, {{5, 8}}, {{28, 8}}, {{36, 2}, {52, 6}}, {{39, 8}}, {{48, 4}, {58, 2}}}));
  EXPECT_EQ(all.packing()->cut(), 2);
  EXPECT_EQ(all.packing()->left_out(), 1);  // that of one token, which nothing predicts
  // The document of 4 tokens has no token that counts.
  const TokenDataset set = packed_set(folder, stream_of(folder, kLengths, {{0, 48}, {52, 60}}), 7);
  EXPECT_EQ(windows_of(set),
            (std::vector<Window>{{{0, 5}, {25, 3}}, {{5, 8}}, {{28, 8}}, {{36, 2}, {52, 6}}, {{39, 8}}, {{58, 2}}}));
  EXPECT_EQ(set.packing()->cut(), 2);
  EXPECT_EQ(set.packing()->left_out(), 2);
}

/// Expects every token to be a counted target as often as the rules say, and windows to be disjoint in their targets.
void expect_each_predicted_once(const TokenDataset& set, const std::vector<int64_t>& lengths, int64_t begin,
                                int64_t end, const std::set<int64_t>* counts) {
  std::map<int64_t, int> seen;
  std::set<int64_t> firsts;
  TokenBatch batch;
  int64_t counted = 0;
  for (int64_t w = 0; w < set.windows(); ++w) {
    const Window window = set.excerpts(w);
    firsts.insert(window.front().begin);
    set.eval_batch(w, 1, batch);
    int64_t own = 0;
    for (int64_t r = 0; r < set.seq_len(); ++r) {
      if (batch.weights[static_cast<size_t>(r)] == 0) continue;
      ++seen[batch.targets[static_cast<size_t>(r)]];
      ++own;
    }
    EXPECT_EQ(own, set.counted(w));
    EXPECT_GT(own, 0);
    counted += own;
  }
  EXPECT_EQ(counted, set.packing()->counted(0, set.windows()));
  int64_t first = 0;
  for (const int64_t length : lengths) {
    const int64_t from = std::max(first, begin), stop = std::min(first + length, end);
    for (int64_t at = from; at < stop; ++at) {
      int expected = at > from || (stop - from > 1 && !firsts.contains(at)) ? 1 : 0;
      if (counts != nullptr) {
        if (!counts->contains(at) || at - from > set.seq_len()) expected = 0;
      }
      EXPECT_EQ(seen[at], expected) << "token " << at << ", document " << from << "-" << stop;
    }
    first += length;
  }
}

TEST(Packing, PredictsEachTokenOnceInRandomSets) {
  const PhiloxKey key = philox_key(7, "packing");
  uint64_t at = 0;
  const auto random = [&](int64_t below) { return static_cast<int64_t>(philox_at(key, at++) % uint64_t(below)); };
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE(trial);
    TempFolder folder;
    const int64_t seq_len = 1 + random(39);
    std::vector<int64_t> lengths;
    int64_t tokens = 0;
    for (int64_t n = 2 + random(60); n > 0; --n) tokens += lengths.emplace_back(2 + random(3 * seq_len));
    std::vector<TokenRange> spans;
    std::set<int64_t> counts;
    const bool masked = trial % 2 == 1;
    if (masked)
      for (int64_t first = 1; const int64_t length : lengths) {  // an odd part of each document, within its window
        const int64_t begin = first + random(std::min(length, seq_len + 1) - 1), end = first + length - 1;
        spans.push_back({begin, end});
        for (int64_t token = begin; token < end; ++token) counts.insert(token);
        first += length;
      }
    const int64_t begin = masked ? 0 : random(tokens / 3), end = masked ? tokens : tokens - random(tokens / 3);
    const auto stream = stream_of(folder, lengths, spans);
    const TokenDataset set = packed_set(folder, stream, seq_len, begin, end, 16);
    expect_each_predicted_once(set, lengths, begin, end, masked ? &counts : nullptr);
  }
}

TEST(Packing, KeepsItsIndexUntilTheDataOrTheWindowsChange) {
  TempFolder folder;
  const auto stream = stream_of(folder, kLengths);
  const auto path = folder / "tokens.pack";
  const auto open = [&](int64_t seq_len, int64_t end, bool& made) {
    made = false;
    const auto place = [&] {
      made = true;
      return path;
    };
    return packing_index(stream, seq_len, 0, end, path, place, {})->windows();
  };
  bool made = false;
  EXPECT_EQ(open(7, 60, made), 8);
  EXPECT_TRUE(made);
  const auto bytes = read_file(path);
  EXPECT_EQ(open(7, 60, made), 8);
  EXPECT_FALSE(made);
  open(7, 50, made);
  EXPECT_TRUE(made);
  open(9, 60, made);
  EXPECT_TRUE(made);
  open(7, 60, made);
  EXPECT_TRUE(made);
  EXPECT_EQ(read_file(path), bytes);

  // The same tokens with other documents.
  const std::string tokens = stream->fingerprint(), documents = stream->fingerprint(true);
  const std::vector<int64_t> lengths = {20, 5, 3, 8, 2, 1, 9, 4, 6, 2};
  const auto other = stream_of(folder, lengths);
  EXPECT_EQ(other->fingerprint(), tokens);
  EXPECT_NE(other->fingerprint(true), documents);
  made = false;
  const auto place = [&] {
    made = true;
    return path;
  };
  EXPECT_EQ(packing_index(other, 7, 0, 60, path, place, {})->excerpts(0).front(), (Excerpt{0, 8, false}));
  EXPECT_TRUE(made);
}

TEST(Packing, RefusesADamagedIndex) {
  TempFolder folder;
  const auto stream = stream_of(folder, kLengths);
  const auto path = folder / "tokens.pack";
  const TokenDataset set = packed_set(folder, stream, 7);
  const std::string whole = read_file(path);
  const auto open = [&](const std::string& bytes) {
    write(path, bytes);
    const TokenDataset again = packed_set(folder, stream, 7);
    for (int64_t w = 0; w < again.windows(); ++w) again.excerpts(w);
  };
  expect_error(Code::data, {"tokens.pack", "truncated"}, [&] { open(whole.substr(0, 40)); });
  expect_error(Code::data, {"tokens.pack", "8 windows"}, [&] { open(whole.substr(0, whole.size() - 1)); });
  expect_error(Code::data, {"tokens.pack", "trnpack1"}, [&] { open("x" + whole.substr(1)); });
  for (size_t i = 96; i < whole.size(); ++i) {  // a message, or different excerpts within the set; never a crash
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x81);
    try {
      open(bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::data) << i;
    }
  }
}

TEST(Packing, NeedsDocumentsAndATargetThatCounts) {
  TempFolder folder;
  const auto file = write(folder / "plain.bin", packed<uint16_t>(std::vector<int>(100, 3)));
  const auto plain = std::make_shared<const TokenStream>(std::vector{file});
  expect_error(Code::data, {"plain.bin", "data.tokenizer"}, [&] { packed_set(folder, plain, 7); });
  const auto masked = stream_of(folder, kLengths, {{13, 20}});  // behind the window of its conversation
  expect_error(Code::data, {"tokens.bin", "10 conversations", "first 8", "model.seq_len"},
               [&] { packed_set(folder, masked, 7); });
}

TEST(Packing, TrainsTheSameSequencesFromEverySample) {
  TempFolder folder;
  const TokenDataset set = packed_set(folder, stream_of(folder, kLengths), 7);
  TokenBatch whole, part;
  set.train_batch(0, 24, whole);  // three epochs
  std::multiset<int32_t> first(whole.ids.begin(), whole.ids.begin() + 56),
      second(whole.ids.begin() + 56, whole.ids.begin() + 112);
  EXPECT_EQ(first, second);
  for (const int64_t sample : {0, 1, 5, 8, 16, 23}) {
    set.train_batch(sample, 1, part);
    EXPECT_TRUE(std::equal(part.ids.begin(), part.ids.end(), whole.ids.begin() + 7 * sample)) << sample;
    EXPECT_TRUE(std::equal(part.weights.begin(), part.weights.end(), whole.weights.begin() + 7 * sample)) << sample;
  }
}

TEST(TrainingData, CountsTheTargetsOfPackedAndConsecutiveWindowsOfAMixture) {
  TempFolder text, chats;
  const auto stream = stream_of(text, {100});
  std::vector<NamedDataset> sources;
  sources.push_back({"chats", packed_set(chats, stream_of(chats, kLengths, {{1, 4}, {30, 33}, {40, 60}}), 7)});
  sources.push_back({"text", TokenDataset(stream, 7, 1)});
  TrainingData data(std::move(sources));
  data.set_mixture({{}, 0, {{0, {{"chats", 1.0}, {"text", 2.0}}}}});
  TokenBatch batch;
  for (const int64_t sample : {0, 3, 10}) {
    data.train_batch(sample, 9, batch);
    const auto counted = std::ranges::count(batch.weights, 1.0f);
    EXPECT_EQ(data.counted(sample, 9), counted);
    EXPECT_LT(counted, 63);
    EXPECT_GT(counted, 42);
  }
}

}  // namespace
}  // namespace trainer::data
