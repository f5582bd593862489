#include "base/error.h"

namespace trainer {

int exit_status(Code code) {
  // internal, config, usage, plan, data, checkpoint, nonfinite, comm, io, device, difference
  static constexpr int kStatus[] = {1, 2, 2, 3, 4, 5, 6, 7, 5, 1, 8};
  return kStatus[static_cast<size_t>(code)];
}

void check_failed(const char* condition, const std::string& message, std::source_location where) {
  throw Error(Code::internal,
              format("{}:{}: check failed: {}: {}", where.file_name(), where.line(), condition, message));
}

}  // namespace trainer
