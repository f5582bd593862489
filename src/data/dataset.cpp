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
                           int64_t end, std::string permutation)
    : stream_(std::move(stream)),
      seq_len_(seq_len),
      begin_(begin),
      end_(end < 0 ? stream_->tokens() : end),
      seed_(seed),
      permutation_(std::move(permutation)) {
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
    const int64_t first = begin_ + window_of(n) * seq_len_;
    stream_->prefetch(first, first + seq_len_ + 1);
  }
}

void TokenDataset::fill(int64_t window, int64_t row, TokenBatch& out) const {
  const auto length = static_cast<size_t>(seq_len_);
  const std::span ids(out.ids.data() + row * seq_len_, length), targets(out.targets.data() + row * seq_len_, length);
  const int64_t first = begin_ + window * seq_len_;
  stream_->copy(first, ids);
  std::copy(ids.begin() + 1, ids.end(), targets.begin());
  stream_->copy(first + seq_len_, targets.last(1));
  stream_->append_starts(first, ids, row * seq_len_, out.starts);
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
