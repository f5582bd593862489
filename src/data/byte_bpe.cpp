// Byte-level BPE (Radford et al. 2019; Sennrich et al. 2016): text is split into words by patterns, the bytes of a word
// are symbols, and the neighbouring pair with the highest priority among the merges is joined, until none is left.
#include <algorithm>
#include <functional>
#include <queue>
#include <string>
#include <unordered_map>

#include "base/utf8.h"
#include "data/added_tokens.h"
#include "data/bpe_file.h"
#include "data/nfc.h"
#include "data/split_pattern.h"
#include "data/tokenizer_model.h"
#include "data/word_cache.h"

namespace trainer::data {
namespace {

class ByteBpe final : public TokenizerModel {
 public:
  ByteBpe(std::string_view json, const std::string& origin)
      : spec_(parse_bpe(json, origin)), finder_(found_tokens(spec_)) {
    for (const BpeSpec::Split& split : spec_.splits) patterns_.emplace_back(split.pattern, origin);
    for (size_t rank = 0; rank < spec_.merges.size(); ++rank) {
      const BpeSpec::Merge& merge = spec_.merges[rank];
      merges_.insert_or_assign(pair_of(merge.left, merge.right), Joint{static_cast<int32_t>(rank), merge.result});
    }
    if (spec_.ignore_merges)
      for (size_t id = 0; id < spec_.pieces.size(); ++id)
        if (!spec_.pieces[id].empty()) words_.emplace(spec_.pieces[id], static_cast<int32_t>(id));
    facts_.pieces = spec_.pieces;
    facts_.eos = spec_.eos;
    facts_.bos = spec_.bos;
    facts_.ends = spec_.ends;
    facts_.splits_words = true;
    facts_.cuts = CutRule::between_words;
    facts_.file_name = "tokenizer.json";
  }

  std::unique_ptr<TextEncoder> encoder() const override;
  std::string name_of(int32_t id) const override { return spec_.names[static_cast<size_t>(id)]; }

  /// Appends the tokens of one word. Takes O(n·log n) time, since words of scripts without spaces are long.
  void encode_word(std::string_view word, std::vector<int32_t>& ids) const {
    if (spec_.ignore_merges) {
      if (const auto whole = words_.find(word); whole != words_.end()) return ids.push_back(whole->second);
    }
    // Symbols are a linked list indexed by byte position in the word. The queue may contain stale pairs, whose symbols
    // have changed.
    struct Symbol {
      int32_t id, previous, next;
    };
    struct Candidate {
      int32_t rank, place, left, right, result;
      bool operator>(const Candidate& o) const { return std::tie(rank, place) > std::tie(o.rank, o.place); }
    };
    const auto size = static_cast<int32_t>(word.size());
    std::vector<Symbol> symbols(word.size());
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    const auto consider = [&](int32_t place) {
      if (place < 0 || symbols[place].next >= size) return;
      const int32_t left = symbols[place].id, right = symbols[symbols[place].next].id;
      if (const auto found = merges_.find(pair_of(left, right)); found != merges_.end())
        queue.push({found->second.rank, place, left, right, found->second.result});
    };
    for (int32_t i = 0; i < size; ++i)
      symbols[i] = {spec_.byte_ids[static_cast<uint8_t>(word[static_cast<size_t>(i)])], i - 1, i + 1};
    for (int32_t i = 0; i < size; ++i) consider(i);
    while (!queue.empty()) {
      const Candidate best = queue.top();
      queue.pop();
      Symbol& left = symbols[best.place];
      if (left.id != best.left || left.next >= size || symbols[left.next].id != best.right) continue;
      symbols[left.next].id = -1;  // removed
      left.id = best.result;
      left.next = symbols[left.next].next;
      if (left.next < size) symbols[left.next].previous = best.place;
      consider(left.previous);
      consider(best.place);
    }
    for (int32_t i = 0; i < size; i = symbols[i].next) ids.push_back(symbols[i].id);
  }

  const AddedTokenFinder& finder() const { return finder_; }
  const std::vector<SplitPattern>& patterns() const { return patterns_; }
  bool only_matches(size_t step) const { return spec_.splits[step].only_matches; }
  bool normalises() const { return spec_.nfc; }
  int32_t byte_id(char byte) const { return spec_.byte_ids[static_cast<uint8_t>(byte)]; }

 private:
  /// Returns the added tokens as they are in text: those with `normalized` are found after normalisation.
  static std::vector<AddedToken> found_tokens(const BpeSpec& spec) {
    std::vector<AddedToken> tokens = spec.added;
    std::string memory;
    for (AddedToken& token : tokens)
      if (spec.nfc && token.normalized) token.content = std::string(nfc(token.content, memory));
    return tokens;
  }
  static uint64_t pair_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }
  struct Joint {
    int32_t rank, result;
  };
  struct PairHash {
    size_t operator()(uint64_t pair) const { return static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> 17); }
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view word) const { return std::hash<std::string_view>{}(word); }
  };

  const BpeSpec spec_;
  std::vector<SplitPattern> patterns_;
  std::unordered_map<uint64_t, Joint, PairHash> merges_;
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> words_;  // only with ignore_merges
  const AddedTokenFinder finder_;
};

class ByteBpeEncoder final : public TextEncoder {
 public:
  explicit ByteBpeEncoder(const ByteBpe& model) : model_(model) {
    for (const SplitPattern& pattern : model.patterns()) matchers_.emplace_back(pattern);
  }

  /// Bytes that are not valid UTF-8 become separate tokens.
  void append(std::string_view text, std::vector<int32_t>& ids, bool) override {
    while (!text.empty()) {
      const size_t valid = utf8_first_invalid(text);
      model_.finder().split(
          text.substr(0, valid), [&](std::string_view part) { split(part, 0, ids); },
          [&](int32_t id) { ids.push_back(id); },
          [&](std::string_view part) { return model_.normalises() ? nfc(part, normal_) : part; });
      if (valid == text.size()) return;
      ids.push_back(model_.byte_id(text[valid]));
      text.remove_prefix(valid + 1);
    }
  }

 private:
  /// Splits by the pattern of one step, and the pieces by the patterns of the next steps.
  void split(std::string_view text, size_t step, std::vector<int32_t>& ids) {
    if (step == matchers_.size()) return append_word(text, ids);
    const bool keeps_rest = !model_.only_matches(step);
    size_t at = 0, begin = 0, end = 0;
    matchers_[step].start(text);
    while (matchers_[step].next(begin, end)) {
      if (begin > at && keeps_rest) split(text.substr(at, begin - at), step + 1, ids);
      if (end > begin) split(text.substr(begin, end - begin), step + 1, ids);
      at = end;
    }
    if (at < text.size() && keeps_rest) split(text.substr(at), step + 1, ids);
  }

  void append_word(std::string_view word, std::vector<int32_t>& ids) {
    if (word.size() > WordCache::kLongestWord) return model_.encode_word(word, ids);
    words_.append(word, ids,
                  [&](std::string_view each, std::vector<int32_t>& tokens) { model_.encode_word(each, tokens); });
  }

  const ByteBpe& model_;
  std::vector<SplitPattern::Matcher> matchers_;
  WordCache words_;
  std::string normal_;
};

std::unique_ptr<TextEncoder> ByteBpe::encoder() const { return std::make_unique<ByteBpeEncoder>(*this); }

}  // namespace

std::unique_ptr<TokenizerModel> make_byte_bpe(std::string_view json, const std::string& origin) {
  return std::make_unique<ByteBpe>(json, origin);
}

}  // namespace trainer::data
