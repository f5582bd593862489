#pragma once
// NUMA nodes of a host: finding the node of a device, and allocating pages on it.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace trainer::device {

class MemoryNodes {
 public:
  virtual ~MemoryNodes() = default;
  /// Returns the number of nodes of this host that have memory; 1: there is nothing to choose.
  virtual int count() const = 0;
  /// Returns the node of a PCI device ("0000:17:00.0"); none if the system does not report it.
  virtual std::optional<int> beside(const std::string& pci_bus_id) const = 0;
  /// Makes untouched pages come from a node, or from a different one if that node has none left. Returns why it failed;
  /// empty on success.
  virtual std::string prefer(std::byte* memory, int64_t bytes, int node) = 0;
};

/// Returns the nodes of this host, as described in the folder `sys`.
std::unique_ptr<MemoryNodes> memory_nodes(const std::filesystem::path& sys = "/sys");

}  // namespace trainer::device
