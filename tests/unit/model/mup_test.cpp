// With muP the activations of a model after a few steps have the same size at every width; without it they grow.
#include <cmath>

#include "config/config.h"
#include "config/keys.h"
#include "config/resolve.h"
#include "unit/model/rig.h"

namespace trainer::model_test {
namespace {

constexpr int64_t kWidths[] = {64, 128, 256, 512}, kHead = 16, kVocab = 61;

config::Config config_of(int64_t width, int64_t base) {
  config::Config c = config::defaults();
  c.model.arch = config::Arch::llama;
  c.model.n_layer = 2;
  c.model.d_model = width;
  c.model.n_head = width / kHead;
  c.model.d_ff = 2 * width;
  c.model.seq_len = 16;
  c.model.tie_embeddings = false;
  c.model.init_std = 0.1;
  c.optim.mup_base_width = base;
  config::resolve(c);
  return c;
}

double rms(const Tensor& x) {
  double sum = 0;
  for (const float value : x.span<float>()) sum += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(sum / static_cast<double>(x.count()));
}

/// Returns the sizes of what layers add to the residual stream, and of the logits, after ten steps on the same batch.
std::vector<double> sizes_after_ten_steps(int64_t width, int64_t base) {
  const config::Config c = config_of(width, base);
  const optim::Rules rules = optim::make_rules(c, DType::f32);
  Rig rig(c.model, kVocab, 3, {.compute = DType::f32, .rules = &rules});
  rig.store.initialize(3);
  const std::unique_ptr<optim::Optimizer> optimizer = optim::make_optimizer(rig.store, rules);
  reference::Batch batch;
  batch.sequences = 2;
  batch.length = c.model.seq_len;
  const auto rows = static_cast<uint64_t>(batch.sequences * batch.length);
  for (uint64_t row = 0; row < rows; ++row) {
    batch.ids.push_back(static_cast<int32_t>(row * row * 7 % kVocab));
    batch.targets.push_back(static_cast<int32_t>((row * 13 + 5) % kVocab));
    batch.weights.push_back(1);
  }
  batch.denominator = static_cast<double>(rows);
  for (int64_t t = 1; t <= 10; ++t) {
    rig.step({batch});
    optimizer->step(rig.ex, optim::make_update(rules, 3e-3, t, 1));
  }
  Rig::Loaded loaded = rig.load(batch);
  Rig::Transformer::Saved saved(rig.model.chunks().front());
  rig.model.forward(rig.ex, loaded.batch, saved);
  std::vector<double> sizes;
  for (const model::Block::Saved& block : saved.blocks)
    for (const Tensor& x : {block.attention.x.x, block.mlp.x.x}) sizes.push_back(rms(x));
  sizes.push_back(rms(saved.x));
  return sizes;
}

TEST(Mup, KeepsTheSizeOfActivationsAtEveryWidth) {
  const std::vector<double> base = sizes_after_ten_steps(kWidths[0], 0);
  EXPECT_EQ(sizes_after_ten_steps(kWidths[0], kWidths[0]), base) << "the base model is not changed";
  double grown = 0;
  for (const int64_t width : kWidths) {
    const std::vector<double> with = sizes_after_ten_steps(width, kWidths[0]),
                              without = sizes_after_ten_steps(width, 0);
    for (size_t i = 0; i < base.size(); ++i) {
      EXPECT_NEAR(with[i] / base[i], 1, 0.2) << "width " << width << ", activation " << i;
      grown = std::max(grown, without[i] / base[i]);
    }
  }
  EXPECT_GT(grown, 1.5) << "without muP";
}

TEST(Mup, ScalesTheInitialWeights) {
  const auto deviations = [](int64_t base) {
    config::Config c = config_of(1024, base);
    c.model.init_std = 0.02;
    Rig rig(c.model, kVocab, 3, {.compute = DType::f32});
    std::map<std::string, double> all;
    for (const params::Param& param : rig.store.params()) all[param.name] = param.init.std;
    return all;
  };
  std::map<std::string, double> usual = deviations(0), wider = deviations(256);
  EXPECT_EQ(deviations(1024), usual);
  EXPECT_EQ(wider["blocks.0.attn.q.weight"], 0.01);
  EXPECT_EQ(wider["head.weight"], 0.005);
  EXPECT_EQ(wider["wte"], 0.02);
  EXPECT_EQ(wider["blocks.1.mlp.down.weight"], usual["blocks.1.mlp.down.weight"] / 2);
}

}  // namespace
}  // namespace trainer::model_test
