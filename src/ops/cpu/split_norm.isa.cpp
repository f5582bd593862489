#include "ops/cpu/lanes.h"
#include "ops/cpu/split_norm_kernels.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

template <typename T>
void moments(const MomentRows& op, int64_t first, int64_t rows) {
  using A = AccumulatorOf<T>;
  auto *means = static_cast<A*>(op.means), *squares = static_cast<A*>(op.squares);
  for (int64_t r = first; r < first + rows; ++r) {
    const T* x = static_cast<const T*>(op.x) + r * op.x_ld;
    A mean = 0;
    if (means != nullptr) {
      mean = sum_of<A>(op.cols, [&](int64_t i, auto tag) { return get(x + i, tag); }) / static_cast<A>(op.cols);
      means[r] = mean;
    }
    const Vec<A> shift = splat<A>(mean);
    squares[r] = sum_of<A>(op.cols, [&](int64_t i, auto tag) {
      const Vec<A> d = get(x + i, tag) - shift;
      return d * d;
    });
  }
}

/// The values that both halves of the backward pass compute from a row: n = (x − mean)·rstd and g = dy·(gain + shift).
template <typename T, typename A = AccumulatorOf<T>>
struct Row {
  const T *x, *dy, *gain;
  A rstd;
  Vec<A> factor, shift, add;
  Row(const SplitGradient& op, int64_t r)
      : x(static_cast<const T*>(op.x) + r * op.x_ld),
        dy(static_cast<const T*>(op.dy) + r * op.dy_ld),
        gain(static_cast<const T*>(op.gain)),
        rstd(static_cast<const A*>(op.rstd)[r]),
        factor(splat<A>(rstd)),
        shift(splat<A>(op.mean == nullptr ? A(0) : static_cast<const A*>(op.mean)[r])),
        add(splat<A>(static_cast<A>(op.shift))) {}
  template <typename Tag>
  [[gnu::always_inline]] Vec<A> n(int64_t i, Tag tag) const {
    return (get(x + i, tag) - shift) * factor;
  }
  template <typename Tag>
  [[gnu::always_inline]] Vec<A> g(int64_t i, Tag tag) const {
    return get(dy + i, tag) * (get(gain + i, tag) + add);
  }
};

template <typename T>
void sums(const SplitGradient& op, int64_t first, int64_t rows) {
  using A = AccumulatorOf<T>;
  for (int64_t r = first; r < first + rows; ++r) {
    const Row<T> row(op, r);
    if (op.sums != nullptr)
      static_cast<A*>(op.sums)[r] = sum_of<A>(op.cols, [&](int64_t i, auto tag) { return row.g(i, tag); });
    static_cast<A*>(op.products)[r] =
        sum_of<A>(op.cols, [&](int64_t i, auto tag) { return row.g(i, tag) * row.n(i, tag); });
  }
}

template <typename T>
void backward(const SplitGradient& op, int64_t first, int64_t rows, void* gain_sum, void* bias_sum) {
  using A = AccumulatorOf<T>;
  auto *dgain = static_cast<A*>(gain_sum), *dbias = static_cast<A*>(bias_sum);
  for (int64_t i = 0; i < op.cols; ++i) dgain[i] = 0;
  if (dbias != nullptr)
    for (int64_t i = 0; i < op.cols; ++i) dbias[i] = 0;
  const A count = static_cast<A>(op.hidden);
  for (int64_t r = first; r < first + rows; ++r) {
    const Row<T> row(op, r);
    const T* residual = op.residual == nullptr ? nullptr : static_cast<const T*>(op.residual) + r * op.residual_ld;
    T* dx = static_cast<T*>(op.dx) + r * op.dx_ld;
    const Vec<A> constant =
        splat<A>(op.sums == nullptr ? A(0) : -row.rstd * (static_cast<const A*>(op.sums)[r] / count));
    const Vec<A> slope = splat<A>(-row.rstd * (static_cast<const A*>(op.products)[r] / count));
    each_vector<A>(op.cols, [&](int64_t i, auto tag) {
      const Vec<A> d = get(row.dy + i, tag), n = row.n(i, tag);
      put(dgain + i, fmadd(d, n, get(dgain + i, tag)), tag);
      if (dbias != nullptr) put(dbias + i, get(dbias + i, tag) + d, tag);
      Vec<A> out = fmadd(row.g(i, tag), row.factor, fmadd(n, slope, constant));
      if (residual != nullptr) out += get(residual + i, tag);
      put(dx + i, out, tag);
    });
  }
}

}  // namespace

extern const SplitNormKernels split_norm_kernels = {{moments<double>, moments<float>, moments<bf16>},
                                                    {sums<double>, sums<float>, sums<bf16>},
                                                    {backward<double>, backward<float>, backward<bf16>}};

}  // namespace trainer::ops::TRAINER_ISA
