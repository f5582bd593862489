#pragma once
// A host's NUMA nodes: finds the node of a PCI device, and places pages on a node.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace trainer::device {

class MemoryNodes {
 public:
  virtual ~MemoryNodes() = default;
  /// Returns the number of this host's nodes that have memory; if 1, there is nothing to choose.
  virtual int count() const = 0;
  /// Returns the node of a PCI device ("0000:17:00.0"); none if the system does not report it.
  virtual std::optional<int> node_near(const std::string& pci_bus_id) const = 0;
  /// Makes untouched pages come from `node`, or from a different node if that one has no free memory. Returns the
  /// reason for a failure; empty on success.
  virtual std::string prefer(std::byte* memory, int64_t bytes, int node) = 0;
};

/// Returns the nodes of this host, as described in the folder `sys`.
std::unique_ptr<MemoryNodes> memory_nodes(const std::filesystem::path& sys = "/sys");

}  // namespace trainer::device
