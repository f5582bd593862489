#include "device/numa.h"

#ifdef TRAINER_HAS_NUMA
#include <numa.h>
#include <numaif.h>
#endif

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

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

  std::optional<int> beside(const std::string& pci_bus_id) const override {
    std::string name = pci_bus_id;  // CUDA writes it in upper case, the system does not
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    int node = -1;
    if (!(std::ifstream(sys_ / "bus/pci/devices" / name / "numa_node") >> node) || node < 0) return std::nullopt;
    return node;
  }

  std::string prefer([[maybe_unused]] std::byte* memory, [[maybe_unused]] int64_t bytes,
                     [[maybe_unused]] int node) override {
#ifdef TRAINER_HAS_NUMA
    if (numa_available() < 0) return "this system does not support NUMA";
    bitmask* const nodes = numa_allocate_nodemask();
    numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
    const long status = mbind(memory, static_cast<size_t>(bytes), MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0);
    const int error = errno;
    numa_free_nodemask(nodes);
    return status == 0 ? "" : std::strerror(error);
#else
    return "this program was built without libnuma";
#endif
  }

 private:
  std::filesystem::path sys_;
};

}  // namespace

std::unique_ptr<MemoryNodes> memory_nodes(const std::filesystem::path& sys) {
  return std::make_unique<SystemNodes>(sys);
}

}  // namespace trainer::device
