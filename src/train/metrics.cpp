#include "train/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "train/events_json.h"

namespace trainer::train {
namespace {

bool ends_inside_a_line(int descriptor) {
  struct stat status = {};
  char last = '\n';
  return fstat(descriptor, &status) == 0 && status.st_size > 0 &&
         pread(descriptor, &last, 1, status.st_size - 1) == 1 && last != '\n';
}

/// Step of an event; nothing when the line is not a JSON object. Events without a step belong to the start.
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
    throw Error(Code::io, format("cannot write {}: {}; check run.dir", file_.string(), std::strerror(errno)));
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
  ssize_t written = 0;
  do {
    written = ::write(descriptor_, line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  if (written == static_cast<ssize_t>(line.size())) {
    torn_ = false;
    return;
  }
  const int reason = written < 0 ? errno : ENOSPC;  // a short write to a file means that the disk is full
  if (written > 0) torn_ = true;
  if (lost_++ == 0)
    log::warning("cannot write {}: {}; training goes on without it", file_.string(), std::strerror(reason));
}

void truncate_after_step(const std::filesystem::path& file, int64_t step) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    if (!std::filesystem::exists(file)) return;
    throw Error(Code::io, format("cannot read {}: {}", file.string(), std::strerror(errno)));
  }
  std::filesystem::path kept = file;
  kept += ".tmp";
  std::ofstream out(kept, std::ios::binary | std::ios::trunc);
  for (std::string line; std::getline(in, line);) {
    if (const auto at = step_of(line); at && *at <= step) out << line << '\n';
  }
  out.close();
  std::error_code status;
  if (out) std::filesystem::rename(kept, file, status);
  if (!out || status) {
    const std::string reason = status ? status.message() : std::strerror(errno);
    std::filesystem::remove(kept, status);
    throw Error(Code::io, format("cannot cut {} back to step {}: {}", file.string(), step, reason));
  }
}

}  // namespace trainer::train
