#include "report/comparison.h"

#include "unit/report/run_history.h"

namespace trainer::report {
namespace {

class Comparison : public RunFolder {
 protected:
  /// Makes a run of N steps, each `slower` times as long as those of the example.
  std::string run(const std::string& name, int64_t steps, double slower, const std::string& config,
                  const std::string& data = "", int64_t tokens = 64) const {
    put(name + "/config.toml", config);
    MetricsLog log(folder_ / name / "metrics.jsonl");
    log.write(to_json(example_start()));
    for (StepReport step : example_history(steps).steps) {
      step.step_ms *= slower;
      step.tokens_per_s /= slower;
      step.loss *= slower;
      log.write(to_json(step));
    }
    log.write(
        to_json(EvalReport{.step = steps, .loss = 2.5 * slower, .perplexity = 12.2, .tokens = tokens, .data = data}));
    return (folder_ / name).string();
  }
};

TEST_F(Comparison, HasTheCurvesResultsAndDifferencesOfAllRuns) {
  const std::string a =
      run("first", 60, 1,
          "[optim]\nlr = 1e-3\nmin_lr = 0.00030000000000000003\nbeta1 = 0.9\n[data]\ntrain = [\"x\", \"y\"]\n");
  const std::string b =
      run("sec<ond", 60, 2,
          "[optim]\nlr = 2e-3\nmin_lr = 0.0003\nbeta1 = 0.9\n[data]\ntrain = [\"x\"]\n[log]\njsonl = true\n");
  put("sec<ond/report.html", "");
  const std::vector<ComparedRun> runs = read_runs(named_runs({a, b}));
  std::string differing;
  for (const page::Table::Row& row : differing_keys(runs).rows)
    differing += format("{}: {} | {}\n", row.name, row.cells.at(0), row.cells.at(1));
  EXPECT_EQ(differing, "data.train: [\"x\",\"y\"] | [\"x\"]\nlog.jsonl: - | true\noptim.lr: 0.001 | 0.002\n");

  const std::string page = comparison_html(runs, folder_ / "pages");
  EXPECT_EQ(faults(page), "");
  expect_texts(page, "<p>Reports: <a href=\"./../sec&lt;ond/report.html\">sec&lt;ond</a></p>");  // the other has none
  expect_texts(page, "2 runs compared", "sec&lt;ond", "Training loss", "Validation loss", "class=\"s1\"", "optim.lr",
               "0.002", "(2×)", "(0.5×)");
  EXPECT_EQ(page.find("over the tokens seen"), std::string::npos);  // steps of one size
  EXPECT_EQ(page.find("beta1"), std::string::npos);

  const std::string text = comparison_text(runs);
  size_t width = 0;
  for (const char* name : {"first", "sec<ond"}) {  // columns are aligned with their headings
    const size_t at = text.find(name);
    ASSERT_NE(at, std::string::npos);
    EXPECT_GT(at, width);
    width = at;
  }
  expect_texts(text, "\nvalidation loss", " 2.5 ", " 5\n", "2.5 (best)");
  EXPECT_EQ(text.find("(best)"), text.rfind("(best)"));
}

TEST_F(Comparison, NamesTheBestRunOnlyIfAllValidateOnTheSameData) {
  const struct {
    const char *data, *other;
    int64_t tokens;
    bool comparable;
  } cases[] = {{"one", "one", 64, true}, {"one", "two", 64, false}, {"one", "one", 96, false}};
  for (const auto& [data, other, tokens, comparable] : cases) {
    const std::string a = run("a", 5, 2, "", data), b = run("b<", 5, 1, "", other, tokens);
    const std::vector<ComparedRun> runs = read_runs(named_runs({a, b}));
    const std::string text = comparison_text(runs), page = comparison_html(runs);
    for (const std::string& shown : {text, page}) {
      EXPECT_EQ(shown.find("2.5 (best)") != shown.npos, comparable) << data << " " << other << " " << tokens;
      EXPECT_EQ(shown.find("not comparable") == shown.npos, comparable) << data << " " << other << " " << tokens;
    }
    EXPECT_EQ(faults(page), "");
    fs::remove_all(folder_ / "a");
    fs::remove_all(folder_ / "b<");
  }
}

TEST_F(Comparison, OfEqualRunsReportsNoDifferences) {
  const std::string a = run("a", 5, 1, "[optim]\nlr = 1e-3\n"), b = run("b", 5, 1, "[optim]\nlr = 0.001\n");
  const std::string page = comparison_html(read_runs(named_runs({a, b})));
  EXPECT_EQ(faults(page), "");
  expect_texts(page, "<p>None.</p>");
}

TEST_F(Comparison, ServesRunsThatHaveHardlyBegun) {
  const std::string a = run("a", 5, 1, "");
  put("empty/metrics.jsonl", "{\"event\":\"step\",\"st");
  put("empty/config.toml", "[optim\n");
  const std::vector<ComparedRun> runs = read_runs(named_runs({(folder_ / "empty").string(), a}));
  const std::string page = comparison_html(runs);
  EXPECT_EQ(faults(page), "");
  expect_texts(comparison_text(runs), "did not end normally");
  EXPECT_EQ(comparison_text(runs).find("(best)"), std::string::npos) << "there is one loss only";
}

}  // namespace
}  // namespace trainer::report
