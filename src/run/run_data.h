#pragma once
// The data of a run: the first rank opens them, tokenizes where it has to, and holds them against the checkpoint that
// the run goes on from; the others find what it found.
#include "data/source.h"
#include "plan/machine.h"
#include "run/deadline.h"

namespace trainer::run {

/// The data on every rank; no train: stopped while tokenizing. A run that goes on from a checkpoint keeps its
/// tokenizer. Data that are not the checkpoint's are refused (Code::checkpoint, see checkpoint::require_compatible)
/// before anything in the run folder changes. Collective; the first rank holds the locks of the folders that are
/// written.
data::Datasets open_run_data(comm::World& world, const config::Config& config, const plan::Machine& machine,
                             const Deadline& deadline);

}  // namespace trainer::run
