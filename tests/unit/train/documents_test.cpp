#include "train/documents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "rigs/tiny.h"

namespace trainer::train {
namespace {

data::TokenBatch batch_of(int64_t sequences, int64_t length, std::vector<int64_t> starts) {
  data::TokenBatch batch;
  batch.resize(sequences, length);
  batch.starts = std::move(starts);
  return batch;
}

TEST(Documents, BeginAtTheirStartsAndAtTheFirstRowOfASequence) {
  std::vector<int32_t> first = {7};
  fill_first_keys(batch_of(3, 4, {}), first);
  EXPECT_EQ(first, std::vector<int32_t>(12, 0));
  fill_first_keys(batch_of(3, 4, {1, 3, 4, 10, 11}), first);
  EXPECT_EQ(first, (std::vector<int32_t>{0, 1, 1, 3, 0, 0, 0, 0, 0, 0, 2, 3}));
  fill_first_keys(batch_of(1, 5, {0, 0, 2}), first);
  EXPECT_EQ(first, (std::vector<int32_t>{0, 0, 2, 2, 2}));
}

TEST(Documents, PairsAreCountedOverLayersWithAndWithoutWindows) {
  config::Model model = tests::tiny_config().model;
  model.n_layer = 3;
  model.seq_len = 4;
  std::vector<int32_t> first;
  fill_first_keys(batch_of(2, 4, {2}), first);
  VisiblePairs pairs;
  pairs.add(model, first);
  EXPECT_EQ(pairs.together, 3 * (10 + 10));
  EXPECT_EQ(pairs.separate, 3 * (6 + 10));
  model.window = 2;
  model.window_full_every = 3;  // two layers with windows
  VisiblePairs windows;
  windows.add(model, first);
  EXPECT_EQ(windows.together, (10 + 10) + 2 * (7 + 7));
  EXPECT_EQ(windows.separate, (6 + 10) + 2 * (6 + 7));
}

TEST(Documents, DoNotSeeEachOtherInAStep) {
  config::Config c = tests::tiny_config(config::Arch::llama);
  c.model.dropout = 0;
  c.data.separate_documents = true;
  tests::Tiny separate(c, DType::f64, 1);
  const auto outcome = separate.step(1);
  EXPECT_GT(outcome.visible_share, 0);
  EXPECT_LT(outcome.visible_share, 1);
  c.data.separate_documents = false;
  tests::Tiny together(c, DType::f64, 1);
  const auto all = together.step(1);
  EXPECT_EQ(all.visible_share, 1);
  EXPECT_NE(outcome.loss, all.loss);
  // A batch without starts has one document in each sequence.
  c.data.separate_documents = true;
  tests::Tiny single(c, DType::f64, 1);
  const train::BatchSource drawn = single.batches;
  single.batches = [&](int64_t sample, int64_t sequences, data::TokenBatch& out) {
    drawn(sample, sequences, out);
    out.starts.clear();
  };
  EXPECT_EQ(single.step(1).loss, all.loss);
}

TEST(Documents, HaveTheSameLossWhereverTheyArePacked) {
  for (const config::Arch arch : {config::Arch::gpt2, config::Arch::llama}) {
    config::Config c = tests::tiny_config(arch);
    c.data.separate_documents = true;
    tests::Tiny run(c, DType::f64, 1);
    for (int64_t n = 1; n <= 2; ++n) run.step(n, 1e-2);
    constexpr int64_t kLength = 5;
    // Returns the loss of a document in the second sequence; the tokens around it are those of `neighbors`.
    const auto loss = [&](int64_t place, uint64_t neighbors) {
      data::TokenBatch batch = batch_of(2, c.model.seq_len, {});
      const PhiloxKey around = philox_key(neighbors, "neighbors"), own = philox_key(3, "document");
      std::ranges::fill(batch.weights, 0.0f);
      const int64_t first = c.model.seq_len + place;
      for (int64_t r = 0; r < std::ssize(batch.ids); ++r) {
        const auto token = [&](int64_t at) {
          const bool inside = at >= first && at <= first + kLength;
          return static_cast<int32_t>(
              philox_at(inside ? own : around, static_cast<uint64_t>(inside ? at - first : at)) % tests::kTinyVocab);
        };
        const auto row = static_cast<size_t>(r);
        batch.ids[row] = token(r);
        batch.targets[row] = token(r + 1);
        if (r >= first && r < first + kLength) batch.weights[row] = 1;
      }
      batch.starts = {first, first + kLength};
      return run.trainer.loss_sum(batch);
    };
    const double alone = loss(0, 1);
    for (int64_t place = 0; place + kLength <= c.model.seq_len; ++place) {
      EXPECT_NEAR(loss(place, 1), alone, 1e-12 * alone) << place;
      EXPECT_EQ(loss(place, 1), loss(place, 2)) << place;
    }
  }
}

TEST(Documents, CountPositionsFromTheirFirstRow) {
  std::vector<int32_t> memory;
  EXPECT_EQ(positions_in_documents({0, 1, 1, 3, 0, 0, 2, 2}, 4, memory),
            (std::vector<int32_t>{0, 0, 1, 0, 0, 1, 0, 1}));
}

TEST(ZLoss, IsReportedApart) {
  config::Config c = tests::tiny_config();
  tests::Tiny usual(c, DType::f64, 1);
  const auto without = usual.step(1);
  EXPECT_EQ(without.z_loss, 0);
  c.train.z_loss = 0.01;
  tests::Tiny run(c, DType::f64, 1);
  const auto with = run.step(1);
  EXPECT_EQ(with.loss, without.loss);
  EXPECT_NE(with.norm.norm, without.norm.norm);
  // The logarithm of the denominator is close to that of the vocabulary's size: the weights are small.
  const double lse = std::log(static_cast<double>(tests::kTinyVocab));
  EXPECT_NEAR(with.z_loss, 0.01 * lse * lse, 0.05 * lse * lse * 0.01 * 4);
  data::TokenBatch batch;
  run.batches(0, c.train.micro_batch, batch);
  tests::Tiny fresh(c, DType::f64, 1), plain(tests::tiny_config(), DType::f64, 1);
  EXPECT_EQ(fresh.trainer.loss_sum(batch), plain.trainer.loss_sum(batch));  // evaluation has no z-loss
}

}  // namespace
}  // namespace trainer::train
