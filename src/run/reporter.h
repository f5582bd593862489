#pragma once
// Reporter: the reports of a run: events in metrics.jsonl, the progress line, warnings, and the summary at its end.
#include <optional>
#include <string>
#include <vector>

#include "base/memory_probe.h"
#include "checkpoint/snapshot.h"
#include "config/config.h"
#include "data/training_data.h"
#include "report/html.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "report/tensorboard.h"
#include "setup/peak.h"
#include "setup/run_plan.h"
#include "train/trainer.h"

namespace trainer::run {

/// Reports from rank 0; on other ranks every call does nothing. No call waits for another rank.
class Reporter {
 public:
  /// config, plan, machine, data and peak must outlive the reporter. `memory` must have been created before the run
  /// allocated memory. `first`: this is rank 0.
  Reporter(const config::Config& config, const setup::RunPlan& plan, const setup::Machine& machine,
           const data::TrainingData& data, const MemoryProbe& memory, setup::PeakTracker& peak, bool first);

  /// Returns the history that earlier processes recorded in metrics.jsonl, which is read once; `step`: the completed
  /// steps of this run. Only on rank 0 and before open().
  const report::History& earlier(int64_t step);
  /// Truncates metrics.jsonl to the step of `state` and appends from there. Throws Code::io.
  void open(const checkpoint::TrainState& state);
  /// Writes the start event, before the first step. `notes`: log lines that follow it; empty ones are skipped.
  void start(const report::StartReport& start, std::string_view transport, const std::vector<std::string>& notes);
  /// Starts showing the progress line.
  void show_progress(int64_t step);

  /// Reports the step `work`, which took `seconds` and resulted in `state`. The meter of `trainer` must have counted
  /// only this step.
  void step(const train::StepWork& work, const train::Trainer::Outcome& outcome, double seconds,
            const checkpoint::TrainState& state, train::Trainer& trainer,
            std::optional<train::ExpertStatistics> experts = {});
  void evaluation(const report::EvalReport& eval);
  void tasks(const report::TasksReport& tasks);
  void ranks(const report::RanksReport& ranks);
  /// Shows an activity between steps, such as an evaluation, in the progress line.
  void status(const std::string& activity);
  void checkpoint(const report::CheckpointReport& checkpoint);
  void sample(report::Sample sample);
  void warn(int64_t step, const std::string& message);
  /// Logs the summary of a run that had already finished at `step`; writes nothing.
  void repeat_summary(int64_t step);
  /// Writes the report of a run that is finished at `step` if it is missing or of an earlier step, as after a kill
  /// between the last checkpoint and the report. Returns true if it did.
  bool restore_report(int64_t step);
  /// Ends the run: writes the end event, the report and the lines of the summary.
  void end(const checkpoint::TrainState& state, const std::string& outcome, const train::Trainer& trainer);

 private:
  /// Raises the peak to the rates of the step and its operators.
  void judge_peak(int64_t step, double flops_per_s, const Meter& meter);
  /// Warns if the measured step time differs from the prediction, and names the part that was mispredicted.
  void judge_prediction(const report::EndReport& end);
  /// Adds events of this process that are missing from metrics.jsonl, as after a full disk.
  void complete(report::History& history, const report::EndReport& end) const;
  /// Returns the memory to compare with the plan: that of the process, or on a GPU that of the device.
  int64_t measured_memory(const train::Trainer& trainer) const;

  const config::Config& config_;
  const setup::RunPlan& plan_;
  const setup::Machine& machine_;
  const data::TrainingData& data_;
  setup::PeakTracker& peak_;
  const bool first_;
  double started_ = 0;
  MemoryProbe memory_;
  std::optional<report::History> earlier_;
  report::LogCut cut_;  // the part of that log that stays
  std::optional<report::MetricsLog> metrics_;
  std::optional<report::TensorBoardLog> tensorboard_;
  std::optional<report::Progress> progress_;
  std::optional<device::PowerMeter> power_;
  std::vector<report::Sample> samples_;
  report::StartReport start_;
  // Events and totals of this process, kept in case metrics.jsonl cannot be written.
  std::optional<report::StepReport> first_step_, last_step_;
  std::optional<report::EvalReport> last_eval_;
  int64_t skipped_ = 0;
  CommBytes comm_bytes_;
  double step_seconds_ = 0, wait_seconds_ = 0, bubble_seconds_ = 0;
  int64_t steps_ = 0;
  bool bytes_differ_ = false, told_rounds_ = false;
  std::vector<std::vector<int64_t>> choices_;  // as in EndReport
};

}  // namespace trainer::run
