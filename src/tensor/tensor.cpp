#include "tensor/tensor.h"

namespace trainer {

Tensor Tensor::reshape(Shape next) const {
  TRAINER_CHECK(packed() && next.count() == count(), "cannot reshape {} to {}", trainer::to_string(*this),
                trainer::to_string(next));
  return {data, next, dtype, 0};
}

Tensor Tensor::range(int64_t begin, int64_t n) const {
  if (!*this) return {};
  TRAINER_CHECK(packed() && begin >= 0 && n >= 0 && begin + n <= count(),
                "{1} elements from {0} are not in a packed {2}", begin, n, trainer::to_string(*this));
  return {data == nullptr ? nullptr : data + begin * size_of(dtype), {n}, dtype, 0};
}

Tensor Tensor::row_range(int64_t begin, int64_t n) const {
  TRAINER_CHECK(begin >= 0 && n >= 0 && begin + n <= rows(), "{1} rows from {0} are not in {2}", begin, n,
                trainer::to_string(*this));
  return {data == nullptr ? nullptr : data + begin * ld() * size_of(dtype), {n, cols()}, dtype, pitch};
}

Tensor Tensor::col_range(int64_t begin, int64_t n) const {
  TRAINER_CHECK(begin >= 0 && n >= 0 && begin + n <= cols(), "{1} columns from {0} are not in {2}", begin, n,
                trainer::to_string(*this));
  return {data == nullptr ? nullptr : data + begin * size_of(dtype), {rows(), n}, dtype, ld()};
}

std::string to_string(const Tensor& tensor) { return format("{} {}", name_of(tensor.dtype), to_string(tensor.shape)); }

}  // namespace trainer
