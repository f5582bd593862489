#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/configuration.h"
#include "cli/tokenizing.h"
#include "data/source.h"
#include "train/evaluate.h"
#include "train/loaded_model.h"
#include "train/run_folder.h"
#include "train/signals.h"
#include "train/status_line.h"

namespace trainer::cli {

namespace {

Error stopped() { return {Code::usage, format("evaluation stopped by {}", train::signal_name(train::stop_signal()))}; }

}  // namespace

int eval_command(const EvalOptions& o) {
  if (o.config.file.empty() == o.checkpoint.empty())
    throw Error(Code::usage,
                "eval needs either --checkpoint PATH or --config FILE (then the latest checkpoint of its run)");
  const std::filesystem::path path = o.checkpoint.empty() ? train::checkpoint_folder(load_configuration(o.config))
                                                          : std::filesystem::path(o.checkpoint);
  const train::SignalGuard signals;
  train::LoadedModel model = train::load_model(path);
  const data::Tokenizer* tokenizer = model.tokenizer ? &*model.tokenizer : nullptr;
  data::EvalData source = data::open_eval_data(
      model.config, o.data, tokenizer, model.trainer->vocab(),
      {.threads = model.machine.threads, .stop = train::stop_requested, .progress = show_tokenizing()});
  if (!source.dataset) throw stopped();
  std::optional<train::StatusLine> status(std::in_place);
  const train::Evaluation result =
      train::evaluate(*model.trainer, *source.dataset, o.batches, tokenizer, [&](int64_t done, int64_t windows) {
        status->show(format("evaluating: {} of {} windows", done, windows), done, windows);
        return !train::stop_requested();
      });
  status.reset();
  if (result.interrupted) throw stopped();
  const train::EvalReport& report = result.report;
  if (o.json) {
    nlohmann::json document{
        {"checkpoint", model.folder.string()}, {"step", model.step},       {"loss", report.loss},
        {"perplexity", report.perplexity},     {"bits_per_byte", nullptr}, {"tokens", report.tokens}};
    if (report.bits_per_byte) document["bits_per_byte"] = *report.bits_per_byte;
    std::printf("%s\n", document.dump().c_str());
  } else {
    const std::string bits = report.bits_per_byte ? format("{:.4f}", *report.bits_per_byte) : "unknown (no tokenizer)";
    std::fputs(
        format("checkpoint     {}\nstep           {}\nloss           {:.6f}\nperplexity     {:.4f}\nbits per byte  {}\n"
               "tokens         {}\n",
               model.folder.string(), model.step, report.loss, report.perplexity, bits, report.tokens)
            .c_str(),
        stdout);
  }
  return 0;
}

}  // namespace trainer::cli
