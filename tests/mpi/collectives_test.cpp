// Runs the cases of tests/unit/comm/collective_cases.h and link_cases.h between processes.
#include "mpi/mpi_main.h"
#include "unit/comm/collective_cases.h"
#include "unit/comm/link_cases.h"

namespace trainer::comm {
namespace {

template <typename T>
class MpiCollectives : public testing::Test {};
using Reduced = testing::Types<double, float, bf16, int32_t, int64_t>;
TYPED_TEST_SUITE(MpiCollectives, Reduced);

TYPED_TEST(MpiCollectives, ReduceInTheDocumentedOrderAndSendWhatTheyCount) {
  for (int g = 1; g <= test_world().size(); ++g) check_reductions<TypeParam>(test_world(), g);
}

TYPED_TEST(MpiCollectives, MoveEveryElementAndSendWhatTheyCount) {
  for (int g = 1; g <= test_world().size(); ++g) check_movements<TypeParam>(test_world(), g);
}

TYPED_TEST(MpiCollectives, MoveMessagesAroundARingInBothDirections) { check_links<TypeParam>(test_world()); }

TYPED_TEST(MpiCollectives, KeepSeveralSegmentsInFlight) { check_large<TypeParam>(test_world(), test_world().size()); }

}  // namespace
}  // namespace trainer::comm
