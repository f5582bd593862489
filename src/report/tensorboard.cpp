#include "report/tensorboard.h"

#include <chrono>
#include <cmath>

#include "base/format.h"
#include "report/printable.h"

namespace trainer::report {
namespace {

using Scalars = std::vector<std::pair<std::string, double>>;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Markdown of a text that is shown as it is; no line of it can end the block.
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
  Scalars scalars = {{"optim/lr", step.lr},
                     {"optim/grad_norm", step.grad_norm},
                     {"data/tokens", static_cast<double>(step.tokens)},
                     {"data/epoch", step.epoch},
                     {"speed/step_ms", step.step_ms},
                     {"speed/tokens_per_s", step.tokens_per_s},
                     {"speed/tflops_per_device", step.tflops_per_device},
                     {"speed/mfu", step.mfu},
                     {"speed/mfu_causal", step.mfu_causal},
                     {"speed/hfu", step.hfu},
                     {"time_ms/data", step.phase_ms.data},
                     {"time_ms/forward", step.phase_ms.forward},
                     {"time_ms/backward", step.phase_ms.backward},
                     {"time_ms/optimizer", step.phase_ms.optimizer},
                     {"time_ms/comm_exposed", step.phase_ms.comm_exposed}};
  for (const auto& [axis, operations] : step.comm_wait_ms)
    for (const auto& [operation, ms] : operations) scalars.emplace_back(format("wait_ms/{}/{}", axis, operation), ms);
  for (const auto& [axis, operations] : step.comm_bytes)
    for (const auto& [operation, bytes] : operations)
      scalars.emplace_back(format("comm_bytes/{}/{}", axis, operation), static_cast<double>(bytes));
  for (const auto& [category, bytes] : step.memory_bytes)
    scalars.emplace_back("memory_bytes/" + category, static_cast<double>(bytes));
  if (step.gpu) {
    scalars.emplace_back("gpu/watts", step.gpu->watts);
    scalars.emplace_back("gpu/sm_mhz", step.gpu->sm_mhz);
    scalars.emplace_back("gpu/celsius", step.gpu->celsius);
  }
  std::erase_if(scalars, [](const auto& scalar) { return std::isnan(scalar.second); });
  scalars.emplace_back("loss/train", step.loss);
  file_.write(scalar_event(seconds_since_1970(), step.step, scalars));
}

void TensorBoardLog::write(const EvalReport& eval) {
  Scalars scalars = {{"loss/validation", eval.loss}, {"validation/perplexity", eval.perplexity}};
  if (eval.bits_per_byte) scalars.emplace_back("validation/bits_per_byte", *eval.bits_per_byte);
  file_.write(scalar_event(seconds_since_1970(), eval.step, scalars));
}

void TensorBoardLog::write(const WarningReport& warning) {
  file_.write(text_event(seconds_since_1970(), warning.step, "warnings", block(printable(warning.message))));
}

void TensorBoardLog::write(const Sample& sample) {
  file_.write(text_event(seconds_since_1970(), sample.step, "samples", block(printable(sample.prompt + sample.text))));
}

}  // namespace trainer::report
