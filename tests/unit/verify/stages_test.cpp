// Layouts with pipeline stages pass all checks, with bounds for f64.
#include <gtest/gtest.h>

#include "config/layouts.h"
#include "config/load.h"
#include "verify/verify.h"

namespace trainer::verify {
namespace {

struct Layout {
  const char* name;
  std::vector<std::string> sets;
};

const Layout kLayouts[] = {
    {"OneForwardOneBackward", {"parallel.stages=2", "parallel.tensor=2"}},
    {"Chunks", {"parallel.stages=2", "parallel.chunks=2", "parallel.data=2", "parallel.zero_stage=1"}},
    {"ZbH1", {"parallel.stages=2", "parallel.pipeline_schedule=zb-h1", "parallel.tensor=2"}},
    {"TiedTable", {"parallel.stages=3", "model.tie_embeddings=true", "optim.name=muon"}},
};

class Stages : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Verify, Stages, testing::ValuesIn(kLayouts), [](const auto& test) { return test.param.name; });

TEST_P(Stages, PassAllChecks) {
  const std::string folder = testing::TempDir() + "/stages-" + std::to_string(::getpid());
  std::vector<std::string> sets = GetParam().sets;
  sets.push_back(format("run.dir={}", folder));
  const config::Config config = config::load_text(
      "[model]\nn_layer = 6\nn_head = 4\nd_model = 64\nd_ff = 128\nseq_len = 32\ntie_embeddings = false\ndropout = "
      "0.1\n"
      "[data]\ntokenizer = \"train\"\nvocab_size = 500\n[train]\nglobal_batch = 8\nmicro_batch = 1\n[parallel]\n"
      "strategy = \"megatron-1d\"\ntransport = \"threads\"\n[run]\nthreads = 1\ndevice = \"cpu\"\n",
      "verify.toml", sets, {.files = false});
  const int64_t ranks = config::ranks_of_replica(config) * std::max<int64_t>(1, config.parallel.data);
  comm::run_on_threads(static_cast<int>(ranks), {.timeout_s = 60}, [&](comm::World& world) {
    const Report report = verify(world, config, {.seconds = kNoLimit});
    EXPECT_EQ(exit_status_of(report), 0);
    if (!world.first()) return;
    for (const Check& check : checks()) {
      const std::string_view name = check.name;
      if (name == "transport" || name == "data") continue;  // skipped: the ranks are threads, and the run has no data
      EXPECT_TRUE(report.passed(name)) << to_text(report);
    }
    const auto found = [&](std::string_view what) {
      return std::ranges::count_if(report.findings, [&](const Finding& finding) {
        return finding.checked.find(what) != std::string::npos && finding.worst > 0 && finding.worst < finding.bound;
      });
    };
    EXPECT_EQ(found("layout against one rank, fp64"), 1) << to_text(report);
    EXPECT_EQ(found("weights and states after 3 clipped steps, fp64"), 1) << to_text(report);
    const std::string links = format("links of {} stages, both ways", config.parallel.stages);
    EXPECT_TRUE(std::ranges::any_of(report.findings, [&](const Finding& f) { return f.checked.starts_with(links); }));
  });
}

}  // namespace
}  // namespace trainer::verify
