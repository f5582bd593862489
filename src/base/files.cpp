#include "base/files.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <system_error>

#include "base/file_io.h"
#include "base/log.h"

namespace trainer {

namespace fs = std::filesystem;

namespace {

const char* remedy(int error) {
  switch (error) {
    case ENOSPC:
      return "; the disk is full: free space there or choose a folder on a different disk";
    case EDQUOT:
      return "; the disk quota is used up: free space there or choose a folder on a different disk";
    case EFBIG:
      return "; files may not grow that large here: raise the limit (ulimit -f) or choose a different file system";
    case EACCES:
    case EPERM:
    case EROFS:
      return "; grant this user access or choose a different folder";
    case EMFILE:
    case ENFILE:
      return "; raise the limit on open files (ulimit -n)";
    case EIO:
      return "; the disk or the network reported an I/O error: see the kernel log (dmesg)";
    default:
      return "";
  }
}

/// Returns the kind of object that the type denotes if it is not a regular file, or null.
const char* not_a_file(fs::file_type type) {
  switch (type) {
    case fs::file_type::directory:
      return "a folder";
    case fs::file_type::block:
    case fs::file_type::character:
      return "a device";
    case fs::file_type::fifo:
      return "a pipe";
    case fs::file_type::socket:
      return "a socket";
    default:
      return nullptr;
  }
}

/// Returns the file to replace: `path`, or its target if it is a link. Throws if that exists but is not a regular file.
fs::path replaced_by(const fs::path& path) {
  std::error_code error;
  if (const char* found = not_a_file(fs::status(path, error).type()))
    throw Error(Code::io, format("{}: {}; expected a regular file (which is overwritten) or an unused name",
                                 path.string(), found));
  if (!fs::is_symlink(path, error) || !fs::exists(path, error)) return path;
  const fs::path target = fs::canonical(path, error);
  if (error) fail_to("follow this link", path, error.value());
  return target;
}

/// Waits for the first byte of a pipe, or for its end. Reports a pipe that is silent at first: without a writer, the
/// wait has no end.
void await_pipe(int file, const std::string& path) {
  constexpr int kPatience = 2000;  // milliseconds
  pollfd first{file, POLLIN, 0};
  if (uninterrupted([&] { return ::poll(&first, 1, kPatience); }) == 0) {
    log::warning("{}: waiting for this pipe's writer", path);
    uninterrupted([&] { return ::poll(&first, 1, /*timeout=*/-1); });
  }
}

fs::path temporary_next_to(const fs::path& path) { return format("{}.{}.new", path.string(), ::getpid()); }

}  // namespace

std::string system_reason(int error) { return std::generic_category().message(error) + remedy(error); }

std::string expand_home(const std::string& path) {
  const char* home = std::getenv("HOME");
  const bool short_form = path == "~" || path.starts_with("~/");
  return short_form && home != nullptr ? home + path.substr(1) : path;
}

std::string read_text_file(const std::string& given, std::string_view expected, Code code) {
  constexpr size_t kMost = size_t{64} << 20;  // /dev/zero has no end
  const bool standard = given == "-";
  std::string text, block(size_t{1} << 16, '\0');
  const std::string path = standard ? "standard input" : expand_home(given);
  const auto refuse = [&](const std::string& what) {
    throw Error(code, format("{}: {}; expected {}", path, what, expected));
  };
  std::error_code ignored;
  if (!standard && fs::is_directory(path, ignored)) refuse("a folder");
  const int file = standard ? STDIN_FILENO : ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (!standard && file >= 0) {
    if (fs::is_fifo(path, ignored)) await_pipe(file, path);
    ::fcntl(file, F_SETFL, O_RDONLY);  // reads wait
  }
  ssize_t got = file;
  while (got >= 0 && text.size() <= kMost) {
    got = uninterrupted([&] { return ::read(file, block.data(), block.size()); });
    if (got <= 0) break;
    text.append(block, 0, static_cast<size_t>(got));
  }
  const int reason = errno;  // saved before another call changes errno
  if (!standard && file >= 0) ::close(file);
  if (got < 0) refuse("cannot be read: " + system_reason(reason));
  if (text.size() > kMost) refuse("larger than 64 MiB (split it)");
  return text;
}

void publish(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_to("rename the finished file", to, errno);
  const fs::path folder = to.has_parent_path() ? to.parent_path() : ".";
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);  // some file systems reject it on folders; their renames are durable without it
  ::close(descriptor);
}

void replace_file(const fs::path& given, std::string_view bytes) {
  const fs::path path = replaced_by(given), temporary = temporary_next_to(path);
  File file = File::overwrite(temporary, path);
  try {
    file.write(std::as_bytes(std::span(bytes)));
    file.sync();
    file.close();
    publish(temporary, path);
  } catch (const Error&) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void require_replaceable(const fs::path& given) {
  const fs::path path = replaced_by(given), temporary = temporary_next_to(path);
  File::overwrite(temporary, path);
  ::unlink(temporary.c_str());
}

}  // namespace trainer
