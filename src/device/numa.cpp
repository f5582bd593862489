#include "device/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <vector>

namespace trainer::device {
namespace {

class SystemNodes final : public MemoryNodes {
 public:
  explicit SystemNodes(std::filesystem::path sys) : sys_(std::move(sys)) {}

  int count() const override {
    std::ifstream file(sys_ / "devices/system/node/has_memory");  // "0-1,4"
    int nodes = 0;
    for (std::string range; std::getline(file, range, ',');) {
      std::istringstream text(range);
      int first = 0, last = 0;
      char dash = 0;
      if (!(text >> first)) continue;
      nodes += text >> dash >> last ? last - first + 1 : 1;
    }
    return std::max(1, nodes);
  }

  std::optional<int> node_near(const std::string& pci_bus_id) const override {
    std::string name = pci_bus_id;  // CUDA writes the ID in upper case, sysfs in lower case
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    int node = -1;
    if (!(std::ifstream(sys_ / "bus/pci/devices" / name / "numa_node") >> node) || node < 0) return std::nullopt;
    return node;
  }

  std::string prefer(std::byte* memory, int64_t bytes, int node) override {
    // A direct system call: glibc does not wrap mbind, and libnuma would be a dependency for this line only.
    constexpr size_t kBits = 8 * sizeof(unsigned long);
    std::vector<unsigned long> nodes(static_cast<size_t>(node) / kBits + 1);
    nodes.back() = 1ul << (static_cast<size_t>(node) % kBits);
    const size_t max_node = kBits * nodes.size() + 1;  // the kernel subtracts one
    if (syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, nodes.data(), max_node, 0) == 0) return "";
    return errno == ENOSYS ? "this system does not support NUMA" : std::strerror(errno);
  }

 private:
  std::filesystem::path sys_;
};

}  // namespace

std::unique_ptr<MemoryNodes> memory_nodes(const std::filesystem::path& sys) {
  return std::make_unique<SystemNodes>(sys);
}

}  // namespace trainer::device
