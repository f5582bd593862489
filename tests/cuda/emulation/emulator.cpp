#include "emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "cuda_runtime.h"
#include "fiber.h"

namespace emulator {
namespace {

constexpr size_t kPage = 4096;
std::atomic<Order> order_of_work{Order::ascending};

/// Returns which of n items runs as the i-th. Shuffled: in steps of a fixed stride that is coprime to n.
size_t pick(Order order, size_t i, size_t n) {
  if (order == Order::ascending) return i;
  if (order == Order::descending) return n - 1 - i;
  size_t stride = n / 2 + 1;
  const auto common = [](size_t a, size_t b) {
    while (b != 0) a = std::exchange(b, a % b);
    return a;
  };
  while (common(stride, n) != 1) ++stride;
  return (i * stride + n / 3) % n;
}

/// Shared memory of the blocks that this OS thread runs.
class SharedMemory {
 public:
  SharedMemory() {
    memory_ = map_pages(kMapped);
    end_ = memory_ + kSharedLimit / kPage * kPage + kPage;
    mprotect(end_, kPage, PROT_NONE);
  }
  ~SharedMemory() { unmap_pages(memory_, kMapped); }
  /// Returns the block's memory, filled with NaNs: as close to the end as its 128-byte alignment allows.
  std::byte* begin_block(size_t bytes) {
    std::byte* start = end_ - (bytes + 127) / 128 * 128;
    std::memset(start, 0xff, static_cast<size_t>(end_ - start));
    return start;
  }

 private:
  static constexpr size_t kMapped = kSharedLimit + 2 * kPage;
  std::byte *memory_, *end_;
};

struct Warp {
  unsigned arrived = 0, mask = 0;  // lanes of the collective that is in progress
  const char* what = nullptr;
  void* data[32] = {};
  struct Runner* waiting[32] = {};
};

class Block;

/// A fiber and the CUDA thread that it runs. It runs one thread after another, until one of them has to wait.
struct Runner {
  explicit Runner(Block& home) : block(home), fiber([](void* self) { static_cast<Runner*>(self)->loop(); }, this) {}
  void loop();
  Block& block;
  unsigned thread = 0;
  size_t place = 0;            // index among the busy runners
  bool in_barrier = false;     // waits for the other threads of its block
  bool in_collective = false;  // waits for the other lanes of its warp
  Fiber fiber;
};

class Block {
 public:
  void run(Dim3 size, Order order, std::byte* shared, const std::function<void()>& thread) {
    size_ = size;
    order_ = order;
    shared_ = shared;
    body_ = &thread;
    threads_ = static_cast<unsigned>(size.count());
    started_ = ended_ = at_barrier_ = 0;
    warps_.assign((threads_ + 31) / 32, Warp{});
    exited_.assign(warps_.size(), 0);
    blockDim = size;
    while (ended_ < threads_) {
      if (Runner* next = next_runner(); next != nullptr) {
        resume(*next);
      } else {
        deadlock();
      }
    }
  }

  /// Gives the runner the next thread to start; returns false if there is none.
  bool take_thread(Runner& runner) {
    if (started_ == threads_) return false;
    runner.thread = static_cast<unsigned>(pick(order_, started_++, threads_));
    place(runner.thread);
    return true;
  }
  void run_body() { (*body_)(); }
  void end_thread(unsigned thread) {
    ++ended_;
    exited_[thread / 32] |= 1u << thread % 32;
    if (const Warp& warp = warps_[thread / 32]; warp.arrived != 0 && (warp.mask >> thread % 32 & 1u) != 0)
      fail("lane %u ended while others of its warp wait for it in %s", thread % 32, warp.what);
    if (at_barrier_ > 0 && at_barrier_ + ended_ == threads_) release_barrier();
  }

  void sync() {
    Runner& self = *current_;
    if (++at_barrier_ + ended_ == threads_) {
      release_barrier();
      return;
    }
    self.in_barrier = true;
    suspend(self);
  }

  void collective(unsigned mask, const char* what, void* mine, void (*act)(void*, void* const*), void* context) {
    Runner& self = *current_;
    const unsigned index = self.thread / 32, lane = self.thread % 32;
    Warp& warp = warps_[index];
    const unsigned in_warp = std::min(32u, threads_ - index * 32);
    if (in_warp < 32 && mask >> in_warp != 0) fail("%s: the last warp has %u lanes, mask %x", what, in_warp, mask);
    if ((mask >> lane & 1u) == 0) fail("%s: lane %u is not in its own mask %x", what, lane, mask);
    if ((mask & exited_[index]) != 0) fail("%s waits for lanes %x, which have ended", what, mask & exited_[index]);
    if (warp.arrived == 0) {
      warp.mask = mask;
      warp.what = what;
    } else if (warp.mask != mask || std::strcmp(warp.what, what) != 0) {
      fail("lane %u is in %s with mask %x, others of its warp in %s with mask %x", lane, what, mask, warp.what,
           warp.mask);
    }
    warp.data[lane] = mine;
    warp.arrived |= 1u << lane;
    if (warp.arrived != mask) {
      self.in_collective = true;
      warp.waiting[lane] = &self;
      suspend(self);
      return;
    }
    act(context, warp.data);
    warp.arrived = 0;
    for (unsigned i = 0; i < 32; ++i) {
      warp.data[i] = nullptr;
      if (Runner* other = std::exchange(warp.waiting[i], nullptr); other != nullptr) wake(*other, other->in_collective);
    }
  }

  unsigned thread() const { return current_->thread; }
  std::byte* shared() const { return shared_; }
  void suspend(Runner& runner) {
    runner.fiber.leave();
    place(runner.thread);
  }

 private:
  void place(unsigned thread) const {
    threadIdx = {thread % size_.x, thread / size_.x % size_.y, thread / (size_.x * size_.y)};
  }
  void wake(Runner& runner, bool& reason) {
    reason = false;
    ready_.push_back(&runner);
  }
  void release_barrier() {
    at_barrier_ = 0;
    for (auto& runner : busy_)
      if (runner->in_barrier) wake(*runner, runner->in_barrier);
  }
  Runner* next_runner() {
    if (next_ready_ < ready_.size()) {
      Runner* runner = ready_[next_ready_++];
      if (next_ready_ == ready_.size()) {
        ready_.clear();
        next_ready_ = 0;
      }
      return runner;
    }
    if (started_ == threads_) return nullptr;
    if (idle_.empty()) {
      busy_.push_back(std::make_unique<Runner>(*this));
    } else {
      busy_.push_back(std::move(idle_.back()));
      idle_.pop_back();
    }
    busy_.back()->place = busy_.size() - 1;
    return busy_.back().get();
  }
  void resume(Runner& runner) {
    current_ = &runner;
    runner.fiber.enter();
    current_ = nullptr;
    if (runner.in_barrier || runner.in_collective) return;
    // The runner found no thread to start, so it becomes idle.
    const size_t at = runner.place;
    idle_.push_back(std::move(busy_[at]));
    if (at + 1 != busy_.size()) busy_[at] = std::move(busy_.back());
    busy_.pop_back();
    if (at < busy_.size()) busy_[at]->place = at;
  }
  [[noreturn]] void deadlock() const {
    unsigned waiting = 0;
    const char* what = "";
    for (const auto& runner : busy_) {
      waiting += runner->in_collective;
      if (runner->in_collective) what = warps_[runner->thread / 32].what;
    }
    fail(
        "deadlock in block (%u, %u, %u) of %u threads: %u ended, %u wait in __syncthreads, %u in collectives of their "
        "warps (%s) that other lanes do not reach",
        blockIdx.x, blockIdx.y, blockIdx.z, threads_, ended_, at_barrier_, waiting, what);
  }

  Dim3 size_;
  Order order_ = Order::ascending;
  std::byte* shared_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  unsigned threads_ = 0, started_ = 0, ended_ = 0, at_barrier_ = 0;
  std::vector<Warp> warps_;
  std::vector<unsigned> exited_;  // lanes of each warp that have ended
  std::vector<std::unique_ptr<Runner>> busy_, idle_;
  std::vector<Runner*> ready_;
  size_t next_ready_ = 0;
  Runner* current_ = nullptr;
};

void Runner::loop() {
  for (;;) {
    while (block.take_thread(*this)) {
      block.run_body();
      block.end_thread(thread);
    }
    fiber.leave();
  }
}

Block& block_here() {
  thread_local Block block;
  return block;
}

}  // namespace

void set_order(Order order) { order_of_work = order; }

void run_grid(Dim3 grid, Dim3 block, size_t shared_bytes, const std::function<void()>& thread) {
  thread_local SharedMemory shared;
  const Order order = order_of_work;
  gridDim = grid;
  for (size_t i = 0; i < grid.count(); ++i) {
    const size_t at = pick(order, i, grid.count());
    blockIdx = {static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
                static_cast<unsigned>(at / (size_t{grid.x} * grid.y))};
    block_here().run(block, order, shared.begin_block(shared_bytes), thread);
  }
}

void sync_block() { block_here().sync(); }
std::byte* dynamic_shared() { return block_here().shared(); }
int lane() { return static_cast<int>(block_here().thread() % 32); }
void collective(unsigned mask, const char* what, void* mine, void (*act)(void* context, void* const* lanes),
                void* context) {
  block_here().collective(mask, what, mine, act, context);
}

void fail(const char* message, ...) {
  std::fputs("CUDA emulator: ", stderr);
  va_list arguments;
  va_start(arguments, message);
  std::vfprintf(stderr, message, arguments);
  va_end(arguments);
  std::fputs("\n", stderr);
  std::abort();
}

}  // namespace emulator
