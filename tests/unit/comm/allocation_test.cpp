#include <cstdlib>
#include <new>

#include "unit/comm/rig.h"

// Counts what one thread allocates while it asks for that.
namespace {
thread_local bool counting = false;
thread_local int allocations = 0;
}  // namespace

[[gnu::noinline]] void* operator new(size_t size) {
  if (counting) ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace trainer::comm {
namespace {

TEST(Allocation, StartingAndJoiningTakesNothingAfterTheFirstTime) {
  run_on_threads(2, {.timeout_s = 60}, [&](World& world) {
    Rig rig;
    const auto comm = world.communicator(rig.device, group_of(world, 2), Lane::grads);
    std::vector<float> x(9000, 1.0f), y(9000), z(9000), part(static_cast<size_t>(comm->chunk(9000).count));
    const auto step = [&] {
      Ticket a = comm->all_reduce(rig.ex, tensor_of(x));
      Ticket b = comm->reduce_scatter(rig.ex, tensor_of(y), tensor_of(part));
      comm->broadcast(rig.ex, tensor_of(z), 1).join(rig.ex);
      a.join(rig.ex);
      b.join(rig.ex);
    };
    step();
    counting = true;
    allocations = 0;
    for (int i = 0; i < 20; ++i) step();
    counting = false;
    EXPECT_EQ(allocations, 0);
    counting = true;
    allocations = 0;
    std::vector<int> counted(1);
    counting = false;
    EXPECT_EQ(allocations, 1) << "the counter counts";
  });
}

}  // namespace
}  // namespace trainer::comm
