#include "train/history.h"

#include <algorithm>
#include <fstream>

#include "train/events_json.h"

namespace trainer::train {
namespace {

void add_step(History& history, StepReport step) {
  for (const auto& [category, bytes] : step.memory_bytes) {
    int64_t& largest = history.memory_bytes[category];
    largest = std::max(largest, bytes);
  }
  step.memory_bytes.clear();
  step.comm_bytes.clear();
  history.steps.push_back(std::move(step));
}

/// Throws Json::exception when the line is not an event.
void add_event(History& history, const std::string& line) {
  const Json json = Json::parse(line);
  const auto event = json.at("event").get<std::string>();
  if (event == "step") add_step(history, step_from(json));
  if (event == "start") history.start = start_from(json);
  if (event == "eval") history.evals.push_back(eval_from(json));
  if (event == "checkpoint") history.checkpoints.push_back(checkpoint_from(json));
  if (event == "warning") history.warnings.push_back(warning_from(json));
  if (event == "end") history.ends.push_back(end_from(json));
}

}  // namespace

History read_history(const std::filesystem::path& file) {
  History history;
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    try {
      add_event(history, line);
    } catch (const Json::exception&) {
      ++history.unreadable_lines;
    }
  }
  return history;
}

}  // namespace trainer::train
