// The strategy that src/README.md writes out ("Add a strategy") beside one rank. tests/cli/readme_test.py compares the
// two texts.
#include "parallel/grid_linear.h"
#include "rigs/megatron.h"

namespace trainer::parallel {
namespace {

class FullySharded final : public Strategy {
 public:
  FullySharded(mesh::Mesh& mesh, ParamStore& store) : Strategy(store, Ranks(mesh)), z_(mesh.shape().set("z")) {}
  Spread stream(int) const override { return {.rows = z_}; }     // residual stream: rows over z
  Spread attention(int) const override { return {.rows = z_}; }  // whole heads, sequences over z
  VocabSpread vocab() const override { return {.flat = z_}; }    // table in flat pieces
  std::unique_ptr<Linear> linear(int, int group, const LinearSpec& spec) override {
    return std::make_unique<GridLinear>(
        ranks_, store_, group, spec,
        GridLinear::Place{.grid = {.rows = z_, .flat = z_}, .from = {.rows = z_}, .to = {.rows = z_}});
  }

 private:
  const AxisSet z_;
};

}  // namespace
}  // namespace trainer::parallel

namespace trainer::tests {
namespace {

mesh::MeshShape replicas_of_z(const config::Config& c, int world) {
  const int data = static_cast<int>(c.parallel.data);
  return mesh::MeshShape({{"data", data}, {"z", world / data}});
}

TEST(ExampleStrategy, FollowsOneRankAndSendsThePredictedBytes) {
  HowToRun how;
  how.factory = {replicas_of_z, [](const config::Config&, mesh::Mesh& mesh, params::ParamStore& store) {
                   return std::make_unique<parallel::FullySharded>(mesh, store);
                 }};
  for (const Layout& layout :
       {Layout{2}, Layout{2, 2, true, config::Arch::llama}, Layout{4, 1, true, config::Arch::gpt2, 4}}) {
    SCOPED_TRACE(layout);
    const config::Config c = configure(layout);
    const Result one = train(on_one_rank(c), DType::f64, 10), many = train(c, DType::f64, 10, how);
    EXPECT_TRUE(many.start == one.start) << "initial weights";
    expect_same_run(many, one);
    const double piece = static_cast<double>(many.optimizer_bytes) / static_cast<double>(one.optimizer_bytes);
    EXPECT_LT(piece, 1.0 / static_cast<double>(layout.tensor) + 0.1) << "vectors are whole, and a tenth at most";
    expect_predicted_bytes(many, 10);
  }
}

}  // namespace
}  // namespace trainer::tests
