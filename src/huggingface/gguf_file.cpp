#include "huggingface/gguf_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "huggingface/float_types.h"

namespace trainer::huggingface {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kGgufAlignment = 32;
constexpr uint32_t kVersion = 3;

/// Appends numbers and texts in the format's encoding.
class Encoder {
 public:
  template <typename T>
  void number(T value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    out_.append(bytes, sizeof value);
  }
  void text(const std::string& text) {
    number<uint64_t>(text.size());
    out_ += text;
  }
  void value(const GgufValue& value) {
    std::visit([&](const auto& each) { tagged(each); }, value);
  }
  void pad() { out_.resize(static_cast<size_t>(round_up(static_cast<int64_t>(out_.size()), kGgufAlignment))); }
  std::string& out() { return out_; }

 private:
  enum Tag : uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kBool = 7, kString = 8, kArray = 9 };

  static Tag tag_of(uint32_t) { return kUint32; }
  static Tag tag_of(int32_t) { return kInt32; }
  static Tag tag_of(float) { return kFloat32; }
  static Tag tag_of(bool) { return kBool; }
  static Tag tag_of(const std::string&) { return kString; }

  template <typename T>
  void bare(const T& value) {
    number(value);
  }
  void bare(const std::string& value) { text(value); }
  void bare(bool value) { number<uint8_t>(value ? 1 : 0); }
  template <typename T>
  void tagged(const T& value) {
    number<uint32_t>(tag_of(value));
    bare(value);
  }
  template <typename T>
  void tagged(const std::vector<T>& list) {
    number<uint32_t>(kArray);
    number<uint32_t>(tag_of(T{}));
    number<uint64_t>(list.size());
    for (const T& each : list) bare(each);
  }
  std::string out_;
};

/// One block: a scale, and the elements divided by it.
void append_q8_0(std::span<const float> values, std::byte* out) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  constexpr float kMost = 127;
  const float scale = largest / kMost, inverse = scale > 0 ? 1 / scale : 0;
  const uint16_t stored = half_from_float(scale);
  std::memcpy(out, &stored, sizeof stored);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto rounded = static_cast<int8_t>(std::lround(values[i] * inverse));
    out[sizeof stored + i] = static_cast<std::byte>(rounded);
  }
}

FloatType float_type(GgufType type) {
  return type == GgufType::bf16 ? FloatType::bf16 : type == GgufType::f16 ? FloatType::f16 : FloatType::f32;
}

}  // namespace

int64_t gguf_bytes(GgufType type, int64_t elements) {
  constexpr int64_t kBlockBytes = 2 + kGgufBlock;
  if (type != GgufType::q8_0) return elements * size_of(float_type(type));
  TRAINER_CHECK(elements % kGgufBlock == 0, "{} elements are whole blocks", elements);
  return elements / kGgufBlock * kBlockBytes;
}

size_t gguf_convert(std::span<const float> values, GgufType type, std::vector<std::byte>& out) {
  out.resize(static_cast<size_t>(gguf_bytes(type, static_cast<int64_t>(values.size()))));
  if (type != GgufType::q8_0) return from_float(values, float_type(type), out);
  constexpr float kLargest = 65504.0f * 127;  // the largest value in a block whose scale is a finite fp16
  std::byte* at = out.data();
  for (size_t i = 0; i < values.size(); i += kGgufBlock, at += 2 + kGgufBlock) {
    const std::span<const float> block = values.subspan(i, kGgufBlock);
    for (size_t j = 0; j < block.size(); ++j)
      if (!(std::abs(block[j]) <= kLargest)) return i + j;
    append_q8_0(block, at);
  }
  return values.size();
}

GgufWriter::GgufWriter(const fs::path& path, const GgufMetadata& metadata, std::vector<GgufTensor> tensors)
    : file_(File::create(path)), tensors_(std::move(tensors)) {
  Encoder header;
  header.out() = "GGUF";
  header.number(kVersion);
  header.number<uint64_t>(tensors_.size());
  header.number<uint64_t>(metadata.size());
  for (const auto& [key, value] : metadata) {
    header.text(key);
    header.value(value);
  }
  int64_t offset = 0;
  for (const GgufTensor& tensor : tensors_) {
    header.text(tensor.name);
    header.number<uint32_t>(static_cast<uint32_t>(tensor.shape.dims()));
    const std::vector<int64_t> extents = tensor.shape.extents();
    for (auto size = extents.rbegin(); size != extents.rend(); ++size)
      header.number<uint64_t>(static_cast<uint64_t>(*size));
    header.number(static_cast<uint32_t>(tensor.type));
    header.number<uint64_t>(static_cast<uint64_t>(offset));
    offset += round_up(gguf_bytes(tensor.type, tensor.shape.count()), kGgufAlignment);
  }
  header.pad();
  file_.write(std::as_bytes(std::span(header.out())));
}

void GgufWriter::write(std::span<const std::byte> bytes) {
  TRAINER_CHECK(tensor_ < tensors_.size(), "{}: {} bytes follow the last tensor", file_.path().string(), bytes.size());
  file_.write(bytes);
  written_ += static_cast<int64_t>(bytes.size());
  const GgufTensor& tensor = tensors_[tensor_];
  const int64_t all = gguf_bytes(tensor.type, tensor.shape.count());
  TRAINER_CHECK(written_ <= all, "{}: {} of {} bytes were written", tensor.name, written_, all);
  if (written_ < all) return;
  const std::vector<std::byte> padding(static_cast<size_t>(round_up(all, kGgufAlignment) - all));
  file_.write(padding);
  ++tensor_;
  written_ = 0;
}

void GgufWriter::finish() {
  TRAINER_CHECK(tensor_ == tensors_.size(), "{}: {} of {} tensors were written", file_.path().string(), tensor_,
                tensors_.size());
  file_.sync();
  file_.close();
}

}  // namespace trainer::huggingface
