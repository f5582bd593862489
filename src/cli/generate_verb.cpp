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
  train::validate(sampling);
  const std::string prompt = prompt_text(o);
  train::LoadedModel model = train::load_model(world, o.checkpoint);
  if (!model.tokenizer)
    throw Error(Code::data,
                format("{} was trained on tokens without a tokenizer: it cannot generate text", model.folder.string()));
  train::Generator generator(*model.trainer);
  const train::SignalGuard signals;
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
  // One token at a time leaves nothing to share out: the first rank writes, the others wait.
  return on_ranks([&](comm::World& world) {
    world.control().together([&] {
      if (world.first()) generate(*comm::solo_world(), o);
    });
    return 0;
  });
}

}  // namespace trainer::cli
