#pragma once
// Memory nodes of a host (NUMA): which one is beside a device, and pages that come from it. Through libnuma, where the
// program was built with it.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace trainer::device {

class MemoryNodes {
 public:
  virtual ~MemoryNodes() = default;
  /// Returns how many nodes of this host have memory; 1: there is nothing to choose.
  virtual int count() const = 0;
  /// Returns the node beside a PCI device ("0000:17:00.0"); none where the system does not say.
  virtual std::optional<int> beside(const std::string& pci_bus_id) const = 0;
  /// Makes pages that nobody has touched come from a node, or from another one when that has none left. Returns why it
  /// could not; empty: it did.
  virtual std::string prefer(std::byte* memory, int64_t bytes, int node) = 0;
};

/// Those of this host, as the folder `sys` tells.
std::unique_ptr<MemoryNodes> memory_nodes(const std::filesystem::path& sys = "/sys");

}  // namespace trainer::device
