// Shards against their manifest: the input is a manifest, a NUL byte, and the content of all its shards. Read
// unchanged, every tensor is filled or rejected. With checksums corrected to match the content, a filled tensor has
// exactly the bytes of the shards.
#include "checkpoint/shard.h"

#include <cstring>

#include "fuzz.h"
#include "rigs/files.h"

using namespace trainer;
using namespace trainer::checkpoint;

namespace {

constexpr int64_t kMostElements = 1 << 16;

/// Sets the checksums of a parsed manifest to those of the bytes.
void put_right(Manifest& manifest, std::string_view shard) {
  for (StoredTensor& tensor : manifest.tensors) {
    for (StoredPart& piece : tensor.pieces) {
      const int64_t bytes = piece.elements() * size_of(tensor.dtype);
      for (size_t i = 0; i < piece.chunks.size(); ++i) {
        const int64_t begin = piece.offset + static_cast<int64_t>(i) * manifest.chunk_bytes;
        const int64_t end = std::min(begin + manifest.chunk_bytes, piece.offset + bytes);
        if (end > static_cast<int64_t>(shard.size())) continue;
        piece.chunks[i] = checksum_of(shard.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
      }
    }
  }
}

/// Assembles the tensor as the manifest describes it, one run after another.
std::string by_hand(const StoredTensor& tensor, std::string_view shard) {
  const auto size = static_cast<size_t>(size_of(tensor.dtype));
  std::string out(static_cast<size_t>(tensor.bytes()), '\0');
  for (const StoredPart& piece : tensor.pieces) {
    auto from = static_cast<size_t>(piece.offset);
    for (const RunGroup& group : piece.runs) {
      for (int64_t i = 0; i < group.count; ++i) {
        const auto bytes = static_cast<size_t>(group.length) * size;
        std::memcpy(out.data() + static_cast<size_t>(group.global + i * group.stride) * size, shard.data() + from,
                    bytes);
        from += bytes;
      }
    }
  }
  return out;
}

void read(const Manifest& manifest, const std::filesystem::path& folder, std::string_view shard, bool right) {
  ShardReader reader(folder, manifest);
  for (const StoredTensor& tensor : manifest.tensors) {
    if (tensor.shape.count() > kMostElements) continue;
    int problems = 0;
    const bool readable = fuzz::accepted({Code::checkpoint, Code::io},
                                         [&] { reader.verify(tensor, [&](const std::string&) { ++problems; }); });
    std::vector<std::byte> memory(static_cast<size_t>(tensor.bytes()) + 64);
    Tensor local;
    local.data = memory.data();
    local.shape = {tensor.shape.count()};
    local.dtype = tensor.dtype;
    const TensorSlice slice{
        tensor.name, tensor.shape, local, {{.global = 0, .local = 0, .length = tensor.shape.count()}}};
    const bool filled = fuzz::accepted({Code::checkpoint, Code::io}, [&] { reader.fill(slice, tensor); });
    TRAINER_CHECK(filled == (readable && problems == 0), "{}: filled {}, {} problems", tensor.name, filled, problems);
    if (!filled || !right) continue;
    const std::string expected = by_hand(tensor, shard);
    TRAINER_CHECK(std::memcmp(expected.data(), memory.data(), expected.size()) == 0, "{}: other bytes", tensor.name);
  }
  fuzz::accepted({Code::checkpoint, Code::io}, [&] { reader.verify_padding([](const std::string&) {}); });
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const tests::TempFolder folder;
  const std::string_view input = fuzz::text_of(data, size), json = input.substr(0, input.find('\0'));
  const std::string_view shard = input.substr(std::min(input.size(), json.size() + 1));
  Manifest manifest;
  if (!fuzz::accepted({Code::checkpoint}, [&] { manifest = parse_manifest(json, "manifest.json"); })) return 0;
  if (manifest.shards.size() > 8) return 0;
  for (const StoredFile& file : manifest.shards) tests::write(folder / file.name, shard);
  read(manifest, folder.path(), shard, false);
  put_right(manifest, shard);
  read(manifest, folder.path(), shard, true);
  for (const StoredFile& file : manifest.shards) std::filesystem::remove(folder / file.name);
  return 0;
}
