#pragma once
// The machine behind the emulated CUDA runtime. Blocks of a grid run one after another; every CUDA thread is a fiber
// that runs until it ends or has to wait for other threads of its block or warp. Tests can choose the order of blocks
// and threads, which CUDA does not define, and require equal results. What CUDA forbids (barriers that some threads do
// not reach, collectives with different arguments, accesses out of bounds) ends the program with a message.
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <vector>

namespace emulator {

struct UInt3 {
  unsigned x = 0, y = 0, z = 0;
};
struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr Dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr size_t count() const { return size_t{x} * y * z; }
};

struct Stream;
struct Event;
struct Graph;

/// Sets the number of devices, initially 1, and how many of them are MIG instances of the same GPU.
void set_devices(int count, int instances = 1);
/// Makes the calling thread see only this device, as device 0, like a process to which a batch system gave one GPU.
/// -1: it sees all (initially).
void see_only(int device);

/// Returns the devices that each thread has used since forget_touched(); on these, CUDA would have created a context.
std::vector<std::set<int>> touched_by_threads();
void forget_touched();

/// The priorities of streams: lower numbers are higher priorities, as on GPUs.
inline constexpr int kLowestPriority = 0, kHighestPriority = -5;
/// Returns the number of streams that have this priority.
int streams_with_priority(int priority);

/// Limits how many more blocks of host memory can be registered, and allocated pinned; -1: no limit (initially).
void limit_pinning(int registrations, int allocations);
/// Returns the number of pinned blocks.
int pinned_blocks();

/// Blocks a stream until released, for tests of work that runs concurrently.
class Hold {
 public:
  explicit Hold(Stream* stream);
  ~Hold() { release(); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  void release();

 private:
  std::shared_ptr<bool> released_;
};

/// The order in which blocks of a grid and threads of a block start. A correct kernel gives the same bits in all
/// orders.
enum class Order { ascending, descending, shuffled };
void set_order(Order order);

/// The largest dynamic shared memory of a block (sm_90's), and the limit of a kernel that does not request more.
inline constexpr size_t kSharedLimit = 227 << 10, kSharedDefault = 48 << 10;
/// The size of device memory, small enough for tests that run out of it.
inline constexpr size_t kDeviceMemory = size_t{4} << 30;

/// Runs `thread` for every thread of every block of a grid.
void run_grid(Dim3 grid, Dim3 block, size_t shared_bytes, const std::function<void()>& thread);

void sync_block();
/// Returns the block's dynamic shared memory, initially NaNs. It ends at the end of a page, and the next page is
/// inaccessible.
std::byte* dynamic_shared();

int lane();
/// Waits until all lanes of `mask` have called it with the same `what`; the last one then calls
/// act(context, pointers to the data of the 32 lanes, null for lanes outside the mask).
void collective(unsigned mask, const char* what, void* mine, void (*act)(void* context, void* const* lanes),
                void* context);
/// The typed version: act(Data* const (&lanes)[32]).
template <typename Data, typename Act>
void collective(unsigned mask, const char* what, Data& mine, Act&& act) {
  struct Context {
    Act& act;
  } context{act};
  collective(
      mask, what, &mine,
      [](void* c, void* const* lanes) {
        Data* typed[32];
        for (int i = 0; i < 32; ++i) typed[i] = static_cast<Data*>(lanes[i]);
        static_cast<Context*>(c)->act(typed);
      },
      &context);
}

/// Prints what the running thread did wrong and ends the program.
[[noreturn]] void fail(const char* message, ...);

}  // namespace emulator
