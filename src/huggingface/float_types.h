#pragma once
// The element types of weights in safetensors files, and their conversion from and to fp32.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace trainer::huggingface {

enum class FloatType : uint8_t { f64, f32, bf16, f16 };

int64_t size_of(FloatType type);
/// Returns "F32", the name in safetensors files.
std::string_view stored_name(FloatType type);
std::optional<FloatType> find_stored(std::string_view name);
/// Returns "float32", the name in config.json.
std::string_view torch_name(FloatType type);
/// Returns the type that the command line calls "fp32", "bf16" or "fp16".
std::optional<FloatType> find_named(std::string_view name);

/// Converts to IEEE 754 half precision, rounded to nearest even; infinity beyond its range.
uint16_t half_from_float(float value);
float float_from_half(uint16_t bits);

/// Converts out.size() elements to fp32. All types except fp64 are converted exactly.
void to_float(FloatType type, std::span<const std::byte> from, std::span<float> out);
/// Converts from.size() elements, rounded to nearest even. `out` must have room for all of them. Returns the index of
/// the first finite element that becomes infinite; from.size() when there is none.
size_t from_float(std::span<const float> from, FloatType type, std::span<std::byte> out);

}  // namespace trainer::huggingface
