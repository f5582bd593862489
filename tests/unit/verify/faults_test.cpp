// Faults that debug.inject plants on one rank: the expected check finds each, and names the rank.
#include <gtest/gtest.h>

#include "config/load.h"
#include "config/resolve.h"
#include "verify/verify.h"

namespace trainer::verify {
namespace {

struct Planted {
  const char* fault;
  const char* check;
  int rank;
  const char* instead_of_replicas = "parallel.data=2";
};
constexpr const char* kStages = "parallel.stages=2";    // ranks 0 and 1 are the first one
constexpr const char* kExperts = "parallel.experts=2";  // ranks 0 and 1 have the first half of the experts

// Megatron's ranks 0 and 2 have the first half of a matrix, ranks 1 and 3 the second one; vectors of blocks are on all.
// A flip of bit 14 of 52 changes a number by 4e-12.
constexpr Planted kPlanted[] = {
    {"gradient:0:wte:5:20", "gradients", 0},
    {"gradient:3:wte:3000:16", "gradients", 3},
    {"gradient:1:wpe:9:16", "gradients", 1},
    {"gradient:2:blocks.0.norm1.gain:3:14", "gradients", 2},
    {"gradient:3:blocks.1.norm2.bias:0:14", "gradients", 3},
    {"gradient:2:blocks.1.attn.o.weight:0:20", "gradients", 2},
    {"gradient:1:blocks.0.mlp.down.bias:4:14", "gradients", 1},
    {"weight:0:blocks.0.attn.q.weight:0:44", "update", 0},
    {"weight:3:blocks.0.norm1.gain:7:40", "update", 3},
    {"weight:2:wpe:1:44", "update", 2},
    {"weight:1:blocks.1.mlp.down.bias:4:50", "update", 1},
    {"weight:2:wte:5:22", "device", 2},
    {"weight:0:blocks.0.norm2.gain:1:20", "device", 0},
    {"weight:1:blocks.0.mlp.up.weight:5:50", "derivative", 1},
    {"message:0:0", "links", 0},
    {"message:1:2", "links", 1},
    {"message:2:1", "links", 2},
    {"message:3:3", "links", 3},
    {"file:0:8", "resume", 0},
    {"file:3:0", "resume", 3},
    {"link:0:1", "links", 0, kStages},
    {"link:3:0", "links", 3, kStages},
    {"gradient:1:blocks.1.attn.o.weight:2048:20", "gradients", 1, kStages},
    {"gradient:2:wte:5:20", "gradients", 2, kStages},  // in the last stage's copy of the table
    {"weight:3:blocks.2.mlp.down.weight:1500:50", "update", 3, kStages},
    {"file:2:0", "resume", 2, kStages},
    {"gradient:3:blocks.1.mlp.experts.down.weight:5200:20", "gradients", 3, kExperts},
    {"gradient:1:blocks.1.mlp.router.weight:7:14", "gradients", 1, kExperts},
    {"weight:2:blocks.1.mlp.router.weight:7:50", "update", 2, kExperts},
    {"message:2:8", "links", 2, kExperts},
};
static_assert(std::size(kPlanted) == 30);

class Faults : public testing::TestWithParam<Planted> {};
INSTANTIATE_TEST_SUITE_P(Verify, Faults, testing::ValuesIn(kPlanted), [](const auto& test) {
  std::string name = test.param.instead_of_replicas;
  name = name.substr(name.find('.') + 1) + "_" + test.param.fault;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
});

TEST_P(Faults, AreFoundAndTheirRankIsNamed) {
  const auto& [fault, check, rank, replicas] = GetParam();
  const std::string folder = testing::TempDir() + "/verify-" + std::to_string(::getpid());
  std::vector<std::string> sets = {format("debug.inject=[\"{}\"]", fault), format("run.dir={}", folder), replicas};
  if (std::string_view(replicas) == kExperts)  // in every second layer
    for (const char* set :
         {"model.arch=mixtral", "model.n_expert=8", "model.d_expert=64", "model.moe_every=2", "train.micro_batch=2"})
      sets.emplace_back(set);
  const config::Config config = config::load_text(
      "[model]\nn_layer = 4\nn_head = 4\nd_model = 64\nd_ff = 128\nseq_len = 32\n[data]\ntokenizer = \"train\"\n"
      "vocab_size = 500\n[train]\nglobal_batch = 4\nmicro_batch = 1\n[parallel]\nstrategy = \"megatron-1d\"\ntensor = "
      "2\n"
      "transport = \"threads\"\n[run]\nthreads = 1\ndevice = \"cpu\"\n",
      "verify.toml", sets, {.files = false});
  comm::run_on_threads(4, {.timeout_s = 60}, [&](comm::World& world) {
    const Report report = verify(world, config, {.only = {check}});
    EXPECT_EQ(exit_status_of(report), exit_status(Code::difference));
    const auto found = std::ranges::find(report.findings, Result::failure, &Finding::result);
    ASSERT_NE(found, report.findings.end());
    EXPECT_EQ(found->check, check);
    if (std::string_view(check) == "resume")  // all ranks read the damaged file
      EXPECT_NE(found->text.find(format("{}.shard", rank)), std::string::npos) << found->text;
    else
      EXPECT_EQ(found->ranks, std::vector<int>{rank}) << found->text;
  });
}

}  // namespace
}  // namespace trainer::verify
