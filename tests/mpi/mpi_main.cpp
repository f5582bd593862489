#include "mpi/mpi_main.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace trainer::comm {
namespace {

std::unique_ptr<World> world;

/// Rank 0 prints as ever; of the others only failures are shown, with their rank.
class FailurePrinter final : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
    std::fprintf(stderr, "rank %d: %s.%s: %s:%d: %s\n", world->rank(), test == nullptr ? "" : test->test_suite_name(),
                 test == nullptr ? "" : test->name(), result.file_name(), result.line_number(), result.message());
  }
};

}  // namespace

World& test_world() { return *world; }

}  // namespace trainer::comm

int main(int argc, char** argv) {
  using namespace trainer::comm;
  testing::InitGoogleTest(&argc, argv);
  world = mpi_world({.timeout_s = 60});
  if (!world->first()) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter);
  }
  double failures = RUN_ALL_TESTS() == 0 ? 0 : 1;
  try {
    world->control().sum(std::span(&failures, 1));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", world->rank(), error.what());
    failures += 1;
  }
  if (failures > 0 && world->first()) std::fprintf(stderr, "%.0f ranks have failures\n", failures);
  world->meet(10);
  world.reset();
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
