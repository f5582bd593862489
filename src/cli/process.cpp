#include "cli/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "base/files.h"
#include "base/interruptible.h"
#include "base/log.h"
#include "report/printable.h"

namespace trainer::cli {
namespace {

std::string not_printed(int reason) {
  return "cannot write standard output" + (reason == 0 ? "" : ": " + system_reason(reason));
}

}  // namespace

void prepare_process() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  log::set_sink([plain = log::set_sink({})](log::Level level, const std::string& line) {
    plain(level, report::printable(line));  // file names may contain sequences that terminals interpret
  });
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // open() returns the lowest free number, which is this one, as those below are open. The access mode is the
    // opposite of the descriptor's use, so that every read or write fails.
    const int opened = ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    if (opened >= 0 && opened != descriptor) ::close(opened);
  }
}

void print(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0 ||
      std::ferror(stdout) != 0)
    throw Error(Code::io, not_printed(errno));
}

int exit_with(int status) {
  if (!has_abandoned_work()) return status;
  std::fflush(nullptr);
  ::_exit(status);
}

bool is_output_complete() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  std::fprintf(stderr, "trainer: %s\n", not_printed(errno).c_str());
  return false;
}

}  // namespace trainer::cli
