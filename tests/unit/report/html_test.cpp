#include "report/html.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "report/events_json.h"
#include "report/metrics.h"
#include "unit/report/run_history.h"

namespace trainer::report {
namespace {

namespace fs = std::filesystem;

class Report : public testing::Test {
 protected:
  Report() { fs::create_directories(folder_); }
  ~Report() override { fs::remove_all(folder_); }

  std::string read(const std::string& name) const {
    std::ifstream in(folder_ / name);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  /// Empty when the page is well-formed, self-contained and accessible, else what is wrong (check_report.py).
  std::string faults(const std::string& page) const {
    std::ofstream(folder_ / "page.html") << page;
    const std::string command = "python3 '" TRAINER_SOURCE_DIR "/tests/unit/report/check_report.py' '" +
                                (folder_ / "page.html").string() + "' > '" + (folder_ / "faults").string() + "' 2>&1";
    const int status = std::system(command.c_str());
    return status == 0 ? "" : "status " + std::to_string(status) + ": " + read("faults");
  }

  const fs::path folder_ = fs::path(testing::TempDir()) / ("report_test_" + std::to_string(getpid()));
};

History full_history() {
  History history = example_history(120);
  history.steps[60].loss = std::nan("");
  history.steps[60].skipped = true;
  history.steps[61].grad_norm = std::numeric_limits<double>::infinity();
  history.evals = {{.step = 60, .loss = 2.625, .perplexity = 13.804, .bits_per_byte = 1.75, .tokens = 4096},
                   {.step = 120, .loss = 2.5, .perplexity = 12.182, .bits_per_byte = 1.625, .tokens = 4096}};
  history.warnings.push_back({61, "step 61 <skipped>"});
  EndReport end;
  end.step = 120;
  end.tokens = 120 * 6144;
  end.outcome = "finished";
  end.wall_s = 75;
  end.predicted.memory_bytes = 400 << 20;
  end.measured.memory_bytes = 410 << 20;
  history.ends.push_back(end);
  return history;
}

TEST_F(Report, PageIsWellFormedAndHoldsTheNumbers) {
  const History history = full_history();
  const Summary summary =
      summarize(history, {{60, "Once", " early"}, {120, "Once", " <script>alert(1)</script> & \x01\xff"}});
  const std::string page = report_html(summary, history, "[run]\nname = \"a<b\"\n");
  EXPECT_EQ(faults(page), "");
  for (const char* text : {"tiny &lt;run&gt;",
                           "11504641 (11.5M)",
                           "6 × 384 (feed-forward 1536)",
                           "6 (2 for keys and values)",
                           "256 tokens",
                           "2039",
                           "737280",
                           "2.5000",
                           "6.3125",
                           "12.18",
                           "1.6250",
                           "1.625 bits per byte",
                           "50.0 %",
                           "45.0 %",
                           "48.0 %",
                           "0.19 TFLOP/s",
                           "measured",
                           "410 MiB",
                           "400 MiB",
                           "44.0 MiB",
                           "190 MiB",
                           "1m15s",
                           "fp32",
                           "avx2",
                           "own kernels &amp; fp32",
                           "0.1.0 (1a2b3c4d)",
                           "24 sequences = 12 per micro-step × 2 accumulated × 1 replicas",
                           "412345 training tokens",
                           "75.0M full, 71.5M causal",
                           "30.00 ms",
                           "60.00 ms",
                           "1062 (median)",
                           "loss of token frequencies alone",
                           "finished at step 120",
                           "name = &quot;a&lt;b&quot;",
                           "&lt;script&gt;alert(1)&lt;/script&gt; &amp; \xEF\xBF\xBD\xEF\xBF\xBD",
                           "step 61 &lt;skipped&gt;"}) {
    EXPECT_NE(page.find(text), std::string::npos) << text;
  }
  EXPECT_EQ(page.find("<script"), std::string::npos);
}

TEST_F(Report, ShowsCommunicationBesideItsPredictionAndWhatHappened) {
  History history = full_history();
  for (StepReport& step : history.steps) step.comm_wait_ms = {{"data", {{"all_reduce", 0.25}}}};
  history.ends.back().predicted.comm_bytes = {{"data", {{"all_reduce", 2048}}}, {"tensor", {{"all_gather", 1024}}}};
  history.ends.back().measured.comm_bytes = {{"data", {{"all_reduce", 2048}}}, {"tensor", {{"all_gather", 1536}}}};
  history.starts = {0, 60};
  history.checkpoints = {{.step = 60, .path = "x", .bytes = 3 << 20, .seconds = 1.5, .best = true}};
  const std::string page = report_html(summarize(history, {}), history, "");
  EXPECT_EQ(faults(page), "");
  for (const char* text :
       {"<tr><th scope=\"row\">data all_reduce</th><td>2.00 KiB</td><td>2.00 KiB</td><td>1</td><td>0.250</td></tr>",
        "<tr class=\"marked\"><th scope=\"row\">tensor all_gather</th><td>1.50 KiB</td><td>1.00 KiB</td><td>1.5</td>",
        "Time line", "resumed from step 60", "step 60: 3.00 MiB in 1.50 s, the best so far",
        "step 120: validation loss 2.5000", "finished at step 120", "step 61 &lt;skipped&gt;"})
    EXPECT_NE(page.find(text), std::string::npos) << text;
  EXPECT_EQ(report_html(summarize(full_history(), {}), full_history(), "").find("Communication"), std::string::npos);
}

TEST_F(Report, SplitsAStepIntoPhasesThatAddUpToIt) {
  History history = full_history();
  for (StepReport& step : history.steps) {
    step.step_ms = 100;
    step.phase_ms = {.data = 1, .forward = 30, .backward = 50, .optimizer = 15, .comm_exposed = 40};
  }
  const std::string text = report_html(summarize(history, {}), history, "");
  EXPECT_NE(text.find("Time of a step, 40.0 % of it waits for communication"), std::string::npos);
  for (const char* part : {"forward: 30.00 ms (30.0 %)", "backward: 50.00 ms (50.0 %)", "optimizer: 15.00 ms (15.0 %)",
                           "data: 1.00 ms (1.0 %)", "other: 4.00 ms (4.0 %)"})
    EXPECT_NE(text.find(part), std::string::npos) << part;
}

TEST_F(Report, ShowsThePredictionBesideTheRun) {
  History history = full_history();
  const auto page = [&] {
    const std::string text = report_html(summarize(history, {}), history, "");
    EXPECT_EQ(faults(text), "");
    return text;
  };
  EXPECT_EQ(page().find("The plan and the run"), std::string::npos);  // no profile, no prediction of time
  history.start->predicted.step_ms = 80;
  history.start->predicted.wait_ms = 8;
  for (StepReport& step : history.steps) step.step_ms = 100, step.phase_ms.comm_exposed = 4;
  const std::string text = page();
  for (const char* row : {"<th scope=\"row\">step</th><td>80 ms</td><td>100 ms</td><td>1.25</td>",
                          "<th scope=\"row\">compute</th><td>72 ms</td><td>96 ms</td><td>1.33</td>",
                          "<th scope=\"row\">waiting for communication</th><td>8 ms</td><td>4 ms</td><td>0.50</td>",
                          "<th scope=\"row\">memory</th><td>400 MiB</td><td>410 MiB</td><td>1.02</td>"})
    EXPECT_NE(text.find(row), std::string::npos) << row;
  history.start->predicted.wait_ms = kUnknown;  // of older logs
  EXPECT_EQ(page().find("waiting for communication</th><td>-"), std::string::npos);
  EXPECT_EQ(page().find("<th scope=\"row\">compute</th>"), std::string::npos);
}

TEST_F(Report, ShowsWhereTheOptimizersStateWasUpdated) {
  History history = full_history();
  EXPECT_EQ(report_html(summarize(history, {}), history, "").find("Optimizer offload"), std::string::npos);
  double ms = 0;
  for (StepReport& step : history.steps)
    step.offload = OffloadReport{.device_share = "1/2",
                                 .host = 500,
                                 .streamed = 300,
                                 .resident = 200,
                                 .bytes = {{"gradient", 2048}},
                                 .exposed_ms = ++ms,
                                 .busy_ms = {{"host", 2 * ms}},
                                 .update_ms = 3 * ms,
                                 .predicted_ms = 4 * ms,
                                 .parameters_per_s = 2e9,
                                 .overlapped = 0.75,
                                 .memory_share = 0.5,
                                 .subgroups = 7,
                                 .largest_subgroup = 128,
                                 .resident_subgroups = 1,
                                 .slots = 3,
                                 .host_memory = "pinned"};
  const std::string page = report_html(summarize(history, {}), history, "");
  EXPECT_EQ(faults(page), "");
  constexpr double median = 60;  // of 1 to 120 without 61, a step that was skipped
  for (const std::string& text :
       {std::string("Optimizer offload"), std::string("Updates, ms a step"), std::string("50.0 %"),
        std::string("30.0 %"), std::string("20.0 %"), std::string("7 of at most 128 parameters, 3 slots, 1 resident"),
        std::string("pinned"), format("{:.4g} ms", 3 * median), format("{:.4g} ms", 4 * median),
        format("{:.4g} ms", median), format("{:.3f}", 2 * median), std::string("75.0 %"), std::string("2.00 KiB"),
        std::string("2.00G parameters/s")})
    EXPECT_NE(page.find(text), std::string::npos) << text;
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
    const Summary summary = summarize(history, {});
    const std::string page = report_html(summary, history, "");
    EXPECT_EQ(faults(page), "");
    EXPECT_EQ(page.find(">nan"), std::string::npos);
    EXPECT_TRUE(Json::accept(report_json(summary, history)));
  }
}

TEST_F(Report, StaysSmallForLongRuns) {
  const History history = example_history(100'000);
  const std::string page = report_html(summarize(history, {}), history, "");
  EXPECT_LT(page.size(), 200'000u);
  EXPECT_EQ(faults(page), "");
}

TEST_F(Report, JsonHasTheSameNumbers) {
  const History history = full_history();
  const Json json = Json::parse(report_json(summarize(history, {{120, "Once", " upon"}}), history));
  EXPECT_EQ(json["step"], 120);
  EXPECT_EQ(json["outcome"], "finished");
  EXPECT_EQ(json["validation"]["loss"], 2.5);
  EXPECT_EQ(json["unigram_entropy"], 6.3125);
  EXPECT_EQ(json["tokens_per_s"], 1061.5);
  EXPECT_EQ(json["mfu_causal"], 0.45);
  EXPECT_EQ(json["measured_memory_bytes"], 410 << 20);
  EXPECT_EQ(json["memory_bytes"]["activations"], 190 << 20);
  EXPECT_EQ(json["run"]["parameters"], 11'504'641);
  EXPECT_EQ(json["evals"].size(), 2);
  EXPECT_EQ(json["samples"][0]["text"], " upon");
  EXPECT_EQ(json["skipped_steps"], 1);
}

TEST_F(Report, IsMadeAnewFromARunFolder) {
  {
    MetricsLog log(folder_ / "metrics.jsonl");
    const History history = full_history();
    log.write(*history.start);
    for (const StepReport& step : history.steps) log.write(step);
    for (const EvalReport& eval : history.evals) log.write(eval);
    log.write(history.ends.at(0));
  }
  std::ofstream(folder_ / "config.toml") << "[optim]\nlr = 0.00125\n";
  const History history = read_history(folder_ / "metrics.jsonl");
  write_report(folder_, summarize(history, {{60, "a", "b"}, {120, "c", "d \xE2\x80\x9C"}}), history);
  const std::string page = read("report.html"), json = read("report.json");
  EXPECT_NE(page.find("lr = 0.00125"), std::string::npos);
  EXPECT_EQ(faults(page), "");

  fs::remove(folder_ / "report.html");
  const Summary again = report_from(folder_);
  EXPECT_EQ(again.step, 120);
  EXPECT_EQ(read("report.html"), page);
  EXPECT_EQ(read("report.json"), json);
  EXPECT_FALSE(fs::exists(folder_ / "report.html.tmp"));

  EXPECT_EQ(read_samples(folder_, 119).size(), 1) << "a resumed run forgets later samples";
  EXPECT_EQ(read_samples(folder_, 120).at(1).text, "d \xE2\x80\x9C");
}

TEST_F(Report, NeedsTheLogAndAFolderItCanWrite) {
  try {
    report_from(folder_);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::io);
    EXPECT_NE(std::string(error.what()).find("metrics.jsonl"), std::string::npos);
  }
  EXPECT_TRUE(read_samples(folder_, 10).empty());
  std::ofstream(folder_ / "report.json") << "{\"samples\": [{\"step\": \"x\"}]}";
  EXPECT_TRUE(read_samples(folder_, 10).empty());
  EXPECT_THROW(write_report(folder_ / "missing", Summary(), History()), Error);
}

}  // namespace
}  // namespace trainer::report
