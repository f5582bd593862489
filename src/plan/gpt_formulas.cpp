#include "plan/gpt_formulas.h"

namespace trainer::plan::gpt {

double parameters(const Shape& m) {
  return 12 * m.layers * m.hidden * m.hidden *
         (1 + 13 / (12 * m.hidden) + (m.vocab + m.seq) / (12 * m.layers * m.hidden));
}

double model_flops(const Shape& m, double batch) {
  return 72 * batch * m.seq * m.layers * m.hidden * m.hidden *
         (1 + m.seq / (6 * m.hidden) + m.vocab / (12 * m.layers * m.hidden));
}

double recomputed_flops(const Shape& m, double batch) {
  return 96 * batch * m.seq * m.layers * m.hidden * m.hidden *
         (1 + m.seq / (6 * m.hidden) + m.vocab / (16 * m.layers * m.hidden));
}

double activation_bytes(const Shape& m, double b, double tensor, bool sequence_parallel, Recompute recompute) {
  const double each = m.seq * b * m.hidden, scores = 5 * m.heads * m.seq / m.hidden;
  if (recompute == Recompute::full) return 2 * each;
  const double kept = recompute == Recompute::none ? scores : 0;
  return sequence_parallel ? each * (34 + kept) / tensor : each * (10 + (24 + kept) / tensor);
}

}  // namespace trainer::plan::gpt
