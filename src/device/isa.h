#pragma once
// Instruction sets of the CPU kernels. Dispatch looks at CPUID feature flags, never at model names.
#include <string>
#include <string_view>

namespace trainer::device {

enum class Isa { plain, avx2, avx512 };

/// The best set this CPU has, or the lower one named by the environment variable TRAINER_ISA (plain, avx2, avx512).
/// Throws Code::usage when the variable names an unknown set or one this CPU lacks.
Isa detect_isa();
std::string_view name_of(Isa isa);

/// AMX bf16 tiles present, enabled by the kernel and permitted to this process (permission is asked for on first call).
bool amx_bf16_available();

/// Everything found, for `trainer --version`: "avx2 avx512f amx-bf16".
std::string isa_summary();

}  // namespace trainer::device
