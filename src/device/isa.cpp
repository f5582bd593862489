#include "device/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "base/error.h"

namespace trainer::device {
namespace {

bool has(Isa isa) {
  switch (isa) {
    case Isa::plain:
      return true;
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    case Isa::avx512:
      return has(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  return false;
}

bool request_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool tile = (d >> 24) & 1u, bf16 = (d >> 22) & 1u;
  if (!tile || !bf16) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace

Isa detect_isa() {
  Isa best = has(Isa::avx512) ? Isa::avx512 : has(Isa::avx2) ? Isa::avx2 : Isa::plain;
  const char* wanted = std::getenv("TRAINER_ISA");
  if (wanted == nullptr || *wanted == '\0') return best;
  for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) {
    if (name_of(isa) != wanted) continue;
    if (!has(isa))
      throw Error(Code::usage, format("TRAINER_ISA={}: this CPU offers {} at most", wanted, name_of(best)));
    return isa;
  }
  throw Error(Code::usage, format("TRAINER_ISA={}: expected plain, avx2 or avx512", wanted));
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::plain:
      return "plain";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "?";
}

bool amx_bf16_available() {
  static const bool available = request_amx();
  return available;
}

std::string isa_summary() {
  std::string text = "plain";
  for (const Isa isa : {Isa::avx2, Isa::avx512})
    if (has(isa)) text += format(" {}", name_of(isa));
  if (amx_bf16_available()) text += " amx-bf16";
  return text;
}

}  // namespace trainer::device
