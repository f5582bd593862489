#include "report/csv.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "report/metrics.h"
#include "unit/report/run_history.h"

namespace trainer::report {
namespace {

namespace fs = std::filesystem;

class Csv : public testing::Test {
 protected:
  ~Csv() override { fs::remove_all(folder_); }
  std::string run(const std::string& name, const std::string& log) {
    fs::create_directories(folder_ / name);
    std::ofstream(folder_ / name / "metrics.jsonl") << log;
    return (folder_ / name).string();
  }
  static std::string table(const std::vector<std::string>& runs) {
    std::string text;
    write_csv(named_runs(runs), [&](std::string_view line) { text += line; });
    return text;
  }
  const fs::path folder_ = fs::path(testing::TempDir()) / ("csv_test_" + std::to_string(getpid()));
};

TEST_F(Csv, HasARowForEachStepAndTheEvaluationAfterIt) {
  const std::string one = run("one",
                              R"({"event":"start","step":0,"name":"x"}
{"event":"step","step":1,"loss":2.5,"skipped":false,"phase_ms":{"data":1,"forward":0.125}}
{"event":"eval","step":1,"loss":3,"perplexity":20.5,"tokens":64}
{"event":"warning","step":1,"message":"a, b"}
{"event":"step","step":2,"loss":null,"skipped":true,"bad_tensor":"w, \"q\"","comm_bytes":{"data":{"all_reduce":64}}}
{"event":"st)");
  EXPECT_EQ(table({one}),
            "run,step,loss,validation.loss,validation.perplexity,skipped,bad_tensor,comm_bytes.data.all_reduce,"
            "phase_ms.data,phase_ms.forward,validation.tokens\n"
            "one,1,2.5,3,20.5,false,,,1,0.125,64\n"
            "one,2,,,,true,\"w, \"\"q\"\"\",64,,,\n");
}

TEST_F(Csv, NumbersKeepAllTheirDigits) {
  fs::create_directories(folder_ / "digits");
  StepReport step = example_history(1).steps.front();
  step.loss = 0.1 + 0.2;
  MetricsLog(folder_ / "digits" / "metrics.jsonl").write(step);
  EXPECT_NE(table({(folder_ / "digits").string()}).find("digits,1,6144,,0.30000000000000004,"), std::string::npos);
}

TEST_F(Csv, SeveralRunsShareTheColumns) {
  const std::string a = run("a/run", R"({"event":"step","step":1,"loss":1,"lr":0.5})"
                                     "\n");
  const std::string b = run("b/run", R"({"event":"step","step":1,"loss":2,"extra":7})"
                                     "\n");
  EXPECT_EQ(table({a, b + "/"}), "run,step,loss,lr,extra\n" + a + ",1,1,0.5,\n" + b + ",1,2,,7\n");
  EXPECT_EQ(table({a, run("c", "")}), "run,step,loss,lr\nrun,1,1,0.5\n");
}

TEST_F(Csv, AFolderWithoutALogIsNamed) {
  try {
    named_runs({(folder_ / "none").string()});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::usage);
    EXPECT_NE(std::string(error.what()).find("none: no metrics.jsonl there"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace trainer::report
