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

/// Continues the mixture of a run at sample `from`, if it has one. The phases of `past`, those of the checkpoint, stay
/// as they were; weights that differ from them count from there on. Then it refuses a run of `samples` that takes more
/// epochs of a source than its max_epochs (Code::data, on all ranks) and, on the first rank, warns of phases that begin
/// after its end. Returns a table of the sources, with their shares at that time, for the log.
std::string continue_mixture(comm::World& world, const config::Config& config, data::TrainingData& train,
                             std::vector<data::MixturePhase> past, int64_t from, int64_t samples);
/// Returns the same table after `samples` samples; empty for a single source without a name.
std::string mixture_table(const config::Config& config, const data::TrainingData& train, int64_t samples);

}  // namespace trainer::run
