#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/files.h"
#include "base/log.h"
#include "base/philox.h"
#include "cli/checkpoint_path.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "cli/stop_text.h"
#include "config/layouts.h"
#include "data/prompts.h"
#include "report/printable.h"
#include "run/loaded_model.h"
#include "run/signals.h"
#include "train/generate.h"

namespace trainer::cli {
namespace {

using Line = nlohmann::ordered_json;

std::string prompt_text(const GenerateOptions& o) {
  const auto read = [](const std::string& path, const char* option) {
    return read_text_file(path, format("the text of {}", option), Code::usage);
  };
  if (!o.prompts.empty()) return read(o.prompts, "--prompts");
  if (!o.prompt_file.empty()) return read(o.prompt_file, "--prompt-file");
  if (!o.prompt)
    throw Error(Code::usage,
                "no prompt: use --prompt TEXT, --prompt-file FILE, --prompt - for standard input, or --prompts FILE");
  return *o.prompt == "-" ? read("-", "--prompt") : *o.prompt;
}

/// Writes lines to standard output or to a file. Each line is flushed, so that an interrupted run keeps its work.
class Output {
 public:
  explicit Output(const std::string& path) : path_(path) {
    if (path.empty()) return;
    file_.open(path, std::ios::binary | std::ios::trunc);
    require_good();
  }
  void write(const std::string& line) {
    if (path_.empty()) return print(line);
    file_ << line << std::flush;
    require_good();
  }

 private:
  void require_good() const {
    if (!file_) throw Error(Code::io, format("cannot write {}: {}", path_, system_reason(errno)));
  }
  std::string path_;
  std::ofstream file_;
};

/// Returns why a text ended after `written` tokens: "stop" (a --stop text), "length" (--tokens), "eos" (the end-of-text
/// token) or "signal".
std::string finish_reason(const GenerateOptions& o, const StopText& stop, int64_t written) {
  return stop.met() ? "stop" : run::stop_requested() ? "signal" : written < o.tokens ? "eos" : "length";
}

/// Writes each line of --prompts with its continuation.
int continue_lines(comm::World& world, const GenerateOptions& o, const std::string& text, run::LoadedModel& model) {
  const std::vector<Line> lines = data::read_prompts(text, o.prompts);
  train::Generator generator(*model.trainer);
  const run::SignalGuard signals;
  std::optional<Output> output;
  if (world.first()) output.emplace(o.output);
  int64_t tokens = 0;
  const double start = now_seconds();
  const PhiloxKey key = philox_key(o.seed, "prompts");
  for (const Line& line : lines) {
    const uint64_t seed = line.contains("seed") ? line["seed"].get<uint64_t>()
                                                : philox_at(key, static_cast<uint64_t>(&line - lines.data()));
    for (int64_t i = 0; i < o.samples; ++i) {
      const train::Sampling sampling{o.temperature, o.top_k, o.top_p, seed + static_cast<uint64_t>(i)};
      std::string continuation;
      StopText stop(o.stop);
      const int64_t written = generator.write(*model.tokenizer, line["prompt"].get<std::string>(), o.tokens, sampling,
                                              [&](const std::string& piece) {
                                                continuation += stop.pass(piece);
                                                return !stop.met() && !run::stop_requested();
                                              });
      if (model.trainer->scalars().broadcast_from_first_rank(run::stop_requested()) != 0)
        return stopped(world, "generation");
      tokens += written;
      if (!output) continue;
      Line result = line;
      result["text"] = continuation + stop.rest();
      result["tokens"] = written;
      result["finish_reason"] = finish_reason(o, stop, written);
      result["seed"] = sampling.seed;
      output->write(result.dump(-1, ' ', false, Line::error_handler_t::replace) + "\n");
    }
  }
  const double seconds = now_seconds() - start;
  log::info("{} tokens for {} prompts in {:.2f} s ({:.0f} tokens/s)", tokens, lines.size(), seconds,
            static_cast<double>(tokens) / seconds);
  return 0;
}

int generate(comm::World& world, const GenerateOptions& o) {
  train::Sampling sampling{o.temperature, o.top_k, o.top_p, o.seed};
  std::string prompt, path;
  world.control().run_on_all_ranks([&] {
    if (!world.first()) return;
    train::validate(sampling);
    path = checkpoint_path("generate", o.checkpoint, o.config);
    prompt = prompt_text(o);
    if (!o.prompts.empty()) data::read_prompts(prompt, o.prompts);
    if (std::error_code none; !o.output.empty() && std::filesystem::equivalent(o.output, o.prompts, none))
      throw Error(Code::usage, format("--output {}: this is the file of --prompts; name a different file", o.output));
  });
  world.control().broadcast(prompt);
  world.control().broadcast(path);
  const std::vector<std::string> sets =
      computing_sets(world, "generate", o.config, {"run.name", "run.dir", "checkpoint.dir"});
  run::LoadedModel model = run::load_model(world, path, config::generation_layouts, 0, sets);
  if (!model.tokenizer)
    throw Error(Code::data,
                format("{}: this checkpoint has no tokenizer, so it cannot generate text", model.folder.string()))
        .on(Scope::all_ranks);
  if (model.trainer->replica() > 0) return 0;  // one replica decodes; other replicas would have no work
  if (!o.prompts.empty()) return continue_lines(world, o, prompt, model);
  train::Generator generator(*model.trainer);
  const run::SignalGuard signals;
  const bool shown = world.first() && !o.json, terminal = isatty(STDOUT_FILENO) == 1;
  const auto readable = [=](const std::string& text) { return terminal ? report::printable(text) : text; };
  nlohmann::json samples = nlohmann::json::array();
  int64_t tokens = 0;
  bool interrupted = false;
  const double start = now_seconds();
  for (int64_t i = 0; i < o.samples && !interrupted; ++i, ++sampling.seed) {
    if (shown && i > 0) print("---\n");
    if (shown) print(readable(prompt));
    std::string text;
    StopText stop(o.stop);
    const auto show = [&](const std::string& piece) {
      text += piece;
      if (shown) print(readable(piece));
    };
    const int64_t written =
        generator.write(*model.tokenizer, prompt, o.tokens, sampling, [&](const std::string& piece) {
          show(stop.pass(piece));
          return !stop.met() && !run::stop_requested();
        });
    show(stop.rest());
    if (shown) print("\n");
    tokens += written;
    samples.push_back({{"text", text},
                       {"tokens", written},
                       {"finish_reason", finish_reason(o, stop, written)},
                       {"seed", sampling.seed}});
    interrupted = model.trainer->scalars().broadcast_from_first_rank(run::stop_requested()) != 0;
  }
  const double seconds = now_seconds() - start;
  if (world.first() && o.json) {
    nlohmann::json document{{"prompt", prompt},
                            {"tokens", tokens},
                            {"seconds", seconds},
                            {"step", model.step},
                            {"checkpoint", model.folder.string()},
                            {"seed", o.seed}};
    if (o.samples == 1)
      for (const char* member : {"text", "finish_reason"}) document[member] = samples.front()[member];
    if (o.samples > 1) document["samples"] = samples;
    print(document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else if (world.first()) {
    const auto ended_by = [&](const char* reason, const char* what) {
      const auto count =
          std::ranges::count_if(samples, [&](const auto& one) { return one["finish_reason"] == reason; });
      if (count == 0) return std::string();
      return o.samples == 1 ? format("; ended by {}", what) : format("; {} of {} ended by {}", count, o.samples, what);
    };
    log::info("{} tokens in {:.2f} s ({:.0f} tokens/s){}{}", tokens, seconds, static_cast<double>(tokens) / seconds,
              ended_by("eos", "the end-of-text token"), ended_by("stop", "a --stop text"));
  }
  return interrupted ? stopped(world, "generation") : 0;
}

}  // namespace

int generate_command(const GenerateOptions& o) {
  return run_on_ranks([&](comm::World& world) { return generate(world, o); }, o.config.requested);
}

}  // namespace trainer::cli
