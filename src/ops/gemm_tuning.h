#pragma once
// Which algorithm a GPU's library takes for which product: measured once (`trainer bench gemm`), kept in a file, and
// used instead of the library's guess. A table is good for one kind of device and one version of the library.
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ops/gemm.h"

namespace trainer::ops {

/// The library's own description of an algorithm, valid for one version of it.
using GemmAlgorithm = std::array<uint64_t, 8>;

struct TunedProduct {
  GemmAlgorithm algorithm{};
  int64_t workspace = 0;    // bytes it needs
  double microseconds = 0;  // median of one product when it was measured; 0: not measured
  bool operator==(const TunedProduct&) const = default;
};

struct GemmTuning {
  std::string device;                            // name of the GPU
  std::string made_with;                         // the library, as product_path says
  std::map<std::string, TunedProduct> products;  // by the library call: shapes, dtypes, row distances, epilogue
  bool operator==(const GemmTuning&) const = default;
};

/// The file's text: {"device": …, "library": …, "products": [{"product": …, "algorithm": ["0x…" × 8], "workspace": …,
/// "microseconds": …}, …]}. Throws Code::config naming the place of a mistake.
GemmTuning parse_gemm_tuning(std::string_view text);
std::string to_json(const GemmTuning& tuning);

/// Products of this process on the device's GPU use the table from now on; those it does not name, and those whose
/// algorithm the library refuses, are chosen as before. An empty table undoes it. Throws Code::config for a table of
/// another device or library, Code::usage where products are not a library's (a CPU).
void use_gemm_tuning(const device::Device& device, const GemmTuning& tuning);

/// Why the table is not of the device's GPU and library, if it is not.
std::optional<std::string> gemm_tuning_misfit(const device::Device& device, const GemmTuning& tuning);

/// From here to measured_gemms() every product of this process on the device's GPU is, the first time it is asked for,
/// run by each of the `most` algorithms that the library proposes, several times over, and by the fastest from then on.
/// What is computed meanwhile is of no use: sums that are added to are added to again and again. Forgets any table.
void measure_gemms(const device::Device& device, int most, int repeats);
struct MeasuredGemms {
  GemmTuning tuning;                         // the fastest of each product
  std::map<std::string, double> favourites;  // microseconds of what the library would have taken, by product
};
/// What was measured; later products are chosen as without a table.
MeasuredGemms measured_gemms(const device::Device& device);

/// What the library proposes for the product behind op, its favourite first, with the name a table knows it by; none
/// when our own kernels do it. Operands need memory, which is not touched.
struct GemmCandidates {
  std::string product;
  std::vector<TunedProduct> algorithms;
};
GemmCandidates gemm_candidates(Exec& ex, const Gemm& op, int most);

}  // namespace trainer::ops
