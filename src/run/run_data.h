#pragma once
// The data of a run. Rank 0 opens them, tokenizes if needed, and compares them with the checkpoint that the run resumes
// from. The other ranks open the files that it has written.
#include "data/source.h"
#include "run/deadline.h"
#include "setup/machine.h"

namespace trainer::run {

/// Opens the data on every rank. The result has no train set when tokenizing was stopped. A resumed run keeps its
/// tokenizer. Data that differ from the checkpoint's are rejected (Code::checkpoint, see
/// checkpoint::require_compatible) before anything in the run folder changes. Collective; the first rank holds the
/// locks of the folders that are written.
data::Datasets open_run_data(comm::World& world, const config::Config& config, const setup::Machine& machine,
                             const Deadline& deadline);

}  // namespace trainer::run
