#pragma once
// Conversations of a tiny vocabulary as token files with loss spans, packed into windows.
#include <filesystem>
#include <string>
#include <vector>

#include "base/philox.h"
#include "data/positions.h"
#include "data/training_data.h"
#include "rigs/files.h"

namespace trainer::tests {

/// Returns 90 conversations in windows of seq_len + 1 tokens, from files in `folder`. From one to all tokens of a
/// conversation count, so that samples have very different numbers of counted targets.
inline data::TrainingData packed_chats(const std::filesystem::path& folder, int64_t seq_len, int64_t vocab) {
  const PhiloxKey key = philox_key(11, "chats");
  uint64_t drawn = 0;
  const auto random = [&](int64_t below) {
    return static_cast<int64_t>(philox_at(key, drawn++) % static_cast<uint64_t>(below));
  };
  std::string tokens, ends(8, '\0'), spans;
  const auto append = [](std::string& to, auto value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  constexpr int64_t kConversations = 90;
  int64_t end = 0;
  for (int64_t i = 0; i < kConversations; ++i) {
    const int64_t begin = end, length = 2 + random(seq_len + 3);
    end = begin + length;
    const int64_t most = std::min(length, seq_len + 1),
                  first = i % 3 == 0 ? 1 : most - 1 - random(std::min<int64_t>(3, most - 1));
    append(spans, begin + first);
    append(spans, begin + most);
    for (int64_t token = begin; token < end; ++token) append(tokens, static_cast<uint16_t>(random(vocab)));
    append(ends, end);
  }
  const std::filesystem::path file = folder / "chats.bin";
  write(file, data::token_header({.tokens = end, .vocab_size = vocab, .eos = 0, .spans = true}) + tokens);
  write(data::positions_path(file, data::kDocuments), data::positions_header(data::kDocuments, kConversations) + ends);
  write(data::positions_path(file, data::kSpans), data::positions_header(data::kSpans, kConversations) + spans);
  const auto stream = std::make_shared<const data::TokenStream>(std::vector{file.string()});
  const std::filesystem::path index = folder / "chats.pack";
  std::vector<data::NamedDataset> sources;
  sources.push_back(
      {"", data::TokenDataset(stream, seq_len, 3, 0, -1, "data.permutation",
                              data::packing_index(stream, seq_len, 0, end, index, [&] { return index; }, {}))});
  return data::TrainingData(std::move(sources));
}

}  // namespace trainer::tests
