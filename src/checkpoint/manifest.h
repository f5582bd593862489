#pragma once
// The manifest of a checkpoint: state, files and, for each global tensor, where its elements are stored.
//
// A tensor is stored in pieces, one per process that wrote a part of it. A piece is a list of runs of the row-major
// global tensor, stored consecutively in one shard file, starting at `offset`. Each chunk of the piece has its own
// checksum, so that a reader of a few rows can verify them without reading the rest. Every element of a tensor is in
// exactly one piece.
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/checksum.h"
#include "base/file_io.h"
#include "checkpoint/snapshot.h"

namespace trainer::checkpoint {

constexpr int64_t kFormat = 2;            // format of manifest and COMPLETE, whose members may be absent if unused
constexpr int64_t kAlignment = 64;        // bytes; pieces start at multiples of this, with zeros between them
constexpr int64_t kChunkBytes = 4 << 20;  // in new checkpoints; a chunk stays in cache while packed, hashed and written
constexpr const char* kManifestFile = "manifest.json";
constexpr const char* kCompleteFile = "COMPLETE";
constexpr const char* kConfigFile = "config.toml";

/// Thrown if the bytes of a complete checkpoint differ from those that were written. An earlier checkpoint may still be
/// intact.
class Damage : public Error {
 public:
  explicit Damage(std::string message) : Error(Code::checkpoint, std::move(message)) {}
};

/// `count` runs of `length` elements each, which start at the elements `global`, global + stride, …
struct RunGroup {
  int64_t global = 0, length = 0, stride = 0, count = 1;
  int64_t elements() const { return length * count; }
  int64_t end() const { return global + (count - 1) * stride + length; }
};

/// Sorts runs by their global offset, joins adjacent runs and groups runs of equal length and spacing.
std::vector<RunGroup> group_runs(std::vector<mesh::Run> runs);

struct StoredPart {
  int64_t shard = 0;             // index into Manifest::shards
  int64_t offset = 0;            // in bytes
  std::vector<RunGroup> runs;    // ascending
  std::vector<Checksum> chunks;  // for each chunk_bytes of the piece; the last chunk may be shorter
  int64_t elements() const;
};

/// True if this is the name of a weight, not of a moment ("…#m").
inline bool is_weight(const std::string& name) { return name.find('#') == name.npos; }

struct StoredTensor {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;  // global
  std::vector<StoredPart> pieces;
  int64_t bytes() const { return shape.count() * size_of(dtype); }
  /// Returns the slice that is the whole tensor, with its elements at `memory`.
  TensorSlice slice(std::byte* memory) const {
    return {name, shape, {memory, {shape.count()}, dtype}, {{0, 0, shape.count()}}};
  }
};

struct StoredFile {
  std::string name;
  int64_t bytes = 0;
  Checksum checksum;  // small files only; shards have the checksums of their pieces
};

struct Manifest {
  /// Time of saving in µs since 1970, but always above that of earlier checkpoints, even if the clock went backwards.
  int64_t sequence = 0;
  Snapshot header;  // without tensors, config and tokenizer
  int64_t chunk_bytes = kChunkBytes;
  std::vector<StoredFile> files, shards;
  std::vector<StoredTensor> tensors;
  /// The checksum of the manifest's bytes, set by read_manifest(). Since these contain the checksums of all files,
  /// copies of a checkpoint are equal if these are.
  Checksum checksum;

  const StoredFile* file(std::string_view name) const;
  int64_t tensor_bytes() const;
};

nlohmann::json to_json(const TrainState& state);
/// Returns the special tokens; null if there are none to record.
nlohmann::json special_tokens_json(const Snapshot& header);
nlohmann::json to_json(const MixtureState& mixture);
std::string to_json(const Manifest& manifest);

/// Throws Code::checkpoint, with both numbers, unless `found` is kFormat. `origin` names the file in messages.
void require_format(int64_t found, const std::string& origin);

/// Parses and checks everything that can be checked without the shards: types, ranges, overlaps, coverage. `origin`
/// names the file in messages. Throws Code::checkpoint if the bytes are not a valid manifest.
Manifest parse_manifest(std::string_view json, const std::string& origin);

/// Serializes the shards and tensors that one process wrote, to be sent to the process that publishes the checkpoint.
/// Tensors may be incomplete.
std::string part_to_json(const Manifest& part);
Manifest parse_part(std::string_view json);
/// Adds the shards and pieces of a part. Throws Code::internal if a tensor's type or shape differs from other parts.
void merge_part(Manifest& manifest, const Manifest& part);

/// Returns the content of COMPLETE for a manifest of these bytes.
std::string completion_mark(std::string_view manifest_json);

/// Reads and parses the manifest of a step folder. Throws Code::checkpoint unless it has the format that this program
/// reads, its checksum matches COMPLETE and every file named in the manifest has the recorded size.
Manifest read_manifest(const std::filesystem::path& step_folder, SystemCalls& calls = system_calls());

}  // namespace trainer::checkpoint
