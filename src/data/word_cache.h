#pragma once
// A per-thread cache of the tokens of words.
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trainer::data {

class WordCache {
 public:
  /// Longer words are not cached.
  static constexpr size_t kLongestWord = 48;

  /// Appends the tokens of `word`. For a word that is not cached, encode(word, tokens) computes them.
  template <typename F>
  void append(std::string_view word, std::vector<int32_t>& ids, F&& encode) {
    auto found = words_.find(word);
    if (found == words_.end()) {
      if (words_.size() >= kMostWords) words_.clear();
      std::vector<int32_t> tokens;
      encode(word, tokens);
      found = words_.emplace(word, std::move(tokens)).first;
    }
    ids.insert(ids.end(), found->second.begin(), found->second.end());
  }

 private:
  static constexpr size_t kMostWords = size_t{1} << 17;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>{}(word); }
  };
  std::unordered_map<std::string, std::vector<int32_t>, Hash, std::equal_to<>> words_;
};

}  // namespace trainer::data
