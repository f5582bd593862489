#pragma once
// The reference every gradient is compared with: GPT-2 and Llama families in plain loops, written from the equations
// and sharing nothing with src/ops but the verified random-number generator. Templated on the scalar: double for
// values, std::complex<double> for the complex step, Var (tape.h) for all gradients at once.
//
// Weights are [in, out] row-major (tables and the head [V, H]) and named as in checkpoints; all tensors are whole (true
// vocabulary, no padding).
#include <algorithm>
#include <complex>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/philox.h"
#include "reference/tape.h"

namespace trainer::reference {

enum class Family { gpt2, llama };

struct ModelSpec {
  Family family = Family::gpt2;
  int64_t layers = 1, heads = 1, kv_heads = 1, hidden = 8, ff = 32, seq_len = 8, vocab = 16;
  bool tied = true, bias = true;  // bias: linear and norm biases
  double norm_eps = 1e-5, rope_theta = 10000, dropout = 0;
  uint64_t seed = 0;  // seed of the dropout masks
  int64_t head_dim() const { return hidden / heads; }
};

/// Sequences of equal length, one after the other; rows are tokens.
struct Batch {
  int64_t sequences = 1, length = 1;
  std::vector<int32_t> ids, targets;
  std::vector<double> weights;      // weight of each row's loss; empty: all 1
  std::vector<int32_t> first_keys;  // first row of each row's document; empty: all see all. The reference ignores it.
  double denominator = 0;           // the loss is Σ weight·loss / denominator; 0: the sum of this batch's weights
  int64_t first_sample = 0;         // index in the step's batch: dropout masks continue over micro-batches
  uint32_t step = 0;                // step of the dropout masks
  int64_t rows() const { return sequences * length; }
  double weight(int64_t row) const { return weights.empty() ? 1.0 : weights[static_cast<size_t>(row)]; }
};

template <class T>
using Weights = std::map<std::string, std::vector<T>>;
using Shapes = std::map<std::string, std::vector<int64_t>>;

/// Every tensor of the model with its shape.
inline Shapes parameter_shapes(const ModelSpec& m) {
  const int64_t h = m.hidden, kv = m.kv_heads * m.head_dim();
  const bool gpt2 = m.family == Family::gpt2;
  Shapes shapes{{"wte", {m.vocab, h}}};
  if (gpt2) shapes["wpe"] = {m.seq_len, h};
  const auto norm = [&](const std::string& name) {
    shapes[name + ".gain"] = {h};
    if (m.bias) shapes[name + ".bias"] = {h};
  };
  const auto linear = [&](const std::string& name, int64_t in, int64_t out) {
    shapes[name + ".weight"] = {in, out};
    if (m.bias) shapes[name + ".bias"] = {out};
  };
  for (int64_t l = 0; l < m.layers; ++l) {
    const std::string block = "blocks." + std::to_string(l) + ".";
    norm(block + "norm1");
    linear(block + "attn.q", h, h);
    linear(block + "attn.k", h, kv);
    linear(block + "attn.v", h, kv);
    linear(block + "attn.o", h, h);
    norm(block + "norm2");
    if (!gpt2) linear(block + "mlp.gate", h, m.ff);
    linear(block + "mlp.up", h, m.ff);
    linear(block + "mlp.down", m.ff, h);
  }
  norm("norm_f");
  if (!m.tied) shapes["head.weight"] = {m.vocab, h};
  return shapes;
}

/// Branches and shifts look at the real part only, so that they do not disturb derivatives.
inline double real_part(double x) { return x; }
inline double real_part(const std::complex<double>& x) { return x.real(); }
inline double real_part(const Var& x) { return x.value; }

template <class T>
class Model {
 public:
  /// `weights` must hold parameter_shapes(spec) and outlive the model.
  Model(const ModelSpec& spec, const Weights<T>& weights) : spec_(spec), weights_(weights) {}

  /// [rows, V], row-major.
  std::vector<T> logits(const Batch& batch) const {
    Rows x = embedding(batch);
    for (int64_t l = 0; l < spec_.layers; ++l) x = block(std::move(x), l, batch);
    return head(norm(x, "norm_f")).data;
  }

  /// Loss of each row, not weighted.
  std::vector<T> row_losses(const Batch& batch) const {
    const std::vector<T> all = logits(batch);
    std::vector<T> losses;
    for (int64_t r = 0; r < batch.rows(); ++r) {
      const T* row = &all[static_cast<size_t>(r * spec_.vocab)];
      const double shift = largest(row, spec_.vocab);
      T sum = 0.0;
      for (int64_t v = 0; v < spec_.vocab; ++v) sum += exp(row[v] - T(shift));
      losses.push_back(log(sum) + T(shift) - row[batch.targets[static_cast<size_t>(r)]]);
    }
    return losses;
  }

  T loss(const Batch& batch) const {
    const std::vector<T> rows = row_losses(batch);
    T sum = 0.0;
    double weight = 0;
    for (int64_t r = 0; r < batch.rows(); ++r) {
      sum += T(batch.weight(r)) * rows[static_cast<size_t>(r)];
      weight += batch.weight(r);
    }
    return sum / T(batch.denominator != 0 ? batch.denominator : weight);
  }

 private:
  struct Rows {
    int64_t count, width;
    std::vector<T> data;
    Rows(int64_t n, int64_t w) : count(n), width(w), data(static_cast<size_t>(n * w), T(0.0)) {}
    T& at(int64_t r, int64_t c) { return data[static_cast<size_t>(r * width + c)]; }
    const T& at(int64_t r, int64_t c) const { return data[static_cast<size_t>(r * width + c)]; }
  };

  static double largest(const T* row, int64_t n) {
    double most = real_part(row[0]);
    for (int64_t i = 1; i < n; ++i) most = std::max(most, real_part(row[i]));
    return most;
  }

  const std::vector<T>& weight(const std::string& name) const { return weights_.at(name); }

  Rows linear(const Rows& x, const std::string& name, int64_t out) const {
    const std::vector<T>& w = weight(name + ".weight");
    Rows y(x.count, out);
    for (int64_t r = 0; r < x.count; ++r)
      for (int64_t c = 0; c < out; ++c) {
        T sum = 0.0;
        for (int64_t k = 0; k < x.width; ++k) sum += x.at(r, k) * w[static_cast<size_t>(k * out + c)];
        y.at(r, c) = spec_.bias ? sum + weight(name + ".bias")[static_cast<size_t>(c)] : sum;
      }
    return y;
  }

  Rows norm(const Rows& x, const std::string& name) const {
    const std::vector<T>& gain = weight(name + ".gain");
    const T width = static_cast<double>(x.width);
    Rows y(x.count, x.width);
    for (int64_t r = 0; r < x.count; ++r) {
      T mean = 0.0, square = 0.0;
      if (spec_.family == Family::gpt2) {
        for (int64_t c = 0; c < x.width; ++c) mean += x.at(r, c);
        mean = mean / width;
      }
      for (int64_t c = 0; c < x.width; ++c) square += (x.at(r, c) - mean) * (x.at(r, c) - mean);
      const T scale = T(1.0) / sqrt(square / width + T(spec_.norm_eps));
      for (int64_t c = 0; c < x.width; ++c) {
        y.at(r, c) = (x.at(r, c) - mean) * scale * gain[static_cast<size_t>(c)];
        if (spec_.bias) y.at(r, c) += weight(name + ".bias")[static_cast<size_t>(c)];
      }
    }
    return y;
  }

  /// Factor of an element: 0 when dropped, 1/(1 − p) when kept.
  double dropout_factor(const std::string& site, int64_t index, uint32_t step) const {
    if (spec_.dropout == 0) return 1;
    const auto threshold = static_cast<uint64_t>(spec_.dropout * 4294967296.0);
    const uint32_t draw = philox_at(philox_key(spec_.seed, site), static_cast<uint64_t>(index), step);
    return draw >= threshold ? 1 / (1 - spec_.dropout) : 0.0;
  }

  Rows dropout(Rows x, const std::string& site, const Batch& batch) const {
    const int64_t first_row = batch.first_sample * batch.length;
    for (int64_t r = 0; r < x.count; ++r)
      for (int64_t c = 0; c < x.width; ++c)
        x.at(r, c) = x.at(r, c) * T(dropout_factor(site, (first_row + r) * x.width + c, batch.step));
    return x;
  }

  static Rows add(Rows x, const Rows& y) {
    for (size_t i = 0; i < x.data.size(); ++i) x.data[i] += y.data[i];
    return x;
  }

  Rows embedding(const Batch& batch) const {
    Rows x(batch.rows(), spec_.hidden);
    for (int64_t r = 0; r < x.count; ++r)
      for (int64_t c = 0; c < x.width; ++c) {
        x.at(r, c) = weight("wte")[static_cast<size_t>(batch.ids[static_cast<size_t>(r)] * spec_.hidden + c)];
        if (spec_.family == Family::gpt2)
          x.at(r, c) += weight("wpe")[static_cast<size_t>(r % batch.length * spec_.hidden + c)];
      }
    return dropout(std::move(x), "dropout.embedding", batch);
  }

  /// Rotate-half: pairs (i, i + D/2) turn by position·theta^(−2i/D).
  Rows rope(const Rows& x, int64_t length) const {
    const int64_t d = spec_.head_dim();
    Rows y(x.count, x.width);
    for (int64_t r = 0; r < x.count; ++r)
      for (int64_t head = 0; head < x.width / d; ++head)
        for (int64_t i = 0; i < d / 2; ++i) {
          const double angle = static_cast<double>(r % length) *
                               std::pow(spec_.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(d));
          const T low = x.at(r, head * d + i), high = x.at(r, head * d + i + d / 2);
          y.at(r, head * d + i) = low * T(std::cos(angle)) - high * T(std::sin(angle));
          y.at(r, head * d + i + d / 2) = high * T(std::cos(angle)) + low * T(std::sin(angle));
        }
    return y;
  }

  /// Probabilities of query row `t` of a sequence over keys 0 … t, then the weighted sum of the values, head by head.
  Rows attention(const Rows& q, const Rows& k, const Rows& v, int64_t layer, const Batch& batch) const {
    const int64_t d = spec_.head_dim(), s = batch.length;
    const std::string site = "dropout." + std::to_string(layer) + ".attn";
    Rows out(q.count, q.width);
    for (int64_t b = 0; b < batch.sequences; ++b)
      for (int64_t h = 0; h < spec_.heads; ++h) {
        const int64_t kv = h / (spec_.heads / spec_.kv_heads);
        for (int64_t t = 0; t < s; ++t) {
          std::vector<T> p(static_cast<size_t>(t + 1), T(0.0));
          for (int64_t j = 0; j <= t; ++j) {
            for (int64_t i = 0; i < d; ++i)
              p[static_cast<size_t>(j)] += q.at(b * s + t, h * d + i) * k.at(b * s + j, kv * d + i);
            p[static_cast<size_t>(j)] = p[static_cast<size_t>(j)] / T(std::sqrt(static_cast<double>(d)));
          }
          const double shift = largest(p.data(), t + 1);
          T sum = 0.0;
          for (T& score : p) sum += score = exp(score - T(shift));
          for (int64_t j = 0; j <= t; ++j) {
            const int64_t index = (((batch.first_sample + b) * spec_.heads + h) * s + t) * s + j;
            const T probability = p[static_cast<size_t>(j)] / sum * T(dropout_factor(site, index, batch.step));
            for (int64_t i = 0; i < d; ++i) out.at(b * s + t, h * d + i) += probability * v.at(b * s + j, kv * d + i);
          }
        }
      }
    return out;
  }

  Rows mlp(const Rows& x, const std::string& block) const {
    Rows up = linear(x, block + "mlp.up", spec_.ff);
    if (spec_.family == Family::gpt2) {
      const double c = std::sqrt(2 / 3.14159265358979323846);
      for (T& u : up.data) u = T(0.5) * u * (T(1.0) + tanh(T(c) * (u + T(0.044715) * u * u * u)));
    } else {
      const Rows gate = linear(x, block + "mlp.gate", spec_.ff);
      for (size_t i = 0; i < up.data.size(); ++i)
        up.data[i] = up.data[i] * gate.data[i] / (T(1.0) + exp(-gate.data[i]));
    }
    return linear(up, block + "mlp.down", spec_.hidden);
  }

  Rows block(Rows x, int64_t layer, const Batch& batch) const {
    const std::string index = std::to_string(layer), name = "blocks." + index + ".";
    const int64_t kv = spec_.kv_heads * spec_.head_dim();
    const Rows a = norm(x, name + "norm1");
    Rows q = linear(a, name + "attn.q", spec_.hidden), k = linear(a, name + "attn.k", kv);
    const Rows v = linear(a, name + "attn.v", kv);
    if (spec_.family == Family::llama) {
      q = rope(q, batch.length);
      k = rope(k, batch.length);
    }
    const Rows mixed = linear(attention(q, k, v, layer, batch), name + "attn.o", spec_.hidden);
    x = add(std::move(x), dropout(mixed, "dropout." + index + ".attn_out", batch));
    return add(x, dropout(mlp(norm(x, name + "norm2"), name), "dropout." + index + ".mlp_out", batch));
  }

  Rows head(const Rows& x) const {
    const std::vector<T>& w = weight(spec_.tied ? "wte" : "head.weight");
    Rows y(x.count, spec_.vocab);
    for (int64_t r = 0; r < x.count; ++r)
      for (int64_t v = 0; v < spec_.vocab; ++v)
        for (int64_t k = 0; k < x.width; ++k) y.at(r, v) += x.at(r, k) * w[static_cast<size_t>(v * x.width + k)];
    return y;
  }

  ModelSpec spec_;
  const Weights<T>& weights_;
};

struct Gradients {
  double loss = 0;
  Weights<double> by;  // d loss / d weight, same names and shapes
};

/// The loss and its exact gradient with respect to every weight, from one reverse sweep.
inline Gradients gradients(const ModelSpec& spec, const Weights<double>& weights, const Batch& batch) {
  Tape::current().clear();
  Weights<Var> inputs;
  for (const auto& [name, values] : weights)
    for (const double value : values) inputs[name].push_back(Var::input(value));
  const Var loss = Model<Var>(spec, inputs).loss(batch);
  const std::vector<double> adjoint = Tape::current().adjoints(loss.node);
  Gradients result{loss.value, {}};
  for (const auto& [name, values] : inputs)
    for (const Var& value : values) result.by[name].push_back(adjoint[static_cast<size_t>(value.node)]);
  Tape::current().clear();
  return result;
}

/// d loss / d weights[name][index] by the complex step, Im f(w + ih)/h: no cancellation.
inline double complex_step(const ModelSpec& spec, const Weights<double>& weights, const Batch& batch,
                           const std::string& name, size_t index) {
  constexpr double kStep = 1e-30;
  Weights<std::complex<double>> inputs;
  for (const auto& [key, values] : weights) inputs[key].assign(values.begin(), values.end());
  inputs.at(name).at(index) += std::complex<double>(0, kStep);
  return Model<std::complex<double>>(spec, inputs).loss(batch).imag() / kStep;
}

}  // namespace trainer::reference
