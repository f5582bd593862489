#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/checkpoint_path.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "cli/stop_text.h"
#include "report/printable.h"
#include "run/loaded_model.h"
#include "run/signals.h"
#include "train/generate.h"

namespace trainer::cli {
namespace {

constexpr int kStopped = 75;

std::string prompt_text(const GenerateOptions& o) {
  if (!o.prompt_given)
    throw Error(Code::usage, "no prompt: use --prompt TEXT, --prompt-file FILE, or --prompt - for standard input");
  if (!o.prompt_file.empty()) return read_input(o.prompt_file, "--prompt-file");
  return o.prompt == "-" ? read_input("-", "--prompt") : o.prompt;
}

int generate(comm::World& world, const GenerateOptions& o) {
  train::Sampling sampling{o.temperature, o.top_k, o.top_p, o.seed};
  std::string prompt, path;
  world.control().run_on_all_ranks([&] {
    if (!world.first()) return;
    train::validate(sampling);
    path = checkpoint_path("generate", o.checkpoint, o.config);
    prompt = prompt_text(o);
  });
  world.control().broadcast(prompt);
  world.control().broadcast(path);
  run::LoadedModel model = run::load_model(world, path, parallel::generation_layouts);
  if (!model.tokenizer)
    throw Error(Code::data,
                format("{} was trained on tokens without a tokenizer: it cannot generate text", model.folder.string()))
        .on(Scope::all_ranks);
  if (model.trainer->replica() > 0) return 0;  // decoding one token at a time has no work for other replicas
  train::Generator generator(*model.trainer);
  const run::SignalGuard signals;
  const bool shown = world.first() && !o.json, terminal = isatty(STDOUT_FILENO) == 1;
  const auto readable = [=](const std::string& text) { return terminal ? report::printable(text) : text; };
  nlohmann::json samples = nlohmann::json::array();
  int64_t tokens = 0;
  bool stopped = false;
  const double start = now_seconds();
  for (int64_t i = 0; i < o.samples && !stopped; ++i, ++sampling.seed) {
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
    samples.push_back({{"text", text}, {"tokens", written}, {"seed", sampling.seed}});
    stopped = model.trainer->scalars().broadcast_from_first_rank(run::stop_requested()) != 0;
  }
  const double seconds = now_seconds() - start;
  if (world.first() && o.json) {
    nlohmann::json document{{"prompt", prompt},
                            {"tokens", tokens},
                            {"seconds", seconds},
                            {"step", model.step},
                            {"checkpoint", model.folder.string()},
                            {"seed", o.seed}};
    if (o.samples == 1) document["text"] = samples.front()["text"];
    if (o.samples > 1) document["samples"] = samples;
    print(document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  } else if (world.first()) {
    log::info("{} tokens in {:.2f} s ({:.0f} tokens/s)", tokens, seconds, static_cast<double>(tokens) / seconds);
  }
  if (!stopped) return 0;
  log::info("stopped by {} before its end", run::signal_name(run::stop_signal()));
  return kStopped;
}

}  // namespace

int generate_command(const GenerateOptions& o) {
  return run_on_ranks([&](comm::World& world) { return generate(world, o); });
}

}  // namespace trainer::cli
