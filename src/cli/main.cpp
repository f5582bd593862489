// trainer: one binary for everything. `trainer --config X` is `trainer train --config X`.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string_view>

#include "base/error.h"
#include "cli/options.h"
#include "cli/process.h"
#include "cli/ranks.h"

using namespace trainer;

/// Printed if the program is started without arguments.
constexpr std::string_view kFirstSteps =
    R"(trainer pretrains GPT-2, Llama, Mistral and Qwen models, on CPUs and GPUs, on one rank or many.
  quick start     trainer --config configs/quickstart.toml          # a small model in about 4 minutes
  your own text   trainer --config configs/quickstart.toml --set run.name=mine data.train=my.txt
  on N ranks      mpirun -np N --bind-to none trainer --config FILE
  more            trainer --help; trainer VERB --help; trainer config reference (every key)
)";

int main(int argc, char** argv) {
  cli::prepare_process();
  if (argc <= 1) {
    std::fwrite(kFirstSteps.data(), 1, kFirstSteps.size(), stderr);
    return exit_status(Code::usage);
  }
  CLI::App app{
      "Pretrains GPT-style language models. `trainer --config FILE` trains on one rank, `mpirun -np N trainer --config "
      "FILE` on N ranks; the verbs below do everything else.",
      "trainer"};
  app.footer(
      "Results go to stdout, progress and logs to stderr. configs/ has examples; `trainer config reference` lists "
      "every key.\n"
      "Exit status: 0 success, 1 internal error, 2 usage or configuration, 3 does not fit in memory or on the number "
      "of "
      "ranks, 4 data, 5 checkpoint or disk, 6 loss not finite, 7 a rank was lost, 8 a difference was found (verify, "
      "debug.replay_every, debug.check_replicas_every), "
      "75 saved after a signal.");
  app.failure_message(cli::mistake);
  cli::CommandLine line;
  cli::declare(app, line);
  try {
    app.parse(argc, argv);
    return cli::exit_with(line.status);
  } catch (const CLI::Success& done) {  // --help, --version
    const int status = app.exit(done);
    return cli::is_output_complete() ? status : exit_status(Code::io);
  } catch (const CLI::ParseError& error) {
    app.exit(error);
    return exit_status(Code::usage);
  } catch (...) {
    return cli::exit_with(cli::report(std::current_exception(), 0));
  }
}
