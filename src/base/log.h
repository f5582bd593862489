#pragma once
// Log lines for users, on stderr; only cli/ prints results, to stdout. Only rank 0 logs info lines; warnings from other
// ranks are prefixed with the rank.
#include <functional>
#include <string>

#include "base/format.h"

namespace trainer::log {

enum class Level { info, warning };

/// Sets the destination of lines; the default writes lines to stderr, warnings prefixed with "warning: ". The progress
/// bar installs its own sink so that lines do not corrupt it. Thread-safe; returns the previous sink.
using Sink = std::function<void(Level, const std::string&)>;
Sink set_sink(Sink sink);
void write(Level level, const std::string& line);
/// Sets the rank of this thread for its log lines, 0 until set; ranks may be threads.
void set_rank(int rank);

template <typename... Args>
void info(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::info, fmt::format(text, std::forward<Args>(args)...));
}
template <typename... Args>
void warning(fmt::format_string<Args...> text, Args&&... args) {
  write(Level::warning, fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace trainer::log
