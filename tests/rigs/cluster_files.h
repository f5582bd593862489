#pragma once
// The cluster descriptions in configs/clusters.
#include "plan/cluster.h"

namespace trainer::tests {

/// configs/clusters/NAME.toml
inline plan::Cluster cluster_file(const std::string& name) {
  return plan::read_cluster(std::string(TRAINER_SOURCE_DIR) + "/configs/clusters/" + name + ".toml");
}

}  // namespace trainer::tests
