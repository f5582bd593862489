#include "data/dataset.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/error.h"
#include "base/philox.h"

namespace trainer::data {

void TokenBatch::resize(int64_t sequences_, int64_t length) {
  const auto rows = static_cast<size_t>(sequences_ * length);
  ids.resize(rows);
  targets.resize(rows);
  weights.assign(rows, 1.0f);
  starts.clear();
  sequences = sequences_;
  seq_len = length;
}

TokenDataset::TokenDataset(std::shared_ptr<const TokenStream> stream, int64_t seq_len, uint64_t seed, int64_t begin,
                           int64_t end, std::string permutation, std::shared_ptr<const PackingIndex> packing)
    : stream_(std::move(stream)),
      seq_len_(seq_len),
      begin_(begin),
      end_(end < 0 ? stream_->tokens() : end),
      seed_(seed),
      permutation_(std::move(permutation)),
      packing_(std::move(packing)) {
  TRAINER_CHECK(seq_len > 0 && 0 <= begin_ && begin_ <= end_ && end_ <= stream_->tokens(),
                "seq_len {}, tokens [{}, {}) of {}", seq_len, begin_, end_, stream_->tokens());
  if (windows() < 1) {
    throw Error(Code::data,
                fmt::format("{}: {} tokens (starting at token {}) are fewer than one window of seq_len + 1 = {}; "
                            "add data or choose a smaller model.seq_len",
                            stream_->name(), tokens(), begin_, seq_len_ + 1));
  }
}

int64_t TokenDataset::window_of(int64_t sample) const {
  const auto n = static_cast<uint64_t>(windows()), s = static_cast<uint64_t>(sample);
  return static_cast<int64_t>(FeistelPermutation(n, seed_, s / n, permutation_)(s % n));
}

void TokenDataset::train_batch(int64_t sample, int64_t sequences, TokenBatch& out) const {
  out.resize(sequences, seq_len_);
  for (int64_t row = 0; row < sequences; ++row) fill(window_of(sample + row), row, out);
}

void TokenDataset::eval_batch(int64_t window, int64_t sequences, TokenBatch& out) const {
  out.resize(sequences, seq_len_);
  const int64_t real = std::clamp<int64_t>(windows() - window, 0, sequences);
  for (int64_t row = 0; row < real; ++row) fill(window + row, row, out);
  std::fill(out.ids.begin() + real * seq_len_, out.ids.end(), 0);
  std::fill(out.targets.begin() + real * seq_len_, out.targets.end(), 0);
  std::fill(out.weights.begin() + real * seq_len_, out.weights.end(), 0.0f);
}

void TokenDataset::prefetch(int64_t sample, int64_t sequences) const {
  for (int64_t n = sample; n < sample + sequences; ++n) {
    for (const Excerpt& excerpt : excerpts(window_of(n))) stream_->prefetch(excerpt.begin, excerpt.end());
  }
}

std::vector<Excerpt> TokenDataset::excerpts(int64_t window) const {
  if (packing_) return packing_->excerpts(window);
  return {{begin_ + window * seq_len_, seq_len_ + 1, false}};
}

int64_t TokenDataset::counted(int64_t window) const {
  if (packing_) return packing_->counted(window, window + 1);
  const int64_t first = begin_ + window * seq_len_ + 1;
  return stream_->counted(first, first + seq_len_);
}

// A target counts if its own position is in a loss span, unless it is the first token of the window or is repeated at
// the start of a continuation. Packed documents begin where excerpts do, never after end-of-text tokens: conversations
// have some inside.
void TokenDataset::fill(int64_t window, int64_t row, TokenBatch& out) const {
  const auto length = static_cast<size_t>(seq_len_);
  const int64_t first_row = row * seq_len_;
  const std::span ids(out.ids.data() + first_row, length), targets(out.targets.data() + first_row, length);
  const std::span weights(out.weights.data() + first_row, length);
  std::vector<int32_t> tokens(length + 1, std::max(0, stream_->separator()));  // the padding
  std::ranges::fill(weights, 0.0f);
  std::vector<TokenRange> counted;
  int64_t at = 0;  // in the window
  for (const Excerpt& excerpt : excerpts(window)) {
    const std::span own = std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(excerpt.length));
    stream_->copy(excerpt.begin, own);
    if (!packing_) stream_->append_starts(excerpt.begin, own.first(length), first_row, out.starts);
    if (packing_ && at < seq_len_) out.starts.push_back(first_row + at);
    counted.clear();
    stream_->append_spans(excerpt.begin + (at == 0 || excerpt.continues), excerpt.end(), counted);
    for (const TokenRange& run : counted)
      std::fill_n(weights.begin() + (at - 1 + run.begin - excerpt.begin), run.end - run.begin, 1.0f);
    at += excerpt.length;
  }
  if (at < seq_len_) out.starts.push_back(first_row + at);
  std::copy_n(tokens.begin(), length, ids.begin());
  std::copy_n(tokens.begin() + 1, length, targets.begin());
}

FeistelPermutation::FeistelPermutation(uint64_t n, uint64_t seed, uint64_t epoch, std::string_view stream) : n_(n) {
  TRAINER_CHECK(n > 0, "a permutation has at least one element");
  // The network permutes [0, 2^(2·half_bits)), the smallest such range that holds n. It is at most four times as large.
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2);
  const PhiloxKey key = philox_key(seed, stream);
  for (int round = 0; round < kRounds; ++round) {
    keys_[round] = philox_at(key, epoch * kRounds + static_cast<uint64_t>(round));
  }
}

uint64_t FeistelPermutation::operator()(uint64_t index) const {
  const uint32_t mask = static_cast<uint32_t>((uint64_t{1} << half_bits_) - 1);
  do {  // outside [0, n): following the cycle returns to it
    auto left = static_cast<uint32_t>(index >> half_bits_), right = static_cast<uint32_t>(index) & mask;
    for (const uint32_t key : keys_) {
      uint32_t mixed = right ^ key;  // the finalizer of MurmurHash3, with the key added between its two multiplications
      mixed = (mixed ^ mixed >> 16) * 0x85EBCA6Bu + key;
      mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35u;
      mixed ^= mixed >> 16;
      left = std::exchange(right, (left ^ mixed) & mask);
    }
    index = uint64_t{left} << half_bits_ | right;
  } while (index >= n_);
  return index;
}

}  // namespace trainer::data
