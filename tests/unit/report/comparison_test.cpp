#include "report/comparison.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "report/metrics.h"
#include "unit/report/run_history.h"

namespace trainer::report {
namespace {

namespace fs = std::filesystem;

class Comparison : public testing::Test {
 protected:
  ~Comparison() override { fs::remove_all(folder_); }
  /// A run of so many steps, each `slower` times as long as those of the example.
  std::string run(const std::string& name, int64_t steps, double slower, const std::string& config) {
    fs::create_directories(folder_ / name);
    std::ofstream(folder_ / name / "config.toml") << config;
    MetricsLog log(folder_ / name / "metrics.jsonl");
    StartReport start = example_start();
    start.name = name;
    log.write(start);
    for (StepReport step : example_history(steps).steps) {
      step.step_ms *= slower;
      step.tokens_per_s /= slower;
      step.loss *= slower;
      log.write(step);
    }
    log.write(EvalReport{.step = steps, .loss = 2.5 * slower, .perplexity = 12.2, .tokens = 64});
    return (folder_ / name).string();
  }
  std::string faults(const std::string& page) const {
    std::ofstream(folder_ / "page.html") << page;
    const std::string command = "python3 '" TRAINER_SOURCE_DIR "/tests/unit/report/check_report.py' '" +
                                (folder_ / "page.html").string() + "' > '" + (folder_ / "faults").string() + "' 2>&1";
    if (std::system(command.c_str()) == 0) return "";
    std::ifstream in(folder_ / "faults");
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const fs::path folder_ = fs::path(testing::TempDir()) / ("comparison_test_" + std::to_string(getpid()));
};

TEST_F(Comparison, HasTheCurvesResultsAndDifferencesOfAllRuns) {
  const std::string a = run("first", 60, 1, "[optim]\nlr = 1e-3\nbeta1 = 0.9\n[data]\ntrain = [\"x\", \"y\"]\n");
  const std::string b =
      run("sec<ond", 60, 2, "[optim]\nlr = 2e-3\nbeta1 = 0.9\n[data]\ntrain = [\"x\"]\n[log]\njsonl = true\n");
  const std::vector<ComparedRun> runs = read_runs(named_runs({a, b}));
  using Row = std::pair<std::string, std::vector<std::string>>;
  const std::vector<Row> expected = {
      {"data.train", {"[ 'x', 'y' ]", "[ 'x' ]"}}, {"log.jsonl", {"-", "true"}}, {"optim.lr", {"0.001", "0.002"}}};
  EXPECT_EQ(differing_keys(runs), expected);

  const std::string page = comparison_html(runs);
  EXPECT_EQ(faults(page), "");
  for (const char* text : {"2 runs compared", "sec&lt;ond", "Training loss", "Validation loss", "class=\"s1\"",
                           "optim.lr", "0.002", "(2×)", "(0.5×)"})
    EXPECT_NE(page.find(text), std::string::npos) << text;
  EXPECT_EQ(page.find("over the tokens seen"), std::string::npos);  // steps of one size
  EXPECT_EQ(page.find("beta1"), std::string::npos);

  const std::string text = comparison_text(runs);
  EXPECT_NE(text.find("validation loss"), std::string::npos) << text;
  size_t width = 0;
  for (const char* name : {"first", "sec<ond"}) {  // columns begin where their heads do
    const size_t at = text.find(name);
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(at, width);
    width = at;
  }
  EXPECT_NE(text.find("validation loss       2.5                 5\n"), std::string::npos) << text;
}

TEST_F(Comparison, OfEqualRunsSaysSo) {
  const std::string a = run("a", 5, 1, "[optim]\nlr = 1e-3\n"), b = run("b", 5, 1, "[optim]\nlr = 0.001\n");
  const std::string page = comparison_html(read_runs(named_runs({a, b})));
  EXPECT_EQ(faults(page), "");
  EXPECT_NE(page.find("<p>None.</p>"), std::string::npos);
}

TEST_F(Comparison, ServesRunsThatHaveHardlyBegun) {
  const std::string a = run("a", 5, 1, "");
  fs::create_directories(folder_ / "empty");
  std::ofstream(folder_ / "empty" / "metrics.jsonl") << "{\"event\":\"step\",\"st";
  std::ofstream(folder_ / "empty" / "config.toml") << "[optim\n";
  const std::vector<ComparedRun> runs = read_runs(named_runs({(folder_ / "empty").string(), a}));
  const std::string page = comparison_html(runs);
  EXPECT_EQ(faults(page), "");
  EXPECT_NE(comparison_text(runs).find("not ended in order"), std::string::npos);
}

}  // namespace
}  // namespace trainer::report
