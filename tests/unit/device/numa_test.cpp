#include "device/numa.h"

#include <gtest/gtest.h>

#include "device/pages.h"
#include "rigs/files.h"

namespace trainer::device {
namespace {

TEST(Numa, NodesWithMemoryAreCounted) {
  const tests::TempFolder sys;  // like /sys
  EXPECT_EQ(memory_nodes(sys)->count(), 1) << "no information: one node";
  for (const auto& [text, nodes] : {std::pair{"0", 1}, {"0-1", 2}, {"0,2", 2}, {"0-3,8-11", 8}, {"1", 1}}) {
    tests::write(sys / "devices/system/node/has_memory", text);
    EXPECT_EQ(memory_nodes(sys)->count(), nodes) << text;
  }
}

TEST(Numa, TheNodeNextToADeviceIsTheOneTheSystemNames) {
  const tests::TempFolder sys;  // like /sys
  tests::write(sys / "bus/pci/devices/0000:3d:00.0/numa_node", "1");
  tests::write(sys / "bus/pci/devices/0000:17:00.0/numa_node", "-1");
  const std::unique_ptr<MemoryNodes> nodes = memory_nodes(sys);
  EXPECT_EQ(nodes->node_near("0000:3D:00.0"), 1);  // in upper case, as CUDA writes it
  EXPECT_EQ(nodes->node_near("0000:17:00.0"), std::nullopt);
  EXPECT_EQ(nodes->node_near("0000:99:00.0"), std::nullopt);
}

TEST(Numa, PagesOfTheFirstNodeCanBeRequestedOrTheReasonIsReported) {
  constexpr int64_t kBytes = (int64_t{2} << 20) + 12345;
  std::byte* const memory = map_pages(kBytes);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % kHugePage, 0u);
  const std::string why = memory_nodes()->prefer(memory, kBytes, 0);
  if (!why.empty()) std::printf("memory of node 0 cannot be requested: %s\n", why.c_str());
  ThreadPool pool(2);
  touch_pages(pool, memory, kBytes);
  for (int64_t i = 0; i < kBytes; i += 511) ASSERT_EQ(memory[i], std::byte{0});
  memory[kBytes - 1] = std::byte{1};
  EXPECT_NE(memory_nodes()->prefer(memory, kBytes, 63), "") << "there is no such node";
  unmap_pages(memory, kBytes);
}

}  // namespace
}  // namespace trainer::device
