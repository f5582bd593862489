// parse_manifest checks the type and range of each value before use, since its input is untrusted.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <queue>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/manifest.h"

namespace trainer::checkpoint {

using nlohmann::json;

namespace {

constexpr int64_t kMostElements = int64_t{1} << 48;  // per tensor, so that no multiplication below overflows
constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max() / 4;  // per file
constexpr int64_t kMostRuns = int64_t{1} << 26;                          // per tensor; bounds the time of the check

/// A JSON value with its position, for messages such as "tensors[3].shape[0]: …".
class Value {
 public:
  Value(const json& value, std::string place) : json_(value), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(Code::checkpoint,
                format("{}: {}; the manifest is corrupted or was not written by this program", place_, problem));
  }
  Value operator[](const char* key) const {
    if (!json_.is_object()) fail("expected an object");
    const auto found = json_.find(key);
    if (found == json_.end()) fail(format("\"{}\" is missing", key));
    return Value(*found, format("{}: {}", place_, key));
  }
  /// Returns the member of a feature that a run may not use; empty: it is absent.
  std::optional<Value> if_there(const char* key) const {
    return json_.is_object() && json_.contains(key) ? std::optional((*this)[key]) : std::nullopt;
  }
  std::vector<Value> list() const {
    if (!json_.is_array()) fail("expected a list");
    std::vector<Value> values;
    values.reserve(json_.size());
    for (size_t i = 0; i < json_.size(); ++i) values.emplace_back(json_[i], format("{}[{}]", place_, i));
    return values;
  }
  int64_t integer(int64_t least, int64_t most) const {
    if (!json_.is_number_integer()) fail("expected an integer");
    const bool too_large = json_.is_number_unsigned() && json_.get<uint64_t>() > static_cast<uint64_t>(most);
    const int64_t value = json_.get<int64_t>();
    if (too_large || value < least || value > most) {
      fail(format("{} is outside {}…{}", json_.dump(), least, most));
    }
    return value;
  }
  std::string text() const {
    if (!json_.is_string()) fail("expected a string");
    return json_.get<std::string>();
  }
  /// Returns an object as JSON.
  std::string object_text() const {
    if (!json_.is_object()) fail("expected an object");
    return json_text(json_);
  }
  bool flag() const {
    if (!json_.is_boolean()) fail("expected true or false");
    return json_.get<bool>();
  }
  double number_or_nan() const {
    if (json_.is_null()) return std::numeric_limits<double>::quiet_NaN();
    if (!json_.is_number()) fail("expected a number or null");
    return json_.get<double>();
  }
  std::vector<double> numbers() const {
    std::vector<double> values;
    for (const Value& value : list()) {
      if (!value.json_.is_number()) value.fail("expected a number");
      values.push_back(value.json_.get<double>());
    }
    return values;
  }
  Checksum checksum() const {
    const auto parsed = parse_checksum(text());
    if (!parsed) fail("expected 32 hexadecimal digits");
    return *parsed;
  }
  /// Returns the name of a file in the step folder itself.
  std::string file_name() const {
    const std::string name = text();
    if (name.empty() || name[0] == '.' || name.find('/') != name.npos || name.find('\0') != name.npos) {
      fail("expected the plain name of a file");
    }
    return name;
  }
  std::vector<std::pair<std::string, Value>> members() const {
    if (!json_.is_object()) fail("expected an object");
    std::vector<std::pair<std::string, Value>> values;
    for (const auto& [key, value] : json_.items())
      values.emplace_back(key, Value(value, format("{}: {}", place_, key)));
    return values;
  }
  std::map<std::string, std::string> texts() const {
    std::map<std::string, std::string> values;
    for (const auto& [key, value] : members()) values[key] = value.text();
    return values;
  }
  std::map<std::string, int64_t> integers(int64_t least, int64_t most) const {
    std::map<std::string, int64_t> values;
    for (const auto& [key, value] : members()) values[key] = value.integer(least, most);
    return values;
  }

 private:
  const json& json_;
  std::string place_;
};

/// Returns the mixture after checking that a run can continue it: the phases are in order, each with all slots.
MixtureState mixture_of(const Value& value) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
  MixtureState mixture;
  value["parts"].integer(data::kMixtureSlots, data::kMixtureSlots);
  for (const Value& entry : value["phases"].list()) {
    data::MixturePhase phase{entry["first_sample"].integer(0, kMost), {}, entry["start"].integers(0, kMost)};
    if (!mixture.phases.empty() && phase.first_sample <= mixture.phases.back().first_sample)
      entry.fail("phases are not in ascending order");
    phase.slots = entry["slots"].integers(1, data::kMixtureSlots);
    int64_t sum = 0;
    for (const auto& [name, slots] : phase.slots) sum += slots;
    if (sum != data::kMixtureSlots) entry.fail(format("{} slots, expected {}", sum, data::kMixtureSlots));
    mixture.phases.push_back(std::move(phase));
  }
  for (const auto& [name, source] : value["sources"].members())
    mixture.sources[name] = {source["windows"].integer(1, kMost), source["hash"].text()};
  return mixture;
}

void read_special_tokens(const Value& value, Snapshot& header) {
  const auto id_of = [](const Value& id) {
    return static_cast<int32_t>(id.integer(0, std::numeric_limits<int32_t>::max()));
  };
  const auto find = [&](const char* name) {
    const auto id = value.if_there(name);
    return id ? std::optional(id_of(*id)) : std::nullopt;
  };
  const bool add_bos = value["add_bos"].flag();
  if (add_bos) header.bos = id_of(value["bos"]);
  header.special.pad = find("pad");
  header.special.unk = find("unk");
  if (const auto eos = value.if_there("eos"))
    for (const Value& id : eos->list()) header.special.eos.push_back(id_of(id));
  if (const auto add_eos = value.if_there("add_eos")) header.special.add_eos = add_eos->flag();
  header.special.text_end = find("text_end");
  if (const auto format = value.if_there("chat_format")) header.special.chat_format = format->text();
  if (const auto fields = value.if_there("fields"))
    for (const auto& [file, object] : fields->members()) header.special.fields[file] = object.object_text();
  if (!add_bos || !header.special.empty()) header.special.bos = find("bos");
}

Snapshot header_of(const Value& root) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  Snapshot header;
  const Value state = root["state"];
  header.state.step = state["step"].integer(0, kMost);
  header.state.adam_step = state["adam_step"].integer(0, kMost);
  header.state.samples_seen = state["samples_seen"].integer(0, kMost);
  header.state.tokens_seen = state["tokens_seen"].integer(0, kMost);
  header.state.best_val_loss = state["best_val_loss"].number_or_nan();
  header.state.best_step = state["best_step"].integer(-1, kMost);
  header.state.best_set = state["best_set"].text();
  header.state.best_data = state["best_data"].text();
  header.state.proven_step = state["proven_step"].integer(-1, kMost);
  if (const auto verified = state.if_there("verified_step")) header.state.verified_step = verified->integer(-1, kMost);
  header.state.loss = state["loss"].number_or_nan();
  header.state.val_loss = state["val_loss"].number_or_nan();
  header.state.origin = state["origin"].integer(0, kMost);
  header.state.skipped_in_row = state["skipped_in_row"].integer(0, kMost);
  header.state.finite_weights = state["finite_weights"].flag();
  header.state.losses = state["history"]["losses"].numbers();
  header.state.norms = state["history"]["norms"].numbers();
  header.compute = root["compute"].text();
  header.tied = root["tied"].flag();
  header.tokenizer_hash = root["tokenizer_hash"].text();
  header.data_hash = root["data_hash"].text();
  header.val_hash = root["val_hash"].text();
  header.gemm_tuning_hash = root["gemm_tuning_hash"].text();
  header.model_keys = root["model"].texts();
  header.optimizer = root["optimizer"].text();
  if (const auto special = root.if_there("special_tokens")) read_special_tokens(*special, header);
  if (const auto merged = root.if_there("merged_from"))
    for (const Value& source : merged->list())
      header.merged_from.push_back(
          {source["folder"].text(), source["step"].integer(0, kMost), source["sequence"].integer(0, kMost)});
  if (const auto mixture = root.if_there("mixture")) header.mixture = mixture_of(*mixture);
  return header;
}

DType dtype_of(const Value& value) {
  const std::string name = value.text();
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::i32, DType::i64, DType::u16, DType::u8}) {
    if (name == name_of(dtype)) return dtype;
  }
  value.fail(format("unknown element type \"{}\"", name));
}

Shape shape_of(const Value& value) {
  const std::vector<Value> list = value.list();
  if (list.empty() || list.size() > Shape::kMaxDims) value.fail(format("expected 1 to {} sizes", Shape::kMaxDims));
  std::vector<int64_t> extents(list.size());
  int64_t count = 1;
  for (size_t dim = 0; dim < list.size(); ++dim) {
    extents[dim] = list[dim].integer(1, kMostElements);
    if (extents[dim] > kMostElements / count) value.fail(format("more than {} elements", kMostElements));
    count *= extents[dim];
  }
  return Shape(extents);
}

/// Returns one group after checking that it is inside a tensor of `total` elements.
RunGroup run_group_of(const Value& value, int64_t total) {
  const std::vector<Value> list = value.list();
  if (list.size() != 2 && list.size() != 4) value.fail("expected [offset, length] or [offset, length, stride, count]");
  RunGroup group;
  group.global = list[0].integer(0, total - 1);
  group.length = list[1].integer(1, total - group.global);
  group.stride = group.length;
  if (list.size() == 4) {
    group.stride = list[2].integer(group.length, total);
    group.count = list[3].integer(1, (total - group.global - group.length) / group.stride + 1);
  }
  return group;
}

StoredPart piece_of(const Value& value, const StoredTensor& tensor, const Manifest& manifest) {
  StoredPart piece;
  piece.shard = value["shard"].integer(0, static_cast<int64_t>(manifest.shards.size()) - 1);
  const int64_t total = tensor.shape.count(), size = size_of(tensor.dtype);
  const int64_t shard_bytes = manifest.shards[static_cast<size_t>(piece.shard)].bytes;
  piece.offset = value["offset"].integer(0, shard_bytes);
  if (piece.offset % kAlignment != 0) value.fail(format("offset {} is not a multiple of {}", piece.offset, kAlignment));
  int64_t end = 0, elements = 0;
  for (const Value& entry : value["runs"].list()) {
    const RunGroup group = run_group_of(entry, total);
    if (group.global < end) entry.fail("runs overlap or are not in ascending order");
    end = group.end();
    elements += group.elements();  // the groups are disjoint: at most `total`
    piece.runs.push_back(group);
  }
  if (elements == 0) value.fail("has no runs");
  if (elements * size > shard_bytes - piece.offset) value.fail(format("{} elements do not fit in the shard", elements));
  for (const Value& entry : value["xxh3"].list()) piece.chunks.push_back(entry.checksum());
  const int64_t chunks = divide_up(elements * size, manifest.chunk_bytes);
  if (static_cast<int64_t>(piece.chunks.size()) != chunks) {
    value.fail(format("{} checksums, expected {}", piece.chunks.size(), chunks));
  }
  return piece;
}

/// Checks that every element is in exactly one run: walks the runs of all pieces in ascending order.
void check_coverage(const Value& value, const StoredTensor& tensor) {
  struct Cursor {
    int64_t global;
    size_t piece, group;
    int64_t index;
    bool operator>(const Cursor& other) const { return global > other.global; }
  };
  std::priority_queue<Cursor, std::vector<Cursor>, std::greater<>> next;
  int64_t runs = 0, covered = 0;
  for (size_t p = 0; p < tensor.pieces.size(); ++p) {
    for (const RunGroup& group : tensor.pieces[p].runs) runs += std::min(group.count, kMostRuns);
    if (runs > kMostRuns) value.fail(format("more than {} runs", kMostRuns));
    next.push({tensor.pieces[p].runs[0].global, p, 0, 0});
  }
  while (!next.empty()) {
    Cursor cursor = next.top();
    next.pop();
    const std::vector<RunGroup>& groups = tensor.pieces[cursor.piece].runs;
    if (cursor.global != covered) {
      value.fail(format("{}: element {} is stored {}", tensor.name, std::min(cursor.global, covered),
                        cursor.global < covered ? "twice" : "nowhere"));
    }
    const RunGroup& group = groups[cursor.group];
    covered += group.length;
    if (++cursor.index == group.count) {
      cursor.index = 0;
      if (++cursor.group == groups.size()) continue;
    }
    cursor.global = groups[cursor.group].global + cursor.index * groups[cursor.group].stride;
    next.push(cursor);
  }
  if (covered != tensor.shape.count()) value.fail(format("{}: element {} is stored nowhere", tensor.name, covered));
}

StoredTensor tensor_of(const Value& value, const Manifest& manifest, bool whole) {
  StoredTensor tensor;
  tensor.name = value["name"].text();
  tensor.dtype = dtype_of(value["dtype"]);
  tensor.shape = shape_of(value["shape"]);
  for (const Value& piece : value["pieces"].list()) tensor.pieces.push_back(piece_of(piece, tensor, manifest));
  if (whole) check_coverage(value["pieces"], tensor);
  return tensor;
}

/// Checks that no byte of a shard belongs to two pieces, and that only padding lies between and after the pieces.
void check_shards(const Value& root, const Manifest& manifest) {
  struct Range {
    int64_t shard, begin, end;
    bool operator<(const Range& o) const { return std::tie(shard, begin) < std::tie(o.shard, o.begin); }
  };
  std::vector<Range> ranges;
  for (const StoredTensor& tensor : manifest.tensors) {
    for (const StoredPart& piece : tensor.pieces) {
      ranges.push_back({piece.shard, piece.offset, piece.offset + piece.elements() * size_of(tensor.dtype)});
    }
  }
  std::sort(ranges.begin(), ranges.end());
  size_t next = 0;
  for (size_t s = 0; s < manifest.shards.size(); ++s) {
    const StoredFile& shard = manifest.shards[s];
    int64_t end = 0;
    for (; next < ranges.size() && ranges[next].shard == static_cast<int64_t>(s); ++next) {
      if (ranges[next].begin < end) root.fail(format("{}: tensors overlap at byte {}", shard.name, ranges[next].begin));
      if (ranges[next].begin != round_up(end, kAlignment)) {
        root.fail(format("{}: bytes {} to {} belong to no tensor", shard.name, end, ranges[next].begin));
      }
      end = ranges[next].end;
    }
    if (end != shard.bytes) root.fail(format("{}: {} bytes, but its tensors end at {}", shard.name, shard.bytes, end));
  }
}

/// Reads shards and tensors. `whole`: each tensor must be covered.
void read_pieces(const Value& root, Manifest& manifest, std::set<std::string> names, bool whole) {
  for (const Value& shard : root["shards"].list()) {
    manifest.shards.push_back({shard["name"].file_name(), shard["bytes"].integer(0, kMostBytes), {}});
    if (!names.insert(manifest.shards.back().name).second) shard.fail("the name occurs twice");
  }

  std::set<std::string> tensors;
  for (const Value& tensor : root["tensors"].list()) {
    manifest.tensors.push_back(tensor_of(tensor, manifest, whole));
    if (!tensors.insert(manifest.tensors.back().name).second) tensor.fail("the tensor occurs twice");
  }
  check_shards(root, manifest);
}

}  // namespace

Manifest parse_manifest(std::string_view text, const std::string& origin) {
  const json document = parse_json(text);
  const Value root(document, origin);
  if (document.is_discarded()) root.fail("not JSON");
  require_format(root["format"].integer(0, std::numeric_limits<int64_t>::max()), origin);
  Manifest manifest;
  manifest.sequence = root["sequence"].integer(0, std::numeric_limits<int64_t>::max() - 1);
  manifest.header = header_of(root);
  manifest.chunk_bytes = root["chunk_bytes"].integer(kAlignment, int64_t{64} << 20);
  if (manifest.chunk_bytes % kAlignment != 0) root.fail(format("chunk_bytes is not a multiple of {}", kAlignment));

  std::set<std::string> names{kManifestFile, kCompleteFile};
  for (const Value& file : root["files"].list()) {
    manifest.files.push_back({file["name"].file_name(), file["bytes"].integer(0, kMostBytes), file["xxh3"].checksum()});
    if (!names.insert(manifest.files.back().name).second) file.fail("the name occurs twice");
  }
  if (manifest.file(kConfigFile) == nullptr) root["files"].fail(format("{} is missing", kConfigFile));
  read_pieces(root, manifest, names, /*whole=*/true);
  return manifest;
}

Manifest parse_part(std::string_view text) {
  const json document = parse_json(text);
  const Value root(document, "a different rank's part of the checkpoint");
  if (document.is_discarded()) root.fail("not JSON");
  Manifest part;
  read_pieces(root, part, {}, /*whole=*/false);
  return part;
}

}  // namespace trainer::checkpoint
