#include "base/log.h"

#include <cstdio>
#include <mutex>

namespace trainer::log {
namespace {

std::mutex mutex;
thread_local int this_rank = 0;

void to_stderr(Level level, const std::string& line) {
  const char* prefix = level == Level::warning ? "warning: " : "";
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
  if (this_rank > 0 && level == Level::info) return;
  const std::lock_guard lock(mutex);
  sink()(level, this_rank > 0 ? format("rank {}: {}", this_rank, line) : line);
}

void set_rank(int rank) { this_rank = rank; }

}  // namespace trainer::log
