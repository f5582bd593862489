#include "base/shape.h"

#include "base/dtype.h"

namespace trainer {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int dim = 0; dim < shape.dims(); ++dim) text += format("{}{}", dim ? ", " : "", shape[dim]);
  return text + "]";
}

std::string_view name_of(DType type) {
  static constexpr std::string_view kNames[] = {"fp64", "fp32", "bf16", "int32", "int64", "uint16", "uint8"};
  return kNames[static_cast<size_t>(type)];
}

}  // namespace trainer
