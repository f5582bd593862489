#include "ops/cpu/lanes.h"
#include "ops/cpu/rope_kernels.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

template <typename Storage, typename T>
void rotate(const RopeRows& rows) {
  const int64_t half = rows.rotary / 2;
  const T sign = rows.inverse ? T{-1} : T{1};
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t position = rows.position_ids != nullptr
                                 ? rows.position_ids[r]
                                 : rows.first_position + (rows.first_row + r) % rows.rows_per_sequence;
    const T* cosines = reinterpret_cast<const T*>(rows.table) + position * rows.table_ld;
    const T* sines = cosines + half;
    for (int64_t head = 0; head < rows.heads; ++head) {
      Storage* low = reinterpret_cast<Storage*>(rows.x) + r * rows.ld + head * rows.head_dim;
      Storage* high = low + half;
      each_vector<T>(half, [&](int64_t i, auto tag) {
        const Vec<T> a = get(low + i, tag), b = get(high + i, tag);
        const Vec<T> c = get(cosines + i, tag), s = get(sines + i, tag) * sign;
        put(low + i, fmadd(a, c, -(b * s)), tag);
        put(high + i, fmadd(b, c, a * s), tag);
      });
    }
  }
}

}  // namespace

const RopeKernels rope_kernels = {{rotate<double, double>, rotate<float, float>, rotate<bf16, float>}};

}  // namespace trainer::ops::TRAINER_ISA
