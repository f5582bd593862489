#pragma once
// The options of every verb, declared with the words of --help. Parsing fills them in; they outlive the parser.
#include "cli/cli.h"

namespace CLI {
class App;
}

namespace trainer::cli {

/// Adds the options of `train` to a command: the verb, or the program without a verb.
void declare_train(CLI::App& command, TrainOptions& options);
/// Each adds a verb to the program and returns it.
CLI::App& declare_eval(CLI::App& app, EvalOptions& options);
CLI::App& declare_generate(CLI::App& app, GenerateOptions& options);
CLI::App& declare_tokenize(CLI::App& app, TokenizeOptions& options);
CLI::App& declare_bench(CLI::App& app, BenchOptions& options);
CLI::App& declare_checkpoint(CLI::App& app, CheckpointOptions& options);
CLI::App& declare_config(CLI::App& app, ConfigVerbOptions& options);
CLI::App& declare_report(CLI::App& app, ReportOptions& options);
CLI::App& declare_plan(CLI::App& app, PlanOptions& options);

}  // namespace trainer::cli
