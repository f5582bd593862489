#include "report/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/file_io.h"
#include "base/files.h"
#include "base/log.h"
#include "report/events_json.h"

namespace trainer::report {
namespace {

bool ends_inside_a_line(int descriptor) {
  struct stat status = {};
  char last = '\n';
  return fstat(descriptor, &status) == 0 && status.st_size > 0 &&
         pread(descriptor, &last, 1, status.st_size - 1) == 1 && last != '\n';
}

/// Calls act(line, whether it ended with a newline) for each line. Throws Code::io with the reason.
void for_each_line(const std::filesystem::path& file, const std::function<void(const std::string&, bool)>& act) {
  const auto fail = [&](int reason) {
    throw Error(Code::io, format("cannot read {}: {}; check run.dir", file.string(), system_reason(reason)));
  };
  const std::unique_ptr<FILE, int (*)(FILE*)> in(std::fopen(file.c_str(), "re"), &std::fclose);
  if (in == nullptr) fail(errno);
  char* line = nullptr;
  size_t room = 0;
  ssize_t length = 0;
  while ((length = ::getline(&line, &room, in.get())) > 0) {
    std::string text(line, static_cast<size_t>(length));
    const bool ended = text.back() == '\n';
    if (ended) text.pop_back();
    act(text, ended);
  }
  const int reason = std::ferror(in.get()) != 0 ? errno : 0;
  std::free(line);
  if (reason != 0) fail(reason);
}

/// Returns the step of an event; nothing when the line is not a JSON object. Events without a step belong to the start.
std::optional<int64_t> step_of(const std::string& line) {
  const Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) return std::nullopt;
  const auto step = event.find("step");
  return step != event.end() && step->is_number_integer() ? step->get<int64_t>() : 0;
}

}  // namespace

MetricsLog::MetricsLog(std::filesystem::path file) : file_(std::move(file)) {
  descriptor_ = open(file_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    const int reason = errno;
    throw Error(Code::io, format("cannot write {}: {}; check run.dir", file_.string(), system_reason(reason)));
  }
  torn_ = ends_inside_a_line(descriptor_);
}

MetricsLog::~MetricsLog() { close(descriptor_); }

void MetricsLog::write(const StartReport& start) { write_line(to_line(to_json(start))); }
void MetricsLog::write(const StepReport& step) { write_line(to_line(to_json(step))); }
void MetricsLog::write(const EvalReport& eval) { write_line(to_line(to_json(eval))); }
void MetricsLog::write(const CheckpointReport& checkpoint) { write_line(to_line(to_json(checkpoint))); }
void MetricsLog::write(const WarningReport& warning) { write_line(to_line(to_json(warning))); }
void MetricsLog::write(const EndReport& end) { write_line(to_line(to_json(end))); }

void MetricsLog::write_line(std::string line) {
  line += '\n';
  if (torn_) line.insert(line.begin(), '\n');
  const ssize_t written = uninterrupted([&] { return ::write(descriptor_, line.data(), line.size()); });
  if (written == static_cast<ssize_t>(line.size())) {
    torn_ = false;
    return;
  }
  const int reason = written < 0 ? errno : ENOSPC;  // a short write to a file means that the disk is full
  if (written > 0) torn_ = true;
  if (lost_++ == 0)
    log::warning("cannot write {}: {}; training continues without it", file_.string(),
                 std::generic_category().message(reason));
}

void truncate_after_step(const std::filesystem::path& file, int64_t step) {
  if (std::error_code none; !std::filesystem::exists(file, none)) return;
  const auto stays = [&](const std::string& line, bool ended) {
    const auto at = step_of(line);
    return ended && at && *at <= step;
  };
  int64_t kept = 0, size = 0;     // bytes: of the leading lines that stay; of all lines
  bool only_the_end_goes = true;  // no line that stays follows one that goes
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
  // Truncating in place needs no room on a full disk.
  if (::truncate(file.c_str(), kept) != 0) {
    const int reason = errno;
    throw Error(Code::io, format("cannot cut {} back to step {}: {}", file.string(), step, system_reason(reason)));
  }
}

}  // namespace trainer::report
