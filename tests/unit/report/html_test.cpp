#include "report/html.h"

#include "report/ranks.h"
#include "unit/report/run_history.h"

namespace trainer::report {
namespace {

class Report : public RunFolder {
 protected:
  std::string page(const History& history, const std::vector<Sample>& samples = {}) const {
    const std::string text = report_html(summarize(history, samples), history, "[run]\nname = \"a<b\"\n");
    EXPECT_EQ(faults(text), "");
    return text;
  }
};

TEST_F(Report, PageIsWellFormedAndHoldsTheNumbers) {
  const std::string text =
      page(full_history(), {{60, "Once", " early"}, {120, "Once", " <script>alert(1)</script> & \x01\xff"}});
  expect_texts(text, "tiny &lt;run&gt;", "11504641 (11.5M)", "6 × 384 (feed-forward 1536)", "6 (2 for keys and values)",
               "256 tokens", "2039", "737280", "2.5000", "2.3750 at step 60", "6.3125", "12.18", "1.6250",
               "1.625 bits per byte", "50.0 %", "45.0 %", "48.0 %", "0.19 TFLOP/s", "410 MiB", "400 MiB", "44.0 MiB",
               "190 MiB", "1m15s", "own kernels &amp; fp32", "0.1.0 (1a2b3c4d)",
               "24 sequences = 12 per micro-step × 2 accumulated × 1 replica", "412345 training tokens",
               "75.0M full, 71.5M causal", "30.00 ms", "1062 (median)", "finished at step 120",
               "name = &quot;a&lt;b&quot;", "&lt;script&gt;alert(1)&lt;/script&gt; &amp; \xEF\xBF\xBD\xEF\xBF\xBD",
               "step 61 &lt;skipped&gt;");
  EXPECT_EQ(text.find("<script"), std::string::npos);
}

TEST_F(Report, ShowsCommunicationNextToItsPredictionAndWhatHappened) {
  History history = full_history();
  EXPECT_EQ(page(history).find("Communication"), std::string::npos);
  for (StepReport& step : history.steps) step.comm_wait_ms = {{"data", {{"all_reduce", 0.25}}}};
  history.ends.back().predicted.comm_bytes = {{"data", {{"all_reduce", 2048}}}, {"tensor", {{"all_gather", 1024}}}};
  history.ends.back().measured.comm_bytes = {{"data", {{"all_reduce", 2048}}}, {"tensor", {{"all_gather", 1536}}}};
  history.starts = {0, 60};
  history.checkpoints = {{.step = 60, .path = "x", .bytes = 3 << 20, .seconds = 1.5, .best = true}};
  expect_texts(page(history),
               "<tr><th scope=\"row\">data all_reduce</th><td>2.00 KiB</td><td>2.00 KiB</td><td>1</td>"
               "<td>0.250</td></tr>",
               "<tr class=\"marked\"><th scope=\"row\">tensor all_gather</th><td>1.50 KiB</td>"
               "<td>1.00 KiB</td><td>1.5</td>",
               "resumed from step 60", "step 60: 3.00 MiB in 1.50 s, the best so far",
               "step 120: validation loss 2.5000");
}

TEST_F(Report, ShowsTheTimesOfTheRanks) {
  History history = full_history();
  EXPECT_EQ(page(history).find("Ranks"), std::string::npos);
  for (int64_t window = 1; window <= 12; ++window) {
    std::vector<double> own(100, 10.0);  // more ranks than rows
    own[70] = window > 2 ? 12.5 : 10;
    history.ranks.push_back(ranks_report(10 * window, own));
  }
  expect_texts(page(history), "<h2>Ranks</h2>", "100 ranks in 12 windows",
               "rank 70, step 120: 12.5 ms, 1.25 x the median", "<tr><th scope=\"row\">rank 70</th><td>10</td></tr>");
  for (RanksReport& window : history.ranks) {  // the ranks of the second stage have more work
    window.stages = 2;
    for (size_t rank = 50; rank < 100; ++rank) window.own_ms[rank] *= 2;
  }
  expect_texts(page(history), "rank 70, step 120: 25 ms, 1.25 x the median",
               "<tr><th scope=\"row\">rank 70</th><td>10</td></tr>");
  EXPECT_EQ(page(history).find("<tr><th scope=\"row\">rank 71</th>"), std::string::npos);
}

TEST_F(Report, ShowsTheLoadsOfExperts) {
  History history = full_history();
  EXPECT_EQ(page(history).find("Experts"), std::string::npos);
  history.start->model.n_expert = 4;
  history.start->model.experts_per_token = 2;
  history.start->model.d_expert = 16;
  history.start->model.moe_every = 2;
  for (StepReport& step : history.steps) step.experts = ExpertsReport{1.5, 1, 2, 1.25};
  history.ends.back().choices = {{10, 30, 40, 0}};
  expect_texts(page(history), "<h2>Experts</h2>", "Largest load of an expert", "Entropy of the routers",
               "layer 1, expert 2: 2.00 x the mean", "4 per layer, 2 per token");
}

TEST_F(Report, ShowsQuantilesOfManyRanks) {
  History history = full_history();
  if (!history.start) history.start.emplace();
  history.start->environment.ranks = 4096;
  std::vector<double> own(4096, 10.0);
  std::fill(own.begin() + 3500, own.end(), 20.0);
  for (int64_t window = 1; window <= 12; ++window) history.ranks.push_back(ranks_report(10 * window, own));
  expect_texts(page(history), "1024 quantiles in 12 windows", "quantile 0.985, step 120: 20 ms, 2.00 x the median");
  EXPECT_EQ(page(history).find("Often more than"), std::string::npos);
}

TEST_F(Report, ComparesEachValidationSetOnItsLastDataOnly) {
  History history = full_history();
  for (EvalReport& eval : history.evals) {
    eval.set = "web";
    eval.sets = {{"web", eval.loss, eval.perplexity, eval.bits_per_byte, 4096, "now"},
                 {"math", eval.loss + 1, 99, std::nullopt, 64, "now"}};
  }
  history.evals[0].sets[0].data = "before";
  expect_texts(page(history), "<tr><th scope=\"row\">web</th><td>2.5000</td><td>2.5000</td><td>120</td><td>2.5000</td>",
               "<tr><th scope=\"row\">math</th><td>3.3750</td><td>3.3750</td><td>60</td><td>3.5000</td>");
}

TEST_F(Report, HasACurveAndARowForEachValidationSet) {
  History history = full_history();
  EXPECT_EQ(page(history).find("Validation sets"), std::string::npos);
  for (EvalReport& eval : history.evals) {
    eval.set = "web";
    eval.sets = {{"web", eval.loss, eval.perplexity, eval.bits_per_byte, 4096},
                 {"c<d", 2 * eval.loss, 99, std::nullopt, 64}};
  }
  history.evals[0].sets.pop_back();  // a set that was added later
  expect_texts(
      page(history),
      "<tr><th scope=\"row\">web</th><td>2.3750</td><td>2.3750</td><td>60</td><td>2.5000</td>"
      "<td>1.6250</td></tr>",
      "<tr><th scope=\"row\">c&lt;d</th><td>5.0000</td><td>5.0000</td><td>120</td><td>5.0000</td><td>-</td></tr>",
      "step 120: validation loss 2.5000 (web)", "c&lt;d: from ");
}

TEST_F(Report, SplitsAStepIntoPhasesAndShowsThePredictionNextToTheRun) {
  History history = full_history();
  EXPECT_EQ(page(history).find("Predicted and measured"), std::string::npos);  // no profile: no time is predicted
  for (StepReport& step : history.steps) {
    step.step_ms = 100;
    step.phase_ms = {.data = 1, .forward = 30, .backward = 50, .optimizer = 15, .comm_exposed = 4};
  }
  history.start->predicted.step_ms = 80;
  history.start->predicted.wait_ms = 8;
  history.start->predicted_by = "h100.toml (data sheet of H100)";
  expect_texts(
      page(history), "4.0 % of it exposed communication", "forward: 30.00 ms (30.0 %)", "backward: 50.00 ms (50.0 %)",
      "optimizer: 15.00 ms (15.0 %)", "data: 1.00 ms (1.0 %)",
      "other: 4.00 ms (4.0 %)",  // the phases add up to the step
      "step</th><td>80 ms</td><td>100 ms</td><td>1.25</td>", "compute</th><td>72 ms</td><td>95 ms</td><td>1.32</td>",
      "exposed communication</th><td>8 ms</td><td>4 ms</td><td>0.50</td>",
      "waiting for data</th><td>0 ms</td><td>1 ms</td><td>-</td>",
      "80 ms/step, measured 100 (1.25x); largest difference: compute, 72 ms predicted, 95 measured; predicted from "
      "h100.toml (data sheet of H100); ran on ",
      "memory</th><td>400 MiB</td><td>410 MiB</td><td>1.02</td>");
  history.start->predicted.wait_ms = kUnknown;
  EXPECT_EQ(page(history).find("exposed communication</th>"), std::string::npos);
  EXPECT_EQ(page(history).find("compute</th>"), std::string::npos);
}

TEST_F(Report, ShowsWhereTheOptimizersStateWasUpdated) {
  History history = full_history();
  EXPECT_EQ(page(history).find("Optimizer offload"), std::string::npos);
  auto offload = from_json<OffloadReport>(Json::parse(
      R"({"parameters": {"host": 500, "streamed": 300, "resident": 200}, "bytes": {"gradient": 2048}, "overlapped": 0.75,
          "plan": {"subgroups": 7, "largest": 128, "resident": 1, "slots": 3, "order": "forward",
                   "host_memory": "pinned"}, "parameters_per_s": 2e9, "memory_share": 0.5})"));
  double ms = 0;
  for (StepReport& step : history.steps) {
    offload.exposed_ms = ++ms;
    offload.busy_ms["host"] = 2 * ms;
    offload.update_ms = 3 * ms;
    offload.predicted_ms = 4 * ms;
    step.offload = offload;
  }
  constexpr double median = 60;  // median of 1 to 120 without 61, a skipped step
  expect_texts(page(history), "Optimizer offload", "Updates, ms/step", "50.0 %", "30.0 %", "20.0 %",
               "7 of at most 128 parameters, 3 slots, 1 resident", "pinned", format("{:.4g} ms", 3 * median),
               format("{:.4g} ms", 4 * median), format("{:.4g} ms", median), format("{:.3f}", 2 * median), "75.0 %",
               "2.00 KiB", "2.00G parameters/s");
  const Json json = Json::parse(report_json(summarize(history, {}), history));
  EXPECT_EQ(json["offload"]["plan"]["subgroups"], 7);
  EXPECT_EQ(json["offload"]["exposed_ms"], summarize(history, {}).offload->exposed_ms);
}

TEST_F(Report, ServesEmptyShortAndBrokenRuns) {
  History nan_only = example_history(3);
  for (StepReport& step : nan_only.steps) {
    step.loss = step.grad_norm = step.tokens_per_s = step.step_ms = step.mfu = kUnknown;
    step.phase_ms.forward = kUnknown;
  }
  for (const History& history : {History(), example_history(0), example_history(1), example_history(2), nan_only}) {
    EXPECT_EQ(page(history).find(">nan"), std::string::npos);
    EXPECT_TRUE(Json::accept(report_json(summarize(history, {}), history)));
  }
  EXPECT_LT(page(example_history(100'000)).size(), 200'000u);
}

TEST_F(Report, JsonHasTheSameNumbers) {
  const History history = full_history();
  const Json json = Json::parse(report_json(summarize(history, {{120, "Once", " upon"}}), history));
  const Json expected = Json::parse(
      R"({"/step": 120, "/outcome": "finished", "/validation/loss": 2.5, "/best_validation/step": 60, "/mfu_causal": 0.45,
          "/unigram_entropy": 6.3125, "/tokens_per_s": 1061.5, "/measured_memory_bytes": 429916160, "/offload": null,
          "/memory_bytes/activations": 199229440, "/run/parameters": 11504641, "/evals/1/loss": 2.5,
          "/samples/0/text": " upon", "/skipped_steps": 1, "/predicted_step_ms": null})");
  for (const auto& [at, value] : expected.items()) EXPECT_EQ(json.at(Json::json_pointer(at)), value) << at;
}

TEST_F(Report, IsRegeneratedFromARunFolder) {
  const History made = full_history();
  MetricsLog log(file_);
  log.write(to_json(*made.start));
  for (const StepReport& step : made.steps) log.write(to_json(step));
  for (const EvalReport& eval : made.evals) log.write(to_json(eval));
  log.write(to_json(made.ends.at(0)));
  put("config.toml", "[optim]\nlr = 0.00125\n");
  const History history = read_history(file_);
  write_report(folder_, summarize(history, {{60, "a", "b"}, {120, "c", "d \xE2\x80\x9C"}}), history);
  const std::string page = read(folder_ / "report.html"), json = read(folder_ / "report.json");
  expect_texts(page, "lr = 0.00125");
  EXPECT_EQ(faults(page), "");

  fs::remove(folder_ / "report.html");
  const Summary again = report_from(folder_);
  EXPECT_EQ(again.step, 120);
  EXPECT_EQ(read(folder_ / "report.html"), page);
  EXPECT_EQ(read(folder_ / "report.json"), json);

  EXPECT_EQ(read_samples(folder_, 119).size(), 1) << "a resumed run forgets later samples";
  EXPECT_EQ(read_samples(folder_, 120).at(1).text, "d \xE2\x80\x9C");
}

TEST_F(Report, NeedsTheLogAndAFolderItCanWrite) {
  expect_error(Code::io, "metrics.jsonl", [&] { report_from(folder_); });
  EXPECT_TRUE(read_samples(folder_, 10).empty());
  put("report.json", "{\"samples\": [{\"step\": \"x\"}]}");
  EXPECT_TRUE(read_samples(folder_, 10).empty());
  EXPECT_THROW(write_report(folder_ / "missing", Summary(), History()), Error);
}

}  // namespace
}  // namespace trainer::report
