#include "data/mapping_guard.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <mutex>
#include <utility>
#include <vector>

namespace trainer::data {

/// Reused but never freed, since the signal handler walks the list without a lock.
struct GuardedMapping {
  std::atomic<const std::byte*> begin{nullptr};  // null: free
  std::atomic<int64_t> bytes{0};
  std::atomic<bool> lost{false};
  std::filesystem::path path;  // this and the following members: guarded by the list's mutex, or owned by the guard
  dev_t device = 0;
  ino_t inode = 0;
  GuardedMapping* next = nullptr;
};

namespace {

std::atomic<GuardedMapping*> all{nullptr};
std::mutex mutex;                     // held while adding and freeing
std::vector<GuardedMapping*> unused;  // guarded by the mutex
struct sigaction previous;
int64_t page_bytes = 4096;

/// Uses only operations that are safe in a signal handler: atomics, and mmap, which is a plain system call.
extern "C" void handle_bus_error(int, siginfo_t* info, void*) {
  const bool fault = info->si_code > 0;  // if false, a process sent the signal, and si_addr is not valid
  const auto* address = fault ? static_cast<const std::byte*>(info->si_addr) : nullptr;
  for (GuardedMapping* each = all.load(); fault && each != nullptr; each = each->next) {
    const std::byte* begin = each->begin.load();
    if (begin == nullptr || address < begin || address >= begin + each->bytes.load()) continue;
    const auto page =
        reinterpret_cast<uintptr_t>(address) / static_cast<uintptr_t>(page_bytes) * static_cast<uintptr_t>(page_bytes);
    each->lost.store(true);
    void* zeros = ::mmap(reinterpret_cast<void*>(page), static_cast<size_t>(page_bytes), PROT_READ,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (zeros != MAP_FAILED) return;
    break;
  }
  ::sigaction(SIGBUS, &previous, nullptr);  // the access faults again and reaches the previous handler
  if (!fault) ::raise(SIGBUS);
}

void take_over_bus_errors() {
  page_bytes = ::sysconf(_SC_PAGESIZE);
  struct sigaction action = {};
  action.sa_sigaction = handle_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &previous);
}

bool shorter_now(const GuardedMapping& mapping) {
  struct stat now {};
  return ::stat(mapping.path.c_str(), &now) == 0 && now.st_dev == mapping.device && now.st_ino == mapping.inode &&
         now.st_size < mapping.bytes.load();
}

}  // namespace

MappingGuard::MappingGuard(const std::byte* begin, int64_t bytes, std::filesystem::path path) {
  static std::once_flag once;
  std::call_once(once, take_over_bus_errors);
  const std::lock_guard lock(mutex);
  const bool fresh = unused.empty();
  mapping_ = fresh ? new GuardedMapping : unused.back();
  if (!fresh) unused.pop_back();
  struct stat now {};
  if (::stat(path.c_str(), &now) == 0) {
    mapping_->device = now.st_dev;
    mapping_->inode = now.st_ino;
  }
  mapping_->path = std::move(path);
  mapping_->bytes = bytes;
  mapping_->lost = false;
  mapping_->begin = begin;
  if (!fresh) return;
  mapping_->next = all.load();
  all = mapping_;
}

MappingGuard::~MappingGuard() {
  const std::lock_guard lock(mutex);
  mapping_->begin = nullptr;
  unused.push_back(mapping_);
}

bool MappingGuard::has_lost_page() const { return mapping_->lost.load(std::memory_order_relaxed); }

bool MappingGuard::is_cut_short() const { return has_lost_page() || shorter_now(*mapping_); }

bool mappings_are_whole() {
  const std::lock_guard lock(mutex);
  for (const GuardedMapping* each = all.load(); each != nullptr; each = each->next) {
    if (each->begin.load() != nullptr && (each->lost.load() || shorter_now(*each))) return false;
  }
  return true;
}

}  // namespace trainer::data
