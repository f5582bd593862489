// Strategies beside each other, on the same ranks.
#include "rigs/axonn.h"
#include "rigs/optimus.h"

namespace trainer::tests {
namespace {

TEST(Strategies, AgreeOnASquareOfRanks) {
  for (const config::Arch arch : {config::Arch::gpt2, config::Arch::llama})
    for (const int64_t data : {1, 2})
      for (const char* panels : {"ring", "gather"}) {
        const Square square{.q = 2, .data = data, .arch = arch, .panels = panels};
        SCOPED_TRACE(square);
        const config::Config optimus = configure(square);
        config::Config axonn = configure(Grid{2, 2, 1, data, arch});
        axonn.train = optimus.train;
        const Result one = train(optimus, DType::f64, 20), other = train(axonn, DType::f64, 20);
        EXPECT_TRUE(one.start == other.start) << "initial weights";
        expect_same_run(one, other);
      }
}

}  // namespace
}  // namespace trainer::tests
