#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/inspect.h"
#include "checkpoint/strip.h"
#include "cli/checkpoint_path.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "cli/unknown_word.h"
#include "huggingface/export.h"
#include "huggingface/import.h"

namespace trainer::cli {
namespace {

using nlohmann::json;

void print_result(const CheckpointOptions& o, const json& document, const std::string& text) {
  print(o.json ? document.dump() + "\n" : text);
}

int strip(const CheckpointOptions& o) {
  const checkpoint::Stripped done =
      checkpoint::strip(checkpoint_path("checkpoint strip", o.checkpoint, o.config), o.output);
  print_result(
      o, {{"source", done.source.string()}, {"folder", o.output}, {"tensors", done.tensors}, {"bytes", done.bytes}},
      format("{}: {} tensors, {} bytes of weights from {}\n", o.output, done.tensors, done.bytes,
             done.source.string()));
  return 0;
}

int export_model(const CheckpointOptions& o) {
  const std::string path = checkpoint_path("checkpoint export", o.checkpoint, o.config);
  huggingface::ExportOptions options;
  if (!o.dtype.empty()) options.type = huggingface::find_named(o.dtype).value();  // the parser has checked it
  options.shard_bytes = o.shard_bytes;
  const huggingface::Exported done = huggingface::export_model(path, o.output, options);
  print_result(
      o,
      {{"source", done.source.string()},
       {"folder", o.output},
       {"tensors", done.tensors},
       {"bytes", done.bytes},
       {"files", done.files}},
      format("{}: {} tensors, {} bytes of {} weights in {} from {}\n", o.output, done.tensors, done.bytes,
             torch_name(options.type), done.files.size() == 1 ? "one file" : format("{} files", done.files.size()),
             done.source.string()));
  return 0;
}

int import_model(const CheckpointOptions& o) {
  if (o.input.empty())
    throw Error(Code::usage, "`checkpoint import` needs --input DIR: a folder with config.json and safetensors files");
  const huggingface::Imported done = huggingface::import_model(o.input, o.output);
  print_result(o,
               {{"source", o.input},
                {"folder", o.output},
                {"tensors", done.tensors},
                {"bytes", done.bytes},
                {"parameters", done.parameters},
                {"tokenizer", done.tokenizer}},
               format("{}: {} tensors, {} parameters from {}{}\n", o.output, done.tensors, done.parameters, o.input,
                      done.tokenizer ? "" : ", no tokenizer"));
  return 0;
}

/// Refuses options that do nothing for this action.
void check_options(const CheckpointOptions& o) {
  const bool exports = o.what == "export", imports = o.what == "import",
             writes = exports || imports || o.what == "strip";
  const auto refuse = [&](const char* option, const char* action) {
    throw Error(Code::usage, format("{} goes with {}, not `{}`", option, action, o.what));
  };
  if (!o.output.empty() && !writes) refuse("--output", "`checkpoint strip`, `export` and `import`");
  if (!o.format.empty() && !exports && !imports) refuse("--format", "`checkpoint export` and `import`");
  if (!o.input.empty() && !imports) refuse("--input", "`checkpoint import`");
  if (!o.dtype.empty() && !exports) refuse("--dtype", "`checkpoint export`");
  if (!o.checkpoint.empty() && !o.config.sets.empty()) refuse("--set", "--config FILE");
  if (imports && !(o.checkpoint.empty() && o.config.file.empty()))
    refuse("--checkpoint or --config", "an action that reads a checkpoint");
  if (writes && o.output.empty())
    throw Error(Code::usage,
                format("`checkpoint {}` needs --output DIR: the folder to write, which must not exist", o.what));
  if ((exports || imports) && o.format.empty())
    throw Error(Code::usage,
                format("`checkpoint {}` needs --format hf: the files of Hugging Face's transformers", o.what));
}

}  // namespace

int checkpoint_command(const CheckpointOptions& o) {
  const std::vector<std::string> actions{"inspect", "verify", "strip", "export", "import"};
  if (std::ranges::find(actions, o.what) == actions.end()) throw unknown_word("checkpoint", o.what, actions);
  check_options(o);
  if (o.what == "strip" || o.what == "export" || o.what == "import")
    return run_on_first_rank(
        [&] { return o.what == "strip"    ? strip(o)
                     : o.what == "export" ? export_model(o)
                                          : import_model(o); },
        "works alone");
  const std::string path = checkpoint_path("checkpoint " + o.what, o.checkpoint, o.config);
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
