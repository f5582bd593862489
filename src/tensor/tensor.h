#pragma once
// Tensor: a view of memory that another object owns (a Buffer, a Scratch, a mapped file).
#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "base/shape.h"

namespace trainer {

/// Row-major. `pitch` is the distance between rows (the last dim is a row) in elements; 0: the rows are packed. On a
/// dry device `data` is null, so test with `if (tensor)` whether a tensor is present.
struct Tensor {
  std::byte* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;
  int64_t pitch = 0;

  explicit operator bool() const { return shape.dims() > 0; }
  int64_t count() const { return shape.count(); }
  int64_t cols() const { return shape.dims() == 0 ? 0 : shape[-1]; }
  int64_t rows() const { return cols() == 0 ? 0 : count() / cols(); }
  int64_t ld() const { return pitch == 0 ? cols() : pitch; }
  bool packed() const { return pitch == 0 || pitch == cols() || rows() <= 1; }
  int64_t bytes() const { return count() * size_of(dtype); }

  /// Returns a typed pointer to the first element; the dtype must match.
  template <typename T>
  T* as() const {
    TRAINER_DCHECK(dtype == DTypeOf<T>::value, "requested {}, but the tensor is {}", name_of(DTypeOf<T>::value),
                   name_of(dtype));
    return reinterpret_cast<T*>(data);
  }
  /// Returns all elements of a packed tensor.
  template <typename T>
  std::span<T> span() const {
    TRAINER_CHECK(packed(), "a span requires a packed tensor, not rows of {1} elements at a pitch of {0}", ld(),
                  cols());
    return {as<T>(), static_cast<size_t>(count())};
  }

  /// Returns the same elements with a different shape of equal count; packed tensors only.
  Tensor reshape(Shape next) const;
  /// Returns elements [begin, begin + n) of a packed tensor as [n]; empty if the tensor is empty.
  Tensor range(int64_t begin, int64_t n) const;
  /// Return rows [begin, begin + n) as [n, cols], and columns [begin, begin + n) as [rows, n]; the pitch stays the
  /// same.
  Tensor row_range(int64_t begin, int64_t n) const;
  Tensor col_range(int64_t begin, int64_t n) const;
};

/// Returns "fp32 [4096, 768]", for messages.
std::string to_string(const Tensor& tensor);

}  // namespace trainer
