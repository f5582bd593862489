#include "train/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/philox.h"

namespace trainer::train {

void validate(const Sampling& s) {
  if (!(s.temperature >= 0) || !std::isfinite(s.temperature))
    throw Error(Code::usage, format("--temperature {}: expected 0 (greedy) or more", s.temperature));
  if (s.top_k < 0) throw Error(Code::usage, format("--top-k {}: expected 0 (all tokens) or more", s.top_k));
  if (!(s.top_p > 0 && s.top_p <= 1))
    throw Error(Code::usage, format("--top-p {}: expected a value above 0 and at most 1", s.top_p));
}

TokenSampler::TokenSampler(const Sampling& sampling, int64_t vocab)
    : sampling_(sampling),
      vocab_(vocab),
      scores_(static_cast<size_t>(vocab)),
      weights_(scores_.size()),
      order_(scores_.size()) {
  validate(sampling);
}

int32_t TokenSampler::choose(const Tensor& logits, int64_t position, const std::vector<bool>& allowed) {
  TRAINER_CHECK(logits.cols() >= vocab_, "logits {} do not cover a vocabulary of {} tokens", to_string(logits), vocab_);
  const bool wide = logits.dtype == DType::f64;
  bool finite = true;
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  double top = kNone;
  size_t best = 0;  // the first of equal scores
  for (size_t i = 0; i < scores_.size(); ++i) {
    const double score = wide ? logits.as<double>()[i] : static_cast<double>(logits.as<float>()[i]);
    finite = finite && std::isfinite(score);
    const bool excluded = !allowed.empty() && (i >= allowed.size() || !allowed[i]);
    scores_[i] = excluded ? kNone : score;
    if (scores_[i] > top) top = scores_[i], best = i;
  }
  if (!finite) return -1;
  if (sampling_.temperature == 0) return static_cast<int32_t>(best);
  const auto likelier = [&](int32_t a, int32_t b) {
    const double x = scores_[static_cast<size_t>(a)], y = scores_[static_cast<size_t>(b)];
    return x > y || (x == y && a < b);
  };
  std::iota(order_.begin(), order_.end(), 0);
  int64_t ranked = 0;  // the likeliest tokens, in their order, are the first `ranked` of order_
  const auto rank = [&](int64_t count) {
    constexpr int64_t kFew = 1024;  // std::partial_sort is faster for these, and slower for more
    const auto begin = order_.begin() + ranked, middle = order_.begin() + count, end = order_.end();
    if (count - ranked <= kFew) {
      std::partial_sort(begin, middle, end, likelier);
    } else {
      std::nth_element(begin, middle, end, likelier);
      std::sort(begin, middle, likelier);
    }
    ranked = count;
  };
  const int64_t kept = sampling_.top_k > 0 ? std::min(sampling_.top_k, vocab_) : vocab_;
  if (kept < vocab_) rank(kept);

  const auto weight = [&](int64_t i) -> double& {
    return weights_[static_cast<size_t>(order_[static_cast<size_t>(i)])];
  };
  double total = 0;  // added in the order of ids unless top_k ranks the tokens
  for (int64_t i = 0; i < kept; ++i) {
    const double score = scores_[static_cast<size_t>(order_[static_cast<size_t>(i)])];
    weight(i) = std::exp((score - top) / sampling_.temperature);
    total += weight(i);
  }
  int64_t last = kept;  // tokens [0, last) in this order may be drawn
  if (sampling_.top_p < 1) {
    double sum = 0;
    for (last = 0; last < kept && sum < sampling_.top_p * total; ++last) {
      if (last == ranked) rank(std::min(kept, std::max<int64_t>(256, 8 * ranked)));
      sum += weight(last);
    }
    total = sum;
  }
  const uint32_t draw = philox_at(philox_key(sampling_.seed, "generate"), static_cast<uint64_t>(position));
  double left = static_cast<double>(draw) * 0x1p-32 * total;
  int64_t chosen = 0;  // if rounding leaves a remainder, the last token with a nonzero probability is chosen
  for (int64_t i = 0; i < last && left >= 0; ++i) {
    const double share = weight(i);
    if (!(share > 0)) continue;
    left -= share;
    chosen = i;
  }
  return order_[static_cast<size_t>(chosen)];
}

}  // namespace trainer::train
