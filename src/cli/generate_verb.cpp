#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/cli.h"
#include "cli/ranks.h"
#include "train/generate.h"
#include "train/loaded_model.h"
#include "train/signals.h"

namespace trainer::cli {
namespace {

std::string read_all(std::istream& in) {
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string prompt_text(const GenerateOptions& o) {
  if (!o.prompt_given)
    throw Error(Code::usage, "no prompt: use --prompt TEXT, --prompt-file FILE, or --prompt - for standard input");
  if (o.prompt == "-") return read_all(std::cin);
  if (o.prompt_file.empty()) return o.prompt;
  std::ifstream file(o.prompt_file, std::ios::binary);
  if (!file) throw Error(Code::usage, format("--prompt-file {}: cannot be read", o.prompt_file));
  return read_all(file);
}

void generate(comm::World& world, const GenerateOptions& o) {
  const train::Sampling sampling{o.temperature, o.top_k, o.top_p, o.seed};
  std::string prompt;
  world.control().together([&] {
    if (!world.first()) return;
    train::validate(sampling);
    prompt = prompt_text(o);
  });
  world.control().broadcast(prompt);
  train::LoadedModel model = train::load_model(world, o.checkpoint, parallel::generation_layouts);
  if (!model.tokenizer)
    throw Error(Code::data,
                format("{} was trained on tokens without a tokenizer: it cannot generate text", model.folder.string()))
        .on(Scope::all_ranks);
  if (model.trainer->replica() > 0) return;  // one token at a time leaves nothing for the others to do
  train::Generator generator(*model.trainer);
  const train::SignalGuard signals;
  if (!world.first()) {
    generator.write(*model.tokenizer, prompt, o.tokens, sampling, [](const std::string&) { return true; });
    return;
  }
  std::string text;
  const double start = now_seconds();
  const auto show = [&](const std::string& piece) {
    text += piece;
    if (o.json) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  if (!o.json) {
    std::fwrite(prompt.data(), 1, prompt.size(), stdout);
    std::fflush(stdout);
  }
  const int64_t tokens = generator.write(*model.tokenizer, prompt, o.tokens, sampling, [&](const std::string& piece) {
    show(piece);
    return !train::stop_requested();
  });
  const double seconds = now_seconds() - start;
  if (o.json) {
    const nlohmann::json document{{"prompt", prompt},   {"text", text},       {"tokens", tokens},
                                  {"seconds", seconds}, {"step", model.step}, {"checkpoint", model.folder.string()},
                                  {"seed", o.seed}};
    std::printf("%s\n", document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  } else {
    std::fputc('\n', stdout);
    log::info("{} tokens in {:.2f} s ({:.0f} tokens/s)", tokens, seconds, static_cast<double>(tokens) / seconds);
  }
  if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw Error(Code::io, "standard output cannot be written");
}

}  // namespace

int generate_command(const GenerateOptions& o) {
  return on_ranks([&](comm::World& world) {
    generate(world, o);
    return 0;
  });
}

}  // namespace trainer::cli
