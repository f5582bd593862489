#pragma once
// The descriptions of clusters that come with the program.
#include "plan/cluster.h"

namespace trainer::tests {

/// configs/clusters/NAME.toml
inline plan::Cluster cluster_file(const std::string& name) {
  return plan::read_cluster(std::string(TRAINER_SOURCE_DIR) + "/configs/clusters/" + name + ".toml");
}

}  // namespace trainer::tests
