#include "cli/options.h"

#include <CLI/CLI.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/join.h"
#include "cli/command_text.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "data/chat_formats.h"

namespace trainer::cli {
namespace {

constexpr int64_t kMost = int64_t{1} << 60;  // below INT64_MAX, which CLI11 2.1 returns for numbers that overflow

/// The help of an action, which also lists the options that its verb accepts for all actions.
struct Help : CLI::Formatter {
  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode mode) const override {
    const std::vector<const CLI::Option*> shared = options_of_verb(*app);
    if (shared.empty()) return Formatter::make_subcommands(app, mode);
    return make_group("Options of `" + app->get_parent()->get_name() + "`", false, shared);
  }
};

void refuse_options_before(const CLI::App& verb) {
  const CLI::App& app = *verb.get_parent();
  std::vector<std::string> before = app.remaining();
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && option != app.get_help_ptr() && option != app.get_version_ptr())
      before.push_back(option->get_name());
  if (!before.empty())
    throw Error(Code::usage, format("{0} before the verb `{1}`: options follow the verb, as in `trainer {1} {0} …`",
                                    before.front(), verb.get_name()));
}

/// Returns the verb and its options as given on the command line.
comm::Facts facts_of(const CLI::App& verb) {
  comm::Facts facts{{"the verb", verb.get_name()}};
  for (const CLI::Option* option : verb.get_options())
    facts.emplace_back(option->get_name(),
                       option->count() > 0 ? format("{}", fmt::join(option->results(), " ")) : "absent");
  return facts;
}

enum class Ranks { all, first };  // ranks that run a command

template <typename Options>
CLI::App& add_verb(CLI::App& app, CommandLine& line, const char* name, const char* help, Options& options,
                   int (*command)(const Options&), Ranks ranks) {
  CLI::App& verb = *app.add_subcommand(name, help);
  verb.callback([&, command, ranks] {
    const comm::Facts requested = facts_of(verb);
    if constexpr (requires { options.config; }) options.config.requested = requested;
    if constexpr (requires { options.what; }) options.what = verb.get_subcommands().front()->get_name();
    const auto run = [&] { return command(options); };
    line.status = ranks == Ranks::all ? run() : run_on_first_rank(run, requested);
  });
  return verb;
}

/// Adds an action of a verb. The verb's own options may precede and follow it.
CLI::App& add_action(CLI::App& verb, const char* name, const char* help) {
  verb.require_subcommand(1);
  return *verb.add_subcommand(name, help)->fallthrough();
}

/// Expands "~/x", which shells leave unchanged inside a word (--config=~/x).
template <typename T>
CLI::Option* add_path(CLI::App& app, const char* names, T& value, const char* type, const char* help) {
  const auto expand = [](std::string& path) {
    path = expand_home(path);
    return std::string();
  };
  return app.add_option(names, value, help)->type_name(type)->transform(CLI::Validator(expand, ""));
}

template <typename T>
CLI::Option* add_number(CLI::App& app, const char* names, T& value, int64_t least, const char* help,
                        int64_t most = kMost) {
  CLI::Option* option =
      app.add_option(names, value, help)->type_name("N")->check(CLI::Range(least, most).description(""));
  return value >= static_cast<T>(least) ? option->capture_default_str() : option;
}

CLI::Option* add_choice(CLI::App& app, const char* names, std::string& value, const std::vector<std::string>& choices,
                        const char* help) {
  return app.add_option(names, value, help)->check(CLI::IsMember(choices))->capture_default_str();
}

template <typename T>
CLI::Option* add_text(CLI::App& app, const char* names, T& value, const char* type, const char* help) {
  const auto empty = [](const std::string& text) { return std::string(text.empty() ? "an empty text" : ""); };
  return app.add_option(names, value, help)->type_name(type)->check(CLI::Validator(empty, ""));
}

/// Returns the values of --chat-format.
std::vector<std::string> chat_format_names() {
  std::vector<std::string> names = {"auto"};
  for (const data::ChatFormat& format : data::chat_formats()) names.emplace_back(format.name);
  return names;
}

/// Adds an option that sets a key of the configuration.
CLI::Option* add_key(CLI::App& app, const char* name, ConfigOptions& config, const std::string& key, const char* help) {
  const auto set = [&config, key](const std::string& value) { config.sets.push_back(key + "=" + value); };
  return app.add_option_function<std::string>(name, set, help);
}

void add_json(CLI::App& app, bool& json) { app.add_flag("--json", json, "print one JSON document on stdout"); }

/// Adds --config and --set, and returns them.
std::pair<CLI::Option*, CLI::Option*> add_config(CLI::App& app, ConfigOptions& o) {
  return {
      add_path(app, "--config,-c", o.file, "FILE",
               "read this configuration (TOML); `trainer config reference` lists all keys"),
      app.add_option("--set,-s", o.sets, "override keys of the configuration (takes several values; may be repeated)")
          ->type_name("section.key=value")};
}

CLI::Option* add_checkpoint(CLI::App& app, std::string& checkpoint, CLI::Option* config) {
  return add_path(app, "--checkpoint", checkpoint, "PATH",
                  "read this step folder, or the newest checkpoint in this folder (default: that of the --config run)")
      ->excludes(config);
}

void add_train(CLI::App& app, TrainOptions& o) {
  add_config(app, o.config);
  add_text(
      app, "--resume", o.config.resume, "auto|must|verified|never|PATH",
      "resume from this checkpoint; auto: the newest intact one, if any; verified: the newest that replays confirmed "
      "(checkpoint.resume)");
  add_number(app, "--max-steps", o.max_steps, 1, "save and stop after N further steps");
  add_text(app, "--max-time", o.max_time, "TIME",
           "save and stop this long after the start, such as 23h50m, 90s or 3600");
  app.add_flag("--dry-run", o.dry_run, "print the run's memory, FLOPs and communication, and exit");
}

void add_eval(CLI::App& verb, EvalOptions& o) {
  add_checkpoint(verb, o.checkpoint, add_config(verb, o.config).first);
  add_path(verb, "--data", o.data, "FILES", "evaluate on these files (default: the validation data of the run)");
  add_choice(verb, "--format", o.format, {"auto", "text", "jsonl", "tokens"},
             "set the format of FILES; auto: by their extensions");
  add_choice(verb, "--packing", o.packing, {"auto", "stream", "best-fit"},
             "set the windows: consecutive, or documents packed into them (default: as in training; data.packing)");
  verb.add_option("--set-name", o.sets, "evaluate only the validation set with this name (repeatable; default: all)")
      ->type_name("NAME")
      ->excludes("--data");
  add_number(verb, "--batches", o.batches, 0, "evaluate N groups of train.global_batch windows; 0: all");
  add_number(verb, "--stride", o.stride, 1, "slide windows by N tokens, at most model.seq_len (default: no overlap)");
  add_path(verb, "--choices", o.choices, "FILES",
           "evaluate multiple-choice questions instead: HellaSwag JSON lines or llm.c's .bin")
      ->excludes("--data", "--packing", "--set-name", "--stride", "--batches");
  CLI::Option* task = add_path(verb, "--task", o.task, "FILES",
                               "score a task instead, as [[data.task]] does: JSON lines of common benchmarks or .bin")
                          ->excludes("--data", "--packing", "--set-name", "--stride", "--batches", "--choices");
  add_number(verb, "--shots", o.shots, 0, "with --task: begin with N other questions and answers")->needs(task);
  verb.add_option("--delimiter", o.delimiter, "with --task: put TEXT between question and answer (default: a space)")
      ->type_name("TEXT")
      ->needs(task);
  add_choice(verb, "--metric", o.metric, {std::begin(config::kMetricNames), std::end(config::kMetricNames)},
             "with --task: choose by likelihood (acc), or by that per character, byte or token, or as in CORE")
      ->needs(task);
  add_number(verb, "--questions", o.questions, 1, "with --choices or --task: evaluate only N questions");
  add_json(verb, o.json);
}

void add_generate(CLI::App& verb, GenerateOptions& o) {
  add_checkpoint(verb, o.checkpoint, add_config(verb, o.config).first);
  CLI::Option* prompt = verb.add_option(
      "--prompt", o.prompt, "continue this text, - for standard input; a trailing space starts the next word");
  add_path(verb, "--prompt-file", o.prompt_file, "FILE", "continue the text of this file")->excludes(prompt);
  CLI::Option* prompts =
      add_path(verb, "--prompts", o.prompts, "FILE",
               "continue the \"prompt\" of each JSON line, and write the lines with \"text\" and \"tokens\"")
          ->excludes(prompt, "--prompt-file");
  add_path(verb, "--output", o.output, "FILE", "write the lines of --prompts to FILE (default: standard output)")
      ->needs(prompts);
  CLI::Option* chat = verb.add_flag("--chat", o.chat,
                                    "answer the prompt as a chat message, or the \"messages\" of --prompts; without "
                                    "any, each line of standard input");
  verb.add_option("--system", o.system, "begin conversations with this system message")->needs(chat);
  add_choice(verb, "--chat-format", o.chat_format, chat_format_names(),
             "set the format of conversations; auto: the checkpoint's")
      ->needs(chat);
  add_number(verb, "--tokens", o.tokens, 1, "generate at most N tokens");
  add_number(verb, "--samples", o.samples, 1, "generate N continuations, each with the next seed");
  add_number(verb, "--batch-size", o.batch_size, 1,
             "decode up to N texts together (default: 8 on one CPU rank, else 1)");
  add_text(verb, "--stop", o.stop, "TEXT", "stop before this text; repeat the option for several texts")
      ->allow_extra_args(false);
  verb.add_option("--temperature", o.temperature, "set the sampling temperature; 0: greedy")->capture_default_str();
  add_number(verb, "--top-k", o.top_k, 0, "sample from the N most likely tokens; 0: all");
  verb.add_option("--top-p", o.top_p, "sample from the most likely tokens that reach this total probability")
      ->capture_default_str();
  add_number(verb, "--seed", o.seed, 0,
             "set the seed; with --prompts, a line uses its own \"seed\" or one derived from N");
  add_json(verb, o.json);
}

void add_tokenize(CLI::App& verb, TokenizeOptions& o) {
  add_path(
      verb, "--input", o.input, "FILES",
      "read text (.txt, .md) or .jsonl, plain or compressed (.gz, .zst), or .parquet; globs allowed; -: standard input")
      ->required();
  add_path(verb, "--output", o.output, "DIR", "write tokens, document index and tokenizer into this folder")
      ->required();
  CLI::Option* given =
      add_path(verb, "--tokenizer", o.tokenizer, "PATH", "use this tokenizer, a file or folder (data.tokenizer)");
  add_number(verb, "--train-vocab", o.train_vocab, 1, "train a tokenizer of N tokens on the input")->excludes(given);
  verb.add_option("--text-key", o.text_key, "read the text of JSON lines from this key")->capture_default_str();
  add_choice(verb, "--format", o.format, {"auto", "text", "jsonl"},
             "set the format of the files; auto: by their extensions");
  add_choice(verb, "--document", o.document, {"file", "line", "block", "chat"},
             "treat each file, line, block between empty lines, or conversation as a document");
  add_choice(verb, "--chat-format", o.chat_format, chat_format_names(),
             "write conversations in this format (data.chat_format)");
  add_choice(verb, "--bos", o.bos, {"auto", "on", "off"},
             "begin documents with the BOS token; auto: if the tokenizer's files specify it (data.bos)");
  verb.add_flag("--strict", o.strict,
                "fail on invalid UTF-8, lines without a text and empty files; otherwise they are counted");
  add_json(verb, o.json);
}

void add_bench(CLI::App& verb, BenchOptions& o) {
  add_config(verb, o.config);
  add_key(verb, "--compute", o.config, "precision.compute", "compute in this type (precision.compute)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp64"}));
  add_key(verb, "--threads", o.config, "run.threads", "use N threads (run.threads)")->type_name("N");
  add_number(verb, "--warmup", o.warmup, 0, "repeat N times before timing");
  add_number(verb, "--repeats", o.repeats, 1, "time N repetitions");
  add_json(verb, o.json);
  add_action(verb, "peak", "measure the peak FLOP/s");
  CLI::App& gemm = add_action(verb, "gemm", "time GEMMs of the configuration's layers, or of common shapes");
  CLI::Option* shapes =
      gemm.add_option("--shape", o.shapes, "time the GEMMs of M token rows with a weight [K, N] instead")
          ->delimiter(',')
          ->type_name("M,K,N")
          ->check(CLI::Range(int64_t{1}, kMost).description(""));
  add_path(gemm, "--write-tuning", o.write_tuning, "FILE",
           "write the fastest algorithm for each GEMM on this GPU to FILE (hardware.gemm_tuning)")
      ->excludes(shapes);
  add_action(verb, "attention", "time the configuration's attention, or common shapes");
  add_number(add_action(verb, "elementwise", "time memory-bound operators"), "--size", o.size, 0,
             "use operands of N bytes; 0: much larger than the caches");
  add_action(verb, "experts", "time a layer with experts, and grouped GEMMs compared with one GEMM");
  add_number(add_action(verb, "optimizer", "time the AdamW update"), "--size", o.size, 0,
             "use operands of N bytes; 0: much larger than the caches");
  add_number(add_action(verb, "offload", "predict the update time of optimizer offload schedules"), "--size", o.size, 0,
             "update N parameters per rank; 0: 3.8e9", 1'000'000'000'000);
  CLI::App& step = add_action(verb, "step", "time whole optimizer steps by operator");
  CLI::Option* dry =
      step.add_flag("--dry-run", o.dry_run, "count the FLOPs and bytes of each operator without running them");
  add_path(step, "--data", o.data, "FILES", "train on these files of tokens instead of random tokens")->excludes(dry);
  add_action(verb, "memory", "compare predicted and measured memory");
  for (CLI::App* action : {&add_action(verb, "collectives", "time collectives over the ranks"),
                           &add_action(verb, "all", "measure all of these on one rank")})
    add_path(*action, "--write-profile", o.write_profile, "FILE",
             "measure the profile for `trainer plan --profile` on all ranks, and write it to FILE");
}

void add_checkpoint_actions(CLI::App& verb, CheckpointOptions& o) {
  const auto [config, set] = add_config(verb, o.config);
  set->needs(config);
  CLI::Option* checkpoint = add_checkpoint(verb, o.checkpoint, config);
  add_json(verb, o.json);
  add_action(verb, "inspect", "show a checkpoint's contents");
  add_action(verb, "verify", "verify all checksums");
  CLI::App& strip = add_action(verb, "strip", "write a step folder with the weights only");
  CLI::App& merge =
      add_action(verb, "merge", "write a step folder with the mean of the weights of several checkpoints");
  CLI::App& to = add_action(verb, "export", "convert a checkpoint to files for Hugging Face transformers or llama.cpp");
  CLI::App& from = add_action(verb, "import", "convert a Hugging Face model to a checkpoint");
  CLI::Option* merged =
      add_path(merge, "checkpoints", o.merged, "CKPT", "merge these step, checkpoints or run folders")->required();
  merge
      .add_option("--decay", o.decay,
                  "weight a checkpoint by D to the power of its distance to the newest, in distances of the first two; "
                  "1: equally")
      ->type_name("D")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  for (CLI::App* action : {&strip, &merge, &from})
    add_path(*action, action == &merge ? "-o,--output" : "--output", o.output, "DIR",
             "write to this folder, which must not exist yet")
        ->required();
  add_path(to, "--output", o.output, "PATH", "write to this folder (hf) or file (gguf), which must not exist yet")
      ->required();
  add_choice(to, "--format", o.format, {"hf", "gguf"}, "set the format: Hugging Face transformers, or GGUF (llama.cpp)")
      ->required();
  add_choice(from, "--format", o.format, {"hf"}, "set the format: Hugging Face transformers")->required();
  add_choice(to, "--dtype", o.dtype, {"fp32", "bf16", "fp16", "q8_0"}, "set the type of the weights; q8_0: GGUF only");
  add_number(to, "--shard-bytes", o.shard_bytes, 1, "write at most N bytes of weights into each file");
  to.add_flag("--allow-nonfinite", o.allow_nonfinite, "export the model even if some weights are not finite");
  CLI::Option* input = add_path(from, "--input", o.input, "DIR",
                                "read the folder with config.json and model.safetensors, or its shards and their index")
                           ->required();
  add_number(from, "--seq-len", o.seq_len, 0, "set model.seq_len to N; 0: the model's context length, at most 4096");
  for (CLI::Option* source : {merged, input}) source->excludes(checkpoint)->excludes(config)->excludes(set);
}

void add_config_actions(CLI::App& verb, ConfigVerbOptions& o) {
  CLI::Option* file = add_config(verb, o.config).first;
  add_number(verb, "--ranks", o.ranks, 1, "check for N ranks (default: any valid number)");
  add_action(verb, "check", "print all errors, or the valid numbers of ranks").needs(file);
  add_action(verb, "show", "print the effective values and where they come from").needs(file);
  add_action(verb, "reference", "print all keys with default, range, unit and meaning");
}

void add_report(CLI::App& verb, ReportOptions& o) {
  add_path(verb, "runs", o.runs, "RUN", "read these run folders (run.dir)")->required();
  CLI::Option* csv = verb.add_flag("--csv", o.csv, "print all metrics of every step as CSV instead");
  add_path(verb, "--output", o.output, "FILE",
           "write the comparison (default: comparison.html) or the CSV (default: stdout) to FILE");
  add_number(verb, "--step", o.step, 1, "print the samples that step N of a run trained on instead")
      ->excludes(csv, "--output");
}

void add_plan(CLI::App& verb, PlanOptions& o) {
  add_config(verb, o.config).first->required();
  CLI::Option* cluster =
      add_path(verb, "--cluster", o.cluster, "FILE",
               "plan for the cluster described in FILE, as in configs/clusters (default: hardware.profile)");
  add_path(verb, "--profile", o.profile, "FILE",
           "plan with the profile measured by `trainer bench all --write-profile`")
      ->excludes(cluster);
  verb.add_option("--devices", o.devices,
                  "plan for N ranks; a list, such as 8,16,32, is compared (default: the profile's, or one node)")
      ->delimiter(',')
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}).description(""));
  add_number(verb, "--top", o.top, 1, "show N layouts");
  verb.add_option("--imbalance", o.imbalance,
                  "assume that the busiest rank's experts receive LOAD times the mean rows (default: 1)")
      ->type_name("LOAD")
      ->check(CLI::Range(1.0, 1024.0).description(""));
  verb.add_option("--free", o.free, "search over this key or section even if it is set; all: the whole layout")
      ->type_name("section.key");
  CLI::Option* emit = add_path(verb, "--emit", o.emit, "OUT.toml", "write the configuration of a layout, ready to run");
  add_number(verb, "--row", o.row, 1, "with --emit: write row N of the table, 1 is the fastest")->needs(emit);
  add_path(verb, "--html", o.html, "OUT.html", "write the ranking as an HTML page with a chart");
  verb.add_flag("--explain", o.explain, "print a breakdown of the time, and what would make the next strategy faster");
  add_json(verb, o.json);
}

void add_verify(CLI::App& verb, VerifyOptions& o) {
  add_config(verb, o.config).first->required();
  verb.add_option("--only", o.only, "run only these checks, such as links or gradients (docs/verify.md lists them)")
      ->delimiter(',')
      ->type_name("CHECK");
  verb.add_flag("--full", o.full, "check the configured model, which one rank must hold, instead of a small one");
  add_number(verb, "--minutes", o.minutes, 1, "repeat the checks of links and devices with new data for N minutes",
             1'000'000);
  add_json(verb, o.json);
}

void add_descriptions(CLI::App& app, CommandLine& line) {
  CLI::App& completion =
      *app.add_subcommand("completion", "print a shell's completion script: source <(trainer completion bash)");
  for (const char* shell : {"bash", "zsh", "fish"})
    add_action(completion, shell, "print the script for this shell").callback([shell] {
      print(completion_script(shell));
    });
  CLI::App& words = add_action(completion, "words", "complete the last of these words");
  words.group("")->add_option("words", line.words, "");
  words.callback([&] { print(completions(app, line.words)); });
  app.add_subcommand("manual", "print the manual page: trainer manual | man -l -")->callback([&] {
    print(manual(app, version()));
  });
}

}  // namespace

void declare(CLI::App& app, CommandLine& line) {
  app.formatter(std::make_shared<Help>());
  CLI::Option* json = app.add_flag("--json")->description("with --version: print one JSON document on stdout");
  json->needs(
      app.set_version_flag("--version,-V", [json] { return json->count() > 0 ? version_json() : version_text(); }));
  app.require_subcommand(0, 1);
  add_train(app, line.bare);
  app.callback([&] {
    if (!app.get_subcommands().empty()) return;
    line.bare.config.requested = facts_of(app);
    line.status = train_command(line.bare);
  });
  const auto verb = [&](const char* name, const char* help, auto& options, auto* command, Ranks ranks) -> CLI::App& {
    return add_verb(app, line, name, help, options, command, ranks);
  };
  add_train(verb("train", "train a model, with evaluation, samples, checkpoints and a report", line.train,
                 train_command, Ranks::all),
            line.train);
  add_config_actions(verb("config", "check a configuration, show its effective values, or print all keys", line.config,
                          config_command, Ranks::first),
                     line.config);
  add_plan(verb("plan", "rank all layouts of a model on a cluster by predicted step time", line.plan, plan_command,
                Ranks::first),
           line.plan);
  add_verify(verb("verify", "check on these machines that the layout computes what one rank computes", line.verify,
                  verify_command, Ranks::all),
             line.verify);
  add_tokenize(verb("tokenize", "turn text into token files", line.tokenize, tokenize_command, Ranks::first),
               line.tokenize);
  add_eval(verb("eval", "evaluate a checkpoint: loss, perplexity, bits per byte, or multiple choice", line.eval,
                eval_command, Ranks::all),
           line.eval);
  add_generate(verb("generate", "generate text from one or more prompts", line.generate, generate_command, Ranks::all),
               line.generate);
  add_checkpoint_actions(verb("checkpoint", "inspect, verify, strip, merge, export or import checkpoints",
                              line.checkpoint, checkpoint_command, Ranks::first),
                         line.checkpoint);
  add_report(verb("report", "regenerate a run's report, compare several runs, or print their steps or samples",
                  line.report, report_command, Ranks::first),
             line.report);
  add_bench(verb("bench", "measure this machine", line.bench, bench_command, Ranks::all), line.bench);
  add_descriptions(app, line);
  // The groups of --help, by what a user wants to do; in the order of the declarations above, which completions use.
  const std::pair<const char*, std::vector<const char*>> groups[] = {
      {"Train a model", {"train", "config", "plan", "verify"}},
      {"Prepare text", {"tokenize"}},
      {"Use a model", {"eval", "generate", "checkpoint"}},
      {"Look at runs and machines", {"report", "bench"}},
      {"Set up the shell", {"completion", "manual"}}};
  for (const auto& [group, verbs] : groups)
    for (const char* name : verbs) app.get_subcommand(name)->group(group);
  for (CLI::App* each : app.get_subcommands({}))
    each->preparse_callback([each](size_t) { refuse_options_before(*each); });
}

}  // namespace trainer::cli
