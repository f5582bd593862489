#pragma once
// TensorBoard's event files: TFRecords that contain protobuf messages. Only the messages that a training run needs are
// implemented: scalars, texts and restart markers. They are encoded by hand, since four messages are not worth a
// dependency on the protobuf library and compiler.
//
//   record   length u64 | masked CRC-32C of length u32 | message | masked CRC-32C of message u32; little-endian
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/record_file.h"

namespace trainer::report {

/// Returns the CRC-32C (Castagnoli) of RFC 3720.
uint32_t crc32c(std::string_view bytes);
/// Returns a message as a record.
std::string event_record(std::string_view message);

/// The messages of an event file. `wall_time`: seconds since 1970.
std::string version_event(double wall_time);
/// Marks the start or resumption of a run: TensorBoard discards the data of `step` and of later steps.
std::string restart_event(double wall_time, int64_t step);
std::string scalar_event(double wall_time, int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
/// `text` is in Markdown.
std::string text_event(double wall_time, int64_t step, const std::string& tag, const std::string& text);

/// An event file that is open for writing.
class EventFile {
 public:
  /// Creates a file in `folder` whose name sorts after those of existing event files, since TensorBoard reads them in
  /// that order. Throws Code::io naming the file.
  explicit EventFile(const std::filesystem::path& folder);

  void write(std::string_view message) { file_.write(event_record(message)); }
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  RecordFile file_;
};

}  // namespace trainer::report
