#include "device/isa.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "rigs/messages.h"

namespace trainer::device {
namespace {

constexpr CpuFeatures kOld{};
constexpr CpuFeatures kZen3{.avx2 = true};
constexpr CpuFeatures kSkylake{.avx2 = true, .avx512 = true};
constexpr CpuFeatures kZen4{.avx2 = true, .avx512 = true, .avx512bf16 = true};
constexpr CpuFeatures kSapphireRapids{
    .avx2 = true, .avx512 = true, .avx512bf16 = true, .matrix_unit = true, .tiles_permitted = true};
constexpr CpuFeatures kWithoutPermission{.avx2 = true, .avx512 = true, .avx512bf16 = true, .matrix_unit = true};

#if defined(__x86_64__)  // elsewhere only the plain ISA is built, and /proc/cpuinfo of an emulated CPU is the host's
TEST(Isa, TheBestSetFollowsFromTheFlagsOnly) {
  EXPECT_EQ(best_isa(kOld), Isa::plain);
  EXPECT_EQ(best_isa(kZen3), Isa::avx2);
  EXPECT_EQ(best_isa(kSkylake), Isa::avx512);
  EXPECT_EQ(best_isa(kZen4), Isa::avx512bf16);
  EXPECT_EQ(best_isa(kSapphireRapids), Isa::amx);
  EXPECT_EQ(best_isa(kWithoutPermission), Isa::avx512);
}

// The kernel lists the flags of CPUID under its own names.
TEST(Isa, FlagsAreThoseTheKernelLists) {
  std::ifstream info("/proc/cpuinfo");
  std::string line, flags;
  while (flags.empty() && std::getline(info, line))
    if (line.starts_with("flags")) flags = line + " ";
  if (flags.empty()) GTEST_SKIP() << "/proc/cpuinfo lists no flags";
  const auto listed = [&](const char* flag) { return flags.find(std::string(" ") + flag + " ") != std::string::npos; };
  const CpuFeatures& cpu = cpu_features();
  EXPECT_EQ(cpu.avx2, listed("avx2") && listed("fma") && listed("bmi2"));
  EXPECT_EQ(cpu.avx512bf16, listed("avx512_bf16"));
  EXPECT_EQ(cpu.matrix_unit, listed("amx_tile") && listed("amx_bf16"));
}

#endif

// On CPUs with AMX, AVX512-BF16 has half the rate of fp32: without permission for AMX it is used only if requested.
TEST(Isa, PairsAreNotChosenWhereTheMatrixUnitMayNotBeUsed) {
  EXPECT_TRUE(has(kWithoutPermission, Isa::avx512bf16));
  EXPECT_FALSE(has(kWithoutPermission, Isa::amx));
  EXPECT_FALSE(has(kSkylake, Isa::avx512bf16));
  EXPECT_FALSE(has({.avx2 = true, .avx512bf16 = true}, Isa::avx512bf16));  // the rest of AVX-512 is missing
}

// AMX code rounds its sums with AVX512-BF16. Every CPU with AMX has it, but a virtual machine may hide it.
TEST(Isa, TilesNeedTheConversionsOfAvx512Bf16) {
  EXPECT_FALSE(has({.avx2 = true, .avx512 = true, .matrix_unit = true, .tiles_permitted = true}, Isa::amx));
}

TEST(Isa, Bf16IsFastByTilesAndByPairsWithoutAMatrixUnit) {
  EXPECT_TRUE(fast_bf16(kZen4, Isa::avx512bf16));
  EXPECT_FALSE(fast_bf16(kZen4, Isa::avx512));
  EXPECT_TRUE(fast_bf16(kSapphireRapids, Isa::amx));
  EXPECT_FALSE(fast_bf16(kSapphireRapids, Isa::avx512bf16));
  EXPECT_FALSE(fast_bf16(kWithoutPermission, Isa::avx512bf16));
  EXPECT_FALSE(fast_bf16(kZen3, Isa::avx2));
}

struct WithVariable {
  explicit WithVariable(const char* value) {
    if (const char* old = std::getenv("TRAINER_ISA")) before = old;
    setenv("TRAINER_ISA", value, 1);
  }
  ~WithVariable() { before.empty() ? unsetenv("TRAINER_ISA") : setenv("TRAINER_ISA", before.c_str(), 1); }
  std::string before;
};

TEST(Isa, TheVariableChoosesAnySetTheCpuHas) {
  for (const Isa isa : kIsas) {
    const WithVariable variable(std::string(name_of(isa)).c_str());
    if (available(isa)) {
      EXPECT_EQ(detect_isa(), isa);
      EXPECT_NE((" " + isa_summary() + " ").find(" " + std::string(name_of(isa)) + " "), std::string::npos);
    } else {
      EXPECT_THROW(detect_isa(), Error);
    }
  }
  const WithVariable variable("");
  EXPECT_EQ(detect_isa(), best_isa(cpu_features()));
}

TEST(Isa, AnUnknownSetIsRejectedByName) {
  const WithVariable variable("avx512_bf16");
  tests::expect_error(Code::usage, {"avx512bf16"}, [] { detect_isa(); });
}

}  // namespace
}  // namespace trainer::device
