#pragma once
// GemmTuning: the algorithm and form that a GPU's library uses for each GEMM. The table is measured once (`trainer
// bench gemm`), kept in a file, and used instead of the library's heuristic. A table is valid for one kind of device
// and one version of the library. Nothing is ever measured during a run.
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "ops/gemm.h"

namespace trainer::ops {

/// The library's own description of an algorithm, valid for one version of it.
using GemmAlgorithm = std::array<uint64_t, 8>;

/// The operand that is transposed into a copy before a GEMM, if any. Libraries are not equally fast for all four
/// combinations of transposed operands, so that a GEMM may be faster with such a copy. On a CPU, operands are never
/// copied (cpu/gemm.h).
enum class GemmForm : uint8_t { as_is, left_first, right_first };
std::string_view name_of(GemmForm form);  // "as is", "left first", "right first"

struct TunedProduct {
  GemmAlgorithm algorithm{};
  int64_t workspace = 0;    // bytes that the algorithm requires
  double microseconds = 0;  // measured median of the GEMM, including its copy; 0: not measured
  GemmForm form = GemmForm::as_is;
  bool operator==(const TunedProduct&) const = default;
};

struct GemmTuning {
  std::string device;                            // name of the GPU
  std::string made_with;                         // name of the library, as library_name() returns it
  std::map<std::string, TunedProduct> products;  // by library call: shapes, dtypes, row strides, epilogue
  bool operator==(const GemmTuning&) const = default;
};

/// The file's text: {"device": …, "library": …, "products": [{"product": …, "algorithm": ["0x…" × 8], "workspace": …,
/// "microseconds": …, "form": "as is" | "left first" | "right first"}, …]}; "form" is optional: as is. Throws
/// Code::config naming the place of a mistake.
GemmTuning parse_gemm_tuning(std::string_view text);
std::string to_json(const GemmTuning& tuning);

/// Makes GEMMs use the table from now on, on this device and on all devices that share its libraries. GEMMs that the
/// table does not list, or whose algorithm the library rejects, use the library's heuristic as before. An empty table
/// removes the current one. Transposed copies are scratch of the GEMM, so arena programs must be recorded after this
/// call, on the device or on a dry device that represents it. Throws Code::config for a table of a different device or
/// library.
void use_gemm_tuning(const device::Device& device, const GemmTuning& tuning);

/// Returns why the table does not match the device's GPU and library; empty if it does.
std::optional<std::string> gemm_tuning_misfit(const device::Device& device, const GemmTuning& tuning);

/// Measures GEMMs on this device, and on all devices that share its libraries, until measured_gemms() is called. The
/// first call of a GEMM runs it `repeats` times with each of up to `most` algorithms that the library proposes; later
/// calls use the fastest. With `forms`, all forms are measured. A form that copies an operand must be 5 % faster to be
/// chosen, since the copy takes memory. That memory is scratch of the GEMM, so arena programs must be recorded between
/// these two functions. Results in between are meaningless, since accumulating GEMMs add several times. Discards any
/// table.
void measure_gemms(const device::Device& device, int most, int repeats, bool forms);
struct MeasuredGemms {
  GemmTuning tuning;                         // the fastest algorithm for each GEMM
  std::map<std::string, double> favourites;  // µs per GEMM with the library's default algorithm, no copy
};
/// Ends measuring and returns the results. Later GEMMs use the library's heuristic.
MeasuredGemms measured_gemms(const device::Device& device);

}  // namespace trainer::ops
