#pragma once
// The epilogue (GemmStore) for finished sums of whole bf16 panels, with tiles or with pairs, for kernel files
// (*.isa.cpp). On AVX-512, a row of a panel is one or more cache lines of C.
#include "ops/cpu/gemm_finish.h"
#include "ops/cpu/gemm_pack.h"

namespace trainer::ops::TRAINER_ISA {
namespace {

constexpr int64_t kLine = 64;

/// Finishes a row of Width sums: whole vectors, an even number of them for bf16.
template <Ending Kind, int64_t Width>
[[gnu::always_inline]] inline void finish_row(const float* sums, int64_t row, int64_t col,
                                              const GemmStore<bf16, bf16>& s) {
  static_assert(Kind != Ending::accumulate);
  constexpr int64_t kLanesHere = kLanes<float>, kWide = 2 * kLanesHere;
  static_assert(Width % kWide == 0);
  const auto put = [&](bf16 * to, Halves halves) __attribute__((always_inline)) {
    s.stream ? stream_halves(to, halves) : store_halves(to, halves);
  };
  for (int64_t j = 0; j < Width; j += kWide) {
    bf16* const c = s.c + row * s.ldc + col + j;
    Vec<float> x = load(sums + j), y = load(sums + j + kLanesHere);
    if constexpr (Kind == Ending::epilogue) {
      const bf16* const residual = s.residual == nullptr ? nullptr : s.residual + row * s.ld_residual + col + j;
      bf16* const pre = s.pre == nullptr ? nullptr : s.pre + row * s.ld_pre + col + j;
      if (s.gradient) {
        x *= slope_of<true>(s.act, load(pre));
        y *= slope_of<true>(s.act, load(pre + kLanesHere));
      } else {
        if (s.bias != nullptr) x += load(s.bias + col + j), y += load(s.bias + col + j + kLanesHere);
        const Halves rounded = round_halves(x, y);
        if (pre != nullptr) put(pre, rounded);
        // Applied to the rounded sum, as stored in `pre`; even and odd elements separately.
        if (s.act != Activation::none) {
          Vec<float> even = activated<true>(s.act, even_elements(rounded)),
                     odd = activated<true>(s.act, odd_elements(rounded));
          if (residual != nullptr) {
            const Halves added = load_halves(residual);
            even += even_elements(added), odd += odd_elements(added);
          }
          put(c, round_even_odd(even, odd));
          continue;
        }
      }
      if (residual != nullptr) x += load(residual), y += load(residual + kLanesHere);
    }
    put(c, round_halves(x, y));
  }
}
template <Ending Kind, int64_t Width>
[[gnu::always_inline]] inline void finish_row(const float* sums, int64_t row, int64_t col,
                                              const GemmStore<bf16, float>& s) {
  for (int64_t j = 0; j < Width; j += kLanes<float>)
    finish_vector<Kind, true, true>(load(sums + j), row, col + j, kLanes<float>, s);
}

/// Prefetches the operands of the epilogue of a block of Width columns, some rows at a time.
template <Ending Kind, int64_t Width, typename C>
struct EndAhead {
  const GemmStore<bf16, C>& s;
  int64_t row, col, rows;

  [[gnu::always_inline]] void ask(int64_t n) {
    if constexpr (Kind == Ending::store) return;
    for (const int64_t end = row + at_most(n, rows); row < end; ++row, --rows) {
      if constexpr (Kind == Ending::accumulate) {
        ask_for_row(s.c + row * s.ldc);
      } else {
        if (s.gradient) ask_for_row(s.pre + row * s.ld_pre);
        if (s.residual != nullptr) ask_for_row(s.residual + row * s.ld_residual);
      }
    }
  }
  [[gnu::always_inline]] void ask_for_row(const C* elements) const {
    const char* const line = reinterpret_cast<const char*>(elements + col);
    for (int64_t byte = 0; byte < Width * static_cast<int64_t>(sizeof(C)); byte += kLine)
      __builtin_prefetch(line + byte, Kind == Ending::accumulate, 3);
  }
};

/// Calls fn with the kind of epilogue that s requires.
template <typename C, typename F>
void with_ending(const GemmStore<bf16, C>& s, F fn) {
  if constexpr (std::is_same_v<C, float>)
    if (s.accumulate) return fn(std::integral_constant<Ending, Ending::accumulate>());
  if (s.bias == nullptr && s.pre == nullptr && s.residual == nullptr && s.act == Activation::none)
    return fn(std::integral_constant<Ending, Ending::store>());
  fn(std::integral_constant<Ending, Ending::epilogue>());
}

}  // namespace
}  // namespace trainer::ops::TRAINER_ISA
