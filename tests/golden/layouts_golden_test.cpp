// Every layout computes and sends the same as when the goldens were written, on ranks that are threads.
#include <gtest/gtest.h>

#include <cstdlib>

#include "golden/goldens.h"

namespace trainer::goldens {
namespace {

Aspects on_threads(const Case& which) {
  Aspects found;
  comm::run_on_threads(which.ranks(), {.timeout_s = 60}, [&](comm::World& world) {
    Aspects own = run_case(world, which);
    if (world.first()) found = std::move(own);
  });
  return found;
}

TEST(Goldens, EveryLayoutComputesTheSameBits) {
  const char* out = std::getenv("TRAINER_WRITE_GOLDENS");
  const bool writes = out != nullptr && *out != '\0';
  Goldens written;
  written["library"]["hash"] = library_hash();
  const Goldens goldens = writes ? Goldens() : read(golden_file(TRAINER_SOURCE_DIR));
  if (!writes) {
    ASSERT_TRUE(goldens.contains("library")) << "no goldens in " << golden_file(TRAINER_SOURCE_DIR);
    if (goldens.at("library").at("hash") != library_hash())
      GTEST_SKIP() << "the goldens are of a C library whose exp and pow round otherwise: compare commits here "
                      "(scripts/compare_commits.sh)";
  }
  for (const Case& which : cases()) {
    const Aspects found = on_threads(which);
    if (writes)
      written[which.name] = found;
    else
      EXPECT_EQ(found, expected(goldens, which.name)) << which.name;
  }
  if (writes) write(out, written);
}

}  // namespace
}  // namespace trainer::goldens
