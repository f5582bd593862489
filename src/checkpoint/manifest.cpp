#include "checkpoint/manifest.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/json.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;
using nlohmann::json;

std::vector<RunGroup> group_runs(std::vector<mesh::Run> runs) {
  std::sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.global < b.global; });
  std::vector<RunGroup> joined;
  for (const mesh::Run& run : runs) {
    if (!joined.empty() && joined.back().global + joined.back().length == run.global) {
      joined.back().length += run.length;
    } else {
      joined.push_back({run.global, run.length, run.length, 1});
    }
  }
  std::vector<RunGroup> groups;
  for (const RunGroup& next : joined) {
    if (!groups.empty() && groups.back().length == next.length) {
      RunGroup& last = groups.back();
      const int64_t distance = next.global - last.global;
      if (last.count == 1 || distance == last.count * last.stride) {
        if (last.count++ == 1) last.stride = distance;
        continue;
      }
    }
    groups.push_back(next);
  }
  return groups;
}

int64_t StoredPart::elements() const {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t sum, const RunGroup& group) { return sum + group.elements(); });
}

const StoredFile* Manifest::file(std::string_view name) const {
  const auto found = std::find_if(files.begin(), files.end(), [&](const StoredFile& f) { return f.name == name; });
  return found == files.end() ? nullptr : &*found;
}

int64_t Manifest::tensor_bytes() const {
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                         [](int64_t sum, const StoredTensor& tensor) { return sum + tensor.bytes(); });
}

namespace {

void write_pieces(json& root, const Manifest& manifest) {
  root["shards"] = root["tensors"] = json::array();
  for (const StoredFile& shard : manifest.shards) {
    root["shards"].push_back({{"name", shard.name}, {"bytes", shard.bytes}});
  }
  for (const StoredTensor& tensor : manifest.tensors) {
    json pieces = json::array();
    for (const StoredPart& piece : tensor.pieces) {
      json runs = json::array(), chunks = json::array();
      for (const RunGroup& group : piece.runs) {
        runs.push_back(group.count == 1 ? json{group.global, group.length}
                                        : json{group.global, group.length, group.stride, group.count});
      }
      for (const Checksum& chunk : piece.chunks) chunks.push_back(to_string(chunk));
      pieces.push_back({{"shard", piece.shard}, {"offset", piece.offset}, {"runs", runs}, {"xxh3", chunks}});
    }
    root["tensors"].push_back({{"name", tensor.name},
                               {"dtype", name_of(tensor.dtype)},
                               {"shape", tensor.shape.extents()},
                               {"pieces", pieces}});
  }
}

}  // namespace

std::string part_to_json(const Manifest& part) {
  json root = json::object();
  write_pieces(root, part);
  return root.dump();
}

void merge_part(Manifest& manifest, const Manifest& part) {
  const auto first_shard = static_cast<int64_t>(manifest.shards.size());
  manifest.shards.insert(manifest.shards.end(), part.shards.begin(), part.shards.end());
  // The map copies the names, since the vector of tensors is reallocated as it grows.
  std::map<std::string, size_t, std::less<>> places;
  for (size_t i = 0; i < manifest.tensors.size(); ++i) places[manifest.tensors[i].name] = i;
  for (StoredTensor tensor : part.tensors) {
    for (StoredPart& piece : tensor.pieces) piece.shard += first_shard;
    const auto place = places.find(tensor.name);
    if (place == places.end()) {
      places[tensor.name] = manifest.tensors.size();
      manifest.tensors.push_back(std::move(tensor));
      continue;
    }
    StoredTensor& known = manifest.tensors[place->second];
    TRAINER_CHECK(known.dtype == tensor.dtype && known.shape == tensor.shape, "{}: {} {} and {} {}", tensor.name,
                  name_of(known.dtype), to_string(known.shape), name_of(tensor.dtype), to_string(tensor.shape));
    known.pieces.insert(known.pieces.end(), tensor.pieces.begin(), tensor.pieces.end());
  }
}

json to_json(const TrainState& state) {
  const auto number = [](double value) { return std::isfinite(value) ? json(value) : json(); };
  json out = {{"step", state.step},
              {"adam_step", state.adam_step},
              {"samples_seen", state.samples_seen},
              {"tokens_seen", state.tokens_seen},
              {"best_val_loss", number(state.best_val_loss)},
              {"best_step", state.best_step},
              {"best_set", state.best_set},
              {"best_data", state.best_data},
              {"proven_step", state.proven_step},
              {"loss", number(state.loss)},
              {"val_loss", number(state.val_loss)},
              {"origin", state.origin},
              {"skipped_in_row", state.skipped_in_row},
              {"finite_weights", state.finite_weights},
              {"history", {{"losses", state.losses}, {"norms", state.norms}}}};
  if (state.verified_step >= 0) out["verified_step"] = state.verified_step;
  return out;
}

json special_tokens_json(const Snapshot& header) {
  const data::SpecialTokens& special = header.special;
  if (header.bos < 0 && special.empty()) return {};
  json out = {{"add_bos", header.bos >= 0}};
  const auto add = [&](const char* name, std::optional<int32_t> id) {
    if (id) out[name] = *id;
  };
  add("bos", header.bos >= 0 ? header.bos : special.bos);
  add("pad", special.pad);
  add("unk", special.unk);
  if (!special.eos.empty()) out["eos"] = special.eos;
  if (special.add_eos) out["add_eos"] = true;
  add("text_end", special.text_end);
  if (!special.chat_format.empty()) out["chat_format"] = special.chat_format;
  for (const auto& [file, fields] : special.fields) out["fields"][file] = parse_json(fields);
  return out;
}

json to_json(const MixtureState& mixture) {
  json phases = json::array(), sources = json::object();
  for (const data::MixturePhase& phase : mixture.phases)
    phases.push_back({{"first_sample", phase.first_sample}, {"slots", phase.slots}, {"start", phase.start}});
  for (const auto& [name, source] : mixture.sources)
    sources[name] = {{"windows", source.windows}, {"hash", source.hash}};
  return {{"parts", data::kMixtureSlots}, {"phases", phases}, {"sources", sources}};
}

std::string to_json(const Manifest& manifest) {
  const Snapshot& header = manifest.header;
  json root = {
      {"format", kFormat},
      {"sequence", manifest.sequence},
      {"state", to_json(header.state)},
      {"compute", header.compute},
      {"tied", header.tied},
      {"tokenizer_hash", header.tokenizer_hash},
      {"data_hash", header.data_hash},
      {"val_hash", header.val_hash},
      {"gemm_tuning_hash", header.gemm_tuning_hash},
      {"optimizer", header.optimizer},
      {"model", header.model_keys},
      {"chunk_bytes", manifest.chunk_bytes},
      {"files", json::array()},
  };
  if (json special = special_tokens_json(header); !special.is_null()) root["special_tokens"] = std::move(special);
  for (const MergedSource& source : header.merged_from)
    root["merged_from"].push_back({{"folder", source.folder}, {"step", source.step}, {"sequence", source.sequence}});
  if (!header.mixture.phases.empty()) root["mixture"] = to_json(header.mixture);
  for (const StoredFile& file : manifest.files) {
    root["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3", to_string(file.checksum)}});
  }
  write_pieces(root, manifest);
  return json_text(root) + "\n";
}

std::string completion_mark(std::string_view manifest_json) {
  return format("checkpoint format {}\n{} {} bytes, XXH3-128 {}\n", kFormat, kManifestFile, manifest_json.size(),
                to_string(checksum_of(manifest_json)));
}

void require_format(int64_t found, const std::string& origin) {
  if (found != kFormat)
    throw Error(Code::checkpoint,
                format("{}: checkpoint format {}, this program reads format {}; continue the run with the program that "
                       "wrote it, or export the model with that program (trainer checkpoint export --format hf) and "
                       "import it with this one",
                       origin, found, kFormat));
}

Manifest read_manifest(const fs::path& step_folder, SystemCalls& calls) {
  constexpr int64_t kLargestManifest = int64_t{1} << 30, kLargestMark = 4096;
  std::error_code error;
  const fs::path mark = step_folder / kCompleteFile, path = step_folder / kManifestFile;
  if (!fs::exists(mark, error)) {
    throw Error(Code::checkpoint,
                format("{}: {} not found; the save was interrupted", step_folder.string(), kCompleteFile));
  }
  const std::string text = read_file(path, kLargestManifest, calls);
  const std::string marked = read_file(mark, kLargestMark, calls);
  if (marked != completion_mark(text)) {
    const json document = json::parse(text, nullptr, false);
    if (document.is_object() && document.contains("format") && document["format"].is_number_integer())
      require_format(document["format"].get<int64_t>(), path.string());
    throw Error(Code::checkpoint,
                format("{}: does not match {}; one of the files is corrupted or from a different checkpoint",
                       path.string(), kCompleteFile));
  }
  Manifest manifest = parse_manifest(text, path.string());
  manifest.checksum = checksum_of(text);
  for (const auto* list : {&manifest.files, &manifest.shards}) {
    for (const StoredFile& file : *list) {
      const auto size = fs::file_size(step_folder / file.name, error);
      if (error || static_cast<int64_t>(size) != file.bytes) {
        throw Error(Code::checkpoint, format("{}: {}, expected {} bytes", (step_folder / file.name).string(),
                                             error ? error.message() : format("{} bytes", size), file.bytes));
      }
    }
  }
  return manifest;
}

}  // namespace trainer::checkpoint
