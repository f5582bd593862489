// `trainer verify` of layouts whose ranks communicate by NCCL, which adds in another order than MPI.
#include <gtest/gtest.h>

#include "config/load.h"
#include "nccl.h"
#include "verify/verify.h"

namespace trainer::verify {
namespace {

TEST(VerifyByNccl, PassesWithStagesAndFindsAWrongMessageOfALink) {
  emulator::set_devices(2);
  for (const char* fault : {"", "\"link:1:2\""}) {
    const config::Config config = config::load_text(
        "[model]\nn_layer = 2\nn_head = 2\nd_model = 32\nd_ff = 64\nseq_len = 32\n[data]\ntokenizer = \"train\"\n"
        "vocab_size = 300\n[train]\nglobal_batch = 2\nmicro_batch = 1\n[parallel]\nstages = 2\ntransport = \"nccl\"\n"
        "[precision]\ncompute = \"fp32\"\n[run]\nthreads = 1\ndevice = \"cuda\"\n",
        "verify.toml", {format("debug.inject=[{}]", fault)}, {.files = false});
    comm::run_on_threads(2, {.timeout_s = 60}, [&](comm::World& world) {
      const Report report = verify(world, config, {.only = {"links", "gradients"}, .seconds = kNoLimit});
      EXPECT_EQ(report.transport, "nccl");
      EXPECT_TRUE(report.passed("gradients")) << to_text(report);
      EXPECT_EQ(report.passed("links"), *fault == '\0') << to_text(report);
      const auto wrong = std::ranges::find(report.findings, Result::failure, &Finding::result);
      if (wrong != report.findings.end()) EXPECT_EQ(wrong->ranks, std::vector<int>{1});
    });
  }
  emulator::set_devices(1);
}

}  // namespace
}  // namespace trainer::verify
