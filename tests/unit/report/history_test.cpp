// metrics.jsonl as a file: truncated when a run resumes, and read as a whole run.
#include <tuple>

#include "report/summary.h"
#include "rigs/messages.h"
#include "unit/report/run_history.h"

namespace trainer::report {
namespace {

using ReadHistory = RunFolder;

/// Returns a step whose utilisation is relative to `peak_tflops`.
StepReport step_at(int64_t step, double mfu_causal, double hfu, double peak_tflops) {
  StepReport report;
  report.step = step;
  report.mfu_causal = mfu_causal;
  report.mfu = 1.125 * mfu_causal;
  report.hfu = hfu;
  report.peak_tflops = peak_tflops;
  return report;
}

TEST_F(ReadHistory, GivesStepsAsSharesOfTheBestPeakThatTheirProcessKnew) {
  StartReport start;
  start.peak = {.flops = 0.5e12, .origin = "measured", .unit = "AVX2 fma", .windows = 48};
  EndReport end{.step = 2};
  end.peak = {.flops = 1e12, .origin = "measured", .unit = "AVX2 fma", .windows = 60};
  MetricsLog log(file_);
  log.write(to_json(start));
  log.write(to_json(step_at(1, 0.75, 1, 0.5)));
  log.write(to_json(step_at(2, 0.5, 0.5, 0.75)));
  log.write(to_json(end));
  start.peak.flops = 2e12;  // on another machine, and killed
  log.write(to_json(start));
  log.write(to_json(step_at(3, 0.5, 0.5, 2)));
  log.write(to_json(step_at(4, 0.25, 0.5, 4)));
  const History history = read_history(file_);
  const auto shares = [&](size_t i) {
    const StepReport& step = history.steps.at(i);
    return std::vector<double>{step.mfu, step.mfu_causal, step.hfu, step.peak_tflops};
  };
  EXPECT_EQ(shares(0), (std::vector<double>{0.421875, 0.375, 0.5, 1}));
  EXPECT_EQ(shares(1), (std::vector<double>{0.421875, 0.375, 0.375, 1}));
  EXPECT_EQ(shares(2), (std::vector<double>{0.28125, 0.25, 0.25, 4}));
  EXPECT_EQ(shares(3), (std::vector<double>{0.28125, 0.25, 0.5, 4}));
  EXPECT_EQ(history.peak.flops, 4e12);
  EXPECT_EQ(history.peak.unit, "AVX2 fma");
}

TEST_F(ReadHistory, OfALogAboveItsMeasuredPeakStaysBelowOneAndAGivenPeakIsUnchanged) {
  const std::string steps =
      R"({"event": "step", "step": 1, "mfu": 0.75, "mfu_causal": 0.625, "hfu": 0.625, "peak_tflops": 1}
{"event": "step", "step": 2, "mfu": 1.5, "mfu_causal": 1.25, "hfu": 1.25, "peak_tflops": 1}
)";
  for (const auto& [origin, first, second, peak] :
       {std::tuple{"measured", 0.5, 1.0, 1.25e12}, {"user", 0.625, 1.25, 1e12}}) {
    put("metrics.jsonl",
        format(R"({{"event": "start", "format": 2, "step": 0, "peak": {{"tflops": 1, "origin": "{}"}}}})", origin) +
            "\n" + steps);
    const History history = read_history(file_);
    EXPECT_EQ(history.steps.at(0).mfu_causal, first) << origin;
    EXPECT_EQ(history.steps.at(1).mfu_causal, second) << origin;
    EXPECT_EQ(history.steps.at(1).hfu, second) << origin;
    EXPECT_EQ(history.peak.flops, peak) << origin;
  }
  put("metrics.jsonl", steps);
  EXPECT_EQ(read_history(file_).steps.at(0).mfu, 0.75) << "of a log without a start";
}

TEST_F(ReadHistory, OfAnotherFormatIsRefusedByNumber) {
  put("metrics.jsonl", R"({"event": "start", "step": 0, "peak_flops": 1e12}
{"event": "step", "step": 1}
)");
  const std::string message = "metrics.jsonl: log format 1, this program reads format 2";
  expect_error(Code::usage, message, [&] { read_history(file_); });
  expect_error(Code::usage, message, [&] { read_step(file_, 1); });
}

TEST_F(ReadHistory, KnowsWhereTheLastSetupBegins) {
  StartReport start;
  start.config_toml = "[parallel]\ntensor = 2\n[optim]\nlr = 0.1\n";
  StepReport step{.step = 1};
  step.memory_bytes = {{"weights", 100}};
  MetricsLog log(file_);
  log.write(to_json(start));
  log.write(to_json(step));
  start.config_toml = "[parallel]\ntensor = 2\n[optim]\nlr = 0.2\n";  // resumed at another rate: the same setup
  start.environment.commit = "other";
  log.write(to_json(start));
  log.write(to_json(StepReport{.step = 2}));
  EXPECT_EQ(read_history(file_).last_setup().size(), 2u);
  EXPECT_EQ(read_history(file_).memory_bytes.at("weights"), 100);
  step = {.step = 2};
  for (const auto& change : std::vector<void (*)(StartReport&)>{
           [](StartReport& s) { s.config_toml = "[parallel]\ndata = 2\n"; },
           [](StartReport& s) { s.global_batch = 16; },
           [](StartReport& s) { s.environment.threads = 7; },
           [](StartReport& s) { s.environment.isa = "another CPU"; },
           [](StartReport& s) { s.compute = "bf16"; },
       }) {
    StartReport changed = start;
    change(changed);
    ++step.step;
    step.memory_bytes = {{"weights", 60}};
    log.write(to_json(changed));
    EXPECT_TRUE(read_history(file_).last_setup().empty());
    log.write(to_json(step));
    const History history = read_history(file_);
    ASSERT_EQ(history.last_setup().size(), 1u);
    EXPECT_EQ(history.last_setup().front().step, step.step);
    EXPECT_EQ(history.memory_bytes.at("weights"), 60) << "what an earlier setup took is none of this one's";
  }
}

TEST_F(ReadHistory, KeepsTheLargestMemoryAndPassesOverNonsense) {
  put("metrics.jsonl", R"({"event":"step","step":1,"memory_bytes":{"weights":1152921504606846977,"activations":12}}
[1]
{"event":3}
{"event":"step","step":"x"}

{"event":"new"}
{"event":"step","step":2,"memory_bytes":{"weights":5,"activations":20,"late":1}}
{"event":"step","st)");
  const History history = read_history(file_);
  EXPECT_EQ(history.steps.size(), 2);
  EXPECT_EQ(history.bad_lines, 3);
  EXPECT_EQ(history.first_bad_line, 2);
  EXPECT_TRUE(history.steps[0].memory_bytes.empty());
  EXPECT_EQ(history.memory_bytes,
            (BytesByCategory{{"weights", (int64_t{1} << 60) + 1}, {"activations", 20}, {"late", 1}}));
}

TEST_F(ReadHistory, IgnoresCountsThatNoRunHasAndWarnsOfThem) {
  put("metrics.jsonl", R"({"event":"step","step":1,"tokens":8}
{"event":"step","step":-9223372036854775808}
{"event":"step","step":9223372036854775808}
{"event":"end","step":7.5}
{"event":"step","step":2,"tokens":-1}
)");
  const History history = read_history(file_);
  ASSERT_EQ(history.steps.size(), 1);
  EXPECT_TRUE(history.ends.empty());
  EXPECT_EQ(summarize(history, {}).step, 1);
  EXPECT_EQ(logged_, "") << "it is read several times";
  warn_of_bad_lines({}, file_);
  EXPECT_EQ(logged_, "");
  warn_of_bad_lines(history, file_);
  tests::expect_parts(logged_, {file_.string(), "4 lines", "line 2"});
}

/// Truncates the log as a run does that resumes at `step`. Returns its history before that.
History cut_to(const fs::path& file, int64_t step) {
  LogCut cut{.step = step};
  History history = read_history(file, &cut);
  truncate(file, cut);
  return history;
}

TEST_F(ReadHistory, IsCutToTheResumedStepAndTheRestStaysByteForByte) {
  const std::string kept = R"({"event":"start","format":2,"step":0}
{"event": "step",  "step":4, "loss":1.50}
{"event":"eval","step":5}
{"event":"warning","message":"no step"}
)",
                    saved = "{\"event\":\"checkpoint\",\"step\":5}\n", torn = "{\"event\":\"step\",\"step\":5";
  put("metrics.jsonl",
      kept + "{\"event\":\"step\",\"step\":6}\nnonsense\n{\"event\":\"end\",\"step\":7}\n" + saved + torn);
  for (int again = 0; again < 2; ++again) {
    cut_to(file_, 5);
    EXPECT_EQ(read(file_), kept + saved);
  }
  MetricsLog(file_).write(Json{{"event", "eval"}});
  EXPECT_EQ(read(file_), kept + saved + "{\"event\":\"eval\"}\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "no temporary file stays";
  put("metrics.jsonl", kept + torn);  // only the torn end is removed
  cut_to(file_, 5);
  EXPECT_EQ(read(file_), kept);
}

TEST_F(ReadHistory, OfAMissingFileIsEmptyAndAFolderIsNotAFile) {
  cut_to(file_, 5);
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_TRUE(read_history(file_).steps.empty());
  EXPECT_THROW(cut_to(folder_, 5), Error);
  EXPECT_THROW(MetricsLog(folder_ / "missing" / "metrics.jsonl"), Error);
}

}  // namespace
}  // namespace trainer::report
