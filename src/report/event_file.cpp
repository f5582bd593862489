#include "report/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <ctime>

#include "base/error.h"
#include "base/file_io.h"
#include "base/files.h"
#include "base/log.h"

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

/// A message of protocol buffers, field by field.
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

/// The number in the name of an event file: the second in which it was made; 0 for other files.
int64_t second_of(const std::string& name) {
  int64_t second = 0;
  if (name.starts_with(kPrefix)) std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), second);
  return second;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> table = crc_table();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  return ~crc;
}

std::string event_record(std::string_view message) {
  // Checksums are masked, as a checksum of data that holds checksums is weak.
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

EventFile::EventFile(const std::filesystem::path& folder) {
  int64_t second = std::time(nullptr);
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none))
    second = std::max(second, second_of(entry.path().filename().string()) + 1);
  char host[256] = "host";
  gethostname(host, sizeof host - 1);
  path_ = folder / format("{}{:010}.{}.{}.0", kPrefix, second, host, getpid());
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ >= 0) return;
  const int reason = errno;
  throw Error(Code::io, format("cannot write {}: {}; check run.dir", path_.string(), system_reason(reason)));
}

EventFile::~EventFile() { close(descriptor_); }

void EventFile::write(std::string_view message) {
  const std::string record = event_record(message);
  const ssize_t written = uninterrupted([&] { return pwrite(descriptor_, record.data(), record.size(), size_); });
  if (written == static_cast<ssize_t>(record.size())) {
    size_ += written;
    return;
  }
  const int reason = written < 0 ? errno : ENOSPC;  // a short write to a file means that the disk is full
  const bool cut = written <= 0 || ftruncate(descriptor_, size_) == 0;
  if (!lost_ || !cut)
    log::warning("cannot write {}: {}; training continues without it", path_.string(), system_reason(reason));
  lost_ = true;
}

}  // namespace trainer::report
