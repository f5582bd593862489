#include "device/pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>

#include "base/shape.h"

namespace trainer::device {
namespace {

constexpr int64_t kPage = 4096;

std::atomic<bool> kept = false;

}  // namespace

void keep_memory() noexcept { kept = true; }
bool keeps_memory() noexcept { return kept; }

std::byte* map_pages(int64_t bytes, bool huge) {
  // Maps one huge page more and trims both ends, so that the block starts on a huge page.
  const int64_t size = round_up(bytes, kPage), mapped = size + kHugePage;
  void* raw = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* base = static_cast<std::byte*>(raw);
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(base));
  const int64_t lead = round_up(address, kHugePage) - address;
  if (lead > 0) munmap(base, static_cast<size_t>(lead));
  if (mapped - lead - size > 0) munmap(base + lead + size, static_cast<size_t>(mapped - lead - size));
  if (huge) madvise(base + lead, static_cast<size_t>(size), MADV_HUGEPAGE);
  return base + lead;
}

void touch_pages(ThreadPool& pool, std::byte* memory, int64_t bytes) {
  // In turn, so that a buffer's pages are spread over the NUMA nodes of all threads.
  pool.deal(divide_up(bytes, kHugePage), [&](int64_t block, int) {
    const int64_t begin = block * kHugePage, end = std::min(bytes, begin + kHugePage);
    for (int64_t at = begin; at < end; at += kPage) reinterpret_cast<volatile char*>(memory)[at] = 0;
  });
}

void unmap_pages(std::byte* memory, int64_t bytes) noexcept {
  munmap(memory, static_cast<size_t>(round_up(bytes, kPage)));
}

}  // namespace trainer::device
