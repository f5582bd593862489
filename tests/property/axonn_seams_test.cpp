// A linear in the manner of AxoNN: weights flat over z, gathered one linear ahead; dX summed behind dW; dW scattered
// over z and joined one linear later; the store and the sink of gradients carry all of it.
#include <gtest/gtest.h>

#include "params/grad_sink.h"
#include "seams_rig.h"

namespace trainer::seams {
namespace {

using comm::Lane;
using mesh::kFlat;
using mesh::split;

enum class Role { expand, contract };

/// Parameters and gradients of one rank's pass.
struct Params {
  explicit Params(const Rank& rank) : store(rank.ex.device, DType::f64, &rank.mesh) {}
  params::ParamStore store;
  std::unique_ptr<params::GradSink> grads;
};

class AxonnLinear final : public Linear {
 public:
  /// expand: in over y, out over x; contract: the other way round.
  AxonnLinear(Rank rank, Params& params, Role role, const std::vector<Matrix>& parts)
      : rank_(rank), params_(params), in_(role == Role::expand ? "y" : "x"), out_(role == Role::expand ? "x" : "y") {
    const Layout layout = Layout(rank.mesh.shape(), {parts[0].rows, parts[0].cols})
                              .with(in_, split(0))
                              .with(out_, split(1))
                              .with("z", kFlat);
    std::vector<params::Part> slot;
    for (size_t p = 0; p < parts.size(); ++p) slot.push_back({format("part {}", p), layout, {}});
    group_ = params.store.add_group("linear");
    weight_ = params.store.add_slot(group_, slot);
  }
  /// Once the store is allocated.
  void fill(const std::vector<Matrix>& parts) { each_part(parts, group().master, write_runs); }

  Scratch forward(const Tensor& x) override {
    const auto w = params_.store.weights().hold(rank_.ex, weight_);
    Scratch y = rank_.take("y", {x.rows(), params_.store.box(weight_)[1]});
    product(rank_, x, false, w, false, y);
    rank_.mesh.along(in_, Lane::critical).all_reduce(rank_.ex, y).join(rank_.ex);
    return y;
  }

  Scratch backward(const Tensor& dy, const Tensor& x) override {
    Scratch dx = rank_.take("dx", x.shape);
    {
      const auto w = params_.store.weights().hold(rank_.ex, weight_);
      product(rank_, dy, false, w, true, dx);
    }
    comm::Ticket sum = rank_.mesh.along(out_, Lane::critical).all_reduce(rank_.ex, dx);
    {
      const params::GradSlot dw = params_.grads->slot(rank_.ex, weight_);
      product(rank_, x, true, dy, false, dw.tensor, dw.accumulate);  // hides the sum
      params_.grads->complete(rank_.ex, weight_);
    }
    params_.grads->end_group(rank_.ex, group_);
    sum.join(rank_.ex);
    return dx;
  }

  void check_gradient(const std::vector<Matrix>& expected, const std::string& what) const override {
    each_part(expected, group().grad,
              [&](const Rank& rank, const Tensor& local, const auto& runs, const Matrix& whole) {
                check_runs(rank, local, runs, whole, what);
              });
  }

 private:
  const params::Group& group() const { return params_.store.groups()[static_cast<size_t>(group_)]; }
  template <typename F>
  void each_part(const std::vector<Matrix>& parts, const Tensor& local, F&& f) const {
    const std::vector<int>& params = params_.store.params_of(weight_);
    for (size_t p = 0; p < parts.size(); ++p)
      f(rank_, local, params_.store.params()[static_cast<size_t>(params[p])].runs, parts[p]);
  }
  Rank rank_;
  Params& params_;
  std::string in_, out_;
  int group_;
  params::SlotId weight_;
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
    Params params(rank);
    Linears linears;
    for (size_t i = 0; i < Block::kLinears; ++i)
      linears.push_back(
          std::make_unique<AxonnLinear>(rank, params, i % 2 == 0 ? Role::expand : Role::contract, block.w[i]));
    params.store.allocate(/*training=*/true);
    for (size_t i = 0; i < Block::kLinears; ++i) static_cast<AxonnLinear&>(*linears[i]).fill(block.w[i]);
    params.grads = std::make_unique<params::GradSink>(params.store);
    params.grads->prepare(rank.ex.device);
    params.grads->begin_step();
    params.grads->begin_micro(/*last=*/true);
    run_block(rank, block, residual, linears, [&] {
      params.grads->end_micro(rank.ex);
      params.grads->finish(rank.ex);
    });
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
