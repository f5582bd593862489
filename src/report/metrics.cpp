#include "report/metrics.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <functional>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "report/events_json.h"

namespace trainer::report {
namespace {

/// Calls act(line, ended) for each line; `ended` is false if a newline is missing after the last line. Throws Code::io
/// with the reason.
void for_each_line(const std::filesystem::path& file, const std::function<void(const std::string&, bool)>& act) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line);) act(line, !in.eof());
  if (in.bad() || !in.is_open())
    throw Error(Code::io, format("cannot read {}: {}; check run.dir", file.string(), system_reason(errno)));
}

/// Returns the step of an event; empty if the line is not a JSON object. Events without a step count as step 0.
std::optional<int64_t> step_of(const std::string& line) {
  const auto event = parse_json<Json>(line);
  if (!event.is_object()) return std::nullopt;
  const auto step = event.find("step");
  return step != event.end() && step->is_number_integer() ? step->get<int64_t>() : 0;
}

}  // namespace

void MetricsLog::write(const Json& event) { RecordFile::write(json_text(event) + "\n"); }

void truncate_after_step(const std::filesystem::path& file, int64_t step) {
  if (std::error_code none; !std::filesystem::exists(file, none)) return;
  const auto stays = [&](const std::string& line, bool ended) {
    const auto at = step_of(line);
    return ended && at && *at <= step;
  };
  int64_t kept = 0, size = 0;     // bytes of the leading lines that are kept; bytes of all lines
  bool only_the_end_goes = true;  // every removed line is after the last kept one
  for_each_line(file, [&](const std::string& line, bool ended) {
    const bool follows = kept == size;
    size += static_cast<int64_t>(line.size()) + ended;
    if (!stays(line, ended)) return;
    if (follows) kept = size;
    only_the_end_goes &= follows;
  });
  if (kept == size) return;
  if (!only_the_end_goes) {
    std::string text;
    for_each_line(file, [&](const std::string& line, bool ended) {
      if (stays(line, ended)) text += line + '\n';
    });
    return replace_file(file, text);
  }
  // Truncating in place works even if the disk is full.
  if (::truncate(file.c_str(), kept) != 0) {
    const int reason = errno;
    throw Error(Code::io, format("cannot truncate {} after step {}: {}", file.string(), step, system_reason(reason)));
  }
}

}  // namespace trainer::report
