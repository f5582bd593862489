// trainer: one binary for everything. `trainer --config X` is `trainer train --config X`.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>

#include "base/error.h"
#include "cli/arguments.h"
#include "cli/cli.h"
#include "cli/command_text.h"
#include "cli/options.h"
#include "cli/process.h"
#include "cli/ranks.h"

using namespace trainer;

constexpr const char* kAnswers = "answers for all";

int main(int argc, char** argv) {
  cli::prepare_process();
  CLI::App app{
      "Pretrains GPT-style language models. `trainer --config FILE` trains, `mpirun -np N trainer --config FILE` on N "
      "ranks; the verbs below do the rest.",
      "trainer"};
  app.set_version_flag("--version,-V", [] { return cli::version_text(); });
  app.require_subcommand(0, 1);
  app.footer(
      "Results go to stdout, progress and logs to stderr. configs/ has examples; `trainer config reference` lists "
      "every key.\n"
      "Exit status: 0 done, 1 a bug, 2 usage or configuration, 3 does not fit into memory or onto the ranks, 4 data, "
      "5 checkpoint or disk, 6 loss not finite, 7 a rank was lost, 75 saved after a signal.");
  app.failure_message([](const CLI::App* a, const CLI::Error& error) {
    const std::vector<CLI::App*> verb = a->get_subcommands();
    const std::string what = error.what();
    return format("trainer: {}{}\nrun `trainer {}--help` for what it takes\n", what,
                  what.ends_with(".toml") ? "; a configuration is given as --config FILE" : "",
                  verb.empty() ? "" : verb.front()->get_name() + " ");
  });

  cli::TrainOptions bare, train;
  cli::declare_train(app, bare);
  CLI::App& train_verb =
      *app.add_subcommand("train", "train a model: tokenizer, training, evaluation, samples, checkpoints, report");
  cli::declare_train(train_verb, train);

  cli::EvalOptions eval;
  CLI::App& eval_verb = cli::declare_eval(app, eval);
  cli::GenerateOptions generate;
  CLI::App& generate_verb = cli::declare_generate(app, generate);
  cli::TokenizeOptions tokenize;
  CLI::App& tokenize_verb = cli::declare_tokenize(app, tokenize);
  cli::BenchOptions bench;
  CLI::App& bench_verb = cli::declare_bench(app, bench);
  cli::CheckpointOptions checkpoint;
  CLI::App& checkpoint_verb = cli::declare_checkpoint(app, checkpoint);
  cli::ConfigVerbOptions config;
  CLI::App& config_verb = cli::declare_config(app, config);
  cli::ReportOptions report;
  CLI::App& report_verb = cli::declare_report(app, report);

  std::string shell;
  CLI::App& completion_verb = *app.add_subcommand(
      "completion", "print what completes these words in a shell: source <(trainer completion bash)");
  completion_verb.add_option("shell", shell, "bash | zsh | fish")->required();
  CLI::App& manual_verb = *app.add_subcommand("manual", "print the manual page: trainer manual | man -l -");

  cli::PlanOptions plan;
  CLI::App& plan_verb = cli::declare_plan(app, plan);

  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands({})) verbs.push_back(verb->get_name());
  try {
    std::vector<std::string> words =
        cli::arguments(argc, argv, verbs, {"--config", "-c", "--set", "-s", "--resume", "--max-steps", "--max-time"});
    std::ranges::reverse(words);  // the parser takes words in reverse order
    app.parse(std::move(words));
  } catch (const CLI::Success& done) {  // --help, --version
    const int status = app.exit(done);
    return cli::is_output_complete() ? status : exit_status(Code::io);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return exit_status(Code::usage);
  } catch (...) {  // --version also checks the environment's settings
    return cli::report(std::current_exception(), 0);
  }
  try {
    if (train_verb.parsed()) return cli::train_command(train);
    if (eval_verb.parsed()) return cli::eval_command(eval);
    if (generate_verb.parsed()) {
      generate.prompt_given = generate_verb.get_option("--prompt")->count() > 0 || !generate.prompt_file.empty();
      return cli::generate_command(generate);
    }
    if (tokenize_verb.parsed()) return cli::tokenize_command(tokenize);
    if (bench_verb.parsed()) return cli::bench_command(bench);
    if (checkpoint_verb.parsed()) return cli::checkpoint_command(checkpoint);
    if (config_verb.parsed()) return cli::run_on_first_rank([&] { return cli::config_command(config); }, kAnswers);
    if (completion_verb.parsed()) {
      cli::print(cli::completion(cli::describe(app), shell));
      return 0;
    }
    if (manual_verb.parsed()) {
      cli::print(cli::manual(cli::describe(app), cli::version()));
      return 0;
    }
    if (report_verb.parsed()) return cli::run_on_first_rank([&] { return cli::report_command(report); }, kAnswers);
    if (plan_verb.parsed()) return cli::run_on_first_rank([&] { return cli::plan_command(plan); }, kAnswers);
    return cli::train_command(bare);
  } catch (...) {
    return cli::report(std::current_exception(), 0);
  }
}
