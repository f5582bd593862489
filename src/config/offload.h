#pragma once
// The section [offload], and the values of keys that describe transfers (offload_values.cpp).
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trainer::config {

enum class OffloadOptimizer { none, cpu, interleaved };
enum class GradTransport { fp32, bf16 };

/// An exact fraction, num / den.
struct Fraction {
  int64_t num = 0, den = 1;
  double value() const { return static_cast<double>(num) / static_cast<double>(den); }
  bool operator==(const Fraction&) const = default;
};
/// Parses a number from 0 to 1, such as "1/2", "0.35" or "1"; returns an empty result for other text.
std::optional<Fraction> fraction_of(std::string_view text);

struct Offload {
  OffloadOptimizer optimizer = OffloadOptimizer::none;
  std::string gpu_fraction = "auto";  // "auto", or a fraction in the syntax of fraction_of()
  int64_t subgroup = 100'000'000;     // largest number of elements
  int64_t slots = 3;
  int64_t resident = 0;  // subgroups
  GradTransport grad_transport = GradTransport::fp32;
  bool pinned = true;
};

/// The rates of debug.emulate_device.
struct EmulatedRates {
  double to_device = 55, to_host = 55;  // GB/s
  double host = 3, device = 100;        // update rates, 1e9 parameters/s
  double memory = 87.5;                 // GB/s of host memory for this rank
  double pageable = 3.3;                // GB/s to pageable host memory, blocking tensor by tensor
};
/// Parses "h100", "a100", or "to_device=55,to_host=55,host=3,device=100,memory=87.5,pageable=3.3", in which omitted
/// rates default to those of "h100"; returns an empty result for other text.
std::optional<EmulatedRates> emulated_rates(std::string_view text);

}  // namespace trainer::config
