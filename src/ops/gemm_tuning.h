#pragma once
// Which algorithm a GPU's library takes for which product, and in which form it gets it: measured once (`trainer bench
// gemm`), kept in a file, and used instead of the library's guess. A table is good for one kind of device and one
// version of the library. Nothing is ever measured inside a run.
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

/// Libraries are not equally fast at all four ways in which operands may lie: a product may gain when one of them is
/// copied into the other way first. Products of a CPU are always taken as they are (cpu/gemm.h).
enum class GemmForm : uint8_t { as_is, left_first, right_first };
std::string_view name_of(GemmForm form);  // "as is", "left first", "right first"

struct TunedProduct {
  GemmAlgorithm algorithm{};
  int64_t workspace = 0;    // bytes it needs
  double microseconds = 0;  // median of one product, its copy included, when it was measured; 0: not measured
  GemmForm form = GemmForm::as_is;
  bool operator==(const TunedProduct&) const = default;
};

struct GemmTuning {
  std::string device;                            // name of the GPU
  std::string made_with;                         // the library, as product_path says
  std::map<std::string, TunedProduct> products;  // by the library call: shapes, dtypes, row distances, epilogue
  bool operator==(const GemmTuning&) const = default;
};

/// The file's text: {"device": …, "library": …, "products": [{"product": …, "algorithm": ["0x…" × 8], "workspace": …,
/// "microseconds": …, "form": "as is" | "left first" | "right first"}, …]}; without "form": as is. Throws Code::config
/// naming the place of a mistake.
GemmTuning parse_gemm_tuning(std::string_view text);
std::string to_json(const GemmTuning& tuning);

/// Products of this process on the device's GPU use the table from now on; those it does not name, and those whose
/// algorithm the library refuses, are chosen as before. An empty table undoes it. The copies that a table asks for are
/// scratch of the product: arena programs are recorded after this call, on a device or on a dry one that stands for it.
/// Throws Code::config for a table of another device or library, Code::usage where products are not a library's (a
/// CPU).
void use_gemm_tuning(const device::Device& device, const GemmTuning& tuning);

/// Why the table is not of the device's GPU and library, if it is not.
std::optional<std::string> gemm_tuning_misfit(const device::Device& device, const GemmTuning& tuning);

/// From here to measured_gemms() every product of this process on the device's GPU is, the first time it is asked for,
/// run by each of the `most` algorithms that the library proposes, several times over, and by the fastest from then on;
/// with `forms`, in each of its forms, of which another than as it is must gain 5 %, since it takes memory. That memory
/// is scratch of the product: arena programs are recorded between the two calls. What is computed meanwhile is of no
/// use: sums that are added to are added to again and again. Forgets any table.
void measure_gemms(const device::Device& device, int most, int repeats, bool forms);
struct MeasuredGemms {
  GemmTuning tuning;                         // the fastest of each product
  std::map<std::string, double> favourites;  // microseconds of what the library would have taken, as is, by product
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
