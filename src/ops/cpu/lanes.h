#pragma once
// Loops over the elements of a row in vectors, for kernel files (*.isa.cpp). A loop body is written once, and serves
// whole vectors as well as the row's last few elements: each_vector passes it the position, and a tag for get and put.
#include "ops/cpu/simd.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

[[gnu::always_inline]] inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
[[gnu::always_inline]] inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

struct Whole {};
struct Part {
  int64_t n;  // lanes in use; all other lanes are 0
};

template <typename T>
[[gnu::always_inline]] inline Vec<AccumulatorOf<T>> get(const T* p, Whole) {
  return load(p);
}
template <typename T>
[[gnu::always_inline]] inline Vec<AccumulatorOf<T>> get(const T* p, Part part) {
  return load_n(p, part.n);
}
template <typename T>
[[gnu::always_inline]] inline void put(T* p, Vec<AccumulatorOf<T>> v, Whole) {
  store(p, v);
}
template <typename T>
[[gnu::always_inline]] inline void put(T* p, Vec<AccumulatorOf<T>> v, Part part) {
  store_n(p, v, part.n);
}
/// Non-temporal store of a whole vector, with the alignment that stream() in simd.h requires. The last lanes of a row
/// are stored as by put().
template <typename T>
[[gnu::always_inline]] inline void stream(T* p, Vec<AccumulatorOf<T>> v, Whole) {
  stream(p, v);
}
template <typename T>
[[gnu::always_inline]] inline void stream(T* p, Vec<AccumulatorOf<T>> v, Part part) {
  put(p, v, part);
}
/// Stores the upper halves of 32-bit lanes.
[[gnu::always_inline]] inline void put_upper(bf16* p, Vec<uint32_t> v, Whole) { store_upper(p, v); }
[[gnu::always_inline]] inline void put_upper(bf16* p, Vec<uint32_t> v, Part part) {
  bf16 lanes[kLanes<float>];
  store_upper(lanes, v);
  for (int64_t i = 0; i < part.n; ++i) p[i] = lanes[i];
}
/// Returns v with 0 in the lanes not in use.
template <typename A>
[[gnu::always_inline]] inline Vec<A> masked(Vec<A> v, Whole) {
  return v;
}
template <typename A>
[[gnu::always_inline]] inline Vec<A> masked(Vec<A> v, Part part) {
  A lanes[kLanes<A>];
  store(lanes, v);
  return load_n(lanes, part.n);
}

/// Calls body(i, Whole or Part) for i = 0, lanes, 2·lanes, … below n.
template <typename A, typename F>
[[gnu::always_inline]] inline void each_vector(int64_t n, F body) {
  int64_t i = 0;
  for (; i + kLanes<A> <= n; i += kLanes<A>) body(i, Whole{});
  if (i < n) body(i, Part{n - i});
}

/// Returns Σ term(i, tag) over all lanes, in four independent chains. The order depends only on n.
template <typename A, typename F>
[[gnu::always_inline]] inline A sum_of(int64_t n, F term) {
  constexpr int64_t kStep = kLanes<A>;
  Vec<A> s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 4 * kStep <= n; i += 4 * kStep) {
    s0 += term(i, Whole{});
    s1 += term(i + kStep, Whole{});
    s2 += term(i + 2 * kStep, Whole{});
    s3 += term(i + 3 * kStep, Whole{});
  }
  for (; i + kStep <= n; i += kStep) s0 += term(i, Whole{});
  if (i < n) s1 += masked<A>(term(i, Part{n - i}), Part{n - i});
  return lane_sum<A>((s0 + s1) + (s2 + s3));
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
