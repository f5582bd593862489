#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/inspect.h"
#include "checkpoint/merge.h"
#include "checkpoint/strip.h"
#include "cli/checkpoint_path.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "huggingface/export.h"
#include "huggingface/gguf.h"
#include "huggingface/import.h"
#include "report/printable.h"

namespace trainer::cli {
namespace {

using nlohmann::json;

void print_result(const CheckpointOptions& o, const json& document, const std::string& text) {
  print(o.json ? json_text(document) + "\n" : text);
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

int merge(const CheckpointOptions& o) {
  const std::vector<std::filesystem::path> paths(o.merged.begin(), o.merged.end());
  const checkpoint::Merged done = checkpoint::merge(paths, o.output, o.decay);
  json sources = json::array();
  for (const auto& source : done.sources) sources.push_back(source.string());
  std::string shares;
  for (const double share : done.shares) shares += format("{}{:.3f}", shares.empty() ? ", weighted " : " ", share);
  print_result(o,
               {{"sources", sources},
                {"shares", done.shares},
                {"folder", o.output},
                {"tensors", done.tensors},
                {"bytes", done.bytes}},
               format("{}: {} tensors, {} bytes: the mean of {} checkpoints{}\n", o.output, done.tensors, done.bytes,
                      done.sources.size(), o.decay < 1 ? shares : ""));
  return 0;
}

int export_gguf(const CheckpointOptions& o, const std::string& path) {
  using huggingface::GgufType;
  const GgufType type = o.dtype == "q8_0"   ? GgufType::q8_0
                        : o.dtype == "bf16" ? GgufType::bf16
                        : o.dtype == "fp16" ? GgufType::f16
                                            : GgufType::f32;
  const huggingface::Exported done = huggingface::export_gguf(path, o.output, {type, o.allow_nonfinite});
  print_result(o,
               {{"source", done.source.string()}, {"file", o.output}, {"tensors", done.tensors}, {"bytes", done.bytes}},
               format("{}: {} tensors, {} bytes of {} weights from {}\n", o.output, done.tensors, done.bytes, o.dtype,
                      done.source.string()));
  return 0;
}

int export_model(const CheckpointOptions& o) {
  const std::string path = checkpoint_path("checkpoint export", o.checkpoint, o.config);
  if (o.format == "gguf") return export_gguf(o, path);
  huggingface::ExportOptions options;
  const std::optional<huggingface::FloatType> type = huggingface::find_named(o.dtype);
  if (!type) throw Error(Code::usage, format("--dtype {}: only --format gguf has it; use fp32, bf16 or fp16", o.dtype));
  options.type = *type;
  options.shard_bytes = o.shard_bytes;
  options.allow_nonfinite = o.allow_nonfinite;
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
  const huggingface::Imported done = huggingface::import_model(o.input, o.output, o.seq_len);
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

}  // namespace

int checkpoint_command(const CheckpointOptions& o) {
  if (o.what == "strip") return strip(o);
  if (o.what == "merge") return merge(o);
  if (o.what == "export") return export_model(o);
  if (o.what == "import") return import_model(o);
  const std::string path = checkpoint_path("checkpoint " + o.what, o.checkpoint, o.config);
  if (o.what == "inspect") {
    print(o.json ? json_text(checkpoint::inspect_json(path)) + "\n"
                 : report::printable(checkpoint::inspect_text(path)));
    return 0;
  }
  const checkpoint::VerifyReport report = checkpoint::verify(path);
  print(o.json ? json_text(checkpoint::to_json(report)) + "\n" : report::printable(checkpoint::to_text(report)));
  return report.problems.empty() ? 0 : exit_status(Code::checkpoint);
}

}  // namespace trainer::cli
