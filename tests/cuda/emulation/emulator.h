#pragma once
// The machine behind the emulated CUDA runtime. Blocks of a grid run one after another; every CUDA thread is a fiber
// that runs until it ends or has to wait for others of its block or warp. What CUDA leaves open (the order of blocks
// and threads) can be turned round, so that a test can require equal results; what CUDA forbids (barriers that not all
// reach, collectives that lanes disagree on, memory past its end) stops the program with a message.
#include <cstddef>
#include <cstdint>
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

/// Sets the number of devices; 1 at first.
void set_devices(int count);
/// The calling thread sees this device only, as device 0: a process that a batch system gave one GPU. -1: all, as at
/// first.
void see_only(int device);

/// The devices that each thread has touched since forget_touched(): where CUDA would have made a context for it.
std::vector<std::set<int>> touched_by_threads();
void forget_touched();

/// Limits how many more blocks of host memory can be registered, and allocated pinned; -1: any number, as at first.
void limit_pinning(int registrations, int allocations);
/// Returns the number of pinned blocks.
int pinned_blocks();

/// A stream stands still from here on until released; in tests of what goes on meanwhile.
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

/// The order in which blocks of a grid and threads of a block start. A correct kernel gives the same bits in each.
enum class Order { ascending, descending, shuffled };
void set_order(Order order);

/// Largest dynamic shared memory of a block (sm_90's), and what a kernel gets without asking.
inline constexpr size_t kSharedLimit = 227 << 10, kSharedDefault = 48 << 10;
/// Device memory in all, so that running out of it can be tested.
inline constexpr size_t kDeviceMemory = size_t{4} << 30;

/// Runs `thread` for every thread of every block of a grid.
void run_grid(Dim3 grid, Dim3 block, size_t shared_bytes, const std::function<void()>& thread);

void sync_block();
/// The block's dynamic shared memory, NaNs at its start. Its end lies at the end of a page, another follows that may
/// not be touched.
std::byte* dynamic_shared();

int lane();
/// Waits until all lanes of `mask` have called it with the same `what`; the last to come calls
/// act(context, data of the 32 lanes: null where a lane takes no part), then all go on.
void collective(unsigned mask, const char* what, void* mine, void (*act)(void* context, void* const* lanes),
                void* context);
/// The same with types: act(Data* const (&lanes)[32]).
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
