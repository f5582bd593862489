// Host memory for a GPU that cannot be pinned: other kinds of allocation are tried in order, and none changes a bit.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/log.h"
#include "device/cuda/cuda_device.h"
#include "emulator.h"
#include "rigs/layouts.h"

namespace trainer::tests {
namespace {

using config::OffloadOptimizer;

struct Pinning : testing::Test {
  void TearDown() override { emulator::limit_pinning(-1, -1); }
};

constexpr int64_t kLarge = int64_t{3} << 20, kSmall = 1000;

TEST_F(Pinning, EachWayIsTriedWhenTheOneBeforeFails) {
  const std::unique_ptr<device::Device> gpu = device::cuda::make_device(0, 2);
  const int before = emulator::pinned_blocks();
  struct Case {
    int registrations, allocations;  // numbers of calls that succeed
    device::HostMemory memory;
    int pinned;  // number of pinned blocks among two large and one small one
  };
  for (const auto& [registrations, allocations, memory, pinned] :
       {Case{-1, -1, device::HostMemory::pinned, 3}, Case{0, -1, device::HostMemory::pinned, 3},
        Case{1, -1, device::HostMemory::pinned, 3}, Case{0, 2, device::HostMemory::pageable, 2},
        Case{1, 0, device::HostMemory::pageable, 1}, Case{0, 0, device::HostMemory::pageable, 0}}) {
    emulator::limit_pinning(registrations, allocations);
    {
      const std::unique_ptr<device::Device> host = device::make_host(*gpu);
      const Buffer a(*host, "test", {kLarge}, DType::u8), b(*host, "test", {kLarge}, DType::u8),
          c(*host, "test", {kSmall}, DType::u8);
      EXPECT_EQ(emulator::pinned_blocks() - before, pinned) << registrations << " " << allocations;
      EXPECT_EQ(device::memory_of(*gpu, *host), memory) << registrations << " " << allocations;
      for (const Buffer* buffer : {&a, &b, &c})
        for (int64_t i = 0; i < buffer->tensor().count(); ++i) ASSERT_EQ(buffer->tensor().data[i], std::byte{0});
    }
    EXPECT_EQ(emulator::pinned_blocks(), before) << registrations << " " << allocations;
  }
  emulator::limit_pinning(0, 0);
  const std::unique_ptr<device::Device> host = device::make_host(*gpu);
  const Buffer block(*host, "test", {kLarge}, DType::u8);
  emulator::limit_pinning(0, -1);  // buffers can be pinned again
  EXPECT_EQ(device::memory_of(*gpu, *host), device::HostMemory::staged);
}

TEST_F(Pinning, EachFailureIsReportedOnce) {
  const std::unique_ptr<device::Device> gpu = device::cuda::make_device(0, 2);
  std::vector<std::string> said;
  const log::Sink before = log::set_sink([&](log::Level level, const std::string& line) {
    if (level == log::Level::warning) said.push_back(line);
  });
  emulator::limit_pinning(0, 0);
  {
    const std::unique_ptr<device::Device> host = device::make_host(*gpu);
    for (int i = 0; i < 3; ++i) Buffer(*host, "test", {kLarge}, DType::u8);
  }
  log::set_sink(before);
  ASSERT_EQ(said.size(), 2u);
  EXPECT_NE(said[0].find("could not be pinned"), std::string::npos) << said[0];
  EXPECT_NE(said[1].find("is pageable"), std::string::npos) << said[1];
}

/// Two NUMA nodes; `node` is the GPU's, if known. Records the requests.
struct TwoNodes final : device::MemoryNodes {
  TwoNodes(std::vector<int64_t>& requested, std::optional<int> node, std::string refusal)
      : requested(requested), node(node), refusal(std::move(refusal)) {}
  int count() const override { return 2; }
  std::optional<int> node_near(const std::string& pci_bus_id) const override {
    EXPECT_EQ(pci_bus_id, device::cuda::devices().front().pci_bus_id);
    return node;
  }
  std::string prefer(std::byte* memory, int64_t bytes, int requested_node) override {
    EXPECT_EQ(requested_node, node);
    std::vector<unsigned char> there(static_cast<size_t>(divide_up(bytes, int64_t{4096})));
    EXPECT_EQ(mincore(memory, static_cast<size_t>(bytes), there.data()), 0);
    for (const unsigned char page : there) EXPECT_EQ(page & 1, 0) << "a page was touched before its node was known";
    requested.push_back(bytes);
    return refusal;
  }
  std::vector<int64_t>& requested;
  std::optional<int> node;
  std::string refusal;
};

TEST_F(Pinning, LargeBlocksComeFromTheMemoryNodeNextToTheGpu) {
  const std::unique_ptr<device::Device> gpu = device::cuda::make_device(0, 2);
  struct Case {
    std::optional<int> node;
    const char* refusal;
    int registrations;
    std::vector<int64_t> requested;
    const char* said;
  };
  for (const Case& c :
       {Case{1, "", -1, {kLarge, kLarge}, "comes from NUMA node 1"},
        Case{1, "", 0, {kLarge, kLarge, kLarge, kLarge}, "comes from NUMA node 1"},
        Case{1, "not permitted", -1, {kLarge, kLarge}, "a different NUMA node than the GPU (not permitted)"},
        Case{{}, "", -1, {}, "is unknown: host memory comes from any node"}}) {
    std::vector<int64_t> requested;
    std::string said;
    int times = 0;
    const log::Sink before = log::set_sink([&](log::Level, const std::string& line) {
      said += line + "\n";
      times += line.find(c.said) != std::string::npos;
    });
    emulator::limit_pinning(c.registrations, c.registrations);
    {
      const std::unique_ptr<device::Device> host =
          device::cuda::make_host(*gpu, true, std::make_unique<TwoNodes>(requested, c.node, c.refusal));
      const Buffer a(*host, "test", {kLarge}, DType::u8), b(*host, "test", {kLarge}, DType::u8),
          small(*host, "test", {kSmall}, DType::u8);
      for (const Buffer* buffer : {&a, &b, &small})
        for (int64_t i = 0; i < buffer->tensor().count(); ++i) ASSERT_EQ(buffer->tensor().data[i], std::byte{0});
    }
    log::set_sink(before);
    EXPECT_EQ(requested, c.requested);
    EXPECT_EQ(times, 1) << said;
  }
}

/// Trains on a GPU; once it exists, at most N more blocks of host memory can be registered, and allocated pinned.
Result train_with(const config::Offload& plan, int registrations, int allocations, std::string& mode) {
  config::Config c = tiny_config();
  c.offload = plan;
  Result result;
  emulator::limit_pinning(-1, -1);
  std::unique_ptr<device::Device> gpu = device::cuda::make_device(0, 2);
  emulator::limit_pinning(registrations, allocations);
  Tiny run(nullptr, c, DType::bf16, std::move(gpu));
  for (int64_t n = 1; n <= 3; ++n) result.losses.push_back(run.step(n).loss);
  for (const checkpoint::TensorSlice& slice : checkpoint::slices_to_save(run.trainer.store(), true))
    collect(result.state, slice);
  if (run.trainer.offload() != nullptr)
    mode = format("{}, {} streamed", static_cast<int>(run.trainer.offload()->host_memory()),
                  run.trainer.offload()->report().share.streamed > 0 ? "some" : "none");
  emulator::limit_pinning(-1, -1);
  return result;
}

TEST_F(Pinning, ARunHasTheSameBitsInEveryWay) {
  std::string mode;
  const Result none = train_with({}, -1, -1, mode);
  config::Offload plan{.optimizer = OffloadOptimizer::interleaved, .gpu_fraction = "1/2", .subgroup = 512, .slots = 2};
  struct Case {
    bool pinned;
    int allocations;
    const char* mode;
  };
  for (const auto& [pinned, allocations, expected] :
       {Case{true, -1, "1, some streamed"}, Case{false, -1, "2, some streamed"}, Case{true, 3, "3, none streamed"},
        Case{false, 0, "3, none streamed"}}) {
    plan.pinned = pinned;
    const Result result = train_with(plan, 0, allocations, mode);
    EXPECT_EQ(mode, expected);
    EXPECT_EQ(result.losses, none.losses);
    EXPECT_TRUE(result.state == none.state);
  }
}

}  // namespace
}  // namespace trainer::tests
