#pragma once
// Goldens of training: tiny models in every kind of layout, and all bits of their results as lines of text.
// A change that is to change no number shows it here: layouts.txt holds the lines from before the change.
//
// The lines are of the instruction set "plain" (or of TRAINER_ISA, when that is set), one thread. They do not depend on
// the machine, but for the few last bits that C libraries leave open; `same_library()` says whether those agree.
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
/// Every layout of the tests of layouts, in each compute type, recomputed in each way.
std::vector<Case> cases();

/// By aspect ("losses", "state", …): two steps, an evaluation with masked rows and, on one replica, logits of a
/// sequence that grows. Every rank of `world` calls; the first has all aspects, others none.
using Aspects = std::map<std::string, std::string>;
Aspects run_case(comm::World& world, const Case& which);

device::Isa instruction_set();
/// A hash of the C library's functions that a run uses.
std::string library_hash();

/// "NAME ASPECT VALUE" lines with comments. What recomputing leaves as it was is not written again: a case
/// "NAME/TYPE/full" has its own lines where it differs from "NAME/TYPE".
using Goldens = std::map<std::string, Aspects>;
Goldens read(const std::string& path);
/// All aspects of a case.
Aspects expected(const Goldens& goldens, const std::string& name);
void write(const std::string& path, const Goldens& goldens);
/// TRAINER_GOLDENS, or the file of the project.
std::string golden_file(const std::string& source_dir);

}  // namespace trainer::goldens
