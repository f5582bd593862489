#pragma once
// TokenDataset: token files, memory-mapped, cut into training windows by a permutation that is a pure function of
// (seed, samples seen); resuming needs no state. Sees only base and config.
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace trainer::data {

/// Read-only view of consecutive tokens of one or more token files as one stream; 16- or 32-bit on disk.
class TokenStream;

/// One micro-batch in host memory: [sequences · seq_len] token rows, batch-major.
struct TokenBatch {
  std::vector<int32_t> ids, targets;  // targets[r] = the token after ids[r]
  std::vector<float> weights;         // 1, or 0 where a row is masked
  int64_t sequences = 0, seq_len = 0;
  int64_t first_sample = 0;           // index of the first sequence in the step's batch
  double weight_sum = 0;
};

class TokenDataset {
 public:
  /// `files` in the formats of the data readers; `begin`/`end` bound the tokens used (end < 0: to the end).
  /// Throws Code::data naming the file when fewer than one window (seq_len + 1 tokens) is left.
  TokenDataset(std::shared_ptr<const TokenStream> stream, int64_t seq_len, uint64_t seed, int64_t begin = 0, int64_t end = -1);
  ~TokenDataset();

  int64_t tokens() const;
  /// Windows of one epoch: floor((tokens − 1) / seq_len).
  int64_t windows() const;
  /// Training sequence number n (samples seen before it): window permutation(seed, n / windows)(n % windows).
  int64_t window_of(int64_t sample) const;
  /// Fills sequences [sample, sample + sequences) of the training order. `out` keeps its capacity.
  void train_batch(int64_t sample, int64_t sequences, TokenBatch& out) const;
  /// Consecutive windows from `window` on in file order; windows past the end are filled with mask 0.
  void eval_batch(int64_t window, int64_t sequences, TokenBatch& out) const;
  /// Asks the system to read the windows of the coming samples ahead.
  void prefetch(int64_t sample, int64_t sequences) const;

 private:
  std::shared_ptr<const TokenStream> stream_;
  int64_t seq_len_, begin_, end_;
  uint64_t seed_;
};

/// A permutation of [0, n) by a Feistel network with cycle walking: O(1), no table.
class FeistelPermutation {
 public:
  FeistelPermutation(uint64_t n, uint64_t seed, uint64_t epoch);
  uint64_t operator()(uint64_t index) const;

 private:
  uint64_t n_;
  int half_bits_;
  uint32_t keys_[6];
};

}  // namespace trainer::data
