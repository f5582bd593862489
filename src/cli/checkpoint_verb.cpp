#include <cstdio>
#include <nlohmann/json.hpp>

#include "checkpoint/inspect.h"
#include "cli/cli.h"
#include "cli/later.h"

namespace trainer::cli {

int checkpoint_command(const CheckpointOptions& o) {
  if (o.what == "export" || o.what == "import") throw not_built_yet("checkpoint " + o.what);
  if (o.what != "inspect" && o.what != "verify") throw unknown_word("checkpoint", o.what, "inspect, verify");
  if (o.checkpoint.empty())
    throw Error(
        Code::usage,
        format("`checkpoint {}` needs --checkpoint PATH: a step folder, a checkpoints folder or a run folder", o.what));
  if (o.what == "inspect") {
    const std::string text =
        o.json ? checkpoint::inspect_json(o.checkpoint).dump() + "\n" : checkpoint::inspect_text(o.checkpoint);
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  const checkpoint::VerifyReport report = checkpoint::verify(o.checkpoint);
  const std::string text = o.json ? checkpoint::to_json(report).dump() + "\n" : checkpoint::to_text(report);
  std::fputs(text.c_str(), stdout);
  return report.problems.empty() ? 0 : exit_status(Code::checkpoint);
}

}  // namespace trainer::cli
