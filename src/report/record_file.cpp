#include "report/record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/file_io.h"
#include "base/files.h"
#include "base/log.h"

namespace trainer::report {

RecordFile::RecordFile(std::filesystem::path path, int flags) : path_(std::move(path)), flags_(flags) {
  if (!open_file()) {
    const int reason = errno;
    throw Error(Code::io, format("cannot write {}: {}; check run.dir", path_.string(), system_reason(reason)));
  }
}

RecordFile::~RecordFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

bool RecordFile::open_file() {
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags_, 0666);
  if (descriptor_ < 0) return false;
  size_ = std::max<int64_t>(0, lseek(descriptor_, 0, SEEK_END));
  return true;
}

void RecordFile::replace_if_deleted() {
  struct stat status {};
  if (descriptor_ >= 0) {
    if (fstat(descriptor_, &status) != 0 || status.st_nlink > 0) return;
    log::warning("{} was deleted during the run; {} lines are lost, later ones go to a new file", path_.string(),
                 written_);
    close(descriptor_);
    lost_ += std::exchange(written_, 0);
  }
  std::error_code error;
  std::filesystem::create_directories(path_.parent_path(), error);
  open_file();
}

void RecordFile::write(std::string_view record) {
  replace_if_deleted();
  ssize_t written = uninterrupted([&] { return pwrite(descriptor_, record.data(), record.size(), size_); });
  if (written == static_cast<ssize_t>(record.size())) {
    size_ += written;
    ++written_;
    return;
  }
  const int reason = written < 0 ? errno : ENOSPC;  // a short write to a file means that the disk is full
  // If this fails too, the next record overwrites the torn one.
  if (written > 0 && ftruncate(descriptor_, size_) != 0) written = 0;
  if (lost_++ == 0)
    log::warning("cannot write {}: {}; training continues, and records that cannot be written are lost", path_.string(),
                 system_reason(reason));
}

}  // namespace trainer::report
