// Layouts with pipeline stages, experts or shared sequences pass all checks, with bounds for f64.
#include <gtest/gtest.h>

#include "config/layouts.h"
#include "config/load.h"
#include "verify/verify.h"

namespace trainer::verify {
namespace {

struct Layout {
  const char* name;
  std::vector<std::string> sets;
  bool of_machine = true;  // links and device are checked, too
};

const Layout kLayouts[] = {
    {"OneForwardOneBackward", {"model.d_ff=128", "parallel.stages=2", "parallel.tensor=2"}},
    {"Chunks",
     {"model.d_ff=128", "parallel.stages=2", "parallel.chunks=2", "parallel.data=2", "parallel.zero_stage=1"}},
    {"ZbH1", {"model.d_ff=128", "parallel.stages=2", "parallel.pipeline_schedule=zb-h1", "parallel.tensor=2"}},
    {"TiedTable", {"model.d_ff=128", "parallel.stages=3", "model.tie_embeddings=true", "optim.name=muon"}},
    {"Mixtral",
     {"model.arch=mixtral", "model.n_expert=8", "model.d_expert=64", "parallel.experts=2", "parallel.tensor=2",
      "train.router_z_loss=0.01", "train.micro_batch=2"}},
    {"Olmoe",
     {"model.arch=olmoe", "model.n_expert=8", "model.d_expert=64", "parallel.strategy=fsdp", "parallel.shards=2",
      "parallel.experts=2", "parallel.expert_buffer=1", "parallel.data=2", "train.micro_batch=2", "optim.name=muon",
      "precision.compute=bf16"},
     false},
    {"Qwen2Moe",
     {"model.arch=qwen2_moe", "model.n_expert=4", "model.d_expert=64", "model.d_shared=64", "parallel.strategy=fsdp",
      "parallel.shards=2", "parallel.experts=2", "parallel.stages=2", "parallel.pipeline_schedule=zb-h1",
      "train.micro_batch=2", "train.balance=sequence"},
     false},
    {"Qwen3Moe",
     {"model.arch=qwen3_moe", "model.d_ff=128", "model.n_expert=8", "model.d_expert=64", "model.moe_every=2",
      "parallel.data=2", "parallel.zero_stage=1", "train.recompute=full"},
     false},
    {"ContextAndExperts",
     {"model.n_layer=2", "model.arch=mixtral", "model.n_expert=4", "model.d_expert=64", "parallel.strategy=fsdp",
      "parallel.shards=4", "parallel.context=2", "parallel.experts=2", "train.micro_batch=2"},
     false},
    {"ContextGather",
     {"model.n_layer=2", "model.d_ff=128", "parallel.strategy=fsdp", "parallel.shards=2", "parallel.context=2",
      "parallel.context_heads=1", "parallel.context_kv=gather"},
     false},
    {"ContextRing",
     {"model.n_layer=2", "model.d_ff=128", "model.window=10", "model.window_full_every=2", "parallel.strategy=fsdp",
      "parallel.shards=4", "parallel.context=4", "parallel.context_heads=1", "parallel.context_kv=ring"},
     false},
    {"ContextHeadsAndTokens",
     {"model.n_layer=2", "model.d_ff=128", "parallel.strategy=fsdp", "parallel.shards=4", "parallel.context=4",
      "parallel.context_heads=2", "parallel.context_kv=gather"},
     false},
    {"ContextAndTensor",
     {"model.n_layer=2", "model.arch=llama", "model.d_ff=128", "parallel.tensor=2", "parallel.context=2",
      "parallel.context_kv=ring"},
     false},
    {"TableWithExperts",
     {"model.n_layer=2", "model.arch=mixtral", "model.n_expert=4", "model.d_expert=64", "parallel.strategy=autoddl",
      "parallel.axes=[2, 2]", "train.micro_batch=2",
      R"(parallel.layer=[{stream="r-", attention="rc", hidden="rc", qkv="fc", out="fk", up="fc", down="fk", experts="e-"}])",
      "parallel.head=r-", "parallel.table=fv"},
     false},
};

class Layouts : public testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Verify, Layouts, testing::ValuesIn(kLayouts),
                         [](const auto& test) { return test.param.name; });

TEST_P(Layouts, PassAllChecks) {
  const std::string folder = testing::TempDir() + "/layouts-" + std::to_string(::getpid());
  std::vector<std::string> sets = GetParam().sets;
  sets.push_back(format("run.dir={}", folder));
  const config::Config config = config::load_text(
      "[model]\nn_layer = 6\nn_head = 4\nd_model = 64\nseq_len = 32\ntie_embeddings = false\ndropout = 0.1\n"
      "[data]\ntokenizer = \"train\"\nvocab_size = 500\n[train]\nglobal_batch = 8\nmicro_batch = 1\n[parallel]\n"
      "strategy = \"megatron-1d\"\ntransport = \"threads\"\n[run]\nthreads = 1\ndevice = \"cpu\"\n",
      "verify.toml", sets, {.files = false});
  const int64_t ranks = config::ranks_of_replica(config) * std::max<int64_t>(1, config.parallel.data);
  comm::run_on_threads(static_cast<int>(ranks), {.timeout_s = 60}, [&](comm::World& world) {
    Options options{.seconds = kNoLimit};
    for (const Check& check : checks())
      if (!GetParam().of_machine && check.name != std::string_view("links") && check.name != std::string_view("device"))
        options.only.emplace_back(check.name);
    const Report report = verify(world, config, options);
    EXPECT_EQ(exit_status_of(report), 0);
    if (!world.first()) return;
    for (const Check& check : checks()) {
      const std::string_view name = check.name;
      if (name == "transport" || name == "data") continue;  // skipped: the ranks are threads, and the run has no data
      if (!options.only.empty() && std::ranges::count(options.only, name) == 0) continue;
      EXPECT_TRUE(report.passed(name)) << to_text(report);
    }
    const auto found = [&](std::string_view what) {
      return std::ranges::count_if(report.findings, [&](const Finding& finding) {
        return finding.checked.find(what) != std::string::npos && finding.worst > 0 && finding.worst < finding.bound;
      });
    };
    EXPECT_EQ(found("layout against one rank, fp64"), 1) << to_text(report);
    EXPECT_EQ(found("weights and states after 3 clipped steps, fp64"), 1) << to_text(report);
    const auto has = [&](const std::string& what) {
      return std::ranges::any_of(report.findings, [&](const Finding& f) { return f.checked.starts_with(what); });
    };
    const bool of_machine = GetParam().of_machine;
    EXPECT_EQ(has(format("links of {} stages, both ways", config.parallel.stages)),
              of_machine && config.parallel.stages > 1);
    EXPECT_EQ(has("rows of each of "), config.model.n_expert > 0);
    EXPECT_EQ(has("exchange of experts' rows, uneven"), of_machine && config.parallel.experts > 1);
  });
}

}  // namespace
}  // namespace trainer::verify
