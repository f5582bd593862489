#pragma once
// The events of a run for TensorBoard (log.tensorboard). Tags are grouped by chart: loss, speed, time_ms, …
#include "report/event_file.h"
#include "report/events.h"

namespace trainer::report {

class TensorBoardLog {
 public:
  /// Creates an event file in RUN_DIR, for a run that has completed `step` steps. Throws Code::io.
  TensorBoardLog(const std::filesystem::path& run_dir, int64_t step);

  /// These omit unknown numbers, except a loss that is not finite.
  void write(const StartReport& start);
  void write(const StepReport& step);
  void write(const EvalReport& eval);
  void write(const TasksReport& tasks);
  void write(const WarningReport& warning);
  void write(const Sample& sample);

 private:
  EventFile file_;
};

}  // namespace trainer::report
