#include "report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/clock.h"
#include "base/units.h"

namespace trainer::report {
namespace {

constexpr double kSecondsBetweenDraws = 0.1;
constexpr int kBarMin = 8, kBarMax = 30;
const char* const kClearLine = "\r\x1b[K";

int terminal_width() {
  winsize size = {};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string locale = value;
    return locale.find("UTF-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  }
  return false;
}

/// Returns a bar of `cells` columns, filled to `share`.
std::string bar(double share, int cells, bool utf8) {
  const int filled = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * cells));
  std::string text;
  for (int cell = 0; cell < cells; ++cell) {
    if (cell < filled) {
      text += utf8 ? "━" : "=";
    } else {
      text += utf8 ? "─" : "-";
    }
  }
  return text;
}

std::string loss_text(double loss) { return std::isfinite(loss) ? format("loss {:.4f}", loss) : "loss not finite"; }
std::string rate_text(double lr) { return std::isfinite(lr) ? format("lr {:.2e}", lr) : ""; }
std::string mfu_text(double mfu) { return std::isfinite(mfu) ? "mfu " + format_percent(mfu) : ""; }

const char* prefix_of(log::Level level) { return level == log::Level::warning ? "warning: " : ""; }

}  // namespace

Terminal stderr_terminal() {
  return {.write = [](const std::string& text) { std::fputs(text.c_str(), stderr); },
          .width = terminal_width,
          .clock = now_seconds,
          .is_tty = isatty(STDERR_FILENO) == 1,
          .utf8 = locale_is_utf8()};
}

Progress::Progress(config::ProgressMode mode, int64_t completed, int64_t total, int64_t interval, Terminal terminal)
    : terminal_(std::move(terminal)),
      redrawing_(mode == config::ProgressMode::on || (mode == config::ProgressMode::automatic && terminal_.is_tty)),
      completed_(completed),
      total_(total),
      interval_(interval),
      started_(terminal_.clock()) {
  last_.step = completed;
  if (!redrawing_) return;
  previous_sink_ = log::set_sink([this](log::Level level, const std::string& line) {
    const std::lock_guard lock(mutex_);
    terminal_.write((drawn_ ? kClearLine : "") + std::string(prefix_of(level)) + line + "\n" +
                    (drawn_ ? bar_line() : ""));
  });
}

Progress::~Progress() {
  if (!redrawing_) return;
  log::set_sink(std::move(previous_sink_));
  const std::lock_guard lock(mutex_);
  if (!drawn_) return;
  activity_.clear();
  draw(true);
  terminal_.write("\n");
}

void Progress::step(const StepReport& report) {
  const std::lock_guard lock(mutex_);
  // Members are assigned individually: a report's maps are not shown, and copying them would allocate.
  last_.step = report.step;
  last_.epoch = report.epoch;
  last_.loss = report.loss;
  last_.lr = report.lr;
  last_.tokens_per_s = report.tokens_per_s;
  last_.mfu = report.mfu;
  activity_.clear();
  if (redrawing_) {
    draw(report.step >= total_);
  } else if (report.step == completed_ + 1 || report.step == total_ ||
             (interval_ > 0 && report.step % interval_ == 0)) {
    terminal_.write(plain_line(report) + "\n");
  }
}

void Progress::status(const std::string& activity) {
  const std::lock_guard lock(mutex_);
  activity_ = activity;
  if (redrawing_) draw(false);
}

double Progress::seconds_left() const {
  const int64_t done = last_.step - completed_;
  if (done <= 0) return kUnknown;
  return (terminal_.clock() - started_) / static_cast<double>(done) * static_cast<double>(total_ - last_.step);
}

std::string Progress::plain_line(const StepReport& report) const {
  std::string line = format("step {}/{}", report.step, total_);
  if (std::isfinite(report.epoch)) line += format("  epoch {:.2f}", report.epoch);
  line += "  " + loss_text(report.loss);
  const auto add = [&line](const std::string& field) {
    if (!field.empty()) line += "  " + field;
  };
  add(rate_text(report.lr));
  if (std::isfinite(report.grad_norm)) add("norm " + format_number(report.grad_norm, 3));
  if (report.experts) add(format("load {:.2f}", report.experts->load_max));
  if (report.skipped) add("skipped");
  add(format_count(report.tokens_per_s) + " tokens/s");
  if (std::isfinite(report.step_ms)) add(format("{:.{}f} ms", report.step_ms, report.step_ms < 100 ? 1 : 0));
  add(mfu_text(report.mfu));
  if (report.step < total_) add(format_duration(seconds_left()) + " left");
  return line;
}

std::string Progress::bar_line() const {
  const double share = total_ > 0 ? static_cast<double>(last_.step) / static_cast<double>(total_) : 0;
  const std::string head = format("step {}/{} ", last_.step, total_),
                    percent = format(" {:.0f}%", std::floor(share * 100));
  const std::string elapsed = format_duration(terminal_.clock() - started_);

  // Fields are in the order shown. Fields with the largest `rank` are dropped first when the line is narrow.
  struct Field {
    std::string text;
    int rank;
  };
  std::vector<Field> fields;
  if (!activity_.empty()) {
    fields = {{activity_, 0}, {elapsed, 1}};
  } else if (last_.step > completed_) {
    const std::string left = last_.step < total_ ? format_duration(seconds_left()) + " left" : "";
    fields = {{loss_text(last_.loss), 0},
              {rate_text(last_.lr), 4},
              {format_count(last_.tokens_per_s) + " tokens/s", 2},
              {mfu_text(last_.mfu), 3},
              {std::isfinite(last_.epoch) ? format("epoch {:.2f}", last_.epoch) : "", 6},
              {elapsed, 5},
              {left, 1}};
  }
  std::erase_if(fields, [](const Field& field) { return field.text.empty(); });

  const int room = terminal_.width() - 1 - static_cast<int>(head.size() + percent.size());
  const auto used = [&fields] {
    int columns = 0;
    for (const Field& field : fields) columns += 2 + static_cast<int>(field.text.size());
    return columns;
  };
  while (!fields.empty() && used() + kBarMin > room) {
    fields.erase(
        std::max_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  }
  const int cells = std::min(room - used(), kBarMax);
  if (cells < kBarMin)
    return format("{}{}", head, percent).substr(0, static_cast<size_t>(std::max(0, terminal_.width() - 1)));
  std::string line = head + bar(share, cells, terminal_.utf8) + percent;
  for (const Field& field : fields) line += "  " + field.text;
  return line;
}

void Progress::draw(bool now) {
  const double time = terminal_.clock();
  if (!now && time - last_draw_ < kSecondsBetweenDraws) return;
  last_draw_ = time;
  drawn_ = true;
  terminal_.write(kClearLine + bar_line());
}

}  // namespace trainer::report
