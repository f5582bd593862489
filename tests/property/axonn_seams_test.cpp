// A linear in the manner of AxoNN: weights flat over z, gathered one linear ahead; dX summed behind dW; dW scattered
// over z and joined at the end of the step.
#include <gtest/gtest.h>

#include "seams_rig.h"

namespace trainer::seams {
namespace {

using comm::Lane;
using mesh::kFlat;
using mesh::split;

enum class Role { expand, contract };

class AxonnLinear final : public Linear {
 public:
  /// expand: in over y, out over x; contract: the other way round.
  AxonnLinear(Rank rank, Role role, const std::vector<Matrix>& parts)
      : rank_(rank),
        in_(role == Role::expand ? "y" : "x"),
        out_(role == Role::expand ? "x" : "y"),
        weight_(rank,
                Layout(rank.mesh.shape(), {parts[0].rows, parts[0].cols})
                    .with(in_, split(0))
                    .with(out_, split(1))
                    .with("z", kFlat),
                parts) {}

  void gather_ahead() override {
    gathered_ = rank_.take("gathered", weight_.block());
    gather_ = rank_.mesh.along("z", Lane::weights).all_gather(rank_.ex, weight_.value(), gathered_.tensor());
  }

  Scratch forward(const Tensor& x) override {
    const Scratch w = gathered();
    Scratch y = rank_.take("y", {x.rows(), w.tensor().cols()});
    product(rank_, x, false, w, false, y);
    rank_.mesh.along(in_, Lane::critical).all_reduce(rank_.ex, y).join(rank_.ex);
    return y;
  }

  Scratch backward(const Tensor& dy, const Tensor& x) override {
    Scratch dx = rank_.take("dx", x.shape);
    {
      const Scratch w = gathered();
      product(rank_, dy, false, w, true, dx);
    }
    comm::Ticket sum = rank_.mesh.along(out_, Lane::critical).all_reduce(rank_.ex, dx);
    Scratch dw = rank_.take("dw", weight_.block());
    product(rank_, x, true, dy, false, dw);  // hides the sum
    scatter_ = rank_.mesh.along("z", Lane::grads).reduce_scatter(rank_.ex, dw, weight_.gradient());
    scatter_.keep(std::move(dw));
    sum.join(rank_.ex);
    return dx;
  }

  void finish() override {
    scatter_.join(rank_.ex);
    rank_.mesh.along("data", Lane::grads).all_reduce(rank_.ex, weight_.gradient()).join(rank_.ex);
  }
  const Weight& weight() const override { return weight_; }

 private:
  Scratch gathered() {
    gather_.join(rank_.ex);
    return std::move(gathered_);
  }
  Rank rank_;
  std::string in_, out_;
  Weight weight_;
  Scratch gathered_;
  comm::Ticket gather_, scatter_;
};

struct Grid {
  int64_t data, z, x, y;
};

void check_grid(const Grid& grid) {
  SCOPED_TRACE(format("data {} z {} x {} y {}", grid.data, grid.z, grid.x, grid.y));
  const auto size = [](int64_t n) { return static_cast<int>(n); };
  const MeshShape shape({{"data", size(grid.data)}, {"z", size(grid.z)}, {"x", size(grid.x)}, {"y", size(grid.y)}});
  const int64_t h = 48, m = 768;  // of one data replica; every all-reduce of activations exceeds 4096 elements
  const Block block(m * grid.data, h);
  const int64_t sent = run_planned(shape, [&](Rank rank) {
    const Layout residual =
        Layout(shape, {m * grid.data, h}).with("data", split(0)).with("z", split(0)).with("y", split(1));
    Linears linears;
    for (size_t i = 0; i < Block::kLinears; ++i)
      linears.push_back(std::make_unique<AxonnLinear>(rank, i % 2 == 0 ? Role::expand : Role::contract, block.w[i]));
    run_block(rank, block, residual, linears);
  });
  // Of all ranks: forward and backward, W gathered twice; the weights' sum over the replicas once.
  const int64_t block_ranks = grid.z * grid.x * grid.y;
  const int64_t activations = grid.data * 2 * m * h * (12 * (grid.y - 1) + 4 * (grid.x - 1));
  const int64_t weights = grid.data * 3 * (grid.z - 1) * 12 * h * h;
  int64_t replicas = 0;
  for (const int64_t squares : {3, 1, 4, 4})
    replicas += block_ranks * comm::wire_elements(CommOp::all_reduce, size(grid.data), squares * h * h / block_ranks);
  EXPECT_EQ(sent, activations + weights + replicas);
}

TEST(AxonnSeams, ExpandAndContractMatchTheDenseProducts) {
  for (const Grid& grid :
       {Grid{1, 2, 2, 2}, Grid{1, 1, 2, 1}, Grid{1, 1, 1, 3}, Grid{1, 3, 1, 2}, Grid{1, 1, 4, 2}, Grid{1, 1, 1, 1}})
    check_grid(grid);
}

TEST(AxonnSeams, ReplicasAddTheirWeightGradientsOnce) {
  for (const Grid& grid : {Grid{2, 2, 2, 1}, Grid{2, 1, 1, 2}, Grid{3, 2, 1, 1}}) check_grid(grid);
}

}  // namespace
}  // namespace trainer::seams
