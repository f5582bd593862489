#include "report/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <ctime>

#include "base/format.h"

namespace trainer::report {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[byte] = crc;
  }
  return table;
}

template <typename T>
std::string little_endian(T value) {
  std::string bytes;
  for (size_t i = 0; i < sizeof value; ++i) bytes += static_cast<char>(value >> 8 * i & 0xFF);
  return bytes;
}

/// Encodes a protobuf message field by field.
class Message {
 public:
  Message& integer(int field, int64_t value) { return key(field, 0).varint(static_cast<uint64_t>(value)); }
  Message& number(int field, double value) {
    return key(field, 1).append(little_endian(std::bit_cast<uint64_t>(value)));
  }
  Message& number(int field, float value) {
    return key(field, 5).append(little_endian(std::bit_cast<uint32_t>(value)));
  }
  Message& bytes(int field, std::string_view value) { return key(field, 2).varint(value.size()).append(value); }
  Message& message(int field, const Message& value) { return bytes(field, value.text_); }
  const std::string& text() const { return text_; }

 private:
  Message& key(int field, int kind) { return varint(static_cast<uint64_t>(field << 3 | kind)); }
  Message& varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) text_ += static_cast<char>(value | 0x80);
    text_ += static_cast<char>(value);
    return *this;
  }
  Message& append(std::string_view value) {
    text_ += value;
    return *this;
  }
  std::string text_;
};

// Fields of tensorflow.Event, Summary.Value, SummaryMetadata, TensorProto and SessionLog.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
constexpr int kPluginData = 1, kPluginName = 1;
constexpr int kTensorType = 1, kTensorShape = 2, kStringValue = 8, kString = 7;
constexpr int kStatus = 1, kStart = 1;

Message event(double wall_time, int64_t step) {
  Message message;
  message.number(kWallTime, wall_time);
  if (step != 0) message.integer(kStep, step);
  return message;
}

/// Returns the name of a new event file. It contains the current time in seconds, or a time later than those in
/// existing names.
std::string file_name(const std::filesystem::path& folder) {
  int64_t second = std::time(nullptr);
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    int64_t made = 0;
    if (name.starts_with(kPrefix)) std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), made);
    second = std::max(second, made + 1);
  }
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  return format("{}{:010}.{}.{}.0", kPrefix, second, host, getpid());
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> table = crc_table();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

std::string event_record(std::string_view message) {
  // Checksums are masked, since a checksum of data that contains checksums is weak.
  const auto masked = [](std::string_view bytes) { return little_endian(std::rotr(crc32c(bytes), 15) + 0xA282EAD8u); };
  const std::string length = little_endian(static_cast<uint64_t>(message.size()));
  return length + masked(length) + std::string(message) + masked(message);
}

std::string version_event(double wall_time) { return event(wall_time, 0).bytes(kFileVersion, "brain.Event:2").text(); }

std::string restart_event(double wall_time, int64_t step) {
  return event(wall_time, step).message(kSessionLog, Message().integer(kStatus, kStart)).text();
}

std::string scalar_event(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& scalars) {
  Message summary;
  for (const auto& [tag, value] : scalars)
    summary.message(kValue, Message().bytes(kTag, tag).number(kSimpleValue, static_cast<float>(value)));
  return event(wall_time, step).message(kSummary, summary).text();
}

std::string text_event(double wall_time, int64_t step, const std::string& tag, const std::string& text) {
  const Message tensor = Message().integer(kTensorType, kString).message(kTensorShape, {}).bytes(kStringValue, text);
  const Message metadata = Message().message(kPluginData, Message().bytes(kPluginName, "text"));
  const Message value = Message().bytes(kTag, tag).message(kTensor, tensor).message(kMetadata, metadata);
  return event(wall_time, step).message(kSummary, Message().message(kValue, value)).text();
}

EventFile::EventFile(const std::filesystem::path& folder) : file_(folder / file_name(folder), O_EXCL) {}

}  // namespace trainer::report
