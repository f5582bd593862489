#include "huggingface/float_types.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"

namespace trainer::huggingface {
namespace {

struct Names {
  FloatType type;
  int64_t size;
  std::string_view stored, torch, option;
};
constexpr std::array<Names, 4> kTypes{{{FloatType::f64, 8, "F64", "float64", "fp64"},
                                       {FloatType::f32, 4, "F32", "float32", "fp32"},
                                       {FloatType::bf16, 2, "BF16", "bfloat16", "bf16"},
                                       {FloatType::f16, 2, "F16", "float16", "fp16"}}};

const Names& names_of(FloatType type) { return kTypes[static_cast<size_t>(type)]; }

/// Stores convert(from[i]) for all i, and returns the index of the first finite element that becomes infinite.
template <typename T, typename F>
size_t store_all(std::span<const float> from, std::span<std::byte> out, T infinity, F&& convert) {
  constexpr T kMagnitude = static_cast<T>(~(T{1} << (8 * sizeof(T) - 1)));
  size_t first = from.size();
  for (size_t i = from.size(); i-- > 0;) {
    const T bits = convert(from[i]);
    std::memcpy(out.data() + i * sizeof(T), &bits, sizeof bits);
    if (static_cast<T>(bits & kMagnitude) == infinity && std::isfinite(from[i])) first = i;
  }
  return first;
}

template <typename T, typename F>
void load_all(std::span<const std::byte> from, std::span<float> out, F&& convert) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from.data() + i * sizeof(T), sizeof value);
    out[i] = convert(value);
  }
}

}  // namespace

int64_t size_of(FloatType type) { return names_of(type).size; }
std::string_view stored_name(FloatType type) { return names_of(type).stored; }
std::string_view torch_name(FloatType type) { return names_of(type).torch; }

std::optional<FloatType> find_stored(std::string_view name) {
  for (const Names& each : kTypes)
    if (each.stored == name) return each.type;
  return std::nullopt;
}

std::optional<FloatType> find_named(std::string_view name) {
  for (const Names& each : kTypes)
    if (each.option == name && each.type != FloatType::f64) return each.type;
  return std::nullopt;
}

uint16_t half_from_float(float value) {
  constexpr uint32_t kInfinity = 0x7f800000, kRoundsToInfinity = 0x477ff000;  // 65520
  constexpr uint32_t kSmallestNormal = 0x38800000;                            // 2^-14
  const auto all = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (all >> 16) & 0x8000, magnitude = all & 0x7fffffff;
  const auto with_sign = [&](uint32_t bits) { return static_cast<uint16_t>(sign | bits); };
  if (magnitude > kInfinity) return with_sign(0x7e00);  // NaN
  if (magnitude >= kRoundsToInfinity) return with_sign(0x7c00);
  if (magnitude < kSmallestNormal) {  // the least significant bit of 0.5f is 2^-24, like that of subnormal halves
    const float sum = std::bit_cast<float>(magnitude) + 0.5f;
    return with_sign(std::bit_cast<uint32_t>(sum) - std::bit_cast<uint32_t>(0.5f));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return with_sign((rounded - 0x38000000) >> 13);  // the exponents are biased by 127 and 15
}

float float_from_half(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, exponent = (bits >> 10) & 31,
                 fraction = bits & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent > 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23 | fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return sign == 0 ? magnitude : -magnitude;
}

void to_float(FloatType type, std::span<const std::byte> from, std::span<float> out) {
  TRAINER_CHECK(from.size() == out.size() * static_cast<size_t>(size_of(type)), "{} bytes for {} elements", from.size(),
                out.size());
  switch (type) {
    case FloatType::f64:
      return load_all<double>(from, out, [](double value) { return static_cast<float>(value); });
    case FloatType::f32:
      return load_all<float>(from, out, [](float value) { return value; });
    case FloatType::bf16:
      return load_all<bf16>(from, out, [](bf16 value) { return static_cast<float>(value); });
    case FloatType::f16:
      return load_all<uint16_t>(from, out, float_from_half);
  }
}

size_t from_float(std::span<const float> from, FloatType type, std::span<std::byte> out) {
  TRAINER_CHECK(out.size() == from.size() * static_cast<size_t>(size_of(type)), "{} bytes for {} elements", out.size(),
                from.size());
  switch (type) {
    case FloatType::f64:
      return store_all<uint64_t>(from, out, 0x7ff0000000000000,
                                 [](float value) { return std::bit_cast<uint64_t>(static_cast<double>(value)); });
    case FloatType::f32:
      return store_all<uint32_t>(from, out, 0x7f800000, [](float value) { return std::bit_cast<uint32_t>(value); });
    case FloatType::bf16:
      return store_all<uint16_t>(from, out, 0x7f80, [](float value) { return bf16(value).bits; });
    case FloatType::f16:
      return store_all<uint16_t>(from, out, 0x7c00, half_from_float);
  }
  return from.size();
}

}  // namespace trainer::huggingface
