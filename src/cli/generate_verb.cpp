#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
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
#include "cli/chat.h"
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
  if (!o.prompt && o.chat) return {};
  if (!o.prompt)
    throw Error(Code::usage,
                "no prompt: use --prompt TEXT, --prompt-file FILE, --prompt - for standard input, or --prompts FILE");
  return *o.prompt == "-" ? read("-", "--prompt") : *o.prompt;
}

/// True if the user's messages are lines of standard input.
bool is_interactive(const GenerateOptions& o) {
  return o.chat && !o.prompt && o.prompt_file.empty() && o.prompts.empty();
}

std::vector<data::Prompt> prompts_in(const GenerateOptions& o, const std::string& text) {
  return o.chat ? data::read_chat_prompts(text, o.prompts) : data::read_prompts(text, o.prompts);
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
  /// `chat`: null: the text continues its prompt.
  Text(const GenerateOptions& o, uint64_t seed, const Chat* chat)
      : lead(chat == nullptr ? "" : chat->lead()),
        tail(chat == nullptr ? "" : chat->tail()),
        stop(o.stop),
        sampling{o.temperature, o.top_k, o.top_p, seed} {}
  std::string lead;       // not yet removed from the beginning
  std::string tail;       // not shown at the end
  std::string held = {};  // the tail, unless more text follows
  StopText stop;
  train::Sampling sampling;
  std::string text = {};
  const char* reason = "";  // why it ended: by a --stop text, --tokens, the end-of-text token, or a signal
  /// Returns the part of the text that may be shown so far.
  std::string pass(std::string piece) {
    if (!piece.empty() && !lead.empty() && piece.starts_with(std::exchange(lead, {}).front())) piece.erase(0, 1);
    piece.insert(0, std::exchange(held, {}));
    if (!tail.empty() && piece.ends_with(tail)) piece.erase(piece.size() - (held = tail).size());
    return stop.pass(piece);
  }
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

/// Returns the messages of a line as they were, followed by the answer.
nlohmann::ordered_json with_answer(const std::string& line, const std::string& answer) {
  nlohmann::ordered_json messages = parse_json<nlohmann::ordered_json>(line)["messages"];
  messages.push_back({{"role", "assistant"}, {"content", answer}});
  return messages;
}

/// Writes each line of --prompts with its continuation or, with `chat`, its answer.
int continue_lines(comm::World& world, const GenerateOptions& o, const std::vector<data::Prompt>& lines,
                   run::LoadedModel& model, train::Generator& generator, Chat* chat) {
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
    const auto text = std::make_shared<Text>(o, seed + i % samples, chat);
    const auto emit = [text](const std::string& piece) {
      text->text += text->pass(piece);
      return !text->stop.met();
    };
    const auto ended = [&, text, i](int64_t count, bool stopped) {
      if (stopped || !output) return;  // only whole texts are written
      text->end(count, stopped, o);
      tokens += count;
      const std::string whole = text->text + text->stop.rest();
      nlohmann::ordered_json result;
      if (chat != nullptr)
        result["messages"] = with_answer(line.line, whole);
      else
        result["text"] = whole;
      result.update({{"tokens", count}, {"finish_reason", text->reason}, {"seed", text->sampling.seed}});
      written.add(i, data::with_members(line.line, result) + "\n");
      written.end(i);
    };
    train::Prompt prompt = line.text;
    if (chat != nullptr) {
      data::Conversation conversation = line.messages;
      chat->add_system(conversation);
      prompt = chat->prompt(conversation);
    }
    return train::TextRequest{prompt, o.tokens, text->sampling, emit, ended};
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

/// Continues one prompt --samples times, or answers it with `chat`; shows the text as it is generated.
int continue_prompt(comm::World& world, const GenerateOptions& o, const std::string& prompt, run::LoadedModel& model,
                    train::Generator& generator, Chat* chat) {
  train::Prompt start = prompt;
  if (chat != nullptr) {
    data::Conversation conversation = chat->begin(prompt);
    start = chat->prompt(conversation);
  }
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
    const auto text = std::make_shared<Text>(o, o.seed + i, chat);
    written.add(i, (i == 0 ? "" : "---\n") + (chat != nullptr ? "" : prompt));
    const auto show = [&, text, i](const std::string& piece) {
      text->text += piece;
      written.add(i, piece);
    };
    const auto emit = [text, show](const std::string& piece) {
      show(text->pass(piece));
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
    return train::TextRequest{start, o.tokens, text->sampling, emit, ended};
  };
  const run::SignalGuard signals;
  const double before = now_seconds();
  const bool complete = generator.write(*model.tokenizer, next, run::stop_requested);
  const double seconds = now_seconds() - before;
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

/// Returns the tokens before the answer to the next line of input; empty after the last one. Rank 0 reads, and sends
/// a message every second while it waits for input. `stops`: true on rank 0 if a signal stopped the last answer;
/// becomes true on all ranks if a signal ends the conversation. Collective over all ranks.
std::vector<int32_t> next_turn(comm::World& world, InputLines& input, data::Conversation& conversation, Chat& chat,
                               bool& stops) {
  for (;;) {
    std::string message = "w";  // w: still waiting, s: a signal, else t and the tokens, none at the end
    world.control().run_on_all_ranks([&] {
      if (!world.first()) return;
      if (stops || run::stop_requested()) {
        message = "s";
        return;
      }
      std::string line;
      const InputLines::State state = input.next(line);
      if (state == InputLines::State::waiting) return;
      message = "t";
      if (state == InputLines::State::ended || line.empty()) return;
      conversation.push_back({.role = data::ChatMessage::Role::user, .content = line});
      const std::vector<int32_t> ids = chat.prompt(conversation);
      message.append(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
    });
    world.control().broadcast(message);
    if (message[0] == 'w') continue;
    stops = message[0] == 's';
    std::vector<int32_t> ids((message.size() - 1) / sizeof(int32_t));
    std::memcpy(ids.data(), message.data() + 1, ids.size() * sizeof(int32_t));
    return ids;
  }
}

/// Answers each line of standard input, until an empty one or its end. Other replicas than the first only wait:
/// their generator is null.
int converse(comm::World& world, const GenerateOptions& o, run::LoadedModel& model, train::Generator* generator,
             Chat& chat) {
  const bool terminal = isatty(STDOUT_FILENO) == 1, asks = world.first() && terminal && isatty(STDIN_FILENO) == 1;
  data::Conversation conversation;
  chat.add_system(conversation);
  InputLines input;
  const run::SignalGuard signals;
  for (bool stops = false;;) {
    if (asks && !stops) print("> ");
    const std::vector<int32_t> ids = next_turn(world, input, conversation, chat, stops);
    if (stops) return stopped(world, "the conversation");
    if (ids.empty()) return 0;
    if (generator == nullptr) continue;
    Text text(o, o.seed, &chat);
    const auto show = [&](const std::string& piece) {
      text.text += piece;
      if (world.first()) print(terminal ? report::printable(piece) : piece);
    };
    const auto emit = [&](const std::string& piece) {
      show(text.pass(piece));
      return !text.stop.met();
    };
    std::optional<train::TextRequest> request{{ids, o.tokens, text.sampling, emit, {}}};
    stops = !generator->write(
        *model.tokenizer, [&] { return std::exchange(request, std::nullopt); }, run::stop_requested);
    show(text.stop.rest());
    if (world.first()) print("\n");
    conversation.push_back({.role = data::ChatMessage::Role::assistant, .content = text.text});
  }
}

int generate(comm::World& world, const GenerateOptions& o) {
  const bool interactive = is_interactive(o);
  if (interactive && (o.json || o.samples > 1))
    throw Error(Code::usage,
                "--chat without a prompt reads messages from standard input; --json and --samples need "
                "--prompt, --prompt-file or --prompts")
        .on(Scope::all_ranks);
  std::string prompt, path;
  world.control().run_on_all_ranks([&] {
    if (!world.first()) return;
    train::validate({o.temperature, o.top_k, o.top_p, o.seed});
    path = checkpoint_path("generate", o.checkpoint, o.config);
    prompt = prompt_text(o);
    if (!o.prompts.empty()) prompts_in(o, prompt);
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
  if (!o.prompts.empty()) lines = prompts_in(o, prompt);
  std::optional<Chat> chat;
  if (o.chat) chat.emplace(o, model);
  const auto prompts = std::max<int64_t>(1, static_cast<int64_t>(lines.size()));
  const int64_t together = texts_together(o, model, world.size(), prompts * o.samples);
  // One replica decodes; other replicas would have no work.
  if (model.runner->replica() > 0) return interactive ? converse(world, o, model, nullptr, *chat) : 0;
  train::Generator generator(*model.runner, together);
  if (interactive) return converse(world, o, model, &generator, *chat);
  Chat* const used = chat ? &*chat : nullptr;
  return lines.empty() ? continue_prompt(world, o, prompt, model, generator, used)
                       : continue_lines(world, o, lines, model, generator, used);
}

}  // namespace

int generate_command(const GenerateOptions& o) {
  return run_on_ranks([&](comm::World& world) { return generate(world, o); }, o.config.requested);
}

}  // namespace trainer::cli
