#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>

#include "base/files.h"
#include "base/format.h"

namespace trainer::cli {
namespace {

/// Expands "~/x" in paths, which shells leave unchanged inside a word (--config=~/x).
CLI::Validator home_path() {
  return CLI::Validator(
      [](std::string& path) {
        path = expand_home(path);
        return std::string();
      },
      "");
}

void add_config(CLI::App& app, ConfigOptions& options, bool required) {
  CLI::Option* file =
      app.add_option("--config,-c", options.file, "configuration (TOML); see `trainer config reference`")
          ->type_name("FILE")
          ->transform(home_path());
  if (required) file->required();
  app.add_option("--set,-s", options.sets, "override keys of the configuration: several words, or repeated")
      ->type_name("section.key=value")
      ->allow_extra_args(false);
}

/// Accepts whole numbers from `least` to `most`.
CLI::Validator at_least(int64_t least, int64_t most = std::numeric_limits<int64_t>::max()) {
  const auto mistake = [least, most](const std::string& text) -> std::string {
    int64_t number = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    const bool whole = error == std::errc{} && stop == end;
    if (whole && number >= least && number <= most) return {};
    if ((whole && number > most) || (error == std::errc::result_out_of_range && stop == end && text.front() != '-'))
      return format("{} is too large a number: at most {}", text, most);
    return format("{} is not a whole number of at least {}", text, least);
  };
  return CLI::Validator(mistake, "");
}

CLI::Validator not_empty(const char* expected) {
  return CLI::Validator(
      [=](const std::string& text) { return text.empty() ? format("expected {}, found nothing", expected) : ""; }, "");
}

constexpr const char* kWholeCheckpoint = "a step folder, or the newest whole one of a checkpoints or run folder";

constexpr const char* kOrConfig = "; or --config: the newest of that run";

void add_json(CLI::App& app, bool& json) { app.add_flag("--json", json, "print one JSON document on stdout"); }

}  // namespace

void declare_train(CLI::App& app, TrainOptions& o) {
  add_config(app, o.config, false);
  app.add_option(
         "--resume", o.config.resume,
         "the checkpoint to resume from; auto: the newest that is whole, if there is any (overrides checkpoint.resume)")
      ->type_name("auto|must|never|PATH")
      ->check(not_empty("auto, must, never or a path"));
  app.add_option("--max-steps", o.max_steps, "save and stop after N further steps")->type_name("N")->check(at_least(1));
  app.add_option("--max-time", o.max_time,
                 "save and stop this long after the start, tokenizing included, once the current step is done; exit "
                 "status 0: 23h50m, 90s, 3600")
      ->type_name("TIME")
      ->check(not_empty("a time such as 23h50m"));
  app.add_flag("--dry-run", o.dry_run, "print memory, FLOPs and communication of the run, and stop");
}

CLI::App& declare_eval(CLI::App& app, EvalOptions& eval) {
  CLI::App& eval_verb = *app.add_subcommand(
      "eval", "loss, perplexity and bits per byte of a checkpoint on held-out text, or multiple choice");
  add_config(eval_verb, eval.config, false);
  eval_verb.add_option("--checkpoint", eval.checkpoint, std::string(kWholeCheckpoint) + kOrConfig)
      ->type_name("PATH")
      ->transform(home_path());
  eval_verb.add_option("--data", eval.data, "files to evaluate on (default: the validation data of the run)")
      ->type_name("FILES")
      ->transform(home_path());
  eval_verb.add_option("--format", eval.format, "what FILES hold; auto: told by their extensions")
      ->check(CLI::IsMember({"auto", "text", "jsonl", "tokens"}))
      ->capture_default_str();
  eval_verb.add_option("--batches", eval.batches, "groups of train.global_batch windows; 0: all")->check(at_least(0));
  eval_verb
      .add_option("--stride", eval.stride,
                  "windows slide by N tokens, at most model.seq_len: every token is predicted once, from as much "
                  "context as they leave it; without it windows follow each other, and an incomplete last one is left "
                  "out")
      ->type_name("N")
      ->check(at_least(1));
  CLI::Option* choices =
      eval_verb
          .add_option("--choices", eval.choices,
                      "instead of the loss, answer questions: HellaSwag's JSON lines (ctx, endings, label) or llm.c's "
                      ".bin of them")
          ->type_name("FILES")
          ->transform(home_path())
          ->excludes("--data", "--stride", "--batches");
  eval_verb.add_option("--questions", eval.questions, "with --choices: answer the first N alone")
      ->type_name("N")
      ->check(at_least(1))
      ->needs(choices);
  add_json(eval_verb, eval.json);
  return eval_verb;
}

CLI::App& declare_generate(CLI::App& app, GenerateOptions& generate) {
  CLI::App& generate_verb = *app.add_subcommand("generate", "continue a text, or many of them");
  add_config(generate_verb, generate.config, false);
  generate_verb.add_option("--checkpoint", generate.checkpoint, std::string(kWholeCheckpoint) + kOrConfig)
      ->type_name("PATH")
      ->transform(home_path());
  CLI::Option* prompt = generate_verb.add_option(
      "--prompt", generate.prompt, "text to continue, - for standard input; a space at its end begins the next word");
  generate_verb.add_option("--prompt-file", generate.prompt_file, "file with the text to continue")
      ->type_name("FILE")
      ->transform(home_path())
      ->excludes(prompt);
  CLI::Option* prompts =
      generate_verb
          .add_option(
              "--prompts", generate.prompts,
              "JSON lines with a \"prompt\" each: every line is written again, with \"text\" and \"tokens\" of its "
              "continuation")
          ->type_name("FILE")
          ->transform(home_path())
          ->excludes(prompt, "--prompt-file");
  generate_verb.add_option("--output", generate.output, "with --prompts: file to write instead of standard output")
      ->type_name("FILE")
      ->transform(home_path())
      ->needs(prompts);
  generate_verb.add_option("--tokens", generate.tokens, "tokens to generate at most")
      ->check(at_least(1))
      ->capture_default_str();
  generate_verb.add_option("--samples", generate.samples, "continuations, each with the next seed")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  generate_verb.add_option("--stop", generate.stop, "end before this text")
      ->type_name("TEXT")
      ->check(not_empty("a text"));
  generate_verb.add_option("--temperature", generate.temperature, "0: always the likeliest token")
      ->capture_default_str();
  generate_verb.add_option("--top-k", generate.top_k, "draw among the k likeliest tokens; 0: all")
      ->check(at_least(0))
      ->capture_default_str();
  generate_verb.add_option("--top-p", generate.top_p, "draw among the likeliest tokens that hold this probability")
      ->capture_default_str();
  generate_verb.add_option("--seed", generate.seed, "the same seed gives the same text")
      ->check(at_least(0))
      ->capture_default_str();
  add_json(generate_verb, generate.json);
  return generate_verb;
}

CLI::App& declare_tokenize(CLI::App& app, TokenizeOptions& tokenize) {
  CLI::App& tokenize_verb = *app.add_subcommand("tokenize", "turn text into token files");
  tokenize_verb
      .add_option("--input", tokenize.input, "text (.txt, .text, .md) or JSON lines (.jsonl, .ndjson), globs allowed")
      ->type_name("FILES")
      ->transform(home_path())
      ->required();
  tokenize_verb.add_option("--output", tokenize.output, "folder for tokens, document index and tokenizer")
      ->type_name("DIR")
      ->transform(home_path())
      ->required();
  CLI::Option* given = tokenize_verb
                           .add_option("--tokenizer", tokenize.tokenizer,
                                       "tokenizer to use: a file or folder, as data.tokenizer takes it")
                           ->type_name("PATH")
                           ->transform(home_path());
  tokenize_verb.add_option("--train-vocab", tokenize.train_vocab, "train a tokenizer of so many pieces on the input")
      ->type_name("N")
      ->check(at_least(1))
      ->excludes(given);
  tokenize_verb.add_option("--text-key", tokenize.text_key, "key of the text in JSON lines")->capture_default_str();
  tokenize_verb.add_option("--format", tokenize.format, "what the files hold; auto: told by their extensions")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}))
      ->capture_default_str();
  tokenize_verb
      .add_option("--document", tokenize.document, "a document is a file, a line, or a block between empty lines")
      ->check(CLI::IsMember({"file", "line", "block"}))
      ->capture_default_str();
  tokenize_verb.add_flag("--strict", tokenize.strict, "bad UTF-8 is an error instead of being replaced and counted");
  add_json(tokenize_verb, tokenize.json);
  return tokenize_verb;
}

CLI::App& declare_bench(CLI::App& app, BenchOptions& bench) {
  CLI::App& bench_verb = *app.add_subcommand(
      "bench",
      "measure this machine: its peak, products, attention, other operators, offload, whole steps, memory, "
      "collectives");
  bench_verb
      .add_option("benchmark", bench.what,
                  "peak | gemm | attention | elementwise | optimizer | offload | step | memory | collectives | all")
      ->required();
  add_config(bench_verb, bench.config, false);
  bench_verb.add_option("--compute", bench.compute, "fp32, bf16 or fp64")
      ->check(CLI::IsMember({"fp32", "bf16", "fp64"}));
  bench_verb.add_option("--threads", bench.threads, "threads; 0: as many as the machine gives")
      ->check(at_least(0, 4096));  // as run.threads: taking all threads of the system would starve other programs
  bench_verb.add_option("--warmup", bench.warmup, "repetitions that are not timed")
      ->check(at_least(0))
      ->capture_default_str();
  bench_verb.add_option("--repeats", bench.repeats, "timed repetitions")->check(at_least(1))->capture_default_str();
  bench_verb
      .add_option(
          "--write-tuning", bench.write_tuning,
          "gemm: instead, find the fastest algorithm for each product of the configuration on this GPU, with an "
          "operand transposed first where that gains, and write the table to FILE (hardware.gemm_tuning)")
      ->type_name("FILE")
      ->transform(home_path());
  bench_verb
      .add_option("--write-profile", bench.write_profile,
                  "all: instead, measure what `trainer plan --profile` predicts from, in about a minute, and write it "
                  "to FILE; under mpirun for the ranks of the job")
      ->type_name("FILE")
      ->transform(home_path());
  bench_verb
      .add_option("--shape", bench.shapes,
                  "gemm: token rows m and a weight [k, n], instead of the configuration's layers")
      ->delimiter(',')
      ->type_name("M,K,N")
      ->check(at_least(1));
  bench_verb
      .add_option(
          "--size", bench.size,
          "elementwise, optimizer: bytes of an operand, 0: far beyond caches; offload: parameters of a rank, 0: 3.8e9")
      ->check(at_least(0));
  bench_verb.add_flag("--dry-run", bench.dry_run,
                      "step: count the FLOPs and bytes of every kind of operator, without computing");
  add_json(bench_verb, bench.json);
  return bench_verb;
}

CLI::App& declare_checkpoint(CLI::App& app, CheckpointOptions& checkpoint) {
  CLI::App& checkpoint_verb = *app.add_subcommand(
      "checkpoint",
      "look into a checkpoint, check every byte of it, write one that has its weights only, or exchange models with "
      "Hugging Face's transformers");
  checkpoint_verb.add_option("action", checkpoint.what, "inspect | verify | strip | export | import")->required();
  add_config(checkpoint_verb, checkpoint.config, false);
  checkpoint_verb
      .add_option("--checkpoint", checkpoint.checkpoint,
                  std::string("a step folder, or the newest of a checkpoints or run folder") + kOrConfig)
      ->type_name("PATH")
      ->transform(home_path());
  checkpoint_verb
      .add_option("--output", checkpoint.output, "strip, export, import: the folder to write, which must not exist")
      ->type_name("DIR")
      ->transform(home_path());
  checkpoint_verb.add_option("--format", checkpoint.format, "export, import: the files of Hugging Face's transformers")
      ->check(CLI::IsMember({"hf"}));
  checkpoint_verb.add_option("--input", checkpoint.input, "import: the folder with config.json and model.safetensors")
      ->type_name("DIR")
      ->transform(home_path());
  checkpoint_verb.add_option("--dtype", checkpoint.dtype, "export: the type of the weights (default: fp32)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  checkpoint_verb.add_option("--shard-bytes", checkpoint.shard_bytes, "export: bytes of weights in one file at most")
      ->check(at_least(1))
      ->capture_default_str();
  add_json(checkpoint_verb, checkpoint.json);
  return checkpoint_verb;
}

CLI::App& declare_config(CLI::App& app, ConfigVerbOptions& config) {
  CLI::App& config_verb =
      *app.add_subcommand("config", "check a configuration, show the values in force, or print every key");
  config_verb.add_option("action", config.what, "check | show | reference")->required();
  add_config(config_verb, config.config, false);
  config_verb
      .add_option("--ranks", config.ranks, "check or show it as on so many ranks (default: any number that suits it)")
      ->type_name("N")
      ->check(at_least(1));
  return config_verb;
}

CLI::App& declare_report(CLI::App& app, ReportOptions& report) {
  CLI::App& report_verb = *app.add_subcommand(
      "report", "make the report of a run anew, compare several runs on one page, or print their steps");
  report_verb.add_option("runs", report.runs, "folders of runs (run.dir)")
      ->type_name("RUN")
      ->transform(home_path())
      ->required();
  report_verb.add_flag("--csv", report.csv, "print every step with all its numbers as CSV, instead");
  report_verb
      .add_option("--output", report.output,
                  "file for the comparison (default: comparison.html) or for --csv (default: standard output)")
      ->type_name("FILE")
      ->transform(home_path());
  return report_verb;
}

CLI::App& declare_plan(CLI::App& app, PlanOptions& plan) {
  CLI::App& plan_verb = *app.add_subcommand(
      "plan", "predict every layout of a model on a cluster and rank them: time of a step, memory, bytes");
  add_config(plan_verb, plan.config, true);
  CLI::Option* cluster =
      plan_verb.add_option("--cluster", plan.cluster, "description of a cluster; configs/clusters has some")
          ->type_name("FILE")
          ->transform(home_path());
  plan_verb.add_option("--profile", plan.profile, "measured profile, which `trainer bench all --write-profile` writes")
      ->type_name("FILE")
      ->transform(home_path())
      ->excludes(cluster);
  plan_verb.add_option("--devices", plan.devices, "ranks to plan for (default: those of the profile, or of one node)")
      ->type_name("N")
      ->check(at_least(1, 1'000'000));
  plan_verb.add_option("--top", plan.top, "layouts to show")->type_name("K")->check(at_least(1))->capture_default_str();
  plan_verb
      .add_option("--free", plan.free,
                  "search this key although the configuration gives it, or every key of a section; all: the whole "
                  "layout with train.micro_batch and train.recompute")
      ->type_name("section.key");
  plan_verb.add_option("--emit", plan.emit, "write the configuration of the fastest layout, ready to run")
      ->type_name("OUT.toml")
      ->transform(home_path());
  plan_verb.add_option("--html", plan.html, "write the ranking as a page with a picture")
      ->type_name("OUT.html")
      ->transform(home_path());
  plan_verb.add_flag("--explain", plan.explain,
                     "where the time goes, what binds it, and what would make the next strategy win");
  add_json(plan_verb, plan.json);
  return plan_verb;
}

}  // namespace trainer::cli
