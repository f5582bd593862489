// The reference model is checked before anything is compared with it.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "reference/reference_model.h"
#include "reference/reference_training.h"

using namespace trainer::reference;

namespace {

ModelSpec gpt2() {
  ModelSpec spec;
  spec.layers = 2, spec.heads = spec.kv_heads = 3, spec.hidden = 15, spec.ff = 22, spec.seq_len = 9, spec.vocab = 11;
  return spec;
}

ModelSpec llama() {
  ModelSpec spec = gpt2();
  spec.family = Family::llama, spec.bias = false, spec.tied = false;
  spec.heads = 4, spec.kv_heads = 2, spec.hidden = 24, spec.rope_theta = 100;
  return spec;
}

std::vector<ModelSpec> every_spec() {
  std::vector<ModelSpec> specs{gpt2(), llama()};
  specs[0].dropout = 0.2;
  specs[0].seed = 7;
  specs.push_back(gpt2());
  specs.back().tied = false;
  specs.back().bias = false;
  specs.push_back(llama());
  specs.back().tied = true;
  specs.back().kv_heads = 1;
  return specs;
}

}  // namespace

TEST(Reference, ReverseSweepAgreesWithTheComplexStepOnEveryTensor) {
  for (const ModelSpec& spec : every_spec()) {
    const Weights<double> weights = random_weights(spec, 1);
    Batch batch = random_batch(spec, 2, 5, 2);
    batch.weights.assign(static_cast<size_t>(batch.rows()), 1.0);
    batch.weights[3] = 0;
    batch.weights[7] = 0.25;
    const Gradients exact = gradients(spec, weights, batch);
    std::mt19937_64 rng(3);
    for (const auto& [name, gradient] : exact.by)
      for (int probe = 0; probe < 6; ++probe) {
        const size_t index = rng() % gradient.size();
        EXPECT_NEAR(gradient[index], complex_step(spec, weights, batch, name, index), 1e-15) << name << " " << index;
      }
  }
}

TEST(Reference, ComplexStepAgreesWithFiniteDifferences) {
  const ModelSpec spec = llama();
  const Weights<double> weights = random_weights(spec, 4);
  const Batch batch = random_batch(spec, 1, 6, 5);
  for (const std::string name : {"wte", "blocks.0.norm1.gain", "blocks.1.attn.k.weight", "blocks.0.mlp.gate.weight"}) {
    const double h = 1e-5;
    Weights<double> up = weights, down = weights;
    up.at(name)[5] += h;
    down.at(name)[5] -= h;
    const double slope = (Model<double>(spec, up).loss(batch) - Model<double>(spec, down).loss(batch)) / (2 * h);
    EXPECT_NEAR(complex_step(spec, weights, batch, name, 5), slope, 1e-9) << name;
  }
}

TEST(Reference, EqualLogitsCostTheLogarithmOfTheVocabulary) {
  const ModelSpec spec = gpt2();
  Weights<double> weights = random_weights(spec, 6);
  weights.at("norm_f.gain").assign(15, 0.0);
  weights.at("norm_f.bias").assign(15, 0.0);
  EXPECT_NEAR(Model<double>(spec, weights).loss(random_batch(spec, 2, 4, 7)), std::log(11.0), 1e-14);
}

TEST(Reference, AFutureTokenChangesNoEarlierLoss) {
  for (const ModelSpec& spec : every_spec()) {
    const Weights<double> weights = random_weights(spec, 8);
    Batch batch = random_batch(spec, 1, 7, 9);
    const Model<double> model(spec, weights);
    const std::vector<double> before = model.row_losses(batch);
    batch.ids[5] = static_cast<int32_t>((batch.ids[5] + 1) % spec.vocab);
    const std::vector<double> after = model.row_losses(batch);
    for (size_t r = 0; r < 5; ++r) EXPECT_EQ(before[r], after[r]) << r;
    EXPECT_NE(before[5], after[5]);
    EXPECT_NE(before[6], after[6]);
  }
}

TEST(Reference, PositionsMakeTheOrderOfEarlierTokensMatter) {
  // Without positions, one layer sees a set: swapping two earlier tokens would not change the last row's loss.
  ModelSpec spec = llama();
  spec.layers = 1;
  const Weights<double> weights = random_weights(spec, 10);
  Batch batch = random_batch(spec, 1, 6, 11);
  const double before = Model<double>(spec, weights).row_losses(batch)[5];
  std::swap(batch.ids[1], batch.ids[2]);
  EXPECT_GT(std::abs(Model<double>(spec, weights).row_losses(batch)[5] - before), 1e-6);
}

TEST(Reference, DropoutMasksContinueOverMicroBatchesAndChangeWithTheStep) {
  ModelSpec spec = gpt2();
  spec.dropout = 0.3, spec.seed = 5;
  const Weights<double> weights = random_weights(spec, 14);
  const Batch both = random_batch(spec, 4, 6, 15);
  const std::vector<double> whole = Model<double>(spec, weights).row_losses(both);
  Batch second = both;
  second.sequences = 2, second.first_sample = 2;
  second.ids.erase(second.ids.begin(), second.ids.begin() + 12);
  second.targets.erase(second.targets.begin(), second.targets.begin() + 12);
  const std::vector<double> part = Model<double>(spec, weights).row_losses(second);
  for (size_t r = 0; r < 12; ++r) EXPECT_EQ(part[r], whole[r + 12]) << r;
  second.step = 1;
  EXPECT_NE(Model<double>(spec, weights).row_losses(second), part);
}

TEST(Reference, AdamWFollowsTheClosedFormOfItsFirstStep) {
  // t = 1: m̂ = g, v̂ = g², so the update is lr·sign(g) (eps = 0) plus the decay of matrices.
  AdamWSpec spec;
  spec.eps = 0, spec.weight_decay = 0.5, spec.max_norm = 1;
  AdamW adam(spec, {{"matrix", {1, 2}}, {"vector", {1}}});
  Weights<double> weights{{"matrix", {1.0, -2.0}}, {"vector", {3.0}}};
  EXPECT_DOUBLE_EQ(adam.step(weights, {{"matrix", {3.0, -4.0}}, {"vector", {12.0}}}, 0.1), 13.0);
  EXPECT_NEAR(weights["matrix"][0], 1.0 - 0.1 * (1 + 0.5), 1e-15);
  EXPECT_NEAR(weights["matrix"][1], -2.0 + 0.1 * (1 + 1.0), 1e-15);
  EXPECT_NEAR(weights["vector"][0], 2.9, 1e-15);
}
