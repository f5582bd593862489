#pragma once
// The RoPE of a model as the operator's table wants it.
#include "config/model.h"
#include "ops/rope.h"

namespace trainer::model {

/// Returns the RoPE of the layers that may have a scaled one.
inline ops::RopeScaling rope_scaling(const config::Model& m) {
  return {.kind = static_cast<ops::RopeScaling::Kind>(m.rope_type),
          .factor = m.rope_factor,
          .original = static_cast<double>(m.rope_original),
          .low_freq = m.rope_low_freq,
          .high_freq = m.rope_high_freq,
          .beta_fast = m.rope_beta_fast,
          .beta_slow = m.rope_beta_slow,
          .attention = m.rope_attention,
          .truncate = m.rope_truncate};
}

}  // namespace trainer::model
