#include "checkpoint/reader.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/folder.h"
#include "checkpoint/model_keys.h"
#include "checkpoint/shard.h"
#include "config/families.h"
#include "data/tokenizer.h"

namespace trainer::checkpoint {

namespace fs = std::filesystem;

namespace {

const std::string kHead = "head.weight", kEmbedding = "wte";  // tensors of the output head and of the embedding

/// Returns the problems as lines: at most ten, then the number of remaining problems.
std::string listed(const std::vector<std::string>& problems) {
  constexpr size_t kMost = 10;
  std::string text;
  for (size_t i = 0; i < std::min(problems.size(), kMost); ++i) text += "\n  " + problems[i];
  if (problems.size() > kMost) text += format("\n  and {} more", problems.size() - kMost);
  return text;
}

/// True if weights of this type can be converted to the run's.
bool is_wide(DType type) { return type == DType::f32 || type == DType::f64; }

/// True if `name` is `weight`, or `weight` with a '#' suffix.
bool belongs_to(const std::string& name, const std::string& weight) {
  return name.starts_with(weight) && (name.size() == weight.size() || name[weight.size()] == '#');
}

constexpr std::string_view kExperts = ".mlp.experts.", kRouter = ".mlp.router.", kMlp = ".mlp.";

/// Returns the name in a dense model of the weight of which experts get copies; empty for other tensors.
std::string dense_name(const std::string& name) {
  const size_t at = name.find(kExperts);
  if (at == std::string::npos) return {};
  return name.substr(0, at) + std::string(kMlp) + name.substr(at + kExperts.size());
}

/// Returns the elements of matrix `index` of a slice of a tensor of three dims, as a slice of that matrix.
TensorSlice matrix_of(const TensorSlice& slice, int64_t index) {
  TensorSlice matrix{slice.name, {slice.shape[1], slice.shape[2]}, slice.local, {}};
  const int64_t count = matrix.shape.count(), begin = index * count;
  for (const mesh::Run& run : slice.runs) {
    const int64_t from = std::max(run.global, begin), to = std::min(run.global + run.length, begin + count);
    if (from < to)
      matrix.runs.push_back({from - begin, run.local + (from - run.global) * run.stride, to - from, run.stride});
  }
  return matrix;
}

}  // namespace

Reader::Reader(const fs::path& path) : folder_(resolve(path)), manifest_(read_manifest(folder_)) {
  const auto content = [&](const char* name) -> std::string {
    const StoredFile* file = manifest_.file(name);
    if (file == nullptr) return {};
    std::string bytes = read_file(folder_ / name, file->bytes);
    if (checksum_of(bytes) != file->checksum) {
      throw Damage(format("{}: the checksum differs from the manifest's; the file is corrupted or was edited",
                          (folder_ / name).string()));
    }
    return bytes;
  };
  manifest_.header.config_toml = content(kConfigFile);
  for (const char* name : data::kTokenizerFiles)
    if (manifest_.file(name) != nullptr) manifest_.header.tokenizer = content(name);
}

std::optional<data::Tokenizer> tokenizer_of(const Snapshot& header, const fs::path& folder) {
  if (header.tokenizer.empty()) return std::nullopt;
  const fs::path file = folder / data::tokenizer_file_name(header.tokenizer);
  data::Tokenizer tokenizer = data::Tokenizer::from_bytes(header.tokenizer, file.string(), header.special);
  tokenizer.use_bos(header.bos);
  return tokenizer;
}

int64_t Reader::vocab_size() const {
  int64_t vocab = 0;
  if (const auto found = header().model_keys.find("vocab_size"); found != header().model_keys.end()) {
    const std::string& text = found->second;
    std::from_chars(text.data(), text.data() + text.size(), vocab);
  }
  if (vocab < 1) throw Error(Code::checkpoint, format("{}: the manifest has no vocab_size", folder_.string()));
  return vocab;
}

void Reader::load(std::span<const TensorSlice> slices, const LoadRules& rules) const {
  if (rules.tied && !header().tied) {
    throw Error(Code::checkpoint, format("{}: the output head is not tied to the embedding, but the run ties them; set "
                                         "model.tie_embeddings = false",
                                         folder_.string()));
  }
  const auto moment = [](const auto& tensor) { return !is_weight(tensor.name); };
  if (std::ranges::any_of(slices, moment) && std::ranges::none_of(manifest_.tensors, moment)) {
    throw Error(Code::checkpoint, format("{}: a run cannot resume from this checkpoint, which has weights but no "
                                         "optimizer state; start a new run from it with model.init_from",
                                         folder_.string()));
  }
  std::map<std::string, const StoredTensor*> stored;
  for (const StoredTensor& tensor : manifest_.tensors) stored[tensor.name] = &tensor;
  std::set<std::string> used;
  std::vector<std::string> problems;
  std::vector<const StoredTensor*> sources;  // null: not filled
  for (const TensorSlice& slice : slices) {
    std::string name = slice.name;
    Shape shape = slice.shape;
    if (rules.upcycles && name.find(kRouter) != std::string::npos) {
      sources.push_back(nullptr);
      continue;
    }
    if (const std::string dense = dense_name(name); rules.upcycles && !dense.empty()) {
      name = dense;
      shape = {shape[1], shape[2]};
    }
    if (header().tied && !rules.tied && belongs_to(name, kHead)) {
      name = kEmbedding + name.substr(kHead.size());
    }
    const auto found = stored.find(name);
    if (found == stored.end()) {
      problems.push_back(format("{}: not in the checkpoint", slice.name));
      continue;
    }
    const StoredTensor& source = *found->second;
    used.insert(name);
    sources.push_back(&source);
    if (source.shape != shape) {
      problems.push_back(
          format("{}: {} in the checkpoint, the run has {}", name, to_string(source.shape), to_string(shape)));
    } else if (source.dtype != slice.local.dtype && !(rules.weights_only && is_wide(source.dtype))) {
      const bool small = source.dtype != DType::f64 && slice.local.dtype != DType::f64;  // fp32 and bf16
      problems.push_back(
          format("{}: {} in the checkpoint, but {} in the run", name, name_of(source.dtype),
                 name_of(slice.local.dtype)) +
          (small && !is_weight(name)
               ? format("; set optim.moments = \"{}\"", name_of(source.dtype))
               : format(" (checkpoint written with precision.compute = \"{}\"; fp64 and other runs cannot share "
                        "optimizer state)",
                        header().compute)));
    }
  }
  std::set<std::string> elsewhere = rules.elsewhere;
  for (const std::string& name : rules.elsewhere)
    if (rules.upcycles) elsewhere.insert(dense_name(name));
  for (const auto& [name, tensor] : stored) {
    const bool required = is_weight(name) || !rules.weights_only;
    if (required && !elsewhere.contains(name.substr(0, name.find('#'))) && !used.contains(name))
      problems.push_back(format("{}: not in the run's model", name));
  }
  if (!problems.empty()) {
    throw Error(Code::checkpoint,
                format("{}: the tensors differ from the run's:{}", folder_.string(), listed(problems)));
  }
  ShardReader reader(folder_, manifest_);
  for (size_t i = 0; i < slices.size(); ++i) {
    const TensorSlice& slice = slices[i];
    if (sources[i] == nullptr) continue;
    if (sources[i]->shape == slice.shape) {
      reader.fill(slice, *sources[i]);
      continue;
    }
    for (int64_t expert = 0; expert < slice.shape[0]; ++expert) reader.fill(matrix_of(slice, expert), *sources[i]);
  }
}

namespace {

/// If the hashes differ, throws, or with `allow` only warns. `remedy` is the alternative to allow_other_data.
void compare(const std::string& what, const std::string& before, const std::string& now, const std::string& remedy,
             bool allow) {
  if (before == now || before.empty() || now.empty()) return;
  const std::string text = format("{} (stored {}, now {})", what, before, now);
  if (!allow)
    throw Error(Code::checkpoint,
                format("{}; {}, or accept the difference with checkpoint.allow_other_data = true", text, remedy));
  log::warning("{}", text);
}

}  // namespace

void require_same_tokenizer(const Snapshot& stored, const Snapshot& run, const fs::path& folder, bool allow) {
  compare("the tokenizer differs from the checkpoint's, whose embeddings belong to other tokens", stored.tokenizer_hash,
          run.tokenizer_hash,
          format("set data.tokenizer = \"{}\"", (folder / data::tokenizer_file_name(stored.tokenizer)).string()),
          allow);
}

namespace {

constexpr const char* kNone = "none";

std::string value_of(const std::map<std::string, std::string>& keys, const std::string& key) {
  if (const auto found = keys.find(key); found != keys.end()) return found->second;
  const char* absent = value_of_absent_key(key);
  return absent == nullptr ? kNone : absent;
}

using ModelKeys = std::map<std::string, std::string>;

/// Keys that may differ between a dense model and one whose experts are copies of its MLPs.
bool is_of_experts(const std::string& name) {
  constexpr std::string_view kNames[] = {"arch",     "d_ff",     "n_expert",  "experts_per_token",
                                         "d_expert", "d_shared", "moe_every", "norm_topk"};
  return std::ranges::count(kNames, name) > 0;
}

/// Adds why the experts of a model cannot be copies of a dense model's MLPs.
void add_obstacles(const ModelKeys& dense, const ModelKeys& run, std::vector<std::string>& problems,
                   std::string& remedy) {
  const config::Family *const before = config::find_family(value_of(dense, "arch")), *const now = config::find_family(
                                                                                         value_of(run, "arch"));
  const auto alike = [](const config::FamilyFacts& a, const config::FamilyFacts& b) {
    return a.norm == b.norm && a.positions == b.positions && a.mlp == b.mlp;
  };
  if (before == nullptr || now == nullptr || !alike(before->facts, now->facts))
    problems.push_back(format("arch: {} in the checkpoint has no layers like those of {}", value_of(dense, "arch"),
                              value_of(run, "arch")));
  const std::string width = value_of(dense, "d_ff"), of_expert = value_of(run, "d_expert"),
                    of_dense = value_of(run, "d_ff");
  if (of_expert != width) {
    problems.push_back(
        format("d_expert: {} in the run, whose experts would be copies of MLPs of d_ff = {} in the checkpoint",
               of_expert, width));
    remedy += " model.d_expert=" + width;
  }
  if (of_dense != width && of_dense != "0") {
    problems.push_back(
        format("d_ff: {} in the run, whose blocks without experts would have the MLPs of d_ff = {} in the "
               "checkpoint",
               of_dense, width));
    remedy += " model.d_ff=" + width;
  }
  if (const std::string shared = value_of(run, "d_shared"); shared != "0") {
    problems.push_back(format("d_shared: {} in the run, but a shared expert would add to the MLP's output", shared));
    remedy += " model.d_shared=0";
  }
  if (value_of(run, "norm_topk") != "true") {
    problems.emplace_back("norm_topk: false in the run, so that the outputs of copies would not be those of the MLP");
    remedy += " model.norm_topk=true";
  }
}

}  // namespace

void require_same_use(const Snapshot& stored, const Snapshot& run, const fs::path& folder,
                      const std::function<bool(const std::string& key)>& chosen) {
  std::vector<std::string> problems;
  std::string remedy, extra;
  const config::Family* const family = config::find_family(value_of(stored.model_keys, "arch"));
  const bool learned = family != nullptr && family->facts.positions == config::Positions::learned;
  const bool same_type = value_of(stored.model_keys, "rope_type") == value_of(run.model_keys, "rope_type");
  const bool upcycles = !stored.model_keys.contains("n_expert") && run.model_keys.contains("n_expert");
  if (upcycles) add_obstacles(stored.model_keys, run.model_keys, problems, remedy);
  std::set<std::string> names;
  for (const auto* keys : {&stored.model_keys, &run.model_keys})
    for (const auto& [name, value] : *keys) names.insert(name);
  for (const std::string& name : names) {
    const std::string before = value_of(stored.model_keys, name), now = value_of(run.model_keys, name);
    const bool rope = name.starts_with("rope_"), scaling = rope && name != "rope_theta";
    if (upcycles && is_of_experts(name)) continue;
    // Keys of unused features are absent. A difference of rope_type says enough about those of the scaling.
    if (before == now || (before == kNone && scaling && !same_type)) continue;
    // With learned positions there are seq_len of them and no RoPE; with RoPE any seq_len works.
    if (learned ? rope : name == "seq_len") continue;
    if (name == "tie_embeddings" && before == "true") continue;  // an untied head gets a copy
    const std::string problem = format("{}: {} in the checkpoint, the run has {}", name, before, now);
    if ((name == "norm_eps" || name.starts_with("window") || rope) &&
        (chosen(name) || (scaling && chosen("rope_type")))) {
      log::warning("weights of {}: {}", folder.string(), problem);
      continue;
    }
    problems.push_back(problem);
    if (before == kNone) {
      extra += format(" model.{}", name);
      continue;
    }
    if (name == "vocab_size" && !stored.tokenizer.empty() && stored.tokenizer_hash != run.tokenizer_hash)
      remedy += format(" data.tokenizer={}", (folder / data::tokenizer_file_name(stored.tokenizer)).string());
    remedy += format(" {}.{}={}", name == "vocab_size" ? "data" : "model", name, before);
  }
  if (problems.empty()) return;
  if (!remedy.empty()) remedy = "\nSet the same keys: --set" + remedy;
  if (!extra.empty()) remedy += "\nLeave out keys that the checkpoint does not have:" + extra;
  throw Error(Code::checkpoint,
              format("the weights of {} are from a different model:{}{}", folder.string(), listed(problems), remedy));
}

void require_compatible(const Snapshot& stored, const Snapshot& run, const fs::path& folder, bool allow_other_data) {
  std::vector<std::string> problems;
  for (const auto& [key, value] : run.model_keys) {
    const auto found = stored.model_keys.find(key);
    if (found == stored.model_keys.end()) {
      problems.push_back(format("{}: not in the checkpoint, the run has {}", key, value));
    } else if (found->second != value) {
      problems.push_back(format("{}: {} in the checkpoint, the run has {}", key, found->second, value));
    }
  }
  for (const auto& [key, value] : stored.model_keys) {
    if (!run.model_keys.contains(key))
      problems.push_back(format("{}: {} in the checkpoint, not in the run", key, value));
  }
  if (!problems.empty()) {
    throw Error(Code::checkpoint, format("the checkpoint is from a different model:{}\nRestore these keys, or start a "
                                         "run in a different folder (run.dir)",
                                         listed(problems)));
  }
  if (stored.optimizer != run.optimizer)
    throw Error(Code::checkpoint,
                format("the checkpoint {} has the state of optim.name = \"{}\", but the run has \"{}\", which cannot "
                       "continue from it; start from its weights: model.init_from = \"{}\", with a different run.dir",
                       folder.string(), stored.optimizer, run.optimizer, folder.string()));
  require_same_tokenizer(stored, run, folder, allow_other_data);
  compare(format("data.chat_format differs from that of checkpoint {}", folder.string()), stored.special.chat_format,
          run.special.chat_format, "restore it, or start a new run in a different run.dir", allow_other_data);
  const auto& sources = run.mixture.sources;
  if (!stored.mixture.sources.empty() && !sources.empty()) {  // one by one, since some may be added
    for (const auto& [name, source] : stored.mixture.sources) {
      const auto now = sources.find(name);
      compare(format("data.source \"{}\" differs from that of checkpoint {}", name, folder.string()), source.hash,
              now == sources.end() ? "none" : now->second.hash,
              "restore its files, packing and data.val_fraction, or start a new run in a different run.dir",
              allow_other_data);
    }
    return;
  }
  compare(format("the training data differs from that of checkpoint {}", folder.string()), stored.data_hash,
          run.data_hash,
          "restore the files of data.train and data.tokenizer, data.val_fraction, data.document, data.packing and "
          "model.seq_len of packed data, or start a new run in a different run.dir",
          allow_other_data);
}

}  // namespace trainer::checkpoint
