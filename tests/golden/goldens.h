#pragma once
// Goldens of training: tiny models in every kind of layout, and all bits of their results as lines of text.
// They show that a change has not changed any number: layouts.txt holds the lines from before the change.
//
// The lines are computed with the instruction set "plain" (or TRAINER_ISA, if set) and one thread. They depend on the
// machine only in the last bits of a few functions of the C library; library_hash() shows whether those agree.
// To compare two commits under another instruction set, write the lines of one with TRAINER_WRITE_GOLDENS=file and give
// them to the other as TRAINER_GOLDENS=file (scripts/compare_commits.sh does it).
#include <map>
#include <string>
#include <vector>

#include "comm/world.h"
#include "config/layouts.h"
#include "device/isa.h"

namespace trainer::goldens {

struct Case {
  std::string name;
  config::Config config;
  DType compute = DType::f32;
  int ranks() const { return static_cast<int>(config::ranks_of_replica(config) * config.parallel.data); }
};
/// Returns every layout of the layout tests, in each compute type, with each kind of recomputation.
std::vector<Case> cases();

/// By aspect ("losses", "state", …): two steps, an evaluation with masked rows and, on one replica, logits of a
/// sequence that grows. Every rank of `world` calls it; rank 0 gets all aspects, other ranks none.
using Aspects = std::map<std::string, std::string>;
Aspects run_case(comm::World& world, const Case& which);

device::Isa instruction_set();
/// Returns a hash of the C library's functions that a run uses.
std::string library_hash();

/// "NAME ASPECT VALUE" lines with comments. Results that recomputation does not change are not repeated: a case
/// "NAME/TYPE/full" has lines only where it differs from "NAME/TYPE".
using Goldens = std::map<std::string, Aspects>;
Goldens read(const std::string& path);
/// Returns all aspects of a case.
Aspects expected(const Goldens& goldens, const std::string& name);
void write(const std::string& path, const Goldens& goldens);
/// Returns TRAINER_GOLDENS, or the project's own file.
std::string golden_file(const std::string& source_dir);

}  // namespace trainer::goldens
