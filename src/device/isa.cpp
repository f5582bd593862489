#include "device/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"

namespace trainer::device {
namespace {

/// bf16 tiles, enabled by the kernel and permitted to this process.
bool request_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool tile = (d >> 24) & 1u, bf16 = (d >> 22) & 1u;
  // Sums of tiles are rounded by AVX512-BF16, which every CPU with tiles has; a virtual machine might hide it.
  if (!tile || !bf16 || !__builtin_cpu_supports("avx512bf16")) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

bool available(Isa isa) {
  switch (isa) {
    case Isa::plain:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    case Isa::avx512:
      return available(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case Isa::amx:
      static const bool permitted = request_amx();
      return available(Isa::avx512) && permitted;
  }
  return false;
}

Isa detect_isa() {
  Isa best = Isa::plain;
  for (const Isa isa : kIsas)
    if (available(isa)) best = isa;
  const char* wanted = std::getenv("TRAINER_ISA");
  if (wanted == nullptr || *wanted == '\0') return best;
  for (const Isa isa : kIsas) {
    if (name_of(isa) != wanted) continue;
    if (!available(isa))
      throw Error(Code::usage, format("TRAINER_ISA={}: this CPU offers {} at most", wanted, name_of(best)));
    return isa;
  }
  throw Error(Code::usage, format("TRAINER_ISA={}: expected plain, avx2, avx512 or amx", wanted));
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::plain:
      return "plain";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::amx:
      return "amx";
  }
  return "?";
}

std::string isa_summary() {
  std::string text;
  for (const Isa isa : kIsas)
    if (available(isa)) text += format("{}{}", text.empty() ? "" : " ", name_of(isa));
  return text;
}

}  // namespace trainer::device
