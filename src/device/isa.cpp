#include "device/isa.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <cstdlib>

#include "base/error.h"

namespace trainer::device {
namespace {

constexpr bool is_built(Isa isa) {
#ifdef TRAINER_WITHOUT_AVX2
  if (isa == Isa::avx2) return false;
#endif
#ifdef TRAINER_WITHOUT_AVX512
  if (isa >= Isa::avx512) return false;
#endif
  return isa >= Isa::plain;
}

#if defined(__x86_64__)
bool permit_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

CpuFeatures find_features() {
  CpuFeatures cpu;
  cpu.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  cpu.avx512 = cpu.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    cpu.matrix_unit = (d >> 24 & 1u) != 0 && (d >> 22 & 1u) != 0;  // AMX-TILE, AMX-BF16
    cpu.tiles_permitted = cpu.matrix_unit && permit_tiles();
    // EAX of leaf 7 contains the highest subleaf.
    if (a >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) cpu.avx512bf16 = (a >> 5 & 1u) != 0;
  }
  return cpu;
}
#else
CpuFeatures find_features() { return {}; }  // `plain` kernels use 16-byte vectors: NEON on ARM64
#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures cpu = find_features();
  return cpu;
}

bool has(const CpuFeatures& cpu, Isa isa) {
  switch (isa) {
    case Isa::plain:
      return true;
    case Isa::avx2:
      return cpu.avx2;
    case Isa::avx512:
      return cpu.avx512;
    case Isa::avx512bf16:
      return cpu.avx512 && cpu.avx512bf16;
    case Isa::amx:
      return cpu.avx512 && cpu.avx512bf16 && cpu.tiles_permitted;  // AVX512-BF16 instructions round the tiles' results
  }
  return false;
}

bool fast_bf16(const CpuFeatures& cpu, Isa isa) {
  return isa == Isa::amx || (isa == Isa::avx512bf16 && !cpu.matrix_unit);
}

Isa best_isa(const CpuFeatures& cpu) {
  Isa best = Isa::plain;
  for (const Isa isa : kIsas)
    if (is_built(isa) && has(cpu, isa) && (isa != Isa::avx512bf16 || fast_bf16(cpu, isa))) best = isa;
  return best;
}

bool available(Isa isa) { return is_built(isa) && has(cpu_features(), isa); }

Isa detect_isa() {
  const char* requested = std::getenv("TRAINER_ISA");
  if (requested == nullptr || *requested == '\0') return best_isa(cpu_features());
  for (const Isa isa : kIsas) {
    if (name_of(isa) != requested) continue;
    if (!available(isa))
      throw Error(Code::usage, format("TRAINER_ISA={}: not available; this CPU and this build support {}", requested,
                                      isa_summary()));
    return isa;
  }
  throw Error(Code::usage, format("TRAINER_ISA={}: expected plain, avx2, avx512, avx512bf16 or amx", requested));
}

std::string_view name_of(Isa isa) {
  static constexpr std::string_view kNames[] = {"plain", "avx2", "avx512", "avx512bf16", "amx"};
  return kNames[static_cast<size_t>(isa)];
}

std::string isa_summary() {
  std::string text;
  for (const Isa isa : kIsas)
    if (available(isa)) text += format("{}{}", text.empty() ? "" : " ", name_of(isa));
  return text;
}

}  // namespace trainer::device
