#include "report/record_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/file_io.h"
#include "base/files.h"
#include "base/log.h"

namespace trainer::report {

RecordFile::RecordFile(std::filesystem::path path, int flags) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
  if (descriptor_ < 0) {
    const int reason = errno;
    throw Error(Code::io, format("cannot write {}: {}; check run.dir", path_.string(), system_reason(reason)));
  }
  size_ = std::max<int64_t>(0, lseek(descriptor_, 0, SEEK_END));
}

RecordFile::~RecordFile() { close(descriptor_); }

void RecordFile::write(std::string_view record) {
  ssize_t written = uninterrupted([&] { return pwrite(descriptor_, record.data(), record.size(), size_); });
  if (written == static_cast<ssize_t>(record.size())) {
    size_ += written;
    return;
  }
  const int reason = written < 0 ? errno : ENOSPC;  // a short write to a file means that the disk is full
  // If this fails too, the next record overwrites the torn one.
  if (written > 0 && ftruncate(descriptor_, size_) != 0) written = 0;
  if (lost_++ == 0)
    log::warning("cannot write {}: {}; training continues without it", path_.string(), system_reason(reason));
}

}  // namespace trainer::report
