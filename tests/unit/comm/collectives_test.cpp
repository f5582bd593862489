#include "unit/comm/collective_cases.h"

namespace trainer::comm {
namespace {

template <typename T>
class Collectives : public testing::Test {};
using Reduced = testing::Types<double, float, bf16, int32_t, int64_t>;
TYPED_TEST_SUITE(Collectives, Reduced);

TYPED_TEST(Collectives, ReduceInTheDocumentedOrderAndSendWhatTheyCount) {
  for (int g = 1; g <= 8; ++g) run_on_threads(g, {}, [&](World& world) { check_reductions<TypeParam>(world, g); });
}

TYPED_TEST(Collectives, MoveEveryElementAndSendWhatTheyCount) {
  for (int g = 1; g <= 8; ++g) run_on_threads(g, {}, [&](World& world) { check_movements<TypeParam>(world, g); });
}

TYPED_TEST(Collectives, KeepSeveralSegmentsInFlight) {
  for (int g : {2, 3}) run_on_threads(g, {}, [&](World& world) { check_large<TypeParam>(world, g); });
}

TEST(CollectivesOfFloats, KeepSeveralSegmentsInFlightAmongEightRanks) {
  run_on_threads(8, {}, [&](World& world) { check_large<float>(world, 8); });
}

TEST(CollectivesOfBytes, MoveTypesThatAreNotAdded) {
  run_on_threads(3, {}, [](World& world) {
    check_movements<uint8_t>(world, 3);
    check_movements<uint16_t>(world, 2);
  });
}

}  // namespace
}  // namespace trainer::comm
