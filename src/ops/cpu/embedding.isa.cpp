#include "ops/cpu/embedding_kernels.h"
#include "ops/cpu/lanes.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

template <typename T>
void look_up(const void* token, const void* position, void* out, int64_t cols) {
  const T *row = static_cast<const T*>(token), *offset = static_cast<const T*>(position);
  T* y = static_cast<T*>(out);
  if (row == nullptr) {
    row = offset;
    offset = nullptr;
  }
  if (row == nullptr) {
    __builtin_memset(y, 0, static_cast<size_t>(cols) * sizeof(T));
    return;
  }
  each_vector<AccumulatorOf<T>>(cols, [&](int64_t i, auto tag) {
    put(y + i, offset == nullptr ? get(row + i, tag) : get(row + i, tag) + get(offset + i, tag), tag);
  });
}

template <typename T>
void gather_sum(const void* data, int64_t ld, const int32_t* rows, int64_t first, int64_t stride, int64_t count,
                void* out, bool accumulate, int64_t cols) {
  using A = AccumulatorOf<T>;
  A* sum = static_cast<A*>(out);
  if (!accumulate && count == 0)
    for (int64_t i = 0; i < cols; ++i) sum[i] = 0;
  for (int64_t k = 0; k < count; ++k) {
    const T* dy = static_cast<const T*>(data) + (rows != nullptr ? rows[k] : first + k * stride) * ld;
    if (k == 0 && !accumulate) {
      each_vector<A>(cols, [&](int64_t i, auto tag) { put(sum + i, get(dy + i, tag), tag); });
    } else {
      each_vector<A>(cols, [&](int64_t i, auto tag) { put(sum + i, get(sum + i, tag) + get(dy + i, tag), tag); });
    }
  }
}

}  // namespace

extern const EmbeddingKernels embedding_kernels = {{look_up<double>, look_up<float>, look_up<bf16>},
                                                   {gather_sum<double>, gather_sum<float>, gather_sum<bf16>}};

}  // namespace trainer::ops::TRAINER_ISA
