#pragma once
// The samples that a step of a finished or running run trained on, from metrics.jsonl, config.toml and the data.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "report/history.h"

namespace trainer::run {

/// A sample, or a part of it: an excerpt of a packed sample, or what is in one token file.
struct StepSample {
  std::string source;  // its name in a mixture
  int64_t sample = 0;  // number of samples (of this source) before it
  data::FileSpan span;
  std::string text_file;       // from which the first document was tokenized; empty: not known
  std::string last_text_file;  // and the last one
  std::string beginning;       // its first words; token numbers if the run has no tokenizer
};

struct StepSamples {
  report::RecordedStep recorded;
  std::vector<StepSample> samples;  // in the order of training; in a mixture by source
};

/// Returns the samples of a step. Writes nothing. Throws Code::usage if the run does not record the step, Code::data if
/// its data are missing or are not those that the step was trained on.
StepSamples samples_of_step(const std::filesystem::path& run_folder, int64_t step);

/// Returns the samples as a table for a terminal, below a line about the step.
std::string to_text(const StepSamples& samples);

}  // namespace trainer::run
