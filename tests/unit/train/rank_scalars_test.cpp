// Scalars that must be the same on all ranks, although each rank could compute them.
#include "rigs/layouts.h"
#include "train/replica_check.h"

namespace trainer::tests {
namespace {

// Powers and cosines differ in the last bit between CPU types. Here ranks differ in much more.
TEST(RankScalars, OfAnUpdateAreThoseOfTheFirstRank) {
  config::Config c = tiny_config();
  c.parallel.data = 3;
  c.train.global_batch = 6;
  const auto state_with = [&](const std::vector<double>& rates) {
    std::vector<std::byte> first;
    comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
      Tiny run(&world, c, DType::f32, 1);
      for (int64_t n = 1; n <= 2; ++n) run.step(n, rates[static_cast<size_t>(world.rank())]);
      EXPECT_NO_THROW(train::check_replicas(run.trainer, 2));
      if (world.first()) first = run.state();
    });
    return first;
  };
  EXPECT_TRUE(state_with({1e-3, 2e-3, 5e-4}) == state_with({1e-3, 1e-3, 1e-3}));
}

}  // namespace
}  // namespace trainer::tests
