#pragma once
// Counts of a GPT as papers state them, to check the planner against published figures: Narayanan et al. 2021
// (parameters, FLOPs), Korthikanti et al. 2022 (memory of activations). Runs are planned with the trainer's own counts
// (plan/run_plan.h, measure/flops.h), not with these.
#include <cstdint>

namespace trainer::plan::gpt {

struct Shape {
  double layers = 0, hidden = 0, heads = 0, seq = 0, vocab = 0;
};
/// 12 L h² (1 + 13/(12h) + (V + s)/(12 L h)): tied head, learned positions, no final norm.
double parameters(const Shape& shape);
/// FLOPs of a step of `batch` sequences: 72 B s L h² (1 + s/(6h) + V/(12 L h)).
double model_flops(const Shape& shape, double batch);
/// The same with every block's forward pass repeated: 96 B s L h² (1 + s/(6h) + V/(16 L h)).
double recomputed_flops(const Shape& shape, double batch);

enum class Recompute { none, selective, full };
/// Bytes of the activations of one layer and micro-batch of b sequences with t tensor ranks, 16 bits each and masks of
/// one byte. Selective: the scores of attention are not kept.
double activation_bytes(const Shape& shape, double b, double tensor, bool sequence_parallel, Recompute recompute);

inline double parameters(const Shape& m) {
  return 12 * m.layers * m.hidden * m.hidden *
         (1 + 13 / (12 * m.hidden) + (m.vocab + m.seq) / (12 * m.layers * m.hidden));
}

inline double model_flops(const Shape& m, double batch) {
  return 72 * batch * m.seq * m.layers * m.hidden * m.hidden *
         (1 + m.seq / (6 * m.hidden) + m.vocab / (12 * m.layers * m.hidden));
}

inline double recomputed_flops(const Shape& m, double batch) {
  return 96 * batch * m.seq * m.layers * m.hidden * m.hidden *
         (1 + m.seq / (6 * m.hidden) + m.vocab / (16 * m.layers * m.hidden));
}

inline double activation_bytes(const Shape& m, double b, double tensor, bool sequence_parallel, Recompute recompute) {
  const double each = m.seq * b * m.hidden, scores = 5 * m.heads * m.seq / m.hidden;
  if (recompute == Recompute::full) return 2 * each;
  const double kept = recompute == Recompute::none ? scores : 0;
  return sequence_parallel ? each * (34 + kept) / tensor : each * (10 + (24 + kept) / tensor);
}

}  // namespace trainer::plan::gpt
