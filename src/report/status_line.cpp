#include "report/status_line.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace trainer::report {
namespace {

constexpr double kSecondsBetweenUpdates = 0.1, kSecondsBetweenLines = 10;

}  // namespace

StatusLine::StatusLine(Terminal terminal)
    : terminal_(std::move(terminal)), started_(terminal_.clock()), last_(started_) {
  if (!terminal_.is_tty) return;
  previous_sink_ = log::set_sink([this](log::Level level, const std::string& line) {
    const std::lock_guard lock(mutex_);
    clear();
    previous_sink_(level, line);
  });
}

StatusLine::~StatusLine() {
  if (!terminal_.is_tty) return;
  log::set_sink(std::move(previous_sink_));
  clear();
}

void StatusLine::clear() {
  if (drawn_) terminal_.write("\r\x1b[K");
  drawn_ = false;
}

void StatusLine::show(const std::string& text, int64_t done, int64_t total) {
  const double now = terminal_.clock();
  if (now - last_ < (terminal_.is_tty ? kSecondsBetweenUpdates : kSecondsBetweenLines)) return;
  last_ = now;
  std::string line = text;
  if (done > 0) {
    const double left = (now - started_) / static_cast<double>(done) * static_cast<double>(total - done);
    line += format(", {} left", format_duration(left));
  }
  if (!terminal_.is_tty) return log::info("{}", line);
  const std::lock_guard lock(mutex_);
  clear();
  terminal_.write(line.substr(0, static_cast<size_t>(std::max(1, terminal_.width()) - 1)));
  drawn_ = true;
}

}  // namespace trainer::report
