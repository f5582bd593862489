#pragma once
// Large blocks of host memory. Their pages are untouched at first, so that the caller can choose the NUMA node.
#include <cstddef>
#include <cstdint>

#include "device/thread_pool.h"

namespace trainer::device {

/// The size of a huge page. Blocks of at least this size get pages of their own.
inline constexpr int64_t kHugePage = int64_t{2} << 20;

/// Maps zeroed pages, aligned to a huge page; `huge`: huge pages if the system has them. Returns nullptr if the system
/// is out of memory.
std::byte* map_pages(int64_t bytes, bool huge = true);
/// Touches every page, from the pool's threads, so that later work has no page faults.
void touch_pages(ThreadPool& pool, std::byte* memory, int64_t bytes);
void unmap_pages(std::byte* memory, int64_t bytes) noexcept;

/// From now on, devices release no host memory of this process. For a process that ends because another rank was lost:
/// MPI, or that rank if it returns, may still access the memory of messages that were in flight.
void keep_memory() noexcept;
bool keeps_memory() noexcept;

}  // namespace trainer::device
