#pragma once
// Chooses the next token from logits. Random draws are counter-based: they depend only on (seed, position).
#include <cstdint>
#include <vector>

#include "tensor/tensor.h"

namespace trainer::train {

struct Sampling {
  double temperature = 1;  // 0: always the most likely token
  int64_t top_k = 0;       // 0: all tokens
  double top_p = 1;        // draws from the smallest set of most likely tokens whose total probability reaches top_p
  uint64_t seed = 0;
};
/// Throws Code::usage naming the value that is out of range.
void validate(const Sampling& sampling);

class TokenSampler {
 public:
  TokenSampler(const Sampling& sampling, int64_t vocab);
  /// Returns a token, or -1 if a logit is not finite. logits [1, >= vocab] f32 or f64; `position` is the number of the
  /// draw. Ties go to the smaller id. `allowed` [<= vocab]: the tokens to choose from, at least one, none
  /// beyond its end (empty: all).
  int32_t choose(const Tensor& logits, int64_t position, const std::vector<bool>& allowed = {});

 private:
  Sampling sampling_;
  int64_t vocab_;
  std::vector<double> scores_, weights_;
  std::vector<int32_t> order_;
};

}  // namespace trainer::train
