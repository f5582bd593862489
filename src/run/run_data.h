#pragma once
// The data of a run. Rank 0 opens them, tokenizes if needed, and compares them with the checkpoint from which the run
// resumes. The other ranks open the files that rank 0 has written.
#include "data/source.h"
#include "run/deadline.h"
#include "setup/machine.h"

namespace trainer::run {

/// Opens the data on every rank. The result has no train set if tokenization was stopped. A resumed run keeps its
/// tokenizer. Data that differ from the checkpoint's are rejected (Code::checkpoint, see
/// checkpoint::require_compatible) before anything in the run folder changes. Collective; rank 0 must hold the locks of
/// the run and checkpoints folders.
data::Datasets open_run_data(comm::World& world, const config::Config& config, const setup::Machine& machine,
                             const Deadline& deadline);

/// Continues the mixture of a run, if it has one, at sample `from`. The phases of the checkpoint (`past`) are kept; if
/// the configured weights differ, they apply from sample `from`. Throws Code::data on all ranks if a run of `samples`
/// samples would train on a source for more than its max_epochs. Rank 0 warns about phases that begin after the end of
/// the run. Returns a table of the sources and their shares, for the log.
std::string continue_mixture(comm::World& world, const config::Config& config, data::TrainingData& train,
                             std::vector<data::MixturePhase> past, int64_t from, int64_t samples);
/// Returns the table of sources after `samples` samples; empty if the data are not a mixture.
std::string mixture_table(const config::Config& config, const data::TrainingData& train, int64_t samples);

}  // namespace trainer::run
