#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "base/join.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/checkpoint_path.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "cli/tokenizing.h"
#include "comm/agreement.h"
#include "config/layout_choices.h"
#include "config/resolve.h"
#include "data/source.h"
#include "report/events_json.h"
#include "report/status_line.h"
#include "run/evaluate.h"
#include "run/loaded_model.h"
#include "run/signals.h"
#include "run/tasks.h"

namespace trainer::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kSameFiles =
    "all ranks must find the same files: start them in the same folder, or copy the files to every host again";
constexpr const char* kNotFinite =
    "the loss is not finite: some weights are not finite, or so large that they overflow; evaluate an earlier "
    "checkpoint, or import the model from intact files";

/// Returns the folder with the run's tokenized text: `tokens` in the run folder that contains the checkpoint, else the
/// folder that the configuration names.
fs::path tokens_of_run(const run::LoadedModel& model) {
  const fs::path next_to = fs::absolute(model.folder).parent_path().parent_path() / "tokens";
  std::error_code none;
  return fs::is_directory(next_to, none) ? next_to : data::token_cache(model.config);
}

void require_same_data(const run::LoadedModel& model, const data::EvalData& source, bool allow) {
  if (source.hash.empty() || model.val_hash.empty() || source.hash == model.val_hash) return;
  const std::string text = format("{}: the validation data differs from that of checkpoint {} (hash {}, now {})",
                                  source.name, model.folder.string(), model.val_hash, source.hash);
  if (!allow)
    throw Error(Code::checkpoint, text +
                                      "; restore it, name files to evaluate on with --data, or accept the difference "
                                      "with --set checkpoint.allow_other_data=true");
  if (model.machine.rank == 0) log::warning("{}", text);
}

/// Shows the progress of an evaluation; returns false if it must stop.
std::function<bool(int64_t, int64_t)> show_progress(const comm::World& world, const char* what) {
  auto status = world.first() ? std::make_shared<report::StatusLine>() : nullptr;
  return [=](int64_t done, int64_t all) {
    if (status) status->show(format("evaluating: {} of {} {}", done, all, what), done, all);
    return !run::stop_requested();
  };
}

/// Throws the same error on every rank if the loss is not finite.
void require_finite(const run::LoadedModel& model, double loss) {
  if (!std::isfinite(loss))
    throw Error(Code::nonfinite, format("{}: {}", model.folder.string(), kNotFinite)).on(Scope::all_ranks);
}

int answer(comm::World& world, const EvalOptions& o, run::LoadedModel& model, const data::Tokenizer* tokenizer) {
  const bool named = !o.task.empty();
  const auto metric = std::ranges::find(config::kMetricNames, o.metric) - std::begin(config::kMetricNames);
  const config::Task settings{.name = named ? fs::path(o.task.front()).stem().string() : "",
                              .files = named ? o.task : o.choices,
                              .shots = o.shots,
                              .delimiter = o.delimiter,
                              .metric = static_cast<config::Metric>(metric),
                              .questions = o.questions};
  const std::vector<run::Task> tasks =
      run::open_tasks(world, {settings}, tokenizer, model.runner->vocab(), model.config.model.seq_len);
  run::Respondent respondent(*model.runner, tasks);
  const run::Answers answers = respondent.answer(tasks.front(), show_progress(world, "questions"));
  if (answers.interrupted) return stopped(world, "evaluation");
  require_finite(model, answers.loss);
  if (!world.first()) return 0;
  const int64_t questions = std::ssize(tasks.front().questions), truncated = tasks.front().truncated;
  nlohmann::json document{
      {"checkpoint", model.folder.string()}, {"step", model.step}, {"questions", questions}, {"truncated", truncated}};
  const std::string cut =
      truncated == 0 ? "" : format(" ({} truncated at the beginning: longer than model.seq_len)", truncated);
  std::string text = format("checkpoint     {}\nstep           {}\nquestions      {}{}\n", model.folder.string(),
                            model.step, questions, cut);
  const auto add = [&](config::Metric by, const char* member) {
    const double accuracy = answers.accuracy[static_cast<size_t>(by)];
    const double error = report::TaskReport{.score = accuracy, .questions = questions}.error();
    document[member] = accuracy;
    text +=
        format("{:<14} {}\n", config::name_of(by),
               std::isnan(accuracy) ? "unknown (the file has no text)" : format("{:.4f} ± {:.4f}", accuracy, error));
  };
  if (named) {
    document["metric"] = o.metric;
    add(settings.metric, "score");
  } else {
    add(config::Metric::acc, "accuracy");
    add(config::Metric::acc_norm, "accuracy_norm");
    add(config::Metric::acc_bytes, "accuracy_per_byte");
    add(config::Metric::acc_tokens, "accuracy_per_token");
  }
  document["loss"] = answers.loss;
  print(o.json ? json_text(document) + "\n" : text + format("loss           {:.6f}\n", answers.loss));
  return 0;
}

/// Removes the sets that are not in `names`, unless `names` is empty. Returns the index of the set whose numbers the
/// report shows first: `best` if it remains, else the first set.
size_t keep_named(std::vector<data::NamedDataset>& sets, const std::vector<std::string>& names,
                  const std::string& best) {
  std::vector<std::string> known;
  for (const data::NamedDataset& set : sets)
    if (!set.name.empty()) known.push_back(set.name);
  for (const std::string& name : names)
    if (std::ranges::count(known, name) == 0)
      throw Error(Code::usage, format("--set-name {}: unknown validation set; {}", name,
                                      known.empty() ? "the run's only set has no name, so omit --set-name"
                                                    : format("expected one of {}", fmt::join(known, ", "))))
          .on(Scope::all_ranks);
  if (!names.empty())
    std::erase_if(sets, [&](const data::NamedDataset& set) { return std::ranges::count(names, set.name) == 0; });
  const auto found = std::ranges::find(sets, best, &data::NamedDataset::name);
  return found == sets.end() ? 0 : static_cast<size_t>(found - sets.begin());
}

int evaluate(comm::World& world, const EvalOptions& o, const config::Config& config) {
  const fs::path path = o.checkpoint.empty() ? config::checkpoint_folder(config) : fs::path(o.checkpoint);
  std::optional<run::SignalGuard> signals;  // one per process: ranks that are threads share the handlers of rank 0
  if (world.first() || world.transport() != "threads") signals.emplace();
  std::vector<std::string> uses = {"checkpoint.allow_other_data", "parallel.transport", "parallel.timeout"};
  if (o.checkpoint.empty())  // --config locates the run and its data
    uses.insert(uses.end(),
                {"run.name", "run.dir", "checkpoint.dir", "data.train", "data.val", "data.validation", "data.source"});
  std::vector<std::string> sets = computing_sets(world, "eval", o.config, uses);
  if (!o.packing.empty() && windows_named(o.packing) == config::Windows::best_fit)
    sets.emplace_back("data.separate_documents=true");  // also if the run had consecutive windows
  run::LoadedModel model = run::load_model(world, path, config::replica_layouts, sets);
  const data::Tokenizer* tokenizer = model.tokenizer ? &*model.tokenizer : nullptr;
  if (!o.choices.empty() || !o.task.empty()) return answer(world, o, model, tokenizer);
  if (o.stride > model.config.model.seq_len)
    throw Error(Code::usage,
                format("--stride {}: expected at most {} tokens (model.seq_len)", o.stride, model.config.model.seq_len))
        .on(Scope::all_ranks);
  data::OpenOptions options{.threads = model.machine.threads, .stop = run::stop_requested};
  options.cache = tokens_of_run(model);
  if (world.first()) {
    options.progress = show_tokenizing();
    options.busy = show_work();
  }
  if (!o.data.empty()) model.config.data.format = format_named(o.format);
  if (o.checkpoint.empty()) {  // the data may have moved since the checkpoint stored their paths
    model.config.data.train = config.data.train;
    model.config.data.val = config.data.val;
    model.config.data.source = config.data.source;
    model.config.data.validation = config.data.validation;
  }
  if (!o.packing.empty()) {
    const config::Windows windows = windows_named(o.packing);
    model.config.data.packing = windows;
    for (auto* sets : {&model.config.data.source, &model.config.data.validation})
      for (config::FileSet& set : *sets) set.packing = windows;
  }
  data::EvalData source;
  world.control().run_on_all_ranks([&] {
    source = data::open_eval_data(model.config, o.data, tokenizer, model.runner->vocab(), options);
    for (const data::NamedDataset& set : source.sets)
      if (o.stride > 0 && set.dataset.packing() != nullptr)
        throw Error(Code::usage, format("--stride needs a stream, but the windows of {} are packed; evaluate with "
                                        "--packing stream, or without --stride",
                                        set.dataset.stream().name()));
    if (!source.sets.empty() && o.packing.empty()) require_same_data(model, source, config.checkpoint.allow_other_data);
  });
  double missing = source.sets.empty() ? 1 : 0;
  world.control().sum({&missing, 1});
  if (missing > 0) return stopped(world, "evaluation");
  int64_t tokens = 0;
  for (const data::NamedDataset& set : source.sets) tokens += set.dataset.tokens();
  comm::require_same(
      world,
      {{"the number of evaluation tokens", format("{}", tokens)}, {"the hash of the evaluation data", source.own_hash}},
      Code::data, kSameFiles);
  const size_t followed = keep_named(source.sets, o.sets, model.config.checkpoint.best);
  const run::Evaluation result =
      run::evaluate_sets(*model.runner, source.sets, followed, {.groups = o.batches, .stride = o.stride}, tokenizer,
                         show_progress(world, "windows"));
  if (result.interrupted) return stopped(world, "evaluation");
  const report::EvalReport& report = result.report;
  const bool finite = std::isfinite(report.loss);
  if (!world.first()) return finite ? 0 : exit_status(Code::nonfinite);
  if (o.json) {
    nlohmann::json document = report::to_json(report);
    document.erase("event");
    document["checkpoint"] = model.folder.string();
    document["step"] = model.step;
    if (o.stride > 0) document["stride"] = o.stride;
    if (!finite) document["reason"] = kNotFinite;
    print(json_text(document) + "\n");
  } else {
    const std::string bits = report.bits_per_byte   ? format("{:.4f}", *report.bits_per_byte)
                             : tokenizer == nullptr ? "unknown (no tokenizer)"
                                                    : "-";
    const std::string loss =
        finite ? format("{:.6f}\nperplexity     {:.4f}\nbits per byte  {}", report.loss, report.perplexity, bits)
               : "not finite";
    print(format("checkpoint     {}\nstep           {}\nloss           {}\ntokens         {}\n", model.folder.string(),
                 model.step, loss, report.tokens));
    for (const report::SetReport& set : report.sets)
      print(format("{:<14} {:.6f}{}\n", set.name, set.loss,
                   set.bits_per_byte ? format(" ({:.4f} bits per byte)", *set.bits_per_byte) : ""));
  }
  require_finite(model, report.loss);
  return 0;
}

}  // namespace

int eval_command(const EvalOptions& o) {
  require_source("eval", o.checkpoint, o.config);
  if (o.questions > 0 && o.choices.empty() && o.task.empty())
    throw Error(Code::usage, "--questions requires --choices or --task");
  return run_on_ranks(o.config,
                      [&](comm::World& world, const config::Config& config) { return evaluate(world, o, config); });
}

}  // namespace trainer::cli
