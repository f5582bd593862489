#pragma once
// Common parts of the operators' host code: checks of operands, the choice of kernels, division of work.
#include <algorithm>

#include "tensor/exec.h"

namespace trainer::ops {

/// Throw an internal error if an operand does not have the expected shape and type.
inline void expect_count(const Tensor& t, int64_t count, DType dtype, const char* name) {
  TRAINER_CHECK(t.count() == count && t.dtype == dtype && t.packed(), "{} is {}, expected {} packed elements of {}",
                name, to_string(t), count, name_of(dtype));
}
inline void expect_rows(const Tensor& t, int64_t rows, int64_t cols, DType dtype, const char* name) {
  TRAINER_CHECK(t.rows() == rows && t.cols() == cols && t.dtype == dtype, "{} is {}, expected {} [{}, {}]", name,
                to_string(t), name_of(dtype), rows, cols);
}

/// Throws an internal error unless `ids` are the places of `rows` rows in a table of `count` rows. Their values are
/// checked on a CPU only.
inline void expect_places(const Exec& ex, const Tensor& ids, int64_t rows, int64_t count, const char* name) {
  expect_count(ids, rows, DType::i32, name);
  if (ex.device.kind() != device::DeviceKind::cpu || ex.device.dry()) return;
  for (const int32_t id : ids.span<int32_t>())
    TRAINER_CHECK(id >= 0 && id < count, "{}: {} is outside a table of {}", name, id, count);
}

/// Throws if this thread does not use the default rounding mode: results would depend on which thread updates an
/// element.
void require_usual_rounding();

/// Returns the bytes that `passes` over a tensor read or write, for costs.
inline double bytes_of(const Tensor& t, double passes = 1) { return passes * static_cast<double>(t.bytes()); }

/// Returns the index of a compute type (f64, f32, bf16) in the kernel tables.
inline size_t kernel_index(DType dtype, const char* name) {
  TRAINER_CHECK(dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16,
                "{} has dtype {}, expected fp64, fp32 or bf16", name, name_of(dtype));
  return static_cast<size_t>(dtype);
}
/// The same for a type of weights and optimizer state (f64, f32).
inline size_t state_index(DType dtype, const char* name) {
  TRAINER_CHECK(dtype == DType::f64 || dtype == DType::f32, "{} is {}, expected fp64 or fp32", name, name_of(dtype));
  return static_cast<size_t>(dtype);
}
static_assert(static_cast<size_t>(DType::f64) == 0 && static_cast<size_t>(DType::f32) == 1 &&
              static_cast<size_t>(DType::bf16) == 2);

/// Calls fn(first row, rows) for blocks of at most `rows_per_task` rows, in parallel.
template <typename F>
void for_row_blocks(Exec& ex, int64_t rows, int64_t rows_per_task, F&& fn) {
  device::pool_of(ex.device).parallel_for(divide_up(rows, rows_per_task), [&](int64_t task) {
    const int64_t first = task * rows_per_task;
    fn(first, std::min(rows_per_task, rows - first));
  });
}

/// Elements that are enough to amortise the cost of a task of an elementwise operator.
inline constexpr int64_t kTaskElements = 16384;

/// Calls fn(first element, elements) for blocks of n contiguous elements, in parallel. Blocks begin at multiples of 64
/// elements. They are long, since streams of memory start slowly, and each thread gets about the same number.
template <typename F>
void for_elements(Exec& ex, int64_t n, F&& fn) {
  constexpr int64_t kLong = 4 * kTaskElements;
  const int64_t tasks = n <= kTaskElements ? 1 : round_up(divide_up(n, kLong), int64_t{ex.device.threads()});
  for_row_blocks(ex, n, std::max<int64_t>(1, round_up(divide_up(n, tasks), int64_t{64})), fn);
}

inline int64_t rows_per_task(int64_t cols) { return std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, cols)); }

/// The most bytes that a core's own caches are expected to keep. Larger results are written past the caches.
inline constexpr int64_t kCoreCaches = int64_t{2} << 20;

/// Calls fn(first row, rows, first column, columns) for the tiles of an elementwise operator, in parallel. `packed`:
/// the operands are treated as one long row; if not, tiles are whole rows.
template <typename F>
void for_tiles(Exec& ex, int64_t rows, int64_t cols, bool packed, F&& fn) {
  if (!packed) {
    for_row_blocks(ex, rows, rows_per_task(cols), [&](int64_t first, int64_t n) { fn(first, n, int64_t{0}, cols); });
  } else {
    for_elements(ex, rows * cols, [&](int64_t first, int64_t n) { fn(int64_t{0}, int64_t{1}, first, n); });
  }
}

/// Returns a pointer to element (r, c).
inline std::byte* element_at(const Tensor& t, int64_t r, int64_t c) {
  return t.data + (r * t.ld() + c) * size_of(t.dtype);
}
inline std::byte* row_at(const Tensor& t, int64_t r) { return element_at(t, r, 0); }

}  // namespace trainer::ops
