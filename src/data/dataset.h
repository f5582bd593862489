#pragma once
// TokenDataset: token files as training windows, whose order is a permutation that is a pure function of (seed, samples
// seen); resuming needs no state. Windows are consecutive parts of the stream, or documents packed into them. Depends
// only on base and config.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/packing.h"
#include "data/token_file.h"

namespace trainer::data {

/// One micro-batch in host memory: [sequences · seq_len] token rows, batch-major.
struct TokenBatch {
  std::vector<int32_t> ids, targets;  // targets[r] = the token after ids[r]
  std::vector<float> weights;         // 1 if the target counts, else 0
  std::vector<int64_t> starts;        // rows at which a document begins, ascending
  int64_t sequences = 0, seq_len = 0;

  /// Allocates room for `sequences` of `length` tokens, with weight 1 for every row and no starts.
  void resize(int64_t sequences_, int64_t length);
};

class TokenDataset {
 public:
  /// `stream` has the formats of token_file.h; `begin` and `end` bound the tokens used (end < 0: to the end). Training
  /// windows are permuted by the random stream `permutation` of the seed. `packing`: the windows of that part, null:
  /// consecutive ones. Throws Code::data naming the file when less than one window (seq_len + 1 tokens) is left.
  TokenDataset(std::shared_ptr<const TokenStream> stream, int64_t seq_len, uint64_t seed, int64_t begin = 0,
               int64_t end = -1, std::string permutation = "data.permutation",
               std::shared_ptr<const PackingIndex> packing = nullptr);

  int64_t tokens() const { return end_ - begin_; }
  int64_t seq_len() const { return seq_len_; }
  /// Returns the stream; begin() and end() bound the part in use.
  const TokenStream& stream() const { return *stream_; }
  int64_t begin() const { return begin_; }
  int64_t end() const { return end_; }

  /// Returns the index of packed windows; null if windows are consecutive.
  const PackingIndex* packing() const { return packing_.get(); }

  /// Returns the windows of one epoch. Of consecutive ones, floor((tokens − 1) / seq_len), window w holds tokens
  /// [w·seq_len, w·seq_len + seq_len].
  int64_t windows() const { return packing_ ? packing_->windows() : (tokens() - 1) / seq_len_; }
  /// Returns the parts of the stream that a window consists of, in order. If they have fewer than seq_len + 1 tokens,
  /// the rest of the window is padding.
  std::vector<Excerpt> excerpts(int64_t window) const;
  /// Returns the number of targets that count in a window.
  int64_t counted(int64_t window) const;
  /// Returns the window of training sequence number `sample`, the number of samples before it: permutation(seed, n /
  /// windows)(n % windows).
  int64_t window_of(int64_t sample) const;
  /// Fills sequences [sample, sample + sequences) of the training order. `out` keeps its capacity. Throws Code::data
  /// when a token file was truncated and lacks them, as eval_batch() does.
  void train_batch(int64_t sample, int64_t sequences, TokenBatch& out) const;
  /// Fills one sequence of `out` with that sample. Rows are filled in ascending order.
  void fill_sample(int64_t sample, int64_t row, TokenBatch& out) const { fill(window_of(sample), row, out); }
  /// Fills consecutive windows beginning with `window`, in file order; windows past the end have weight 0.
  void eval_batch(int64_t window, int64_t sequences, TokenBatch& out) const;
  /// Asks the system to prefetch the windows of the next samples.
  void prefetch(int64_t sample, int64_t sequences) const;

 private:
  void fill(int64_t window, int64_t row, TokenBatch& out) const;

  std::shared_ptr<const TokenStream> stream_;
  int64_t seq_len_, begin_, end_;
  uint64_t seed_;
  std::string permutation_;
  std::shared_ptr<const PackingIndex> packing_;
};

struct NamedDataset {
  std::string name;  // empty: the only one
  TokenDataset dataset;
  std::string hash = {};  // hash of a validation set's tokens and of its place among them
};

/// A permutation of [0, n) by a Feistel network with cycle walking: O(1), without a table.
class FeistelPermutation {
 public:
  FeistelPermutation(uint64_t n, uint64_t seed, uint64_t epoch, std::string_view stream = "data.permutation");
  /// Requires index < n.
  uint64_t operator()(uint64_t index) const;

 private:
  static constexpr int kRounds = 6;
  uint64_t n_;
  int half_bits_;
  uint32_t keys_[kRounds];
};

}  // namespace trainer::data
