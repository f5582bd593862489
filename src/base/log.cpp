#include "base/log.h"

#include <cstdio>
#include <mutex>

namespace trainer::log {
namespace {

std::mutex mutex;

void to_stderr(Level level, const std::string& line) {
  const char* prefix = level == Level::warning ? "warning: " : level == Level::error ? "error: " : "";
  std::fprintf(stderr, "%s%s\n", prefix, line.c_str());
}

Sink& sink() {
  static Sink current = to_stderr;
  return current;
}

}  // namespace

Sink set_sink(Sink next) {
  const std::lock_guard lock(mutex);
  Sink previous = sink();
  sink() = next ? std::move(next) : to_stderr;
  return previous;
}

void write(Level level, const std::string& line) {
  const std::lock_guard lock(mutex);
  sink()(level, line);
}

}  // namespace trainer::log
