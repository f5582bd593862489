// Products in the manner of Optimus: all operands cut over the rows and columns of the mesh, panels broadcast one step
// ahead of their use, results reduced one step behind.
#include <gtest/gtest.h>

#include "seams_rig.h"

namespace trainer::seams {
namespace {

using comm::Communicator;
using comm::Lane;
using mesh::split;

/// The panels of one operand: block l of the line of ranks along `line`, for l = 0, 1, …, each broadcast one step
/// before it is used. The owner's block is used where it lies.
class Panels {
 public:
  Panels(Rank rank, Communicator& line, const Tensor& own) : rank_(rank), line_(line), own_(own) { start(0); }
  const Tensor& next() {
    const int step = step_++;
    slots_[(step + 1) % 2].reset();  // the product of step − 1 has read it
    if (step + 1 < line_.size()) start(step + 1);
    tickets_[step % 2].join(rank_.ex);
    return panels_[step % 2];
  }

 private:
  void start(int step) {
    Scratch& slot = slots_[step % 2];
    Tensor& panel = panels_[step % 2];
    if (line_.rank() != step) slot = rank_.take("panel", own_.shape);
    panel = line_.rank() == step ? own_ : slot.tensor();
    tickets_[step % 2] = line_.broadcast(rank_.ex, panel, step);
  }
  Rank rank_;
  Communicator& line_;
  Tensor own_;
  int step_ = 0;
  Scratch slots_[2];
  Tensor panels_[2];
  comm::Ticket tickets_[2];
};

/// The blocks of a result: what a rank computes for block l is summed along the line into rank l, one step behind.
class Sums {
 public:
  Sums(Rank rank, Communicator& line, const Tensor& result) : rank_(rank), line_(line), result_(result) {}
  /// Memory for this step's partial sum: the result itself on its owner.
  Tensor next() {
    if (tickets_[step_ % 2].is_open()) tickets_[step_ % 2].join(rank_.ex);
    Scratch& slot = slots_[step_ % 2];
    if (line_.rank() == step_) return result_;
    if (!slot) slot = rank_.take("partial", result_.shape);
    return slot;
  }
  void send(const Tensor& partial) {
    tickets_[step_ % 2] = line_.reduce(rank_.ex, partial, step_);
    ++step_;
  }
  void finish() {
    for (int i = 0; i < 2; ++i, ++step_)
      if (tickets_[step_ % 2].is_open()) tickets_[step_ % 2].join(rank_.ex);
  }

 private:
  Rank rank_;
  Communicator& line_;
  Tensor result_;
  int step_ = 0;
  Scratch slots_[2];
  comm::Ticket tickets_[2];
};

/// The lines of ranks of a q × q mesh: `row` connects the columns of this rank's row.
struct Lines {
  explicit Lines(Rank rank)
      : row(rank.mesh.along("col", Lane::critical)), col(rank.mesh.along("row", Lane::critical)), q(row.size()) {}
  Communicator &row, &col;
  int q;
};

/// c = a·b, blocks [M/q, K/q], [K/q, N/q], [M/q, N/q].
void summa_ab(Rank rank, const Tensor& a, const Tensor& b, const Tensor& c) {
  const Lines lines(rank);
  Panels left(rank, lines.row, a), right(rank, lines.col, b);
  for (int l = 0; l < lines.q; ++l) {
    const Tensor& a_l = left.next();
    product(rank, a_l, false, right.next(), false, c, l > 0);
  }
}
/// c = a·bᵀ, blocks [M/q, K/q], [N/q, K/q], [M/q, N/q].
void summa_abt(Rank rank, const Tensor& a, const Tensor& b, const Tensor& c) {
  const Lines lines(rank);
  Panels right(rank, lines.col, b);
  Sums sums(rank, lines.row, c);
  for (int l = 0; l < lines.q; ++l) {
    const Tensor partial = sums.next();
    product(rank, a, false, right.next(), true, partial);
    sums.send(partial);
  }
  sums.finish();
}
/// c = aᵀ·b, blocks [K/q, M/q], [K/q, N/q], [M/q, N/q].
void summa_atb(Rank rank, const Tensor& a, const Tensor& b, const Tensor& c) {
  const Lines lines(rank);
  Panels left(rank, lines.row, a);
  Sums sums(rank, lines.col, c);
  for (int l = 0; l < lines.q; ++l) {
    const Tensor partial = sums.next();
    product(rank, left.next(), true, b, false, partial);
    sums.send(partial);
  }
  sums.finish();
}

MeshShape square(int q) { return MeshShape({{"row", q}, {"col", q}}); }
Layout blocks(const MeshShape& shape, int64_t rows, int64_t cols) {
  return Layout(shape, {rows, cols}).with("row", split(0)).with("col", split(1));
}

class SummaLinear final : public Linear {
 public:
  SummaLinear(Rank rank, const std::vector<Matrix>& parts)
      : rank_(rank), weight_(rank, blocks(rank.mesh.shape(), parts[0].rows, parts[0].cols), parts) {}
  Scratch forward(const Tensor& x) override {
    Scratch y = rank_.take("y", {x.rows(), weight_.block()[1]});
    summa_ab(rank_, x, weight_.value(), y);
    return y;
  }
  Scratch backward(const Tensor& dy, const Tensor& x) override {
    Scratch dx = rank_.take("dx", x.shape);
    summa_abt(rank_, dy, weight_.value(), dx);
    summa_atb(rank_, x, dy, weight_.gradient());
    return dx;
  }
  void check_gradient(const std::vector<Matrix>& expected, const std::string& what) const override {
    weight_.check_gradient(rank_, expected, what);
  }

 private:
  Rank rank_;
  Weight weight_;
};

TEST(SummaSeams, EachFormMatchesTheDenseProductAndSendsTheTwoOperandsThatMove) {
  const int64_t m = 24, k = 12, n = 36;
  const Matrix a = random_matrix(m, k, 1), b = random_matrix(k, n, 2), c = a * b;
  for (const int q : {1, 2, 3}) {
    const MeshShape shape = square(q);
    using Form = void (*)(Rank, const Tensor&, const Tensor&, const Tensor&);
    const auto sent = [&](Form form, const Matrix& left, const Matrix& right, const Matrix& result) {
      return run_planned(shape, [&](Rank rank) {
        const Scratch x = shard(rank, blocks(shape, left.rows, left.cols), left);
        const Scratch w = shard(rank, blocks(shape, right.rows, right.cols), right);
        const Layout out = blocks(shape, result.rows, result.cols);
        const Scratch y = rank.take("result", out.box());
        form(rank, x, w, y);
        check_runs(rank, y, out.runs(rank.me()), result, format("q = {}", q));
      });
    };
    EXPECT_EQ(sent(summa_ab, a, b, c), (q - 1) * (m * k + k * n));
    EXPECT_EQ(sent(summa_abt, a, transpose(b), c), (q - 1) * (k * n + m * n));
    EXPECT_EQ(sent(summa_atb, transpose(a), b, c), (q - 1) * (m * k + m * n));
  }
}

TEST(SummaSeams, ABlockMatchesTheDenseProducts) {
  for (const int q : {2, 3}) {
    const MeshShape shape = square(q);
    const int64_t h = 24, m = 36;
    const Block block(m, h);
    const int64_t sent = run_planned(shape, [&](Rank rank) {
      Linears linears;
      for (const auto& parts : block.w) linears.push_back(std::make_unique<SummaLinear>(rank, parts));
      run_block(rank, block, blocks(shape, m, h), linears);
    });
    EXPECT_EQ(sent, 3 * (q - 1) * (7 * m * h + 12 * h * h));
  }
}

}  // namespace
}  // namespace trainer::seams
