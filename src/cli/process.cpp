#include "cli/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "base/file_io.h"
#include "base/files.h"

namespace trainer::cli {
namespace {

std::string not_printed(int reason) {
  return "cannot write standard output" + (reason == 0 ? "" : ": " + system_reason(reason));
}

}  // namespace

void prepare_process() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0) continue;
    // The lowest free number is this one, as those below are open. It is opened in the wrong direction, so that using
    // it fails.
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

bool is_output_complete() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  std::fprintf(stderr, "trainer: %s\n", not_printed(errno).c_str());
  return false;
}

std::string read_input(const std::string& path, const std::string& option) {
  const int file = path == "-" ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto refuse = [&](int reason) {
    if (path != "-" && file >= 0) ::close(file);
    throw Error(Code::usage, format("{} {}: {} cannot be read: {}", option, path, path == "-" ? "standard input" : "it",
                                    system_reason(reason)));
  };
  if (file < 0) refuse(errno);
  std::string text, block(size_t{1} << 16, '\0');
  for (;;) {
    const ssize_t got = uninterrupted([&] { return ::read(file, block.data(), block.size()); });
    if (got < 0) refuse(errno);
    if (got == 0) break;
    text.append(block, 0, static_cast<size_t>(got));
  }
  if (path != "-") ::close(file);
  return text;
}

}  // namespace trainer::cli
