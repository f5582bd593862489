#include "huggingface/safetensors.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/lfs_pointer.h"
#include "base/shape.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;
using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

namespace {

constexpr int64_t kLengthBytes = 8, kMostHeaderBytes = int64_t{16} << 20;
constexpr const char* kMetadata = "__metadata__";

int64_t element_bytes(std::string_view dtype) {
  struct Known {
    std::string_view name;
    int64_t bytes;
  };
  static constexpr Known kKnown[] = {{"F64", 8},  {"F32", 4}, {"F16", 2},     {"BF16", 2},   {"I64", 8}, {"U64", 8},
                                     {"I32", 4},  {"U32", 4}, {"I16", 2},     {"U16", 2},    {"I8", 1},  {"U8", 1},
                                     {"BOOL", 1}, {"C64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const Known& each : kKnown)
    if (each.name == dtype) return each.bytes;
  return 0;
}

class HeaderReader {
 public:
  HeaderReader(const std::string& origin, int64_t data_bytes) : origin_(origin), data_bytes_(data_bytes) {}

  std::vector<TensorEntry> read(std::string_view text) {
    const json header = parse(text);
    std::vector<TensorEntry> tensors;
    for (const auto& [name, value] : header.items())
      if (name != kMetadata) tensors.push_back(entry_of(name, value));
    std::ranges::sort(tensors, [](const TensorEntry& a, const TensorEntry& b) {
      return std::tie(a.begin, a.end) < std::tie(b.begin, b.end);
    });
    int64_t end = 0;
    for (const TensorEntry& tensor : tensors) {
      if (tensor.begin != end)
        fail(tensor.name, format("begins at byte {}, but the tensor before it ends at {}: tensors {}", tensor.begin,
                                 end, tensor.begin < end ? "overlap" : "leave a gap"));
      end = tensor.end;
    }
    if (end != data_bytes_)
      throw Error(Code::checkpoint,
                  format("{}: the header describes {} bytes of tensors, but the file has {}: it is {}", origin_, end,
                         data_bytes_, end > data_bytes_ ? "truncated" : "too long"));
    return tensors;
  }

 private:
  [[noreturn]] void fail(const std::string& place, const std::string& reason) const {
    throw Error(Code::checkpoint, format("{}: {}: {}", origin_, place, reason));
  }

  /// Rejects names that occur twice and nesting deeper than that of any valid header while parsing, before either uses
  /// much memory.
  json parse(std::string_view text) const {
    constexpr int kDeepest = 3;  // {"name": {"shape": […]}}
    std::set<std::string, std::less<>> names;
    const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
      if (depth > kDeepest) fail("header", "values are nested too deeply");
      if (event == json::parse_event_t::key && depth == 1 && !names.insert(parsed.get<std::string>()).second)
        fail(parsed.get<std::string>(), "the tensor occurs twice");
      return true;
    };
    json header = json::parse(text, check, /*allow_exceptions=*/false);
    if (!header.is_object()) fail("header", "not a JSON object: the file is damaged or not a safetensors file");
    return header;
  }

  const json& member(const std::string& name, const json& value, const char* key) const {
    const auto found = value.is_object() ? value.find(key) : value.end();
    if (!value.is_object() || found == value.end()) fail(name, format("\"{}\" is missing", key));
    return *found;
  }

  std::vector<int64_t> sizes_of(const std::string& name, const json& list, const char* key) const {
    if (!list.is_array()) fail(name, format("\"{}\" is not a list", key));
    std::vector<int64_t> sizes;
    for (const json& each : list) {
      if (!each.is_number_unsigned() || each.get<uint64_t>() > uint64_t{1} << 62)
        fail(name, format("\"{}\": {} is not a size", key, json_text(each)));
      sizes.push_back(each.get<int64_t>());
    }
    return sizes;
  }

  TensorEntry entry_of(const std::string& name, const json& value) const {
    const json& dtype = member(name, value, "dtype");
    TensorEntry entry{name, dtype.is_string() ? dtype.get<std::string>() : "", {}, 0, 0};
    int64_t bytes = element_bytes(entry.dtype);
    if (bytes == 0) fail(name, format("unknown element type {}", json_text(dtype)));
    entry.shape = sizes_of(name, member(name, value, "shape"), "shape");
    for (const int64_t size : entry.shape) {
      if (size != 0 && bytes > data_bytes_ / size) fail(name, "its shape requires more bytes than the file has");
      bytes *= size;
    }
    const std::vector<int64_t> offsets = sizes_of(name, member(name, value, "data_offsets"), "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes_)
      fail(name, format("data_offsets {} are not within the {} bytes of the tensors: the file is truncated or damaged",
                        json(offsets).dump(), data_bytes_));
    entry.begin = offsets[0];
    entry.end = offsets[1];
    if (entry.end - entry.begin != bytes)
      fail(name, format("{} bytes from {} to {}, but its type and shape need {}", entry.end - entry.begin, entry.begin,
                        entry.end, bytes));
    return entry;
  }

  const std::string& origin_;
  int64_t data_bytes_;
};

}  // namespace

std::vector<TensorEntry> parse_safetensors_header(std::string_view text, int64_t data_bytes,
                                                  const std::string& origin) {
  return HeaderReader(origin, data_bytes).read(text);
}

SafetensorsFile::SafetensorsFile(const fs::path& path) : file_(File::open(path)) {
  const auto refuse = [&](const std::string& reason) {
    throw Error(Code::checkpoint, format("{}: {}", path.string(), reason));
  };
  const int64_t size = file_.size();
  if (size < kLengthBytes)
    refuse(format("{} bytes: not a safetensors file, which begins with a length of 8 bytes", size));
  uint64_t length = 0;
  file_.read(0, std::as_writable_bytes(std::span(&length, 1)));
  if (length > static_cast<uint64_t>(kMostHeaderBytes)) {
    std::string start(static_cast<size_t>(std::min<int64_t>(size, 64)), '\0');
    file_.read(0, std::as_writable_bytes(std::span(start)));
    refuse_lfs_pointer(path, start, Code::checkpoint);
    refuse(format(
        "its header would have {} bytes, more than the limit of {}: the file is corrupt or not a safetensors file",
        length, kMostHeaderBytes));
  }
  if (static_cast<int64_t>(length) > size - kLengthBytes)
    refuse(format("its header has {} bytes, but only {} follow: the file is truncated", length, size - kLengthBytes));
  std::string header(static_cast<size_t>(length), '\0');
  file_.read(kLengthBytes, std::as_writable_bytes(std::span(header)));
  data_ = kLengthBytes + static_cast<int64_t>(length);
  tensors_ = parse_safetensors_header(header, size - data_, path.string());
}

void SafetensorsFile::read(const TensorEntry& tensor, int64_t offset, std::span<std::byte> bytes) const {
  file_.read(data_ + tensor.begin + offset, bytes);
}

namespace {

/// Returns the length and the header, padded with spaces so that the tensors are aligned.
std::string start_of_file(const std::vector<TensorEntry>& tensors) {
  nlohmann::ordered_json header{{kMetadata, {{"format", "pt"}}}};
  for (const TensorEntry& tensor : tensors)
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
  std::string text = header.dump();
  text.resize(static_cast<size_t>(round_up(static_cast<int64_t>(text.size()), kLengthBytes)), ' ');
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const fs::path& path, std::vector<TensorEntry> tensors)
    : file_(File::create(path)) {
  for (TensorEntry& tensor : tensors) {
    tensor.begin = left_;
    int64_t bytes = element_bytes(tensor.dtype);
    for (const int64_t size : tensor.shape) bytes *= size;
    tensor.end = left_ += bytes;
  }
  const std::string start = start_of_file(tensors);
  file_.write(std::as_bytes(std::span(start)));
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  left_ -= static_cast<int64_t>(bytes.size());
  file_.write(bytes);
}

void SafetensorsWriter::finish() {
  TRAINER_CHECK(left_ == 0, "{}: {} bytes of tensors were not written", file_.path().string(), left_);
  file_.sync();
  file_.close();
}

}  // namespace trainer::huggingface
