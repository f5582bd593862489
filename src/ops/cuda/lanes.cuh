#pragma once
// Elements of a row in pieces of V, for kernels. A piece is one access of up to 16 bytes if addresses and row strides
// allow it; if not, its elements are accessed one by one. Arithmetic is in f32.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>

#include "ops/cuda/warp.cuh"
#include "tensor/tensor.h"

namespace trainer::ops::cuda {

/// Returns the number of elements in a 16-byte access.
template <typename T>
constexpr int wide_of() {
  return 16 / static_cast<int>(sizeof(T));
}

/// Returns a / b for non-negative numbers. Divides in 32 bits if both fit, since a 64-bit division costs several times
/// more.
__device__ inline int64_t quotient(int64_t a, int64_t b) {
  return (a | b) >> 32 == 0 ? static_cast<int64_t>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b)) : a / b;
}

template <int N>
struct alignas(4 * N) [[gnu::may_alias]] Words {
  uint32_t word[N];
};

/// x[i] = p[i] for i < n <= V, and 0 beyond. A whole piece (n = V) must be aligned to its size, or to 16 bytes if it is
/// larger.
template <int V>
__device__ inline void get(const float* p, int n, float (&x)[V]) {
  if constexpr (V % 4 == 0) {
    if (n == V) {
#pragma unroll
      for (int i = 0; i < V; i += 4) {
        const auto words = *reinterpret_cast<const Words<4>*>(p + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) x[i + j] = std::bit_cast<float>(words.word[j]);
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = i < n ? p[i] : 0.0f;
}
template <int V>
__device__ inline void get(const bf16* p, int n, float (&x)[V]) {
  if constexpr (V % 4 == 0) {
    if (n == V) {
      constexpr int kWords = V % 8 == 0 ? 4 : 2;
#pragma unroll
      for (int i = 0; i < V; i += 2 * kWords) {
        const auto words = *reinterpret_cast<const Words<kWords>*>(p + i);
#pragma unroll
        for (int j = 0; j < kWords; ++j) {
          x[i + 2 * j] = std::bit_cast<float>(words.word[j] << 16);
          x[i + 2 * j + 1] = std::bit_cast<float>(words.word[j] & 0xffff0000u);
        }
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) x[i] = i < n ? static_cast<float>(p[i]) : 0.0f;
}

/// A piece as stored in memory. With bf16, it takes half as many registers as its f32 values.
template <typename T, int V>
struct Stored {
  uint32_t word[V * sizeof(T) < 4 ? 1 : V * sizeof(T) / 4];
};
/// Returns p[i], i < V. p must be aligned as for a whole piece.
template <int V, typename T>
__device__ inline Stored<T, V> stored(const T* p) {
  constexpr int kBytes = V * static_cast<int>(sizeof(T)), kUnit = kBytes % 16 == 0 ? 4 : kBytes % 8 == 0 ? 2 : 1;
  Stored<T, V> piece;
  if constexpr (kBytes >= 4) {
#pragma unroll
    for (int i = 0; i < kBytes / 4; i += kUnit) {
      const auto words = reinterpret_cast<const Words<kUnit>*>(p)[i / kUnit];
#pragma unroll
      for (int j = 0; j < kUnit; ++j) piece.word[i + j] = words.word[j];
    }
  } else {
    piece.word[0] = p->bits;
  }
  return piece;
}
template <typename T, int V>
__device__ inline void values(const Stored<T, V>& piece, float (&x)[V]) {
#pragma unroll
  for (int i = 0; i < V; ++i) {
    if constexpr (sizeof(T) == 4) {
      x[i] = std::bit_cast<float>(piece.word[i]);
    } else {
      x[i] = std::bit_cast<float>(i % 2 == 0 ? piece.word[i / 2] << 16 : piece.word[i / 2] & 0xffff0000u);
    }
  }
}

/// Unpacks a piece a second time, so that the compiler does not keep its values in registers meanwhile.
template <typename T, int V>
__device__ inline void unpack_again(Stored<T, V> piece, float (&x)[V]) {
#pragma unroll
  for (uint32_t& word : piece.word) asm volatile("" : "+r"(word));
  values(piece, x);
}

/// p[i] = x[i], i < n <= V.
template <int V>
__device__ inline void put(float* p, int n, const float (&x)[V]) {
  if constexpr (V % 4 == 0) {
    if (n == V) {
#pragma unroll
      for (int i = 0; i < V; i += 4) {
        Words<4> words;
#pragma unroll
        for (int j = 0; j < 4; ++j) words.word[j] = std::bit_cast<uint32_t>(x[i + j]);
        *reinterpret_cast<Words<4>*>(p + i) = words;
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i)
    if (i < n) p[i] = x[i];
}
template <int V>
__device__ inline void put(bf16* p, int n, const float (&x)[V]) {
  if constexpr (V % 4 == 0) {
    if (n == V) {
      constexpr int kWords = V % 8 == 0 ? 4 : 2;
#pragma unroll
      for (int i = 0; i < V; i += 2 * kWords) {
        Words<kWords> words;
#pragma unroll
        for (int j = 0; j < kWords; ++j) words.word[j] = bf16_pair(x[i + 2 * j], x[i + 2 * j + 1]);
        *reinterpret_cast<Words<kWords>*>(p + i) = words;
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i)
    if (i < n) p[i] = bf16(x[i]);
}

/// A matrix operand of a kernel. With ld = 0 all rows are the same.
template <typename T>
struct Rows {
  T* data;
  int64_t ld;
  __device__ T* at(int64_t r, int64_t c) const { return data + r * ld + c; }
};
template <typename T>
Rows<T> rows_of(const Tensor& t) {
  return {t ? t.as<T>() : nullptr, t ? t.ld() : 0};
}
template <typename T>
Rows<const T> rows_in(const Tensor& t) {
  return {t ? t.as<T>() : nullptr, t ? t.ld() : 0};
}

/// True if pieces of v elements at columns 0, v, 2·v, … of each of `rows` rows are aligned for get and put.
inline bool aligned_rows(std::initializer_list<Tensor> tensors, int64_t rows, int64_t v) {
  for (const Tensor& t : tensors) {
    const int64_t unit = std::min<int64_t>(16, v * size_of(t.dtype));
    if (t && (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(unit) != 0 ||
              (rows > 1 && t.rows() > 1 && t.ld() * size_of(t.dtype) % unit != 0)))
      return false;
  }
  return true;
}

/// True if rows consist of whole pieces of v elements, each of which is one access.
inline bool whole_pieces(std::initializer_list<Tensor> tensors, int64_t rows, int64_t cols, int64_t v) {
  return cols % v == 0 && aligned_rows(tensors, rows, v);
}

}  // namespace trainer::ops::cuda
