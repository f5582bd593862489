#pragma once
// Instruction sets of the CPU kernels. Dispatch looks at CPUID feature flags, never at model names.
#include <string>
#include <string_view>

namespace trainer::device {

/// amx: avx512 and bf16 matrix tiles. Each set contains those before it.
enum class Isa { plain, avx2, avx512, amx };
inline constexpr Isa kIsas[] = {Isa::plain, Isa::avx2, Isa::avx512, Isa::amx};

/// True when this CPU, kernel and process can run the set (for amx, permission is asked for on first call).
bool available(Isa isa);
/// The best set there is, or the lower one named by the environment variable TRAINER_ISA (plain, avx2, avx512, amx).
/// Throws Code::usage when the variable names an unknown set or one this CPU lacks.
Isa detect_isa();
std::string_view name_of(Isa isa);

/// Everything found, for `trainer --version`: "plain avx2 avx512 amx".
std::string isa_summary();

}  // namespace trainer::device
