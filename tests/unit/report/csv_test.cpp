#include "report/csv.h"

#include "unit/report/run_history.h"

namespace trainer::report {
namespace {

class Csv : public RunFolder {
 protected:
  std::string run(const std::string& name, const std::string& log) const {
    put(name + "/metrics.jsonl", log);
    return (folder_ / name).string();
  }
  static std::string table(const std::vector<std::string>& runs) {
    std::string text;
    write_csv(named_runs(runs), [&](std::string_view line) { text += line; });
    return text;
  }
};

TEST_F(Csv, HasARowForEachStepAndTheEvaluationAfterIt) {
  const std::string one = run("one",
                              R"({"event":"start","step":0,"name":"x"}
{"event":"step","step":1,"loss":0.30000000000000004,"skipped":false,"phase_ms":{"data":1,"forward":0.125}}
{"event":"eval","step":1,"loss":3,"perplexity":20.5,"tokens":64}
{"event":"warning","step":1,"message":"a, b"}
{"event":"step","step":2,"loss":null,"skipped":true,"bad_tensor":"w, \"q\"","comm_bytes":{"data":{"all_reduce":64}}}
{"event":"st)");
  EXPECT_EQ(table({one}),
            "run,step,loss,skipped,phase_ms.data,phase_ms.forward,validation.loss,validation.perplexity,"
            "validation.tokens,bad_tensor,comm_bytes.data.all_reduce\n"
            "one,1,0.30000000000000004,false,1,0.125,3,20.5,64,,\n"
            "one,2,,true,,,,,,\"w, \"\"q\"\"\",64\n");
}

TEST_F(Csv, ValidationSetsHaveColumnsOfTheirNames) {
  const std::string one = run("one", R"({"event":"step","step":1,"loss":2}
{"event":"eval","step":1,"loss":3,"set":"web","sets":{"web":{"loss":3,"tokens":8},"math":{"loss":4,"tokens":16}}}
)");
  EXPECT_EQ(table({one}),
            "run,step,loss,validation.loss,validation.web.loss,validation.web.tokens,validation.math.loss,"
            "validation.math.tokens\none,1,2,3,3,8,4,16\n");
}

TEST_F(Csv, TheSlowestRankOfAWindowIsInTheRowOfItsLastStep) {
  const std::string one = run("one", R"({"event":"step","step":1,"loss":2}
{"event":"step","step":2,"loss":3}
{"event":"eval","step":2,"loss":4}
{"event":"ranks","step":2,"median_ms":5,"slowest":7,"own_ms":[5,5]}
)");
  EXPECT_EQ(table({one}), "run,step,loss,validation.loss,slowest_rank\none,1,2,,\none,2,3,4,7\n");
}

TEST_F(Csv, SeveralRunsShareTheColumns) {
  const std::string a = run("a/run", R"({"event":"step","step":1,"loss":1,"lr":0.5})"
                                     "\n");
  const std::string b = run("b/run", R"({"event":"step","step":1,"loss":2,"extra":7})"
                                     "\n");
  EXPECT_EQ(table({a, b + "/"}), "run,step,loss,lr,extra\n" + a + ",1,1,0.5,\n" + b + ",1,2,,7\n");
  EXPECT_EQ(table({a, run("c", "")}), "run,step,loss,lr\nrun,1,1,0.5\n");
}

TEST_F(Csv, AGlobStandsForTheRunsThatItMatches) {
  const std::string b = run("sweep/lr-2", ""), a = run("sweep/lr-1", ""), plain = run("sweep/lr-[x]", "");
  put("sweep/lr-3/config.toml", "");  // not a run
  const auto folders = [&](const std::vector<std::string>& given) {
    std::vector<std::string> found;
    for (const NamedRun& each : named_runs(given)) found.push_back(each.folder.string());
    return found;
  };
  EXPECT_EQ(folders({(folder_ / "sweep/lr-?").string(), plain}), (std::vector<std::string>{a, b, plain}));
  EXPECT_EQ(folders({(folder_ / "sweep/*-[12]/metrics.jsonl").string()}), (std::vector<std::string>{a, b}));
  expect_error(Code::usage, "lr-[34]: contains no metrics.jsonl",
               [&] { folders({(folder_ / "sweep/lr-[34]").string()}); });
}

TEST_F(Csv, AFolderWithoutALogIsNamed) {
  expect_error(Code::usage, "none: contains no metrics.jsonl", [&] { named_runs({(folder_ / "none").string()}); });
}

}  // namespace
}  // namespace trainer::report
