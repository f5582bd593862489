#include "ops/muon.h"
#include "ops/cpu/canonical.h"
#include "ops/cpu/lanes.h"
#include "ops/cpu/muon_kernels.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

template <typename A>
void momentum(double mu_value, double scale_value, bool nesterov, void* m_data, void* g_data, int64_t n) {
  A *m = static_cast<A*>(m_data), *g = static_cast<A*>(g_data);
  const Vec<A> mu = splat<A>(static_cast<A>(mu_value)), omu = splat<A>(static_cast<A>(1 - mu_value));
  const Vec<A> scale = splat<A>(static_cast<A>(scale_value));
  each_vector<A>(n, [&](int64_t i, auto tag) {
    const Vec<A> x = get(g + i, tag) * scale, y = omu * x;
    const Vec<A> average = fused<A>(mu, get(m + i, tag), y);
    put(m + i, average, tag);
    put(g + i, nesterov ? fused<A>(mu, average, y) : average, tag);
  });
}

template <typename Flat, typename Packed>
void gather(const void* flat_data, const Strip* strips, int64_t n, void* packed_data) {
  using A = AccumulatorOf<Flat>;
  for (const Strip* s = strips; s < strips + n; ++s) {
    const Flat* from = static_cast<const Flat*>(flat_data) + s->at;
    Packed* to = static_cast<Packed*>(packed_data) + s->place;
    if constexpr (sizeof(A) == sizeof(AccumulatorOf<Packed>)) {
      if (s->stride == 1) {
        each_vector<A>(s->length, [&](int64_t i, auto tag) { put(to + i, get(from + i, tag), tag); });
        continue;
      }
    }
    for (int64_t i = 0; i < s->length; ++i)
      to[i] = Packed(static_cast<AccumulatorOf<Packed>>(static_cast<A>(from[i * s->stride])));
  }
}

template <typename Packed, typename Flat>
void scatter(const void* packed_data, const Strip* strips, int64_t n, double scale_value, void* flat_data) {
  using A = AccumulatorOf<Flat>;
  constexpr bool same = sizeof(A) == sizeof(AccumulatorOf<Packed>);
  using Wide = std::conditional_t<same, A, double>;
  const A scale = static_cast<A>(scale_value);
  for (const Strip* s = strips; s < strips + n; ++s) {
    const Packed* from = static_cast<const Packed*>(packed_data) + s->place;
    Flat* to = static_cast<Flat*>(flat_data) + s->at;
    if constexpr (same) {
      if (s->stride == 1) {
        const Vec<A> factor = splat<A>(scale);
        each_vector<A>(s->length, [&](int64_t i, auto tag) { put(to + i, get(from + i, tag) * factor, tag); });
        continue;
      }
    }
    for (int64_t i = 0; i < s->length; ++i)
      to[i * s->stride] = Flat(static_cast<A>(static_cast<Wide>(from[i]) * static_cast<Wide>(scale)));
  }
}

template <typename T>
void multiply(void* data, double factor_value, int64_t n) {
  using A = AccumulatorOf<T>;
  T* x = static_cast<T*>(data);
  const Vec<A> factor = splat<A>(static_cast<A>(factor_value));
  each_vector<A>(n, [&](int64_t i, auto tag) { put(x + i, get(x + i, tag) * factor, tag); });
}

template <typename T>
void combine(const void* product_data, const void* x_data, void* y_data, double alpha_value, double beta_value,
             int64_t n) {
  using A = AccumulatorOf<T>;
  const A* product = static_cast<const A*>(product_data);
  const T* x = static_cast<const T*>(x_data);
  T* y = static_cast<T*>(y_data);
  const Vec<A> alpha = splat<A>(static_cast<A>(alpha_value)), beta = splat<A>(static_cast<A>(beta_value));
  each_vector<A>(
      n, [&](int64_t i, auto tag) { put(y + i, fused<A>(alpha, get(product + i, tag), beta * get(x + i, tag)), tag); });
}

}  // namespace

extern const MuonKernels muon_kernels = {{momentum<double>, momentum<float>},
                                         {{gather<double, double>, gather<double, float>, gather<double, bf16>},
                                          {gather<float, double>, gather<float, float>, gather<float, bf16>},
                                          {gather<bf16, double>, gather<bf16, float>, gather<bf16, bf16>}},
                                         {{scatter<double, double>, scatter<float, double>, scatter<bf16, double>},
                                          {scatter<double, float>, scatter<float, float>, scatter<bf16, float>},
                                          {scatter<double, bf16>, scatter<float, bf16>, scatter<bf16, bf16>}},
                                         {multiply<double>, multiply<float>, multiply<bf16>},
                                         {combine<double>, combine<float>, combine<bf16>}};

}  // namespace trainer::ops::TRAINER_ISA
