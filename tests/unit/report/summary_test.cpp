#include "report/summary.h"

#include "report/html.h"
#include "unit/report/run_history.h"

namespace trainer::report {
namespace {

std::string joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

History finished_run() {
  History history = example_history(40);
  history.evals = {{.step = 10, .loss = 7.25, .perplexity = 1408, .bits_per_byte = 3, .tokens = 4096},
                   {.step = 30, .loss = 5.0, .perplexity = 148.4, .bits_per_byte = 2, .tokens = 4096},
                   {.step = 40, .loss = 5.125, .perplexity = 168.2, .bits_per_byte = 2.125, .tokens = 4096}};
  const EndReport first{.step = 20, .outcome = "stopped by SIGTERM", .wall_s = 30};
  EndReport last{.step = 40, .outcome = "finished", .wall_s = 60};
  last.predicted.memory_bytes = 400 << 20;
  last.measured.memory_bytes = 410 << 20;
  history.ends = {first, last};
  return history;
}

TEST(Summary, TakesTheBestEvaluationFromThoseOnTheLastData) {
  History history = finished_run();
  history.evals = {{.step = 10, .loss = 1, .tokens = 64, .data = "one"},
                   {.step = 20, .loss = 5, .tokens = 64, .data = "two"},
                   {.step = 30, .loss = 2, .tokens = 32, .data = "two"},
                   {.step = 35, .loss = 4, .tokens = 64, .data = "two"},
                   {.step = 40, .loss = 6, .tokens = 64, .data = "two"}};
  EXPECT_EQ(summarize(history, {}).best_eval->step, 35);
  history.evals[3].data = "one";
  EXPECT_EQ(summarize(history, {}).best_eval->step, 20);
  history.evals[1].set = "web";  // the set that checkpoint.best named at that time
  EXPECT_EQ(summarize(history, {}).best_eval->step, 40);
}

TEST(Summary, HasMediansWithoutTheWarmUp) {
  const Summary summary = summarize(finished_run(), {});
  EXPECT_EQ(summary.step, 40);
  EXPECT_EQ(summary.tokens, 40 * 6144);
  EXPECT_DOUBLE_EQ(summary.step_ms, 121.5);  // median of 103 … 140
  EXPECT_DOUBLE_EQ(summary.tokens_per_s, 1021.5);
  EXPECT_DOUBLE_EQ(summary.mean_step_ms, 121.5);
  EXPECT_DOUBLE_EQ(summary.phase_ms.backward, 60);
  EXPECT_DOUBLE_EQ(summary.first_loss, 7.9);
  EXPECT_DOUBLE_EQ(summary.last_loss, (4.0 + 4.1 + 4.2 + 4.3) / 4);
}

TEST(Summary, HasMediansOfTheLastSetupOnly) {
  History history = finished_run();
  history.setup_from = 30;  // the last setup ran steps 31 to 40
  const Summary summary = summarize(history, {});
  EXPECT_EQ(summary.medians_from, 31);
  EXPECT_DOUBLE_EQ(summary.step_ms, 136.5);  // median of 133 … 140
  EXPECT_DOUBLE_EQ(summary.mean_step_ms, 136.5);
  EXPECT_DOUBLE_EQ(summary.first_loss, 7.9) << "losses are of the whole run";
  expect_texts(joined(summary_lines(summary, "none")), "since step 31");
  history.setup_from = 40;  // the last process made no step
  EXPECT_TRUE(std::isnan(summarize(history, {}).step_ms));
}

TEST(Summary, KnowsTheLastAndTheBestEvaluationAndAllWallTime) {
  History history = finished_run();
  const Summary summary = summarize(history, {});
  EXPECT_EQ(summary.last_eval->step, 40);
  EXPECT_EQ(summary.best_eval->step, 30);
  EXPECT_EQ(summary.wall_s, 90);
  EXPECT_EQ(summary.outcome, "finished");
  EXPECT_EQ(summary.measured_memory, 410 << 20);
  history.ends.pop_back();
  EXPECT_EQ(summarize(history, {}).outcome, "did not end normally");
}

TEST(Summary, PassesOverStepsThatWereNotFinite) {
  History history = finished_run();
  for (const size_t at : {5u, 39u}) {
    history.steps[at].loss = std::nan("");
    history.steps[at].skipped = true;
  }
  const Summary summary = summarize(history, {});
  EXPECT_EQ(summary.skipped_steps, 2);
  EXPECT_DOUBLE_EQ(summary.last_loss, (4.1 + 4.2 + 4.3 + 4.4) / 4);
}

TEST(Summary, ServesNoStepsAndOne) {
  const Summary none = summarize(History(), {});
  EXPECT_TRUE(std::isnan(none.last_loss) && std::isnan(none.tokens_per_s));
  EXPECT_EQ(summary_lines(none, "/nowhere").size(), 1);
  const Summary one = summarize(example_history(1), {});
  EXPECT_DOUBLE_EQ(one.step_ms, 101);
  EXPECT_DOUBLE_EQ(one.last_loss, 7.9);
  for (const int64_t steps : {1, 4, 5}) {
    const std::string text = joined(summary_lines(summarize(example_history(steps), {}), "/nowhere"));
    EXPECT_EQ(text.find("too few steps to leave out the first two") != std::string::npos, steps < 5) << text;
  }
}

TEST_F(RunFolder, SummaryLinesHaveTheNumbersAndTheFilesThatExist) {
  put("metrics.jsonl", "{}\n");
  const std::string text = joined(summary_lines(summarize(finished_run(), {}), folder_));
  expect_texts(text, "finished at step 40 of 40, 246k tokens in 1m30s", "7.9000 -> 4.1500", "5.1250", "6.3125", "168.2",
               "2.125 bits per byte", "5.0000 at step 30, which has no checkpoint", "1.02k tokens/s, 121.5 ms/step",
               "0.1 TFLOP/s", "mfu 50.0 %, causal 45.0 %, hardware 48.0 %", "AVX2 fma",
               "410 MiB measured, 400 MiB predicted (1.02x)", file_.string());
  EXPECT_EQ(std::ranges::count(text, '\n'), 8) << text;
  std::filesystem::create_directory(folder_ / "checkpoints");
  Summary summary = summarize(finished_run(), {});
  expect_texts(joined(summary_lines(summary, folder_)), "next        trainer eval --checkpoint " + folder_.string());
  put("tokenizer.model", "pieces\n");
  expect_texts(joined(summary_lines(summary, folder_)), "next        trainer generate --checkpoint " + folder_.string(),
               "trainer eval --checkpoint " + folder_.string());
  summary.outcome = "stopped by SIGTERM";
  EXPECT_EQ(joined(summary_lines(summary, folder_)).find("next"), std::string::npos);
}

TEST(Summary, ShowsTheUpdatesOfAnOptimizerWithGemms) {
  History history = finished_run();
  EXPECT_EQ(update_text(summarize(history, {})), "");
  for (StepReport& step : history.steps) step.optimizer_flops = 4.608e10;  // a tenth of 7.5e7 for each of 6144 tokens
  history.steps[7].optimizer_flops = 0;                                    // a skipped step
  const Summary summary = summarize(history, {});
  EXPECT_EQ(update_text(summary), "5 ms/step (4.1 %); 46.1G FLOPs in GEMMs per rank, 0.1 times the model's");
  expect_texts(joined(summary_lines(summary, "/nowhere")), "update      5 ms/step");
  expect_texts(report_json(summary, history), "\"optimizer_flops\": 46080000000.0");
}

TEST(Summary, ShowsTheLoadsOfExpertsInTheLastStepsLogged) {
  History history = finished_run();
  EXPECT_EQ(joined(summary_lines(summarize(history, {}), "/nowhere")).find("experts"), std::string::npos);
  for (size_t i = 0; i < 11; ++i) history.steps[i].experts = ExpertsReport{.load_max = i == 0 ? 9 : 1.25};
  expect_texts(joined(summary_lines(summarize(history, {}), "/nowhere")), "experts     load 1.25");
}

TEST(Summary, ShowsTimesOfOffloadedUpdatesNextToTheirPredictionIfThereIsOne) {
  OffloadReport offload{.host = 300, .streamed = 100, .exposed_ms = 0.25, .update_ms = 28.31, .overlapped = 0.125};
  EXPECT_EQ(
      offload_text(offload),
      "75.0 % updated on the host, 25.0 % streamed, 0.0 % resident; 0.25 ms/step exposed (median); an update takes "
      "28.3 ms; 12.5 % of it overlapped");
  offload.predicted_ms = 4.86;
  expect_texts(offload_text(offload), "an update takes 28.3 ms, 4.86 ms predicted; 12.5 %");
  offload.emulated_ms = 2;
  expect_texts(offload_text(offload), "an update takes 2 ms on the emulated device's clock, 4.86 ms predicted");
}

TEST(Summary, SaysWhenAnEvaluationCoversAPartOfTheTokens) {
  History history = finished_run();
  const auto text = [&](int64_t tokens) {
    history.evals.back().tokens = tokens;
    return joined(summary_lines(summarize(history, {}), "/nowhere"));
  };
  expect_texts(text(8192), "first 8.19k of 40.1k tokens", "train.eval_batches", "trainer eval");
  const int64_t whole_windows = 40123 / 256 * 256;  // the last, incomplete one is never evaluated
  EXPECT_EQ(text(whole_windows).find("eval_batches"), std::string::npos);
  EXPECT_NE(text(whole_windows - 256).find("eval_batches"), std::string::npos);
}

}  // namespace
}  // namespace trainer::report
