#include "device/numa.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "device/pages.h"

namespace trainer::device {
namespace {

namespace fs = std::filesystem;

/// A folder like /sys.
struct Sys {
  Sys() {
    std::string name = (fs::temp_directory_path() / "numa-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp: " + name);
    folder = name;
  }
  ~Sys() { fs::remove_all(folder); }
  void write(const fs::path& file, const std::string& text) const {
    fs::create_directories((folder / file).parent_path());
    std::ofstream(folder / file) << text << "\n";
  }
  fs::path folder;
};

TEST(Numa, NodesWithMemoryAreCounted) {
  const Sys sys;
  EXPECT_EQ(memory_nodes(sys.folder)->count(), 1) << "a system that says nothing";
  for (const auto& [text, nodes] : {std::pair{"0", 1}, {"0-1", 2}, {"0,2", 2}, {"0-3,8-11", 8}, {"1", 1}}) {
    sys.write("devices/system/node/has_memory", text);
    EXPECT_EQ(memory_nodes(sys.folder)->count(), nodes) << text;
  }
}

TEST(Numa, TheNodeBesideADeviceIsTheOneTheSystemNames) {
  const Sys sys;
  sys.write("bus/pci/devices/0000:3d:00.0/numa_node", "1");
  sys.write("bus/pci/devices/0000:17:00.0/numa_node", "-1");
  const std::unique_ptr<MemoryNodes> nodes = memory_nodes(sys.folder);
  EXPECT_EQ(nodes->beside("0000:3D:00.0"), 1);  // as CUDA writes it
  EXPECT_EQ(nodes->beside("0000:17:00.0"), std::nullopt);
  EXPECT_EQ(nodes->beside("0000:99:00.0"), std::nullopt);
}

TEST(Numa, PagesOfTheFirstNodeCanBeAskedForOrItIsSaidWhyNot) {
  constexpr int64_t kBytes = (int64_t{2} << 20) + 12345;
  std::byte* const memory = map_pages(kBytes);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % kHugePage, 0u);
  const std::string why = memory_nodes()->prefer(memory, kBytes, 0);
  if (!why.empty()) std::printf("memory of node 0 cannot be asked for: %s\n", why.c_str());
  ThreadPool pool(2);
  touch_pages(pool, memory, kBytes);
  for (int64_t i = 0; i < kBytes; i += 511) ASSERT_EQ(memory[i], std::byte{0});
  memory[kBytes - 1] = std::byte{1};
  EXPECT_NE(memory_nodes()->prefer(memory, kBytes, 63), "") << "there is no such node";
  unmap_pages(memory, kBytes);
}

}  // namespace
}  // namespace trainer::device
