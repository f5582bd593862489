// Device memory of the emulated CUDA runtime.
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "machine.h"

namespace emulator {
namespace {

constexpr size_t kPage = 4096, kAlign = 256;
constexpr unsigned char kCanary = 0xc3;

size_t round_to(size_t value, size_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

Memory::Memory() {
  base_ = static_cast<std::byte*>(mmap(nullptr, kSpace, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (base_ == MAP_FAILED) fail("no address space for device memory");
  struct sigaction action {};
  action.sa_sigaction = [](int, siginfo_t* info, void*) { touched(info->si_addr); };
  action.sa_flags = SA_SIGINFO | SA_RESETHAND | SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
}

std::byte* Memory::allocate(size_t bytes) {
  const size_t pages = round_to(std::max<size_t>(bytes, 1), kPage);
  if (held_ + pages > kDeviceMemory) return nullptr;
  const auto gap =
      std::find_if(free_.begin(), free_.end(), [&](const auto& item) { return item.second >= pages + kPage; });
  std::byte* start = nullptr;
  if (gap != free_.end()) {
    start = gap->first;
    if (const size_t rest = gap->second - pages - kPage; rest > 0) free_.emplace(start + pages + kPage, rest);
    free_.erase(gap);
  } else {
    if (used_ + pages + kPage > kSpace) return nullptr;
    start = base_ + used_;
    used_ += pages + kPage;
  }
  held_ += pages;
  protect(start, pages, true);
  std::memset(start, 0xff, pages);
  std::byte* memory = start + pages - round_to(std::max<size_t>(bytes, 1), kAlign);
  std::memset(memory + bytes, kCanary, static_cast<size_t>(start + pages - (memory + bytes)));
  if (!open_) protect(start, pages, false);
  blocks_[memory] = {start, pages, bytes};
  return memory;
}

bool Memory::release(std::byte* memory) {
  const auto it = blocks_.find(memory);
  if (it == blocks_.end()) return false;
  const Piece piece = it->second;
  protect(piece.start, piece.pages, true);
  for (const std::byte* at = memory + piece.bytes; at < piece.start + piece.pages; ++at)
    if (*at != std::byte{kCanary}) fail("a write past the end of an allocation of %zu bytes", piece.bytes);
  madvise(piece.start, piece.pages, MADV_DONTNEED);
  protect(piece.start, piece.pages, false);
  held_ -= piece.pages;
  blocks_.erase(it);
  free_.emplace(piece.start, piece.pages + kPage);
  return true;
}

void Memory::open(bool now) {
  open_ = now;
  for (const auto& [memory, piece] : blocks_) protect(piece.start, piece.pages, now);
}
bool Memory::holds(const void* address, size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(address);
  auto it = blocks_.upper_bound(const_cast<std::byte*>(at));
  if (it == blocks_.begin()) return false;
  --it;
  return at + bytes <= it->first + it->second.bytes;
}

void Memory::protect(std::byte* start, size_t bytes, bool open) {
  if (mprotect(start, bytes, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) fail("mprotect failed");
}

void Memory::touched(const void* address) {
  if (machine().memory.inside(address))
    fail("%p is device memory: touched by host code, by a kernel outside every allocation, or after it was freed",
         address);
  fail("segmentation fault at %p", address);
}

}  // namespace emulator
