#pragma once
// The verbs with their options and the texts of --help.
#include "cli/cli.h"

namespace CLI {
class App;
class Error;
}  // namespace CLI

namespace trainer::cli {

/// Parsing fills in the options of the given verb, runs it and stores its exit status.
struct CommandLine {
  TrainOptions bare, train;  // without a verb, and with one
  EvalOptions eval;
  GenerateOptions generate;
  TokenizeOptions tokenize;
  BenchOptions bench;
  CheckpointOptions checkpoint;
  ConfigVerbOptions config;
  ReportOptions report;
  PlanOptions plan;
  VerifyOptions verify;
  std::vector<std::string> words;  // the words to complete
  int status = 0;
};

/// Adds all verbs and options to `app`. `line` must outlive `app`.
void declare(CLI::App& app, CommandLine& line);

/// Returns the message for a parse error: the unknown word, the closest known word, and how to get help.
std::string mistake(const CLI::App* app, const CLI::Error& error);

}  // namespace trainer::cli
