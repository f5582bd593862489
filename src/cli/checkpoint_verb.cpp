#include <nlohmann/json.hpp>

#include "checkpoint/inspect.h"
#include "checkpoint/strip.h"
#include "cli/checkpoint_path.h"
#include "cli/cli.h"
#include "cli/later.h"
#include "cli/process.h"

namespace trainer::cli {

int checkpoint_command(const CheckpointOptions& o) {
  if (o.what == "export" || o.what == "import") throw not_built_yet("checkpoint " + o.what);
  if (o.what != "inspect" && o.what != "verify" && o.what != "strip")
    throw unknown_word("checkpoint", o.what, {"inspect", "verify", "strip"});
  if ((o.what == "strip") == o.output.empty())
    throw Error(Code::usage, o.output.empty()
                                 ? "`checkpoint strip` needs --output DIR: the folder to write, which must not exist"
                                 : format("--output goes with `checkpoint strip`, not `{}`", o.what));
  const std::string path = checkpoint_path("checkpoint " + o.what, o.checkpoint, o.config);
  if (o.what == "strip") {
    const checkpoint::Stripped done = checkpoint::strip(path, o.output);
    const nlohmann::json document{
        {"source", done.source.string()}, {"folder", o.output}, {"tensors", done.tensors}, {"bytes", done.bytes}};
    print(o.json ? document.dump() + "\n"
                 : format("{}: {} tensors, {} bytes of weights from {}\n", o.output, done.tensors, done.bytes,
                          done.source.string()));
    return 0;
  }
  if (o.what == "inspect") {
    const std::string text = o.json ? checkpoint::inspect_json(path).dump() + "\n" : checkpoint::inspect_text(path);
    print(text);
    return 0;
  }
  const checkpoint::VerifyReport report = checkpoint::verify(path);
  const std::string text = o.json ? checkpoint::to_json(report).dump() + "\n" : checkpoint::to_text(report);
  print(text);
  return report.problems.empty() ? 0 : exit_status(Code::checkpoint);
}

}  // namespace trainer::cli
