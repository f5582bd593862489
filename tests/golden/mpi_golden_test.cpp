// The goldens of one layout (TRAINER_GOLDEN_LAYOUT) on ranks that are processes.
#include <gtest/gtest.h>

#include <cstdlib>

#include "golden/goldens.h"
#include "mpi/mpi_main.h"

namespace trainer::goldens {
namespace {

TEST(MpiGoldens, ProcessesComputeTheSameBits) {
  const Goldens goldens = read(golden_file(TRAINER_SOURCE_DIR));
  ASSERT_TRUE(goldens.contains("library"));
  if (goldens.at("library").at("hash") != library_hash())
    GTEST_SKIP() << "the goldens are of a C library whose exp and pow round otherwise";
  comm::World& world = comm::test_world();
  const char* layout = std::getenv("TRAINER_GOLDEN_LAYOUT");
  ASSERT_NE(layout, nullptr) << "TRAINER_GOLDEN_LAYOUT says which layout";
  int compared = 0;
  for (const Case& which : cases()) {
    if (which.name.substr(0, which.name.find('/')) != layout) continue;
    ASSERT_EQ(which.ranks(), world.size()) << which.name;
    const Aspects found = run_case(world, which);
    ++compared;
    if (!world.first()) continue;
    EXPECT_EQ(found, expected(goldens, which.name)) << which.name;
  }
  EXPECT_EQ(compared, 9) << layout;
}

}  // namespace
}  // namespace trainer::goldens
