#include "base/shape.h"

#include "base/dtype.h"

namespace trainer {

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int dim = 0; dim < shape.dims(); ++dim) text += format("{}{}", dim ? ", " : "", shape[dim]);
  return text + "]";
}

std::string_view name_of(DType type) {
  switch (type) {
    case DType::f64:
      return "fp64";
    case DType::f32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "int32";
    case DType::i64:
      return "int64";
    case DType::u16:
      return "uint16";
    case DType::u8:
      return "uint8";
  }
  return "?";
}

}  // namespace trainer
