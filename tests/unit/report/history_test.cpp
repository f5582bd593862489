// What reading metrics.jsonl makes of a whole run.
#include <tuple>

#include "unit/report/metrics_fixture.h"

namespace trainer::report {
namespace {

class ReadHistory : public Metrics {};

/// A step whose utilisation is written as a share of `peak_tflops`, which it does not tell when that is unknown.
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
  EndReport end;
  end.step = 2;
  end.peak = {.flops = 1e12, .origin = "measured", .unit = "AVX2 fma", .windows = 60};
  {
    MetricsLog log(file_);
    log.write(start);
    log.write(step_at(1, 0.75, 1, 0.5));
    log.write(step_at(2, 0.5, 0.5, 0.75));
    log.write(end);
    start.peak.flops = 2e12;  // on another machine, and killed
    log.write(start);
    log.write(step_at(3, 0.5, 0.5, 2));
    log.write(step_at(4, 0.25, 0.5, 4));
  }
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

TEST_F(ReadHistory, OfALogAboveItsMeasuredPeakStaysBelowOneAndAGivenPeakIsLeftAlone) {
  for (const auto& [origin, first, second] : {std::tuple{"measured", 0.5, 1.0}, {"user", 0.625, 1.25}}) {
    std::ofstream(file_) << R"({"event": "start", "step": 0, "peak_flops": 1e12, "peak_origin": ")" << origin << "\"}\n"
                         << R"({"event": "step", "step": 1, "mfu": 0.75, "mfu_causal": 0.625, "hfu": 0.625})"
                         << "\n"
                         << R"({"event": "step", "step": 2, "mfu": 1.5, "mfu_causal": 1.25, "hfu": 1.25})"
                         << "\n";
    const History history = read_history(file_);
    EXPECT_EQ(history.steps.at(0).mfu_causal, first) << origin;
    EXPECT_EQ(history.steps.at(1).mfu_causal, second) << origin;
    EXPECT_EQ(history.steps.at(1).hfu, second) << origin;
    EXPECT_EQ(history.peak.flops, std::string(origin) == "user" ? 1e12 : 1.25e12);
  }
  std::ofstream(file_) << R"({"event": "step", "step": 1, "mfu": 0.75, "mfu_causal": 0.625, "hfu": 0.625})"
                       << "\n";
  EXPECT_EQ(read_history(file_).steps.at(0).mfu, 0.75) << "of a log without a start";
}

TEST_F(ReadHistory, KnowsWhereTheLastSetupBegins) {
  StartReport start;
  start.global_batch = 8;
  start.environment.ranks = 2;
  start.config_toml = "[parallel]\ntensor = 2\n[optim]\nlr = 0.1\n";
  StepReport step = step_at(1, 0.5, 0.5, 1);
  step.memory_bytes = {{"weights", 100}};
  {
    MetricsLog log(file_);
    log.write(start);
    log.write(step);
    start.config_toml = "[parallel]\ntensor = 2\n[optim]\nlr = 0.2\n";  // resumed at another rate: the same setup
    start.environment.commit = "other";
    log.write(start);
    log.write(step_at(2, 0.5, 0.5, 1));
  }
  EXPECT_EQ(read_history(file_).last_setup().size(), 2u);
  EXPECT_EQ(read_history(file_).memory_bytes.at("weights"), 100);
  const StartReport before = start;
  for (const auto& change : std::vector<void (*)(StartReport&)>{
           [](StartReport& s) { s.config_toml = "[parallel]\ndata = 2\n"; },
           [](StartReport& s) { s.global_batch = 16; },
           [](StartReport& s) { s.environment.threads = 7; },
           [](StartReport& s) { s.environment.isa = "another CPU"; },
           [](StartReport& s) { s.compute = "bf16"; },
       }) {
    start = before;
    change(start);
    const int64_t steps = static_cast<int64_t>(read_history(file_).steps.size());
    step.step = steps + 1;
    step.memory_bytes = {{"weights", 60}};
    MetricsLog log(file_);
    log.write(start);
    EXPECT_TRUE(read_history(file_).last_setup().empty());
    log.write(step);
    const History history = read_history(file_);
    ASSERT_EQ(history.last_setup().size(), 1u);
    EXPECT_EQ(history.last_setup().front().step, step.step);
    EXPECT_EQ(history.memory_bytes.at("weights"), 60) << "what an earlier setup took is none of this one's";
  }
}

TEST_F(ReadHistory, KeepsTheLargestMemoryAndPassesOverNonsense) {
  {
    MetricsLog log(file_);
    StepReport step = full_step();
    log.write(step);
    step.memory_bytes = {{"weights", 5}, {"activations", 20}, {"late", 1}};
    log.write(step);
  }
  std::ofstream(file_, std::ios::app)
      << "[1]\n{\"event\":3}\n{\"event\":\"step\",\"step\":\"x\"}\n\n\x01\n{\"event\":\"new\"}\n";
  const History history = read_history(file_);
  EXPECT_EQ(history.steps.size(), 2);
  EXPECT_TRUE(history.steps[0].memory_bytes.empty());
  EXPECT_EQ(history.memory_bytes,
            (measure::BytesByCategory{{"weights", (int64_t{1} << 60) + 1}, {"activations", 20}, {"late", 1}}));
  EXPECT_EQ(history.unreadable_lines, 5);
}

}  // namespace
}  // namespace trainer::report
