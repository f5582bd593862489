#pragma once
// Trains a tiny model on ranks that are threads, and compares the results of layouts.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <mutex>

#include "checkpoint/param_slices.h"
#include "config/layouts.h"
#include "rigs/tiny.h"

namespace trainer::tests {

/// Global tensors by name, gathered from the slices of all ranks.
using Tensors = std::map<std::string, std::vector<double>>;

inline void collect(Tensors& all, const checkpoint::TensorSlice& slice) {
  HostCopy copy;
  const Tensor local = slice.device == nullptr ? slice.local : copy.get(*slice.device, slice.local);
  std::vector<double>& out = all[slice.name];
  out.resize(static_cast<size_t>(slice.shape.count()), NAN);
  for (const mesh::Run& run : slice.runs)
    for (int64_t i = 0; i < run.length; ++i) {
      double& element = out[static_cast<size_t>(run.global + i)];
      EXPECT_TRUE(std::isnan(element)) << slice.name << " " << run.global + i << " is owned twice";
      const int64_t at = run.local + i * run.stride;
      element = local.dtype == DType::f64    ? local.as<double>()[at]
                : local.dtype == DType::bf16 ? static_cast<float>(local.as<bf16>()[at])
                                             : local.as<float>()[at];
    }
}

/// Returns the configuration for the same model and batches on one rank.
inline config::Config on_one_rank(config::Config c) {
  // Loads of experts are balanced over the sequences of a micro-step, on all replicas.
  if (c.model.n_expert > 0) c.train.micro_batch *= std::max<int64_t>(1, c.parallel.data);
  c.parallel = {};
  c.parallel.strategy = config::StrategyName::megatron_1d;
  c.parallel.data = 1;
  return c;
}

struct Result {
  std::vector<double> losses, norms;
  Tensors start;                  // weights before the first step
  Tensors state;                  // weights and moments after the last step, from the ranks that own them
  Tensors gradients;              // after the first step, from the ranks that own them
  CommBytes measured, predicted;  // the first rank's
  std::vector<std::pair<CommBytes, CommBytes>> bytes;  // by rank: measured and predicted
  int64_t optimizer_bytes = 0;                         // the first rank's
  std::vector<std::vector<int64_t>> choices;           // experts of the last step's rows
  int64_t rounds = 0;                                  // train::ExpertStatistics::rounds of the last step
};

struct HowToRun {
  int threads = 1;   // threads per rank
  double delay = 0;  // maximum delay of messages, seconds
  /// Makes each rank's device; empty: a CPU.
  std::function<std::unique_ptr<device::Device>(int rank)> device = {};
  /// Makes the world for collectives on the device's tensors; empty: the world of threads.
  Carrier carrier = {};
  /// Called before the first step, to change weights.
  std::function<void(Tiny&)> prepare = {};
  /// Replaces the configured sharding; the size of its axis "data" is set to the number of replicas.
  std::optional<sharding::ModelSharding> sharding = {};
};

/// Returns the smallest difference between a chosen logit of a row and one that is not chosen.
inline double deciding_gap(const Tensor& logits, int64_t chosen) {
  double smallest = INFINITY;
  for (int64_t row = 0; row < logits.rows(); ++row) {
    const double* const first = logits.row_range(row, 1).as<double>();
    std::vector<double> sorted(first, first + logits.cols());
    std::ranges::sort(sorted, std::greater());
    smallest = std::min(smallest, sorted[static_cast<size_t>(chosen - 1)] - sorted[static_cast<size_t>(chosen)]);
  }
  return smallest;
}

/// Trains for `steps` steps on all ranks of the layout. In double precision, no choice of an expert may depend on
/// rounding.
inline Result train(const config::Config& c, DType compute, int64_t steps, const HowToRun& how = {}) {
  Result result;
  const bool compares_choices =
      c.model.n_expert > 0 && compute == DType::f64 && !how.device && !c.debug.balanced_routing;
  double gap = INFINITY;
  std::mutex mutex;
  comm::WorldOptions options{.timeout_s = 60};
  if (how.delay > 0)
    options.delay = [&, n = std::make_shared<std::atomic<uint64_t>>(0)](int) {
      return how.delay * static_cast<double>(philox_at(philox_key(1, "delay"), n->fetch_add(1)) % 100) / 100;
    };
  std::optional<sharding::ModelSharding> sharding = how.sharding;
  const int64_t data = std::max<int64_t>(c.parallel.data, 1);
  if (sharding) {
    sharding->axes[sharding->replica_axis()].size = data;
    sharding = sharding::on_mesh(std::move(*sharding), c.model.n_kv_head);
  }
  const auto ranks = static_cast<int>(data * (sharding ? sharding->ranks_of_replica() : config::ranks_of_replica(c)));
  comm::run_on_threads(ranks, options, [&](comm::World& world) {
    Tiny run(&world, c, compute,
             how.device ? how.device(world.rank()) : std::make_unique<device::CpuDevice>(how.threads), how.carrier,
             sharding);
    if (how.prepare) how.prepare(run);
    if (compares_choices)
      run.trainer.routing()->on_choice = [&](int64_t, int64_t, const Tensor& logits, const Tensor& choices) {
        const double smallest = deciding_gap(logits, choices.cols());
        const std::lock_guard lock(mutex);
        gap = std::min(gap, smallest);
      };
    {
      const std::lock_guard lock(mutex);
      for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), false))
        collect(result.start, slice);
    }
    run.trainer.meter().reset();
    for (int64_t n = 1; n <= steps; ++n) {
      const auto outcome = run.step(n);
      const std::lock_guard lock(mutex);
      if (n == 1)
        for (const params::Param& param : run.trainer.store().params()) {
          if (!param.primary) continue;
          const params::Group& group = run.trainer.store().groups()[static_cast<size_t>(param.group)];
          collect(result.gradients, {param.name, param.shape, group.grad.range(group.owned.begin, group.owned.count),
                                     mesh::clip_runs(param.runs, group.owned.begin, group.owned.count), &run.device});
        }
      if (static_cast<int64_t>(result.losses.size()) < n) {
        result.losses.push_back(outcome.loss);
        result.norms.push_back(outcome.norm.norm);
      }
      // All ranks have the same loss and norm.
      EXPECT_EQ(result.losses[static_cast<size_t>(n - 1)], outcome.loss) << "rank " << world.rank();
      EXPECT_EQ(result.norms[static_cast<size_t>(n - 1)], outcome.norm.norm) << "rank " << world.rank();
    }
    train::ExpertStatistics experts;
    if (c.model.n_expert > 0) experts = run.trainer.expert_statistics();
    const std::lock_guard lock(mutex);
    result.choices = experts.counts;
    result.rounds = experts.rounds;
    for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), true))
      collect(result.state, slice);
    result.bytes.resize(static_cast<size_t>(world.size()));
    result.bytes[static_cast<size_t>(world.rank())] = {
        run.trainer.comm_bytes(run.trainer.meter().comm()),
        run.trainer.expected_comm_bytes(run.trainer.comm_bytes_per_step())};
    if (!world.first()) return;
    result.measured = run.trainer.comm_bytes(run.trainer.meter().comm());
    result.predicted = run.trainer.expected_comm_bytes(run.trainer.comm_bytes_per_step());
    result.optimizer_bytes = run.trainer.store().home().memory().at("optimizer").current;
  });
  if (compares_choices) {
    EXPECT_TRUE(gap > 1e-9 && gap < INFINITY) << "rounding may decide on a choice of experts: " << gap;
  }
  return result;
}

/// Expects the elements that this rank stores to equal those of `all` bit for bit.
inline void expect_same_where_owned(const Tensors& own, const Tensors& all) {
  EXPECT_FALSE(own.empty());
  for (const auto& [name, values] : own) {
    const std::vector<double>& expected = all.at(name);
    int64_t different = 0;
    for (size_t i = 0; i < values.size(); ++i) different += !std::isnan(values[i]) && values[i] != expected.at(i);
    EXPECT_EQ(different, 0) << name << ": of " << values.size();
  }
}

/// Largest |a − b| over the tensor, relative to the norm of b.
inline double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double squares = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    squares += b[i] * b[i];
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // keeps a NaN
  }
  return largest / (std::sqrt(squares) + 1e-300);
}

/// ‖a − b‖ / ‖b‖
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  double squares = 0, errors = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    squares += b[i] * b[i];
    errors += (a[i] - b[i]) * (a[i] - b[i]);
  }
  return std::sqrt(errors / (squares + 1e-300));
}

/// With learned positions, the gradient of the key bias is zero in exact arithmetic, since softmax cancels it.
inline bool is_key_bias(const std::string& name) { return name.find("attn.k.bias") != std::string::npos; }
/// True if positions are rotary; the gradient of the key bias is not zero then.
inline bool has_rotary_positions(const Tensors& tensors) { return !tensors.contains("wpe"); }

/// Expects each gradient of the first step within `tolerance` times its norm; that of the key bias, if zero in exact
/// arithmetic, within `tolerance` times the largest gradient element.
inline void expect_same_gradients(const Tensors& many, const Tensors& one, double tolerance) {
  double largest = 0;
  for (const auto& [name, values] : one)
    for (const double x : values) largest = std::max(largest, std::abs(x));
  ASSERT_EQ(many.size(), one.size());
  for (const auto& [name, values] : one) {
    ASSERT_EQ(many.at(name).size(), values.size()) << name;
    for (const double x : many.at(name)) ASSERT_FALSE(std::isnan(x)) << name << ": an element that no rank owns";
    if (!is_key_bias(name) || has_rotary_positions(one)) {
      EXPECT_LE(distance(many.at(name), values), tolerance) << name;
      continue;
    }
    for (size_t i = 0; i < values.size(); ++i) EXPECT_LE(std::abs(many.at(name)[i] - values[i]), tolerance * largest);
  }
}

/// Compares a run in double precision with a run on one rank; clipping must be active.
inline void expect_same_run(const Result& many, const Result& one) {
  expect_same_gradients(many.gradients, one.gradients, 1e-12);
  ASSERT_EQ(many.losses.size(), one.losses.size());
  for (size_t n = 0; n < one.losses.size(); ++n) {
    EXPECT_NEAR(many.losses[n], one.losses[n], 1e-10 * one.losses[n]) << "step " << n + 1;
    EXPECT_NEAR(many.norms[n], one.norms[n], 1e-9 * one.norms[n]) << "step " << n + 1;
  }
  EXPECT_EQ(many.choices, one.choices);
  for (const double norm : one.norms) EXPECT_GT(norm, 0.1) << "clipping is meant to be active";
  for (const auto& [name, values] : one.state) {
    const bool vanishes = is_key_bias(name) && !has_rotary_positions(one.gradients);
    if (name.find('#') != std::string::npos || vanishes) continue;
    EXPECT_LE(distance(many.state.at(name), values), 1e-9) << name;
  }
}

/// Expects `steps` steps to have sent `steps` times the bytes that were predicted for one.
inline void expect_predicted_bytes(const Result& result, int64_t steps) {
  auto predicted = result.predicted;
  for (auto& [axis, operations] : predicted)
    for (auto& [operation, bytes] : operations) bytes *= steps;
  EXPECT_EQ(result.measured, predicted);
}

/// Expects losses, norms, weights and moments of two runs to be equal bit for bit.
inline void expect_same_bits(const Result& a, const Result& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_TRUE(a.state == b.state);
}

}  // namespace trainer::tests
