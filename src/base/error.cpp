#include "base/error.h"

namespace trainer {

int exit_status(Code code) {
  switch (code) {
    case Code::internal:
    case Code::device:
      return 1;
    case Code::config:
    case Code::usage:
      return 2;
    case Code::plan:
      return 3;
    case Code::data:
      return 4;
    case Code::checkpoint:
      return 5;
    case Code::nonfinite:
      return 6;
    case Code::comm:
      return 7;
    case Code::io:
      return 5;
  }
  return 1;
}

void check_failed(const char* condition, const std::string& message, std::source_location where) {
  throw Error(Code::internal,
              format("{} does not hold at {}:{}: {}", condition, where.file_name(), where.line(), message));
}

}  // namespace trainer
