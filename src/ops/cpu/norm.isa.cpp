#include "ops/cpu/lanes.h"
#include "ops/cpu/norm_kernels.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

float square_root(float x) { return __builtin_sqrtf(x); }
double square_root(double x) { return __builtin_sqrt(x); }

/// Calls body(row, group) for all groups of rows [first, first + rows).
template <typename Body>
void each_group(int64_t groups, int64_t first, int64_t rows, Body&& body) {
  for (int64_t r = first; r < first + rows; ++r)
    for (int64_t group = 0; group < groups; ++group) body(r, group);
}

/// y = (x − mean)·rstd·(gain + shift) + bias. Only this function computes y, so that forward and apply are bitwise
/// identical.
template <typename T, typename A = AccumulatorOf<T>>
void normalise_row(const T* x, const T* gain, const T* bias, T* y, A mean, A rstd, int64_t cols, double gain_shift) {
  const Vec<A> shift = splat<A>(mean), factor = splat<A>(rstd), add = splat<A>(static_cast<A>(gain_shift));
  if (bias != nullptr) {
    each_vector<A>(cols, [&](int64_t i, auto tag) {
      put(y + i, fmadd((get(x + i, tag) - shift) * factor, get(gain + i, tag) + add, get(bias + i, tag)), tag);
    });
  } else {
    each_vector<A>(cols, [&](int64_t i, auto tag) {
      put(y + i, (get(x + i, tag) - shift) * factor * (get(gain + i, tag) + add), tag);
    });
  }
}

template <typename T>
void forward(const NormRows& op, int64_t first, int64_t rows) {
  using A = AccumulatorOf<T>;
  const auto* gain = static_cast<const T*>(op.gain);
  const auto* bias = static_cast<const T*>(op.bias);
  auto *means = static_cast<A*>(op.mean), *rstds = static_cast<A*>(op.rstd);
  const A count = static_cast<A>(op.cols);
  each_group(op.groups, first, rows, [&](int64_t r, int64_t group) {
    const int64_t start = group * op.cols, at = r * op.groups + group;
    const T* x = static_cast<const T*>(op.x) + r * op.x_ld + start;
    A mean = 0;
    if (op.center) mean = sum_of<A>(op.cols, [&](int64_t i, auto tag) { return get(x + i, tag); }) / count;
    const Vec<A> shift = splat<A>(mean);
    const A squares = sum_of<A>(op.cols, [&](int64_t i, auto tag) {
      const Vec<A> d = get(x + i, tag) - shift;
      return d * d;
    });
    const A rstd = A(1) / square_root(squares / count + static_cast<A>(op.eps));
    if (means != nullptr) means[at] = mean;
    if (rstds != nullptr) rstds[at] = rstd;
    normalise_row<T>(x, gain, bias, static_cast<T*>(op.y) + r * op.y_ld + start, mean, rstd, op.cols, op.shift);
  });
}

template <typename T>
void apply(const NormRows& op, int64_t first, int64_t rows) {
  using A = AccumulatorOf<T>;
  each_group(op.groups, first, rows, [&](int64_t r, int64_t group) {
    const int64_t start = group * op.cols, at = r * op.groups + group;
    normalise_row<T>(static_cast<const T*>(op.x) + r * op.x_ld + start, static_cast<const T*>(op.gain),
                     static_cast<const T*>(op.bias), static_cast<T*>(op.y) + r * op.y_ld + start,
                     op.center ? static_cast<const A*>(op.mean)[at] : A(0), static_cast<const A*>(op.rstd)[at], op.cols,
                     op.shift);
  });
}

/// With n = (x − mean)·rstd and g = dy·(gain + shift):  dx = rstd·(g − Σg/H − n·Σ(g·n)/H), Σg only when centred. The
/// row stays in L1 between the pass that forms the sums and the pass that writes dx.
template <typename T>
void backward(const NormGradient& op, int64_t first, int64_t rows, void* gain_sum, void* bias_sum) {
  using A = AccumulatorOf<T>;
  const auto* gain = static_cast<const T*>(op.gain);
  auto *dgain = static_cast<A*>(gain_sum), *dbias = static_cast<A*>(bias_sum);
  for (int64_t i = 0; i < op.cols; ++i) dgain[i] = 0;
  if (dbias != nullptr)
    for (int64_t i = 0; i < op.cols; ++i) dbias[i] = 0;
  const A count = static_cast<A>(op.cols);
  each_group(op.groups, first, rows, [&](int64_t r, int64_t group) {
    const int64_t start = group * op.cols, at = r * op.groups + group;
    const T* x = static_cast<const T*>(op.x) + r * op.x_ld + start;
    const T* dy = static_cast<const T*>(op.dy) + r * op.dy_ld + start;
    T* dx = static_cast<T*>(op.dx) + r * op.dx_ld + start;
    const A rstd = static_cast<const A*>(op.rstd)[at];
    const Vec<A> factor = splat<A>(rstd), add = splat<A>(static_cast<A>(op.shift));
    const Vec<A> shift = splat<A>(op.center ? static_cast<const A*>(op.mean)[at] : A(0));
    Vec<A> sum{}, product{};
    auto gather = [&](int64_t i, auto tag) {
      const Vec<A> d = get(dy + i, tag), n = (get(x + i, tag) - shift) * factor, g = d * (get(gain + i, tag) + add);
      sum += g;
      product = fmadd(g, n, product);
      put(dgain + i, fmadd(d, n, get(dgain + i, tag)), tag);
      return d;
    };
    if (dbias != nullptr) {
      each_vector<A>(op.cols, [&](int64_t i, auto tag) {
        const Vec<A> d = gather(i, tag);
        put(dbias + i, get(dbias + i, tag) + d, tag);
      });
    } else {
      each_vector<A>(op.cols, [&](int64_t i, auto tag) { gather(i, tag); });
    }
    const Vec<A> constant = splat<A>(op.center ? -rstd * (lane_sum<A>(sum) / count) : A(0));
    const Vec<A> slope = splat<A>(-rstd * (lane_sum<A>(product) / count));
    auto gradient = [&](int64_t i, auto tag) {
      const Vec<A> n = (get(x + i, tag) - shift) * factor, g = get(dy + i, tag) * (get(gain + i, tag) + add);
      return fmadd(g, factor, fmadd(n, slope, constant));
    };
    if (op.residual != nullptr) {
      const T* residual = static_cast<const T*>(op.residual) + r * op.residual_ld + start;
      each_vector<A>(op.cols,
                     [&](int64_t i, auto tag) { put(dx + i, get(residual + i, tag) + gradient(i, tag), tag); });
    } else {
      each_vector<A>(op.cols, [&](int64_t i, auto tag) { put(dx + i, gradient(i, tag), tag); });
    }
  });
}

}  // namespace

extern const NormKernels norm_kernels = {{forward<double>, forward<float>, forward<bf16>},
                                         {apply<double>, apply<float>, apply<bf16>},
                                         {backward<double>, backward<float>, backward<bf16>}};

}  // namespace trainer::ops::TRAINER_ISA
