#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/units.h"
#include "cli/checkpoint_path.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "cli/stop_text.h"
#include "config/layout_choices.h"
#include "data/json_lines.h"
#include "data/prompts.h"
#include "report/printable.h"
#include "run/loaded_model.h"
#include "run/signals.h"
#include "train/generate.h"

namespace trainer::cli {
namespace {

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

/// Passes the pieces of several texts on in the order of the texts: the pieces of a text are held back until all
/// earlier texts have ended.
class InOrder {
 public:
  explicit InOrder(std::function<void(const std::string&)> write) : write_(std::move(write)) {}
  void add(size_t text, const std::string& piece) {
    if (text == current_) return write_(piece);
    later_[text].held += piece;
  }
  void end(size_t text) {
    later_[text].ended = true;
    for (; later_[current_].ended; later_.erase(current_++)) write_(later_[current_].held);
    write_(std::exchange(later_[current_].held, {}));
  }
  /// Passes on what is held back of texts that have ended although earlier ones have not.
  void pass_ended() const {
    for (const auto& [number, text] : later_)
      if (text.ended) write_(text.held);
  }

 private:
  struct Text {
    std::string held;
    bool ended = false;
  };
  std::function<void(const std::string&)> write_;
  std::map<size_t, Text> later_;
  size_t current_ = 0;
};

/// A text in progress, or ended.
struct Text {
  Text(const GenerateOptions& o, uint64_t seed) : stop(o.stop), sampling{o.temperature, o.top_k, o.top_p, seed} {}
  StopText stop;
  train::Sampling sampling;
  std::string text = {};
  const char* reason = "";  // why it ended: by a --stop text, --tokens, the end-of-text token, or a signal
  void end(int64_t tokens, bool stopped, const GenerateOptions& o) {
    reason = stopped ? "signal" : stop.met() ? "stop" : tokens == o.tokens ? "length" : "eos";
  }
};

/// Returns the number of texts to decode together, the same on every rank: --batch-size, or else the most that does not
/// change the tokens, as far as the memory of every rank suffices. Throws Code::plan if it does not suffice for
/// --batch-size. Collective over all ranks.
int64_t texts_together(const GenerateOptions& o, const run::LoadedModel& model, int64_t ranks, int64_t texts) {
  train::ModelRunner& runner = *model.runner;
  const bool gpu = model.machine.gpu.has_value(), single = ranks == runner.replicas();
  const int64_t wanted = o.batch_size > 0 ? o.batch_size : gpu || !single ? 1 : train::Generator::kSequencesOfEqualBits;
  const int64_t each = runner.model().cache_bytes(), used = std::min(wanted, texts);
  constexpr int64_t kReserve = 16;  // a share of the memory: for logits and other tensors of a pass
  int64_t free = model.machine.memory_limit - model.machine.memory_limit / kReserve;
  for (const auto& [category, bytes] : runner.memory())
    if (!gpu || !category.starts_with("host")) free -= bytes;
  const auto bytes_of = [&](int64_t count) { return count * each + runner.model().table_copy_bytes(count); };
  int64_t most = used;
  while (most > 1 && bytes_of(most) > free) --most;
  double least[] = {-static_cast<double>(most)};
  runner.scalars().max_over_ranks(least);
  const auto fits = static_cast<int64_t>(-least[0]);
  if (o.batch_size > 0 && fits < used)
    throw Error(Code::plan, format("--batch-size {}: {} texts take {} together, of which each KV cache takes {}; use "
                                   "--batch-size {}",
                                   o.batch_size, used, format_bytes(static_cast<double>(bytes_of(used))),
                                   format_bytes(static_cast<double>(each)), fits))
        .on(Scope::all_ranks);
  return fits;
}

/// Writes each line of --prompts with its continuation.
int continue_lines(comm::World& world, const GenerateOptions& o, const std::vector<data::Prompt>& lines,
                   run::LoadedModel& model, train::Generator& generator) {
  const auto samples = static_cast<size_t>(o.samples), texts = lines.size() * samples;
  const PhiloxKey key = philox_key(o.seed, "prompts");
  std::optional<Output> output;
  if (world.first()) output.emplace(o.output);
  InOrder written([&](const std::string& line) {
    if (output && !line.empty()) output->write(line);
  });
  size_t begun = 0;
  int64_t tokens = 0;
  const auto next = [&]() -> std::optional<train::TextRequest> {
    if (begun == texts) return std::nullopt;
    const size_t i = begun++, number = i / samples;
    const data::Prompt& line = lines[number];
    const uint64_t seed = line.seed.value_or(philox_at(key, number));
    const auto text = std::make_shared<Text>(o, seed + i % samples);
    const auto emit = [text](const std::string& piece) {
      text->text += text->stop.pass(piece);
      return !text->stop.met();
    };
    const auto ended = [&, text, i](int64_t count, bool stopped) {
      if (stopped || !output) return;  // only whole texts are written
      text->end(count, stopped, o);
      tokens += count;
      const nlohmann::ordered_json result = {{"text", text->text + text->stop.rest()},
                                             {"tokens", count},
                                             {"finish_reason", text->reason},
                                             {"seed", text->sampling.seed}};
      written.add(i, data::with_members(line.line, result) + "\n");
      written.end(i);
    };
    return train::TextRequest{line.text, o.tokens, text->sampling, emit, ended};
  };
  const run::SignalGuard signals;
  const double start = now_seconds();
  const bool complete = generator.write(*model.tokenizer, next, run::stop_requested);
  written.pass_ended();
  if (!complete) return stopped(world, "generation");
  const double seconds = now_seconds() - start;
  log::info("{} tokens for {} prompts in {:.2f} s ({:.0f} tokens/s)", tokens, lines.size(), seconds,
            static_cast<double>(tokens) / seconds);
  return 0;
}

/// Continues one prompt --samples times; shows the text as it is generated.
int continue_prompt(comm::World& world, const GenerateOptions& o, const std::string& prompt, run::LoadedModel& model,
                    train::Generator& generator) {
  const bool shown = world.first() && !o.json, terminal = isatty(STDOUT_FILENO) == 1;
  InOrder written([=](const std::string& text) {
    if (shown) print(terminal ? report::printable(text) : text);
  });
  const auto samples = static_cast<size_t>(o.samples);
  size_t begun = 0;
  std::map<size_t, nlohmann::json> results;  // for --json
  std::map<std::string_view, int64_t> endings;
  int64_t tokens = 0;
  const auto next = [&]() -> std::optional<train::TextRequest> {
    if (begun == samples) return std::nullopt;
    const size_t i = begun++;
    const auto text = std::make_shared<Text>(o, o.seed + i);
    written.add(i, (i == 0 ? "" : "---\n") + prompt);
    const auto show = [&, text, i](const std::string& piece) {
      text->text += piece;
      written.add(i, piece);
    };
    const auto emit = [text, show](const std::string& piece) {
      show(text->stop.pass(piece));
      return !text->stop.met();
    };
    const auto ended = [&, text, show, i](int64_t count, bool stopped) {
      show(text->stop.rest());
      text->end(count, stopped, o);
      tokens += count;
      ++endings[text->reason];
      if (o.json)
        results[i] = {
            {"text", text->text}, {"tokens", count}, {"finish_reason", text->reason}, {"seed", text->sampling.seed}};
      written.add(i, "\n");
      written.end(i);
    };
    return train::TextRequest{prompt, o.tokens, text->sampling, emit, ended};
  };
  const run::SignalGuard signals;
  const double start = now_seconds();
  const bool complete = generator.write(*model.tokenizer, next, run::stop_requested);
  const double seconds = now_seconds() - start;
  if (world.first() && o.json) {
    nlohmann::json document{{"prompt", prompt},
                            {"tokens", tokens},
                            {"seconds", seconds},
                            {"step", model.step},
                            {"checkpoint", model.folder.string()},
                            {"seed", o.seed}};
    if (samples == 1) {
      for (const char* member : {"text", "finish_reason"}) document[member] = results[0][member];
    } else {
      for (const auto& [i, result] : results) document["samples"].push_back(result);
    }
    print(json_text(document) + "\n");
  } else if (world.first()) {
    const auto ended_by = [&](std::string_view reason, const char* what) {
      const int64_t count = endings[reason];
      if (count == 0) return std::string();
      return samples == 1 ? format("; ended by {}", what) : format("; {} of {} ended by {}", count, samples, what);
    };
    log::info("{} tokens in {:.2f} s ({:.0f} tokens/s){}{}", tokens, seconds, static_cast<double>(tokens) / seconds,
              ended_by("eos", "the end-of-text token"), ended_by("stop", "a --stop text"));
  }
  return complete ? 0 : stopped(world, "generation");
}

int generate(comm::World& world, const GenerateOptions& o) {
  std::string prompt, path;
  world.control().run_on_all_ranks([&] {
    if (!world.first()) return;
    train::validate({o.temperature, o.top_k, o.top_p, o.seed});
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
  run::LoadedModel model = run::load_model(world, path, config::generation_layouts, sets);
  if (!model.tokenizer)
    throw Error(Code::data,
                format("{}: this checkpoint has no tokenizer, so it cannot generate text", model.folder.string()))
        .on(Scope::all_ranks);
  std::vector<data::Prompt> lines;
  if (!o.prompts.empty()) lines = data::read_prompts(prompt, o.prompts);
  const auto prompts = std::max<int64_t>(1, static_cast<int64_t>(lines.size()));
  const int64_t together = texts_together(o, model, world.size(), prompts * o.samples);
  if (model.runner->replica() > 0) return 0;  // one replica decodes; other replicas would have no work
  train::Generator generator(*model.runner, together);
  return lines.empty() ? continue_prompt(world, o, prompt, model, generator)
                       : continue_lines(world, o, lines, model, generator);
}

}  // namespace

int generate_command(const GenerateOptions& o) {
  return run_on_ranks([&](comm::World& world) { return generate(world, o); }, o.config.requested);
}

}  // namespace trainer::cli
