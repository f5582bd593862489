#pragma once
// Reference of what happens between two steps: clipping by the global norm, AdamW, the learning-rate schedule; and the
// random weights and batches that tests start from.
#include <cmath>
#include <cstdint>
#include <random>

#include "reference/reference_model.h"

namespace trainer::reference {

struct AdamWSpec {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1, max_norm = 1.0;  // max_norm 0: no clipping
};

/// √Σ g² over all tensors.
inline double global_norm(const Weights<double>& gradients) {
  double sum = 0;
  for (const auto& [name, values] : gradients)
    for (const double g : values) sum += g * g;
  return std::sqrt(sum);
}

/// AdamW with decoupled decay on tensors of two or more dimensions (Loshchilov & Hutter 2019, algorithm 2).
class AdamW {
 public:
  AdamW(const AdamWSpec& spec, const Shapes& shapes) : spec_(spec), shapes_(shapes) {}

  /// Clips as PyTorch does (1e-6 keeps the quotient finite), updates `weights`, and returns the norm before clipping.
  double step(Weights<double>& weights, const Weights<double>& gradients, double lr) {
    const double norm = global_norm(gradients);
    const double clip = spec_.max_norm > 0 ? std::min(1.0, spec_.max_norm / (norm + 1e-6)) : 1.0;
    ++t_;
    for (auto& [name, w] : weights) {
      std::vector<double>&m = m_[name], &v = v_[name];
      m.resize(w.size(), 0.0);
      v.resize(w.size(), 0.0);
      const double decay = shapes_.at(name).size() >= 2 ? spec_.weight_decay : 0.0;
      for (size_t i = 0; i < w.size(); ++i) {
        const double g = clip * gradients.at(name)[i];
        m[i] = spec_.beta1 * m[i] + (1 - spec_.beta1) * g;
        v[i] = spec_.beta2 * v[i] + (1 - spec_.beta2) * g * g;
        const double m_hat = m[i] / (1 - std::pow(spec_.beta1, t_)), v_hat = v[i] / (1 - std::pow(spec_.beta2, t_));
        w[i] -= lr * (m_hat / (std::sqrt(v_hat) + spec_.eps) + decay * w[i]);
      }
    }
    return norm;
  }

 private:
  AdamWSpec spec_;
  Shapes shapes_;
  Weights<double> m_, v_;
  int t_ = 0;
};

/// Linear warm-up, then a cosine from `lr` towards `min_lr`; `step` is 1-based, the first decaying step still has `lr`.
inline double cosine_lr(int64_t step, int64_t steps, int64_t warmup, double lr, double min_lr) {
  if (step <= warmup) return lr * static_cast<double>(step) / static_cast<double>(warmup);
  const double progress = static_cast<double>(step - 1 - warmup) / static_cast<double>(steps - warmup);
  return min_lr + (lr - min_lr) * 0.5 * (1 + std::cos(3.14159265358979323846 * progress));
}

/// Uniform in [−1, 1), the same on every platform.
inline double uniform(std::mt19937_64& rng) { return static_cast<double>(rng() >> 11) * 0x1p-52 - 1.0; }

/// Weights without symmetry: gains near 1, biases and matrices of visible size, so that every term of a gradient
/// counts.
inline Weights<double> random_weights(const ModelSpec& spec, uint64_t seed, double scale = 0.4) {
  std::mt19937_64 rng(seed);
  Weights<double> weights;
  for (const auto& [name, shape] : parameter_shapes(spec)) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    const double centre = name.ends_with(".gain") ? 1.0 : 0.0;
    for (int64_t i = 0; i < count; ++i) weights[name].push_back(centre + scale * uniform(rng));
  }
  return weights;
}

inline Batch random_batch(const ModelSpec& spec, int64_t sequences, int64_t length, uint64_t seed) {
  std::mt19937_64 rng(seed);
  Batch batch;
  batch.sequences = sequences;
  batch.length = length;
  for (int64_t r = 0; r < batch.rows(); ++r) {
    batch.ids.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(spec.vocab)));
    batch.targets.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(spec.vocab)));
  }
  return batch;
}

}  // namespace trainer::reference
