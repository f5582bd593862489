#include "report/tensorboard.h"

#include <chrono>
#include <cmath>

#include "report/events_json.h"
#include "report/printable.h"

namespace trainer::report {
namespace {

using Scalars = std::vector<std::pair<std::string, double>>;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Returns a Markdown code block that shows the text verbatim. Its fence does not occur in the text.
std::string block(const std::string& text, const std::string& language = "") {
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) fence += '`';
  return format("{}{}\n{}\n{}", fence, language, text, fence);
}

}  // namespace

TensorBoardLog::TensorBoardLog(const std::filesystem::path& run_dir, int64_t step) : file_(run_dir) {
  file_.write(version_event(seconds_since_1970()));
  file_.write(restart_event(seconds_since_1970(), step + 1));
}

void TensorBoardLog::write(const StartReport& start) {
  file_.write(text_event(seconds_since_1970(), start.step, "config", block(start.config_toml, "toml")));
}

void TensorBoardLog::write(const StepReport& step) {
  Json groups = {{"optim", {{"lr", step.lr}, {"grad_norm", step.grad_norm}}},
                 {"data", {{"tokens", step.tokens}, {"epoch", step.epoch}}},
                 {"speed",
                  {{"step_ms", step.step_ms},
                   {"tokens_per_s", step.tokens_per_s},
                   {"tflops_per_device", step.tflops_per_device},
                   {"mfu", step.mfu},
                   {"mfu_causal", step.mfu_causal},
                   {"hfu", step.hfu}}},
                 {"time_ms", to_json(step.phase_ms)},
                 {"wait_ms", step.comm_wait_ms},
                 {"comm_bytes", step.comm_bytes},
                 {"memory_bytes", step.memory_bytes}};
  if (!step.sources.empty()) groups["data"]["samples"] = step.sources;
  if (step.gpu) groups["gpu"] = to_json(*step.gpu);
  Scalars scalars = {{"loss/train", step.loss}};
  if (!std::isnan(step.z_loss)) scalars.emplace_back("loss/z", step.z_loss);
  if (!std::isnan(step.balance_loss)) {
    scalars.emplace_back("loss/balance", step.balance_loss);
    scalars.emplace_back("loss/router_z", step.router_z_loss);
  }
  if (step.experts) groups["experts"] = to_json(*step.experts);
  flatten(groups, "", '/', [&](const std::string& tag, const Json& value) {
    if (const auto number = value.get<double>(); !std::isnan(number)) scalars.emplace_back(tag, number);
  });
  file_.write(scalar_event(seconds_since_1970(), step.step, scalars));
}

void TensorBoardLog::write(const EvalReport& eval) {
  Scalars scalars = {{"loss/validation", eval.loss}, {"validation/perplexity", eval.perplexity}};
  if (eval.bits_per_byte) scalars.emplace_back("validation/bits_per_byte", *eval.bits_per_byte);
  for (const SetReport& set : eval.sets) {
    const std::string group = "validation/" + set.name + "/";
    scalars.emplace_back(group + "loss", set.loss);
    scalars.emplace_back(group + "perplexity", set.perplexity);
    if (set.bits_per_byte) scalars.emplace_back(group + "bits_per_byte", *set.bits_per_byte);
  }
  file_.write(scalar_event(seconds_since_1970(), eval.step, scalars));
}

void TensorBoardLog::write(const TasksReport& report) {
  Scalars scalars;
  for (const TaskReport& task : report.tasks) scalars.emplace_back("tasks/" + task.name, task.score);
  if (std::isfinite(report.core)) scalars.emplace_back("tasks/core", report.core);
  file_.write(scalar_event(seconds_since_1970(), report.step, scalars));
}

void TensorBoardLog::write(const WarningReport& warning) {
  file_.write(text_event(seconds_since_1970(), warning.step, "warnings", block(printable(warning.message))));
}

void TensorBoardLog::write(const Sample& sample) {
  file_.write(text_event(seconds_since_1970(), sample.step, "samples", block(printable(sample.prompt + sample.text))));
}

}  // namespace trainer::report
