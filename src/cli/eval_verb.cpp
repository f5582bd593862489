#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "cli/tokenizing.h"
#include "data/source.h"
#include "train/evaluate.h"
#include "train/loaded_model.h"
#include "train/run_folder.h"
#include "train/signals.h"
#include "train/status_line.h"

namespace trainer::cli {

namespace {

constexpr int kStopped = 75;

/// All ranks stop when one of them was told to.
int stopped(comm::World& world) {
  if (world.first()) {
    const int signal = train::stop_signal();
    log::info("evaluation stopped by {}", signal == 0 ? "a signal to another rank" : train::signal_name(signal));
  }
  return kStopped;
}

int evaluate(comm::World& world, const EvalOptions& o, const std::filesystem::path& path) {
  const train::SignalGuard signals;
  train::LoadedModel model = train::load_model(world, path, parallel::replica_layouts);
  const data::Tokenizer* tokenizer = model.tokenizer ? &*model.tokenizer : nullptr;
  data::OpenOptions options{.threads = model.machine.threads, .stop = train::stop_requested};
  if (world.first()) options.progress = show_tokenizing();
  if (!o.data.empty()) model.config.data.format = format_named(o.format);
  data::EvalData source = data::open_eval_data(model.config, o.data, tokenizer, model.trainer->vocab(), options);
  double missing = source.dataset ? 0 : 1;
  world.control().sum({&missing, 1});
  if (missing > 0) return stopped(world);
  std::optional<train::StatusLine> status;
  if (world.first()) status.emplace();
  const train::Evaluation result =
      train::evaluate(*model.trainer, *source.dataset, o.batches, tokenizer, [&](int64_t done, int64_t windows) {
        if (status) status->show(format("evaluating: {} of {} windows", done, windows), done, windows);
        return !train::stop_requested();
      });
  status.reset();
  if (result.interrupted) return stopped(world);
  const train::EvalReport& report = result.report;
  if (!world.first()) return 0;
  if (o.json) {
    nlohmann::json document{
        {"checkpoint", model.folder.string()}, {"step", model.step},       {"loss", report.loss},
        {"perplexity", report.perplexity},     {"bits_per_byte", nullptr}, {"tokens", report.tokens}};
    if (report.bits_per_byte) document["bits_per_byte"] = *report.bits_per_byte;
    print(document.dump() + "\n");
  } else {
    const std::string bits = report.bits_per_byte ? format("{:.4f}", *report.bits_per_byte) : "unknown (no tokenizer)";
    print(
        format("checkpoint     {}\nstep           {}\nloss           {:.6f}\nperplexity     {:.4f}\nbits per byte  {}\n"
               "tokens         {}\n",
               model.folder.string(), model.step, report.loss, report.perplexity, bits, report.tokens));
  }
  return 0;
}

}  // namespace

int eval_command(const EvalOptions& o) {
  if (o.config.file.empty() == o.checkpoint.empty())
    throw Error(Code::usage,
                "eval needs either --checkpoint PATH or --config FILE (then the latest checkpoint of its run)");
  if (!o.checkpoint.empty()) return on_ranks([&](comm::World& world) { return evaluate(world, o, o.checkpoint); });
  return on_ranks(o.config, [&](comm::World& world, const config::Config& config) {
    return evaluate(world, o, train::checkpoint_folder(config));
  });
}

}  // namespace trainer::cli
