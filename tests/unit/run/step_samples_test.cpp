// The samples that are reported for a step, compared with the batches that training reads.
#include "run/step_samples.h"

#include <gtest/gtest.h>

#include <set>

#include "config/load.h"
#include "data/source.h"
#include "report/events_json.h"
#include "unit/data/fixtures.h"

namespace trainer::run {
namespace {

using data::TrainingData;
using data::testing::packed;
using data::testing::TempFolder;
using data::testing::write;

constexpr int64_t kBatch = 3, kLength = 8;

std::string random_tokens(int64_t count, uint64_t seed) {
  data::testing::Random random(seed);
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(data::testing::pick(random, 250));
  return data::token_header({.tokens = count, .vocab_size = 250}) + packed<uint16_t>(ids);
}

/// A run folder whose metrics.jsonl records the steps of a run on its data.
class StepRun {
 public:
  StepRun(const std::string& data_keys, const std::string& seed) {
    config_ = config::load_text("[run]\nseed = " + seed + "\n[model]\nseq_len = 8\n[data]\n" + data_keys, "test", {},
                                {.files = false});
    write(folder_ / "config.toml", "[run]\nseed = 1\n[model]\nseq_len = 8\n[data]\n" + data_keys);
    start_.config_toml = "[run]\nseed = " + seed + "\n";
    start_.global_batch = kBatch;
    start_.model.seq_len = kLength;
    data_.emplace(data::open_trained_data(config_, folder_ / "tokens"));
    start_.train_tokens = data_->tokens();
    for (const auto& [name, dataset, hash] : data_->sources()) start_.sources[name] = dataset.tokens();
  }
  /// Starts or resumes the run with these weights.
  void start(const std::vector<data::WeightChange>& changes) {
    std::vector<data::MixturePhase> past;
    if (data_->mixture() != nullptr) past = data_->mixture()->phases();
    if (data_->is_mixed()) data_->set_mixture({past, step_ * kBatch, changes});
    start_.step = step_;
    if (data_->is_mixed()) start_.source_samples = data_->mixture()->samples_before(step_ * kBatch);
    log(report::to_json(start_));
  }
  void steps(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      report::StepReport step{.step = ++step_, .loss = 1, .data_position = step_ * kBatch};
      if (data_->is_mixed()) step.sources = data_->mixture()->samples_before(step.data_position);
      log(report::to_json(step));
    }
  }
  /// Compares each step with its batch; in a mixture without regard to order.
  void expect_batches() const {
    for (int64_t step = 1; step <= step_; ++step) {
      data::TokenBatch batch;
      data_->train_batch((step - 1) * kBatch, kBatch, batch);
      std::multiset<std::vector<int32_t>> expected, found;
      for (int64_t row = 0; row < kBatch; ++row) {
        const auto ids = batch.ids.begin() + row * kLength;
        std::vector<int32_t> tokens(ids, ids + kLength);
        tokens.push_back(batch.targets[static_cast<size_t>((row + 1) * kLength - 1)]);
        expected.insert(tokens);
      }
      std::vector<int32_t> tokens;  // a window may be in several files
      for (const StepSample& sample : samples_of_step(folder_, step).samples) {
        const std::string bytes = tests::content_of(sample.span.file);
        for (int64_t token = sample.span.begin; token < sample.span.end; ++token) {
          const auto at = static_cast<size_t>(data::kTokenHeaderBytes + 2 * token);
          tokens.push_back(static_cast<uint8_t>(bytes[at]) | static_cast<uint8_t>(bytes[at + 1]) << 8);
        }
        if (static_cast<int64_t>(tokens.size()) < kLength + 1) continue;
        found.insert(tokens);
        tokens.clear();
      }
      ASSERT_EQ(found, expected) << "step " << step;
    }
  }

  TempFolder folder_;
  report::StartReport start_;

 private:
  void log(const report::Json& event) {
    write(folder_ / "metrics.jsonl", tests::content_of(folder_ / "metrics.jsonl") + event.dump() + "\n");
  }
  config::Config config_;
  std::optional<TrainingData> data_;
  int64_t step_ = 0;
};

TEST(StepSamples, AreTheBatchOfTheStepForOneListOfFiles) {
  TempFolder files;
  const std::string list =
      format("train = [\"{}\", \"{}\"]\nval_fraction = 0.25\n", write(files / "a.bin", random_tokens(101, 1)),
             write(files / "b.bin", random_tokens(96, 2)));
  StepRun run(list, "5");
  run.start({});
  run.steps(17);  // three epochs of 18 windows
  run.expect_batches();
  tests::expect_error(Code::usage, {"metrics.jsonl", "step 18", "1 to 17"}, [&] { samples_of_step(run.folder_, 18); });
}

TEST(StepSamples, AreTheBatchOfTheStepForMixturesWhoseWeightsChange) {
  TempFolder files;
  std::string tables;
  for (const auto& [name, tokens] : {std::pair{"web", 400}, {"code", 90}, {"math", 57}})
    tables += format("[[data.source]]\nname = \"{}\"\nfiles = [\"{}\"]\n", name,
                     write(files / (std::string(name) + ".bin"), random_tokens(tokens, static_cast<uint64_t>(tokens))));
  StepRun run("val_fraction = 0\n" + tables, "7");
  run.start({{0, {{"web", 0.5}, {"code", 0.3}, {"math", 0.2}}}, {10, {{"web", 0.9}, {"math", 0.1}}}});
  run.steps(6);
  run.start({{0, {{"web", 0.1}, {"code", 0.8}, {"math", 0.1}}}});
  run.steps(20);
  run.expect_batches();
}

}  // namespace
}  // namespace trainer::run
