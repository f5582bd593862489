#pragma once
// Element types. Compute types are f64 (the CPU reference), f32 and bf16; the integer types store tokens and flags.
#include <bit>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace trainer {

enum class DType : uint8_t { f64, f32, bf16, i32, i64, u16, u8 };

constexpr int64_t size_of(DType type) {
  constexpr int64_t kBytes[] = {8, 4, 2, 4, 8, 2, 1};
  return kBytes[static_cast<size_t>(type)];
}
std::string_view name_of(DType type);

/// bfloat16 storage. Rounds to nearest even in integer arithmetic, so that every device agrees; NaN becomes 0x7fff.
struct bf16 {
  uint16_t bits;

  bf16() = default;
  constexpr explicit bf16(float value) : bits(round(value)) {}
  constexpr explicit bf16(double value) : bits(round(static_cast<float>(value))) {}
  constexpr explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
  constexpr explicit operator double() const { return static_cast<double>(static_cast<float>(*this)); }

 private:
  static constexpr uint16_t round(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};
static_assert(sizeof(bf16) == 2);

template <typename T>
struct DTypeOf {
  static constexpr DType value = std::is_same_v<T, double>     ? DType::f64
                                 : std::is_same_v<T, float>    ? DType::f32
                                 : std::is_same_v<T, bf16>     ? DType::bf16
                                 : std::is_same_v<T, int32_t>  ? DType::i32
                                 : std::is_same_v<T, int64_t>  ? DType::i64
                                 : std::is_same_v<T, uint16_t> ? DType::u16
                                                               : DType::u8;
  static_assert(sizeof(T) == size_of(value));
};
/// Calls fn with a value-initialized element, whose C++ type corresponds to `type`.
template <typename F>
void with_type(DType type, F&& fn) {
  switch (type) {
    case DType::f64:
      return fn(double{});
    case DType::f32:
      return fn(float{});
    case DType::bf16:
      return fn(bf16{});
    case DType::i32:
      return fn(int32_t{});
    case DType::i64:
      return fn(int64_t{});
    case DType::u16:
      return fn(uint16_t{});
    case DType::u8:
      return fn(uint8_t{});
  }
}

/// Returns the type of sums, statistics and weight gradients for a compute type: f64 for f64, else f32.
constexpr DType accumulator_of(DType compute) { return compute == DType::f64 ? DType::f64 : DType::f32; }
template <typename T>
using AccumulatorOf = std::conditional_t<std::is_same_v<T, double>, double, float>;

}  // namespace trainer
