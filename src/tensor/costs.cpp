#include "tensor/costs.h"

#include "base/format.h"

namespace trainer {

std::string comm_text(const CommBytes& bytes) {
  std::string text;
  for (const auto& [axis, operations] : bytes)
    for (const auto& [operation, count] : operations)
      text += format("{}{} {} {} B", text.empty() ? "" : ", ", axis, operation, count);
  return text.empty() ? "none" : text;
}

}  // namespace trainer
