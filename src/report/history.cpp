#include "report/history.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <span>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "report/events_json.h"

namespace trainer::report {
namespace {

void add_step(History& history, StepReport step) {
  for (const auto& [category, bytes] : step.memory_bytes) {
    int64_t& largest = history.memory_bytes[category];
    largest = std::max(largest, bytes);
  }
  step.memory_bytes.clear();
  step.comm_bytes.clear();
  step.sources.clear();
  history.steps.push_back(std::move(step));
}

/// A process of the run: the index of its first step, the peak in its start and end events, and its setup.
struct Process {
  size_t first = 0;
  setup::PeakReport peak;
  std::string setup;
};

/// Returns the facts in a start event that determine speed and memory, as text to compare with other starts.
std::string setup_of(const Json& start) {
  Json setup;
  const auto take = [&setup](const Json& object, std::initializer_list<const char*> keys) {
    for (const char* key : keys) setup[key] = object.value(key, Json());
  };
  take(start, {"model", "compute", "global_batch", "micro_batch", "accumulation", "data_replicas"});
  take(start.value("environment", Json::object()), {"device", "isa", "product_path", "ranks", "threads"});
  const Json config = start.value("config", Json::object());
  take(config, {"parallel", "offload"});
  take(config.value("train", Json::object()), {"recompute", "recompute_layers"});
  return setup.dump();
}

/// Rescales the utilisation of a process's steps to the process's best peak.
void settle(History& history, Process& process) {
  setup::PeakReport& peak = process.peak;
  const std::span<StepReport> steps = std::span(history.steps).subspan(process.first);
  for (StepReport& step : steps) {
    const double share = peak.origin == "measured" ? std::fmax(1, std::fmax(step.hfu, step.mfu_causal)) : 1;
    peak.flops = std::fmax(peak.flops, share * (step.peak_tflops * 1e12));
  }
  if (!(peak.flops > 0)) return;  // no start event in the log: steps are unchanged
  for (StepReport& step : steps) {
    // Multiplies before dividing, so that the step that raised the peak has a share of exactly 1.
    for (double* share : {&step.mfu, &step.mfu_causal, &step.hfu})
      *share = *share * (step.peak_tflops * 1e12) / peak.flops;
    step.peak_tflops = peak.flops / 1e12;
  }
}

/// Reads a start event of `file`. Throws Code::usage if it is of another format, and Json::exception if it is damaged.
StartReport start_of(const Json& event, const std::filesystem::path& file) {
  if (const auto found = event.value("format", int64_t{1}); found != kLogFormat)
    throw Error(Code::usage,
                format("{}: log format {}, this program reads format {}; use the program that wrote it, and a "
                       "different run.dir for new runs",
                       file.string(), found, kLogFormat));
  return from_json<StartReport>(event);
}

/// Adds an event of `file` to the history. Returns false, or throws Json::exception, if the line is not an event.
bool add_event(History& history, Process& process, const Json& json, const std::filesystem::path& file) {
  const auto event = json.at("event").get<std::string>();
  for (const char* count : {"step", "tokens"})
    if (const auto value = json.find(count); value != json.end() && !value->is_null())
      if (!value->is_number_integer() || value->get<int64_t>() < 0) return false;
  if (event == "step") add_step(history, from_json<StepReport>(json));
  if (event == "start") {
    history.start = start_of(json, file);
    history.starts.push_back(history.start->step);
    settle(history, process);
    const std::string before =
        std::exchange(process, {history.steps.size(), history.start->peak, setup_of(json)}).setup;
    if (process.setup != before) {
      history.setup_from = process.first;
      history.memory_bytes.clear();
    }
  }
  if (event == "eval") history.evals.push_back(from_json<EvalReport>(json));
  if (event == "tasks") history.tasks.push_back(from_json<TasksReport>(json));
  if (event == "checkpoint") history.checkpoints.push_back(from_json<CheckpointReport>(json));
  if (event == "warning") history.warnings.push_back(from_json<WarningReport>(json));
  if (event == "ranks") history.ranks.push_back(from_json<RanksReport>(json));
  if (event == "end") {
    history.ends.push_back(from_json<EndReport>(json));
    if (history.ends.back().peak.flops > 0) process.peak = history.ends.back().peak;
  }
  return true;
}

/// Takes a line into account; `ended` is false if a newline is missing after it.
void note_line(LogCut& cut, const Json& event, size_t bytes, bool ended) {
  const bool follows = cut.kept == cut.size;
  cut.size += static_cast<int64_t>(bytes) + ended;
  if (!ended || !stays(event, cut.step)) return;
  if (follows) cut.kept = cut.size;
  cut.only_the_end_goes &= follows;
}

}  // namespace

bool stays(const Json& event, int64_t step) {
  if (!event.is_object()) return false;
  const auto at = event.find("step");
  return at == event.end() || !at->is_number_integer() || at->get<int64_t>() <= step;
}

History read_history(const std::filesystem::path& file, LogCut* cut) {
  History history;
  Process process;
  if (std::error_code none; !std::filesystem::exists(file, none)) return history;
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  int64_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    const auto json = parse_json<Json>(line);
    if (cut != nullptr) note_line(*cut, json, line.size(), !in.eof());
    try {
      if (add_event(history, process, json, file)) continue;
    } catch (const Json::exception&) {
      if (in.eof() || line.empty()) continue;
    }
    if (history.bad_lines++ == 0) history.first_bad_line = number;
  }
  if (cut != nullptr && (in.bad() || !in.is_open()))
    throw Error(Code::io, format("cannot read {}: {}; check run.dir", file.string(), system_reason(errno)));
  settle(history, process);
  history.peak = process.peak;
  return history;
}

RecordedStep read_step(const std::filesystem::path& file, int64_t step) {
  RecordedStep now;
  int64_t first = 0, last = 0;  // first and last step in the file
  int64_t known = 0;            // the step after which `now.sources_before` is true
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);) try {
      const auto json = parse_json<Json>(line);
      const auto event = json.at("event").get<std::string>();
      if (event == "start") {
        now.start = start_of(json, file);
        now.seed = json.at("config").at("run").at("seed").get<int64_t>();
        now.sources_before = now.start.source_samples;
        known = now.start.step;
      }
      if (event != "step") continue;
      now.step = from_json<StepReport>(json);
      if (now.step.step == step) {
        if (!now.step.sources.empty() && known != step - 1)
          throw Error(Code::usage, format("{}: does not record which samples of each source precede step {}; choose a "
                                          "later step",
                                          file.string(), step));
        now.first_sample = now.step.data_position - now.start.global_batch;
        return now;
      }
      now.sources_before = now.step.sources;
      last = known = now.step.step;
      if (first == 0) first = last;
    } catch (const Json::exception&) {  // read_history() counts such lines
    }
  throw Error(Code::usage, first == 0 ? format("{}: records no steps", file.string())
                                      : format("{}: does not record step {}; expected one of {} to {}", file.string(),
                                               step, first, last));
}

void warn_of_bad_lines(const History& history, const std::filesystem::path& file) {
  if (history.bad_lines > 0)
    log::warning("{}: ignoring {} without a valid event, the first at line {}; was the file edited?", file.string(),
                 counted(history.bad_lines, "line"), history.first_bad_line);
}

}  // namespace trainer::report
