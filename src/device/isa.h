#pragma once
// Instruction sets of the CPU kernels. Dispatch depends on CPUID feature flags, never on model names.
#include <string>
#include <string_view>

namespace trainer::device {

/// avx512bf16: avx512 and dot products of bf16 pairs; amx: avx512 and bf16 matrix tiles. Operators without kernels for
/// these two use their avx512 kernels. Each of plain, avx2 and avx512 contains the sets before it.
enum class Isa { plain, avx2, avx512, avx512bf16, amx };
inline constexpr Isa kIsas[] = {Isa::plain, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx};

/// Inputs to the choice of an ISA: CPU flags, and features that the OS kernel lets this process use.
struct CpuFeatures {
  bool avx2 = false;             // with fma and bmi2
  bool avx512 = false;           // f, bw, dq and vl
  bool avx512bf16 = false;       // dot products of bf16 pairs
  bool matrix_unit = false;      // the CPU has AMX for bf16 …
  bool tiles_permitted = false;  // … and this process may use it
};
/// Returns the features of this machine. The first call requests permission to use tiles.
const CpuFeatures& cpu_features();

bool has(const CpuFeatures& cpu, Isa isa);
/// Returns the set to use if TRAINER_ISA does not name one. Dot products of bf16 pairs are twice as fast as fp32 on
/// CPUs without a matrix unit, but half as fast as fp32 on CPUs with one, so avx512bf16 is never chosen on a CPU with a
/// matrix unit, even if the process may not use tiles.
Isa best_isa(const CpuFeatures& cpu);
/// True if bf16 GEMMs with this ISA are faster than fp32 GEMMs.
bool fast_bf16(const CpuFeatures& cpu, Isa isa);

/// True if this CPU, OS kernel and process can run the set, and this build has kernels for it.
bool available(Isa isa);
/// Returns the best available set, or the one named by the environment variable TRAINER_ISA (plain, avx2, avx512,
/// avx512bf16, amx). Throws Code::usage if the variable names an unknown set or one that is not available.
Isa detect_isa();
std::string_view name_of(Isa isa);

/// Returns the kernels for a set; avx512 kernels also serve the sets above it. Called by TRAINER_KERNELS.
template <typename Table>
const Table& kernels_for(Isa isa, const Table& plain, const Table& avx2, const Table& avx512) {
  return isa >= Isa::avx512 ? avx512 : isa == Isa::avx2 ? avx2 : plain;
}

/// Returns the available sets, for `trainer --version`: "plain avx2 avx512 avx512bf16 amx".
std::string isa_summary();

}  // namespace trainer::device
