#include "base/memory_probe.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace trainer {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// Shadow memory of the thread sanitizer grows with every page that is touched.
#if defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsOurs = false;
#else
constexpr bool kMemoryIsOurs = true;
#endif

TEST(MemoryProbe, SeesTouchedMemoryComeAndGo) {
  if (!kMemoryIsOurs) GTEST_SKIP() << "memory is not counted under the thread sanitizer";
  MemoryProbe probe;
  EXPECT_GT(probe.start(), 0);
  void* memory = mmap(nullptr, 64 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_LT(probe.sample(), 2 * kMiB) << "memory that was never touched does not count";
  std::memset(memory, 1, 64 * kMiB);
  const int64_t grown = probe.sample();
  EXPECT_GE(grown, 64 * kMiB);
  EXPECT_LT(grown, 68 * kMiB);
  munmap(memory, 64 * kMiB);
  EXPECT_LT(probe.sample(), 4 * kMiB);
  EXPECT_EQ(probe.peak(), grown);
}

TEST(MemoryProbe, CountsHugePages) {
  if (!kMemoryIsOurs) GTEST_SKIP() << "memory is not counted under the thread sanitizer";
  MemoryProbe probe;
  void* memory = mmap(nullptr, 66 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  madvise(memory, 66 * kMiB, MADV_HUGEPAGE);  // may fail: small pages give the same counts
  std::memset(memory, 1, 66 * kMiB);
  EXPECT_GE(probe.sample(), 66 * kMiB);
  EXPECT_LT(probe.peak(), 70 * kMiB);
  munmap(memory, 66 * kMiB);
}

}  // namespace
}  // namespace trainer
