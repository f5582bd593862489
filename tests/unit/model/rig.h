#pragma once
// A whole model on one rank, to compare with the reference: takes the same weights and returns gradients by name.
#include <gtest/gtest.h>

#include <string>

#include "config/families.h"
#include "model/transformer.h"
#include "optim/make.h"
#include "parallel/loss.h"
#include "parallel/routing.h"
#include "parallel/strategy.h"
#include "reference/reference_model.h"

namespace trainer::model_test {

using reference::ModelSpec;
using Named = reference::Weights<double>;

inline config::Model to_config(const ModelSpec& spec) {
  config::Model model;
  set_family(model, spec.family == reference::Family::llama ? config::Arch::llama : config::Arch::gpt2);
  model.n_layer = spec.layers;
  model.n_head = spec.heads;
  model.n_kv_head = spec.kv_heads;
  model.d_model = spec.hidden;
  model.d_ff = spec.ff;
  model.seq_len = spec.seq_len;
  model.tie_embeddings = spec.tied;
  model.bias = spec.bias;
  model.norm_eps = spec.norm_eps;
  model.rope_theta = spec.rope_theta;
  model.dropout = spec.dropout;
  model.init_std = 0.02;
  model.vocab_multiple = 128;
  return model;
}

struct RigOptions {
  DType compute = DType::f64;
  config::Train train = {};  // recomputation
  int threads = 2;
  const optim::Rules* rules = nullptr;    // the store keeps their optimizer states; null: none
  std::vector<model::Chunk> chunks = {};  // empty: the whole model
};

class Rig {
 public:
  explicit Rig(const ModelSpec& spec, const RigOptions& options = {})
      : Rig(to_config(spec), spec.vocab, spec.seed, options) {}
  Rig(const config::Model& config, int64_t vocab, uint64_t seed, const RigOptions& options)
      : device(options.threads),
        arena(device, Arena::Mode::heap),
        store(device, options.compute),
        strategy(store, config.n_layer),
        model(device, store, strategy, config, vocab, options.train, seed, options.chunks),
        sink(store),
        has_dropout_(config.dropout > 0) {
    if (options.rules != nullptr) optim::keep_states(store, *options.rules);
    store.allocate(/*training=*/true);
    sink.prepare(device);
    if (config.n_expert > 0) {
      routing.emplace(device, store.state_dtype(), moe_layers(config), config.n_expert);
      routed_terms_ = static_cast<double>(moe_layers(config));
      experts_ = static_cast<double>(config.n_expert);
    }
  }

  void set_weights(const Named& weights) {
    for (const params::Param& param : store.params()) {
      const Tensor flat = store.groups()[static_cast<size_t>(param.group)].master;
      const std::vector<double>& values = weights.at(param.name);
      for (const mesh::Run& run : param.runs)
        for (int64_t i = 0; i < run.length; ++i) put(flat, run.local + i, values[static_cast<size_t>(run.global + i)]);
    }
    store.refresh_compute();
  }

  Named weights() const {
    return collect([](const params::Group& group) { return group.master.tensor(); });
  }
  Named gradients() const {
    return collect([](const params::Group& group) { return group.grad; });
  }

  /// Runs one step over the micro-batches, with gradients, and returns its mean loss; denominators are the step's.
  double step(const std::vector<reference::Batch>& micro_batches) {
    sink.begin_step();
    double loss = 0, rows_of_all = 0;
    z_term = 0;
    for (const reference::Batch& micro : micro_batches) rows_of_all += static_cast<double>(micro.rows());
    if (routing) {
      routing->balance = balance_loss * experts_ / (routed_terms_ * rows_of_all);
      routing->z_loss = 2 * router_z_loss / (routed_terms_ * rows_of_all);
      routing->begin_step();
    }
    for (const reference::Batch& micro : micro_batches) {
      Loaded loaded = load(micro);
      loaded.batch.routing = routing ? &*routing : nullptr;
      Transformer::Saved saved(model.chunks().front());
      model.forward(ex, loaded.batch, saved);
      loaded.batch.z_loss = z_loss;
      const int64_t rows = model.loss_rows(loaded.batch.rows());
      const Scratch losses = ex.take("losses", {rows}, DType::f64), z_losses = ex.take("z_losses", {rows}, DType::f64);
      model.loss_backward(ex, loaded.batch, saved, {losses, z_loss > 0 ? z_losses.tensor() : Tensor()}, sink);
      loss += parallel::sum_of_losses(ex, losses) * loaded.scale[0];
      if (z_loss > 0) z_term += parallel::sum_of_losses(ex, z_losses) * loaded.scale[0];
    }
    if (routing) {
      const parallel::RouterTerms terms = routing->terms();
      balance_term = terms.balance / (routed_terms_ * rows_of_all);
      router_z_term = terms.z_loss / (routed_terms_ * rows_of_all);
    }
    return loss;
  }

  double loss(const reference::Batch& micro) {
    Loaded loaded = load(micro);
    loaded.batch.dropout = false;
    const Scratch losses = losses_of(loaded.batch);
    model.loss(ex, loaded.batch, {losses});
    return parallel::sum_of_losses(ex, losses) * loaded.scale[0];
  }

  using Transformer = model::Transformer;
  struct Loaded {
    std::vector<int32_t> ids, targets, first_keys;
    ops::RowsByToken order;
    std::vector<float> weights32;
    std::vector<double> weights64, scale;
    parallel::Batch batch;
  };
  /// Returns the batch in the model's format; its tensors are views of the returned object.
  Loaded load(const reference::Batch& from) const {
    Loaded to;
    to.ids = from.ids;
    to.targets = from.targets;
    model.sort(to.ids, to.order);
    to.first_keys = from.first_keys;
    double sum = 0;
    for (int64_t r = 0; r < from.rows(); ++r) {
      to.weights64.push_back(from.weight(r));
      to.weights32.push_back(static_cast<float>(from.weight(r)));
      sum += from.weight(r);
    }
    const auto view = [&](auto& vector, DType dtype) {
      return Tensor{reinterpret_cast<std::byte*>(vector.data()), {std::ssize(vector)}, dtype, 0};
    };
    to.batch.ids = view(to.ids, DType::i32);
    to.batch.sorted = view(to.order.rows, DType::i32);
    if (!to.targets.empty()) to.batch.targets = view(to.targets, DType::i32);
    if (!to.first_keys.empty()) to.batch.first_key = view(to.first_keys, DType::i32);
    to.batch.weights =
        store.state_dtype() == DType::f64 ? view(to.weights64, DType::f64) : view(to.weights32, DType::f32);
    to.batch.sequences = from.sequences;
    to.batch.seq_len = from.length;
    to.batch.first_sample = from.first_sample;
    to.batch.step = from.step;
    to.scale = {1 / (from.denominator != 0 ? from.denominator : sum)};
    to.batch.loss_scale = view(to.scale, DType::f64);
    to.batch.dropout = has_dropout_;
    return to;
  }

  double z_loss = 0;                           // coefficient in step()
  double z_term = 0;                           // mean of the z-loss in the last step
  double balance_loss = 0, router_z_loss = 0;  // coefficients in step(), and the means in the last one
  double balance_term = 0, router_z_term = 0;
  device::CpuDevice device;
  Arena arena;
  Meter meter;
  Exec ex{device, arena, meter};
  params::ParamStore store;
  parallel::Strategy strategy;
  Transformer model;
  params::GradSink sink;
  std::optional<parallel::Routing> routing;  // with experts

 private:
  Scratch losses_of(const parallel::Batch& batch) const {
    return ex.take("losses", {model.loss_rows(batch.rows())}, DType::f64);
  }
  static void put(const Tensor& flat, int64_t at, double value) {
    if (flat.dtype == DType::f64) {
      flat.as<double>()[at] = value;
    } else {
      flat.as<float>()[at] = static_cast<float>(value);
    }
  }
  template <typename F>
  Named collect(F&& flat_of) const {
    Named result;
    for (const params::Param& param : store.params()) {
      const Tensor flat = flat_of(store.groups()[static_cast<size_t>(param.group)]);
      std::vector<double>& values = result[param.name];
      values.resize(static_cast<size_t>(param.count()));
      for (const mesh::Run& run : param.runs)
        for (int64_t i = 0; i < run.length; ++i)
          values[static_cast<size_t>(run.global + i)] =
              flat.dtype == DType::f64 ? flat.as<double>()[run.local + i] : double{flat.as<float>()[run.local + i]};
    }
    return result;
  }

  bool has_dropout_;
  double routed_terms_ = 0, experts_ = 0;  // layers with experts, and the number of experts
};

inline double norm_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

/// The largest error of a tensor relative to its norm, and the tensor's name. Errors of the key bias, whose gradient is
/// zero in exact arithmetic if positions are learned, and of tensors whose reference is zero are relative to the
/// largest norm in the model.
struct Worst {
  double error = 0;
  std::string name;
};
inline Worst compare(const Named& actual, const Named& expected) {
  double largest = 0;
  for (const auto& [name, values] : expected) largest = std::max(largest, norm_of(values));
  Worst worst;
  EXPECT_EQ(actual.size(), expected.size());
  for (const auto& [name, values] : expected) {
    const std::vector<double>& other = actual.at(name);
    EXPECT_EQ(other.size(), values.size()) << name;
    std::vector<double> difference(values.size());
    for (size_t i = 0; i < values.size(); ++i) difference[i] = other[i] - values[i];
    const double own = norm_of(values);
    const bool vanishes = (name.ends_with("attn.k.bias") && expected.contains("wpe")) || own < 1e-13 * largest;
    const double scale = vanishes ? std::max(largest, 1e-300) : own;
    const double error = norm_of(difference) / (largest == 0 ? 1.0 : scale);
    if (!(error <= worst.error)) worst = {error, name};  // keeps a NaN
  }
  return worst;
}

}  // namespace trainer::model_test
