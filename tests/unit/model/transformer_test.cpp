// Whole models compared with the double-precision reference: losses, gradients of every tensor, training, generation.
#include "model/transformer.h"

#include <gtest/gtest.h>

#include "optim/elementwise.h"
#include "reference/reference_training.h"
#include "unit/model/rig.h"

using namespace trainer;
using namespace trainer::model_test;
using reference::Batch;
using reference::Family;

namespace {

constexpr uint64_t kWeightSeed = 11, kBatchSeed = 12;

struct Case {
  std::string name;
  ModelSpec spec;
  int64_t sequences = 2, length = 7;
};

void PrintTo(const Case& tested, std::ostream* out) { *out << tested.name; }

ModelSpec gpt2() {
  ModelSpec spec;
  spec.layers = 2, spec.heads = spec.kv_heads = 3, spec.hidden = 15, spec.ff = 61, spec.seq_len = 9, spec.vocab = 37;
  return spec;
}

ModelSpec llama() {
  ModelSpec spec = gpt2();
  spec.family = Family::llama, spec.bias = false, spec.tied = false, spec.rope_theta = 100;
  spec.heads = 4, spec.kv_heads = 2, spec.hidden = 24, spec.ff = 41;
  return spec;
}

template <typename F>
ModelSpec with(ModelSpec spec, F&& change) {
  change(spec);
  return spec;
}

std::vector<Case> cases() {
  return {
      {"gpt2", gpt2()},
      {"gpt2_untied_without_bias", with(gpt2(), [](ModelSpec& s) { s.tied = s.bias = false; })},
      {"gpt2_dropout", with(gpt2(), [](ModelSpec& s) { s.dropout = 0.25, s.seed = 9; })},
      {"gpt2_one_layer_one_token", with(gpt2(), [](ModelSpec& s) { s.layers = 1; }), 1, 1},
      {"gpt2_one_word", with(gpt2(), [](ModelSpec& s) { s.vocab = 1; })},
      {"gpt2_one_head_of_one", with(gpt2(), [](ModelSpec& s) { s.hidden = s.heads = s.kv_heads = 3; }), 3, 5},
      {"gpt2_long", with(gpt2(), [](ModelSpec& s) { s.layers = 1, s.seq_len = 150; }), 1, 133},
      {"llama_grouped", llama()},
      {"llama_one_kv_head_tied", with(llama(), [](ModelSpec& s) { s.kv_heads = 1, s.tied = true; })},
      {"llama_dropout", with(llama(), [](ModelSpec& s) { s.dropout = 0.1, s.seed = 10; })},
      {"llama_biases", with(llama(), [](ModelSpec& s) { s.bias = true, s.kv_heads = 4; })},
      {"llama_large_vocabulary", with(llama(), [](ModelSpec& s) { s.layers = 1, s.vocab = 301; }), 5, 9},
  };
}

/// A batch in the middle of a step, with a masked row and a row of weight 1/2 where there are enough rows.
Batch batch_of(const Case& c) {
  Batch batch = reference::random_batch(c.spec, c.sequences, c.length, kBatchSeed);
  batch.first_sample = 3;
  batch.step = 5;
  batch.weights.assign(static_cast<size_t>(batch.rows()), 1.0);
  if (batch.rows() > 4) {
    batch.weights[1] = 0;
    batch.weights[4] = 0.5;
  }
  return batch;
}

bool narrow(const Case& c) { return c.spec.hidden < 8; }

/// Returns the weights rounded to the compute type, so that errors come from arithmetic, not from rounded inputs.
Named rounded(Named weights, DType compute) {
  for (auto& [name, values] : weights)
    for (double& value : values) {
      if (compute == DType::f32) value = static_cast<float>(value);
      if (compute == DType::bf16) value = static_cast<double>(bf16(value));
    }
  return weights;
}

class EveryModel : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(, EveryModel, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& tested) { return tested.param.name; });

void expect_follows_reference(const Case& c, DType compute, double gradient_tolerance, double loss_tolerance) {
  const Named weights = rounded(reference::random_weights(c.spec, kWeightSeed), compute);
  const Batch batch = batch_of(c);
  Rig rig(c.spec, {.compute = compute});
  rig.set_weights(weights);
  const double loss = rig.step({batch});
  const reference::Gradients expected = reference::gradients(c.spec, weights, batch);
  EXPECT_NEAR(loss, expected.loss, loss_tolerance * std::max(1.0, expected.loss));
  const Worst worst = compare(rig.gradients(), expected.by);
  EXPECT_LE(worst.error, gradient_tolerance) << worst.name << ", seeds " << kWeightSeed << ", " << kBatchSeed;
}

}  // namespace

TEST_P(EveryModel, DeclaresTheParametersOfItsFamily) {
  Rig rig(GetParam().spec);
  const reference::Shapes expected = reference::parameter_shapes(GetParam().spec);
  EXPECT_EQ(rig.store.params().size(), expected.size());
  for (const params::Param& param : rig.store.params()) {
    ASSERT_TRUE(expected.contains(param.name)) << param.name;
    const std::vector<int64_t>& shape = expected.at(param.name);
    ASSERT_EQ(param.shape.dims(), static_cast<int64_t>(shape.size())) << param.name;
    for (int i = 0; i < param.shape.dims(); ++i) EXPECT_EQ(param.shape[i], shape[static_cast<size_t>(i)]) << param.name;
  }
}

TEST_P(EveryModel, GradientsInFp64MatchTheReference) { expect_follows_reference(GetParam(), DType::f64, 1e-10, 1e-12); }

// Sums have up to a few hundred terms and are about a dozen operations deep: errors are within some tens of ε.
TEST_P(EveryModel, GradientsInFp32StayNearTheReference) {
  if (narrow(GetParam())) GTEST_SKIP() << "a norm over three numbers amplifies rounding errors";
  expect_follows_reference(GetParam(), DType::f32, 80 * 0x1p-24, 20 * 0x1p-24);
}

// Every activation is rounded to eight bits. Two layers round about twenty times, and the errors partly cancel.
TEST_P(EveryModel, GradientsInBf16StayNearTheReference) {
  if (narrow(GetParam())) GTEST_SKIP() << "a norm over three numbers amplifies rounding errors";
  expect_follows_reference(GetParam(), DType::bf16, 16 * 0x1p-8, 4 * 0x1p-8);
}

TEST_P(EveryModel, RecomputationAndThreadsChangeNoBit) {
  const Case& c = GetParam();
  for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
    const Named weights = reference::random_weights(c.spec, kWeightSeed);
    const auto run = [&](config::Recompute recompute, int64_t layers, int threads) {
      Rig rig(c.spec,
              {.compute = compute, .train = {.recompute = recompute, .recompute_layers = layers}, .threads = threads});
      rig.set_weights(weights);
      const double loss = rig.step({batch_of(c)});
      return std::pair{loss, rig.gradients()};
    };
    const auto [loss, gradients] = run(config::Recompute::none, 0, 1);
    const auto expect_same = [&](config::Recompute recompute, int64_t layers, int threads, const char* what) {
      const auto [other_loss, other] = run(recompute, layers, threads);
      EXPECT_EQ(other_loss, loss) << name_of(compute) << ", " << what;
      for (const auto& [name, values] : gradients)
        EXPECT_TRUE(other.at(name) == values) << name_of(compute) << ", " << what << ": " << name << " differs";
    };
    expect_same(config::Recompute::none, 0, 3, "three threads");
    expect_same(config::Recompute::selective, 0, 2, "selective recomputation");
    expect_same(config::Recompute::full, 0, 2, "full recomputation");
    expect_same(config::Recompute::selective, 1, 2, "full recomputation of the first layer");
  }
}

TEST_P(EveryModel, MicroBatchesAddUpToTheWholeStep) {
  const Case& c = GetParam();
  const Named weights = reference::random_weights(c.spec, kWeightSeed);
  Case doubled = c;
  doubled.sequences *= 2;
  const Batch whole = batch_of(doubled);
  double total = 0;
  for (const double weight : whole.weights) total += weight;
  const int64_t rows = c.sequences * c.length;
  std::vector<Batch> halves(2, whole);
  for (int half = 0; half < 2; ++half) {
    Batch& part = halves[static_cast<size_t>(half)];
    const auto cut = [&](auto& values) { values = {values.begin() + half * rows, values.begin() + (half + 1) * rows}; };
    cut(part.ids);
    cut(part.targets);
    cut(part.weights);
    part.sequences = c.sequences;
    part.first_sample = whole.first_sample + half * c.sequences;
    part.denominator = total;
  }
  Rig rig(c.spec);
  rig.set_weights(weights);
  const double loss = rig.step(halves);
  const reference::Gradients expected = reference::gradients(c.spec, weights, whole);
  EXPECT_NEAR(loss, expected.loss, 1e-12 * std::max(1.0, expected.loss));
  const Worst worst = compare(rig.gradients(), expected.by);
  EXPECT_LE(worst.error, 1e-10) << worst.name;
}

TEST_P(EveryModel, EvaluationHasTheLossOfTheReferenceWithoutDropout) {
  const Case& c = GetParam();
  const Named weights = reference::random_weights(c.spec, kWeightSeed);
  Rig rig(c.spec);
  rig.set_weights(weights);
  const ModelSpec plain = with(c.spec, [](ModelSpec& s) { s.dropout = 0; });
  EXPECT_NEAR(rig.loss(batch_of(c)), reference::Model<double>(plain, weights).loss(batch_of(c)), 1e-11);
}

TEST_P(EveryModel, TwentyClippedStepsFollowTheReference) {
  const Case& c = GetParam();
  if (c.length > 100) GTEST_SKIP() << "long sequences add nothing to what is tested here";
  config::Optim optim;
  optim.beta1 = 0.9, optim.beta2 = 0.95, optim.eps = 1e-8, optim.weight_decay = 0.1, optim.grad_clip = 0.5;
  constexpr int64_t kSteps = 20;
  Named expected = reference::random_weights(c.spec, kWeightSeed);
  optim::Rules rules;
  rules.push_back(optim::elementwise_rule({.optim = optim}, DType::f64));
  Rig rig(c.spec, {.rules = &rules});
  rig.set_weights(expected);
  const std::unique_ptr<optim::Optimizer> adam = optim::make_optimizer(rig.store, rules);
  reference::AdamW reference_adam({.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .max_norm = 0.5},
                                  reference::parameter_shapes(c.spec));
  bool clipped = false;
  for (int64_t step = 1; step <= kSteps; ++step) {
    Batch batch = reference::random_batch(c.spec, c.sequences, c.length, kBatchSeed + static_cast<uint64_t>(step));
    batch.step = static_cast<uint32_t>(step);
    const reference::Gradients reference_gradients = reference::gradients(c.spec, expected, batch);
    const double lr = reference::cosine_lr(step, kSteps, 4, 1e-2, 1e-3);
    const double reference_norm = reference_adam.step(expected, reference_gradients.by, lr);

    ASSERT_NEAR(rig.step({batch}), reference_gradients.loss, 1e-10) << "step " << step;
    const params::GradNorm norm = rig.sink.finish(rig.ex);
    ASSERT_NEAR(norm.norm, reference_norm, 1e-9 * std::max(1.0, reference_norm)) << "step " << step;
    clipped = clipped || norm.norm > optim.grad_clip;
    adam->step(rig.ex, optim::make_update(rules, lr, step, norm.clip_factor(optim.grad_clip)));
  }
  EXPECT_TRUE(clipped || c.spec.vocab == 1);
  const Named actual = rig.weights();
  for (const auto& [name, values] : expected) {
    if (name.ends_with("attn.k.bias")) continue;  // Adam turns the rounding noise of a zero gradient into full steps
    EXPECT_LE(compare({{name, actual.at(name)}}, {{name, values}}).error, 1e-9) << name;
  }
}

TEST_P(EveryModel, GenerationWithACacheHasTheLogitsOfTheWholeSequence) {
  const Case& c = GetParam();
  const ModelSpec plain = with(c.spec, [](ModelSpec& s) { s.dropout = 0; });
  const Named weights = reference::random_weights(plain, kWeightSeed);
  Rig rig(plain);
  rig.set_weights(weights);
  const Batch whole = reference::random_batch(plain, 1, c.length, kBatchSeed);
  const std::vector<double> expected = reference::Model<double>(plain, weights).logits(whole);
  model::Transformer::Cache cache(rig.device, rig.model);
  for (int64_t at = 0, n = std::min<int64_t>(3, c.length); at < c.length;
       at += n, n = std::min<int64_t>(1, c.length - at)) {
    Batch piece = whole;
    piece.length = n;
    piece.ids = {whole.ids.begin() + at, whole.ids.begin() + at + n};
    piece.targets.clear();
    Rig::Loaded loaded = rig.load(piece);
    const Scratch logits = rig.model.extend(rig.ex, loaded.batch, cache);
    for (int64_t v = 0; v < plain.vocab; ++v)
      ASSERT_NEAR(logits.tensor().as<double>()[v], expected[static_cast<size_t>((at + n - 1) * plain.vocab + v)], 1e-11)
          << "position " << at + n - 1 << ", token " << v;
  }
}

/// A model in chunks, as pipeline stages would have them: one rank has both ends, another the middle, [cut[0], cut[1]).
struct InChunks {
  InChunks(const ModelSpec& spec, std::array<int64_t, 2> cut, const RigOptions& options)
      : ends(spec,
             with_chunks(options, {{.last = cut[0], .head = false}, {.first = cut[1], .last = 3, .embedding = false}})),
        middle(spec, with_chunks(options, {{.first = cut[0], .last = cut[1], .embedding = false, .head = false}})) {}
  static RigOptions with_chunks(RigOptions options, std::vector<model::Chunk> chunks) {
    options.chunks = std::move(chunks);
    return options;
  }
  void step(const Batch& batch) {
    const Rig::Loaded loaded = ends.load(batch);
    const Scratch losses = ends.ex.take("losses", {ends.model.loss_rows(loaded.batch.rows())}, DType::f64);
    model::Transformer::Saved first(ends.model.chunks()[0]), between(middle.model.chunks()[0]),
        last(ends.model.chunks()[1]);
    for (Rig* rig : {&ends, &middle}) rig->sink.begin_step();
    Scratch x = ends.model.forward(ends.ex, loaded.batch, first);
    x = middle.model.forward(middle.ex, loaded.batch, between, std::move(x));
    EXPECT_FALSE(ends.model.forward(ends.ex, loaded.batch, last, std::move(x)));
    Scratch dx = ends.model.loss_backward(ends.ex, loaded.batch, last, {losses}, ends.sink);
    dx = middle.model.loss_backward(middle.ex, loaded.batch, between, {}, middle.sink, std::move(dx));
    EXPECT_FALSE(ends.model.loss_backward(ends.ex, loaded.batch, first, {}, ends.sink, std::move(dx)));
  }
  Named all(Named (Rig::*of)() const) {
    Named named = (ends.*of)();
    named.merge((middle.*of)());
    return named;
  }
  Rig ends, middle;
};

class Chunks : public testing::TestWithParam<std::array<int64_t, 2>> {
 protected:
  static ModelSpec untied(ModelSpec spec) {
    spec.tied = false, spec.layers = 3, spec.dropout = 0.1;
    return spec;
  }
};
INSTANTIATE_TEST_SUITE_P(, Chunks,
                         testing::Values(std::array<int64_t, 2>{1, 2}, std::array<int64_t, 2>{0, 3},
                                         std::array<int64_t, 2>{2, 2}));

TEST_P(Chunks, TogetherHaveTheBitsOfTheWholeModel) {
  for (const Case& c : {Case{"gpt2", untied(gpt2())}, Case{"llama", untied(llama())}})
    for (const config::Recompute recompute : {config::Recompute::none, config::Recompute::full}) {
      const Named weights = reference::random_weights(c.spec, kWeightSeed);
      config::Optim optim;
      optim.beta1 = 0.9, optim.beta2 = 0.95, optim.eps = 1e-8, optim.weight_decay = 0.1;
      optim::Rules rules;
      rules.push_back(optim::elementwise_rule({.optim = optim}, DType::f64));
      const RigOptions options{.train = {.recompute = recompute}, .rules = &rules};
      Rig whole(c.spec, options);
      InChunks chunks(c.spec, GetParam(), options);
      for (Rig* rig : {&whole, &chunks.ends, &chunks.middle}) rig->set_weights(weights);
      whole.step({batch_of(c)});
      chunks.step(batch_of(c));
      EXPECT_TRUE(chunks.all(&Rig::gradients) == whole.gradients()) << c.name;
      double squares = 0;
      const auto update = [&](Rig& rig) {
        const double norm = rig.sink.finish(rig.ex).norm;
        squares += norm * norm;
        optim::make_optimizer(rig.store, rules)->step(rig.ex, optim::make_update(rules, 1e-2, 1, 0.5));
        return norm;
      };
      for (Rig* rig : {&chunks.ends, &chunks.middle}) {
        EXPECT_EQ(rig->store.slot_groups().size(), whole.store.slot_groups().size());
        update(*rig);
      }
      const double norm = std::sqrt(squares);
      EXPECT_NEAR(update(whole), norm, 1e-13 * norm) << "groups without slots add nothing";
      EXPECT_TRUE(chunks.all(&Rig::weights) == whole.weights()) << c.name;
    }
}

TEST_P(Chunks, EvaluateAndGenerateAsTheWholeModelDoes) {
  const Case c{"llama", untied(llama())};
  const Named weights = reference::random_weights(c.spec, kWeightSeed);
  Rig whole(c.spec);
  InChunks chunks(c.spec, GetParam(), {});
  Rig &ends = chunks.ends, &middle = chunks.middle;
  for (Rig* rig : {&whole, &ends, &middle}) rig->set_weights(weights);
  Rig::Loaded loaded = ends.load(batch_of(c));
  loaded.batch.dropout = false;
  EXPECT_EQ(middle.model.loss_rows(loaded.batch.rows()), 0);
  const Scratch losses = ends.ex.take("losses", {ends.model.loss_rows(loaded.batch.rows())}, DType::f64);
  Scratch x = ends.model.loss(ends.ex, loaded.batch, {losses});
  x = middle.model.loss(middle.ex, loaded.batch, {}, {.x = std::move(x)});
  EXPECT_FALSE(ends.model.loss(ends.ex, loaded.batch, {losses}, {.chunk = 1, .x = std::move(x)}));
  EXPECT_EQ(parallel::sum_of_losses(ends.ex, losses) * loaded.scale[0], whole.loss(batch_of(c)));

  using Cache = model::Transformer::Cache;
  Cache all(whole.device, whole.model), outside(ends.device, ends.model), inside(middle.device, middle.model);
  EXPECT_EQ(ends.model.cache_bytes() + middle.model.cache_bytes(), whole.model.cache_bytes());
  for (const int64_t length : {5, 1}) {
    const Rig::Loaded one = ends.load(reference::random_batch(c.spec, 1, length, kBatchSeed));
    const std::array caches{&outside};
    x = ends.model.extend(ends.ex, one.batch, caches);
    x = middle.model.extend(middle.ex, one.batch, std::array{&inside}, true, {.x = std::move(x)});
    x = ends.model.extend(ends.ex, one.batch, caches, true, {.chunk = 1, .x = std::move(x)});
    const Scratch expected = whole.model.extend(whole.ex, one.batch, all);
    EXPECT_TRUE(std::ranges::equal(x.tensor().span<double>(), expected.tensor().span<double>()));
    for (const Cache* cache : {&outside, &inside}) EXPECT_EQ(cache->used, all.used);
  }
}
