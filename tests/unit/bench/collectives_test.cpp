#include "bench/collectives.h"

#include "unit/comm/rig.h"

namespace trainer::bench {
namespace {

TEST(BenchCollectives, MeasuresEveryOperationAndAgreesOnTheResult) {
  comm::run_on_threads(3, {}, [](comm::World& world) {
    comm::Rig rig;
    const std::vector<int64_t> payloads = {1, 100000};
    const std::vector<CollectiveRate> rates = bench_collectives(world, rig.device, payloads, 3);
    ASSERT_EQ(rates.size(), static_cast<size_t>(kCommOps) * 2);
    std::string text;
    for (size_t i = 0; i < rates.size(); ++i) {
      const CollectiveRate& rate = rates[i];
      EXPECT_EQ(static_cast<size_t>(rate.op), i / 2);
      EXPECT_EQ(rate.bytes, i % 2 == 0 ? 12 : 99996);
      EXPECT_GT(rate.microseconds, 0);
      const int64_t wire = comm::wire_elements(rate.op, 3, rate.bytes / 4) * 4;
      EXPECT_NEAR(rate.bus_gbps * rate.microseconds * 3e3, static_cast<double>(wire), 1e-6 * static_cast<double>(wire));
      EXPECT_FALSE(rate.mpi_microseconds.has_value());
      text += format("{} ", rate.microseconds);
    }
    for (const std::string& other : world.control().gather(text)) EXPECT_EQ(other, text);
  });
  comm::Rig rig;
  const std::vector<int64_t> payloads = {1};
  EXPECT_THROW(bench_collectives(*comm::solo_world(), rig.device, payloads, 1), Error);
}

}  // namespace
}  // namespace trainer::bench
