#include "checkpoint/inspect.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/units.h"
#include "checkpoint/folder.h"
#include "checkpoint/reader.h"
#include "checkpoint/shard.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

int64_t parameters_of(const Manifest& manifest) {
  int64_t count = 0;
  for (const StoredTensor& tensor : manifest.tensors) {
    if (is_weight(tensor.name)) count += tensor.shape.count();
  }
  return count;
}

/// Returns the step folder to verify, complete or not.
fs::path folder_to_verify(const fs::path& path) {
  std::error_code error;
  for (const fs::path& checkpoints : {path / "checkpoints", path, path.parent_path()}) {
    if (checkpoints == path.parent_path() && path.filename() != kLatestFile) continue;
    const std::string latest = read_latest(checkpoints);
    if (!latest.empty() && fs::is_directory(checkpoints / latest, error)) return checkpoints / latest;
  }
  // An unfinished step folder has neither manifest nor COMPLETE, but is a folder with a step's name.
  if (fs::is_directory(path, error) && path.filename().string().starts_with("step-")) return path;
  return resolve(path);
}

}  // namespace

json inspect_json(const fs::path& path) {
  const fs::path folder = resolve(path);
  const Manifest manifest = read_manifest(folder);
  const Snapshot& header = manifest.header;
  json tensors = json::array(), files = json::array();
  for (const StoredTensor& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"dtype", name_of(tensor.dtype)},
                       {"shape", tensor.shape.extents()},
                       {"bytes", tensor.bytes()}});
  }
  for (const auto* list : {&manifest.files, &manifest.shards}) {
    for (const StoredFile& file : *list) files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  }
  json model = json::object();
  for (const auto& [key, value] : header.model_keys) {
    const json typed = parse_json(value);
    model[key] = typed.is_primitive() && !typed.is_discarded() ? typed : json(value);
  }
  json info = {{"folder", folder.string()},
               {"format", kFormat},
               {"saved_unix_us", manifest.sequence},
               {"compute", header.compute},
               {"optimizer", header.optimizer},
               {"tied", header.tied},
               {"tokenizer_hash", header.tokenizer_hash},
               {"data_hash", header.data_hash},
               {"gemm_tuning_hash", header.gemm_tuning_hash},
               {"model", model},
               {"parameters", parameters_of(manifest)},
               {"bytes", manifest.tensor_bytes()},
               {"files", files},
               {"tensors", tensors}};
  if (header.bos >= 0) info["bos"] = header.bos;
  if (json special = special_tokens_json(header); !special.is_null()) info["special_tokens"] = std::move(special);
  for (const MergedSource& source : header.merged_from)
    info["merged_from"].push_back({{"folder", source.folder}, {"step", source.step}});
  if (!header.mixture.phases.empty()) info["mixture"] = to_json(header.mixture);
  info.update(to_json(header.state));
  return info;
}

std::string inspect_text(const fs::path& path) {
  const json info = inspect_json(path);
  const auto text_of = [](const json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); };
  std::string out = info["folder"].get<std::string>() + "\n";
  for (const char* key : {"step", "adam_step", "samples_seen", "tokens_seen", "best_val_loss", "best_step",
                          "proven_step", "loss", "skipped_in_row", "finite_weights", "compute", "optimizer", "tied",
                          "parameters", "tokenizer_hash", "data_hash", "gemm_tuning_hash"}) {
    out += format("  {:<16} {}\n", key, text_of(info[key]));
  }
  if (info.contains("special_tokens"))
    for (const auto& [name, id] : info["special_tokens"].items()) out += format("  {:<16} {}\n", name, id.dump());
  if (info.contains("merged_from"))
    for (const json& source : info["merged_from"])
      out += format("  {:<16} {}, step {}\n", "merged_from", text_of(source["folder"]), source["step"].dump());
  out += format("  {:<16} {}\n", "size", format_bytes(info["bytes"].get<int64_t>()));
  if (info.contains("mixture")) {
    for (const json& phase : info["mixture"]["phases"])
      out += format("  {:<16} from sample {}: slots {}, samples before {}\n", "mixture", phase["first_sample"].dump(),
                    phase["slots"].dump(), phase["start"].dump());
  }
  // In the syntax of a configuration, so that a run can be initialized from the checkpoint (model.init_from).
  out += "configuration of the model\n[model]\n";
  for (const auto& [key, value] : info["model"].items())
    if (key != "vocab_size") out += format("{} = {}\n", key, value.dump());
  if (info["model"].contains("vocab_size"))
    out += format("[data]\nvocab_size = {}\n", info["model"]["vocab_size"].dump());
  out += format("tensors ({})\n", info["tensors"].size());
  size_t width = 0;
  for (const json& tensor : info["tensors"])
    width = std::max(width, tensor["name"].get_ref<const std::string&>().size());
  for (const json& tensor : info["tensors"]) {
    out += format("  {:<{}}  {}  {:>10}  {}\n", text_of(tensor["name"]), width, text_of(tensor["dtype"]),
                  format_bytes(tensor["bytes"].get<int64_t>()), tensor["shape"].dump());
  }
  return out;
}

VerifyReport verify(const fs::path& path) {
  VerifyReport report{folder_to_verify(path), 0, 0, {}};
  const auto guarded = [&](auto&& check) {
    try {
      check();
    } catch (const Error& error) {
      report.problems.push_back(error.what());
    }
  };
  const auto note = [&](const std::string& problem) { report.problems.push_back(problem); };
  guarded([&] {
    const Manifest manifest = read_manifest(report.folder);
    std::set<std::string> known{kManifestFile, kCompleteFile};
    for (const StoredFile& shard : manifest.shards) known.insert(shard.name);
    for (const StoredFile& file : manifest.files) {
      known.insert(file.name);
      guarded([&] {
        if (checksum_of(read_file(report.folder / file.name, file.bytes)) != file.checksum) {
          note(format("{}: the checksum differs from the manifest's", (report.folder / file.name).string()));
        }
      });
    }
    for (const std::string& name : names_in(report.folder)) {
      if (!known.contains(name)) note(format("{}: unexpected file", (report.folder / name).string()));
    }
    ShardReader reader(report.folder, manifest);
    for (const StoredTensor& tensor : manifest.tensors) guarded([&] { reader.verify(tensor, note); });
    guarded([&] { reader.verify_padding(note); });
    report.tensors = static_cast<int64_t>(manifest.tensors.size());
    report.bytes = manifest.tensor_bytes();
  });
  return report;
}

std::string to_text(const VerifyReport& report) {
  std::string out =
      format("{}: {} tensors, {}: {}\n", report.folder.string(), report.tensors, format_bytes(report.bytes),
             report.problems.empty() ? "whole" : counted(report.problems.size(), "problem"));
  for (const std::string& problem : report.problems) out += "  " + problem + "\n";
  return out;
}

json to_json(const VerifyReport& report) {
  return {{"folder", report.folder.string()},
          {"whole", report.problems.empty()},
          {"tensors", report.tensors},
          {"bytes", report.bytes},
          {"problems", report.problems}};
}

}  // namespace trainer::checkpoint
