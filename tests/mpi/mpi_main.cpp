#include "mpi/mpi_main.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace trainer::comm {
namespace {

std::unique_ptr<World> world;

/// Prints only failures, with the rank, on ranks other than 0; rank 0 prints as usual.
class FailurePrinter final : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    name_ = std::string(test.test_suite_name()) + "." + test.name();
  }
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d: %s: %s:%d: %s\n", world->rank(), name_.c_str(), result.file_name(),
                 result.line_number(), result.message());
  }

  std::string name_;
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
  world->wait_for_all_ranks(10);
  world.reset();
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
