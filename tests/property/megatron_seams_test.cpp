// Column- and row-parallel linears in the manner of Megatron, with and without sequence parallelism.
#include <gtest/gtest.h>

#include "seams_rig.h"

namespace trainer::seams {
namespace {

using comm::Lane;
using mesh::kPartial;
using mesh::kReplicate;
using mesh::split;

Layout tokens(const Rank& rank, int64_t rows, int64_t cols, mesh::Placement placement) {
  return Layout(rank.mesh.shape(), {rows, cols}).with("tensor", placement);
}

class ColumnLinear final : public Linear {
 public:
  ColumnLinear(Rank rank, bool sequence, const std::vector<Matrix>& parts)
      : rank_(rank),
        sequence_(sequence),
        weight_(rank, Layout(rank.mesh.shape(), {parts[0].rows, parts[0].cols}).with("tensor", split(1)), parts) {}

  Scratch forward(const Tensor& x) override {
    if (sequence_) {
      const int64_t rows = x.rows() * rank_.mesh.size("tensor");
      whole_ = redistribute(rank_.ex, rank_.mesh, Lane::critical, tokens(rank_, rows, x.cols(), split(0)),
                            tokens(rank_, rows, x.cols(), kReplicate), x);
    }
    const Tensor& all = whole_ ? whole_ : x;
    Scratch y = rank_.take("y", {all.rows(), weight_.block()[1]});
    product(rank_, all, false, weight_.value(), false, y);
    return y;
  }

  Scratch backward(const Tensor& dy, const Tensor& x) override {
    comm::Communicator& tensor = rank_.mesh.along("tensor", Lane::critical);
    const Tensor& all = whole_ ? whole_ : x;
    Scratch partial = rank_.take("dx.partial", all.shape);
    product(rank_, dy, false, weight_.value(), true, partial);
    Scratch dx;
    comm::Ticket sum;
    if (sequence_) {
      dx = rank_.take("dx", x.shape);
      sum = tensor.reduce_scatter(rank_.ex, partial, dx);
    } else {
      sum = tensor.all_reduce(rank_.ex, partial);
    }
    product(rank_, all, true, dy, false, weight_.gradient());
    sum.join(rank_.ex);
    whole_.reset();
    return sequence_ ? std::move(dx) : std::move(partial);
  }
  void check_gradient(const std::vector<Matrix>& expected, const std::string& what) const override {
    weight_.check_gradient(rank_, expected, what);
  }

 private:
  Rank rank_;
  bool sequence_;
  Weight weight_;
  Scratch whole_;  // the gathered input, kept for backward
};

class RowLinear final : public Linear {
 public:
  RowLinear(Rank rank, bool sequence, const std::vector<Matrix>& parts)
      : rank_(rank),
        output_(sequence ? split(0) : kReplicate),
        weight_(rank, Layout(rank.mesh.shape(), {parts[0].rows, parts[0].cols}).with("tensor", split(0)), parts) {}

  Scratch forward(const Tensor& x) override {
    Scratch y = rank_.take("y", {x.rows(), weight_.block()[1]});
    product(rank_, x, false, weight_.value(), false, y);
    return redistribute(rank_.ex, rank_.mesh, Lane::critical, tokens(rank_, x.rows(), y.tensor().cols(), kPartial),
                        tokens(rank_, x.rows(), y.tensor().cols(), output_), std::move(y));
  }

  Scratch backward(const Tensor& dy, const Tensor& x) override {
    const Layout have = tokens(rank_, x.rows(), dy.cols(), output_),
                 want = tokens(rank_, x.rows(), dy.cols(), kReplicate);
    const Scratch moved = redistribute(rank_.ex, rank_.mesh, Lane::critical, have, want, dy);
    const Tensor& all = moved ? moved : dy;
    Scratch dx = rank_.take("dx", x.shape);
    product(rank_, all, false, weight_.value(), true, dx);
    product(rank_, x, true, all, false, weight_.gradient());
    return dx;
  }
  void check_gradient(const std::vector<Matrix>& expected, const std::string& what) const override {
    weight_.check_gradient(rank_, expected, what);
  }

 private:
  Rank rank_;
  mesh::Placement output_;
  Weight weight_;
};

TEST(MegatronSeams, ABlockMatchesTheDenseProductsWithAndWithoutSequenceParallelism) {
  for (const int t : {1, 2, 4})
    for (const bool sequence : {false, true}) {
      const MeshShape shape({{"tensor", t}});
      const int64_t h = 48, m = 96;
      const Block block(m, h);
      const int64_t sent = run_planned(shape, [&](Rank rank) {
        Linears linears;
        for (size_t i = 0; i < Block::kLinears; i += 2) {
          linears.push_back(std::make_unique<ColumnLinear>(rank, sequence, block.w[i]));
          linears.push_back(std::make_unique<RowLinear>(rank, sequence, block.w[i + 1]));
        }
        run_block(rank, block, tokens(rank, m, h, sequence ? split(0) : kReplicate), linears);
      });
      EXPECT_EQ(sent, 8 * (t - 1) * m * h) << t << (sequence ? " with" : " without");
    }
}

}  // namespace
}  // namespace trainer::seams
