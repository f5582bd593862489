#pragma once
// GemmTuning: the algorithm and form that a GPU's library uses for each GEMM. The table is measured once (`trainer
// bench gemm`), kept in a file, and used instead of the library's heuristic. A table is valid for one kind of device
// and one version of the library. Nothing is ever measured during a run.
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

/// Libraries are not equally fast for all four combinations of transposed operands. A GEMM may be faster if one operand
/// is transposed first. GEMMs on a CPU never are (cpu/gemm.h).
enum class GemmForm : uint8_t { as_is, left_first, right_first };
std::string_view name_of(GemmForm form);  // "as is", "left first", "right first"

struct TunedProduct {
  GemmAlgorithm algorithm{};
  int64_t workspace = 0;    // bytes it needs
  double microseconds = 0;  // median of one GEMM including its copy, at measurement; 0: not measured
  GemmForm form = GemmForm::as_is;
  bool operator==(const TunedProduct&) const = default;
};

struct GemmTuning {
  std::string device;                            // name of the GPU
  std::string made_with;                         // the library, as product_path() returns it
  std::map<std::string, TunedProduct> products;  // by the library call: shapes, dtypes, row strides, epilogue
  bool operator==(const GemmTuning&) const = default;
};

/// The file's text: {"device": …, "library": …, "products": [{"product": …, "algorithm": ["0x…" × 8], "workspace": …,
/// "microseconds": …, "form": "as is" | "left first" | "right first"}, …]}; without "form": as is. Throws Code::config
/// naming the place of a mistake.
GemmTuning parse_gemm_tuning(std::string_view text);
std::string to_json(const GemmTuning& tuning);

/// Makes GEMMs on the device, and on those that share its libraries, use the table from now on. For those that it does
/// not name, or whose algorithm the library rejects, the library chooses as before. An empty table undoes this. The
/// copies that a table requires are scratch of the GEMM, so arena programs must be recorded after this call, on a
/// device or on a dry one that represents it. Throws Code::config for a table of a different device or library.
void use_gemm_tuning(const device::Device& device, const GemmTuning& tuning);

/// Returns why the table does not fit the device's GPU and library; none if it fits.
std::optional<std::string> gemm_tuning_misfit(const device::Device& device, const GemmTuning& tuning);

/// Measures GEMMs on the device, and on those that share its libraries, until measured_gemms(). A new GEMM runs
/// `repeats` times with each of the `most` algorithms that the library proposes, and later with the fastest. With
/// `forms`, it runs in each of its forms. A form that copies an operand must gain 5 %, since it takes memory. That
/// memory is scratch of the GEMM: arena programs must be recorded between the two calls. Results in between are
/// meaningless, since accumulating GEMMs add several times. Discards any table.
void measure_gemms(const device::Device& device, int most, int repeats, bool forms);
struct MeasuredGemms {
  GemmTuning tuning;                         // the fastest algorithm of each GEMM
  std::map<std::string, double> favourites;  // microseconds of the library's own choice, as is, by GEMM
};
/// Returns the measurements; later GEMMs are chosen as without a table.
MeasuredGemms measured_gemms(const device::Device& device);

}  // namespace trainer::ops
