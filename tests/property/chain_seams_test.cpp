// Three linears of different layouts in a row: each is any choice, per mesh axis, of which of its three extents is cut;
// a redistribution brings each output into the layout that the next linear wants, its dual brings the gradient back.
#include <gtest/gtest.h>

#include "seams_rig.h"

namespace trainer::seams {
namespace {

using comm::Lane;
using mesh::kPartial;
using mesh::kReplicate;
using mesh::split;

/// Y[m, n] = X[m, k]·W[k, n]. On each axis 'r' cuts m, 'c' cuts n, 'k' cuts k: X, W → Y is S0, B → S0; B, S1 → S1;
/// S1, S0 → P.
struct Cut {
  Layout x, w, y;
  Cut(const MeshShape& shape, const std::string& tags, int64_t m, int64_t k, int64_t n)
      : x(shape, {m, k}), w(shape, {k, n}), y(shape, {m, n}) {
    for (int a = 0; a < shape.axes(); ++a) {
      const mesh::AxisSet axis = mesh::AxisSet{1} << a;
      const char tag = tags.at(static_cast<size_t>(a));
      x = x.with(axis, tag == 'r' ? split(0) : tag == 'c' ? kReplicate : split(1));
      w = w.with(axis, tag == 'r' ? kReplicate : tag == 'c' ? split(1) : split(0));
      y = y.with(axis, tag == 'r' ? split(0) : tag == 'c' ? split(1) : kPartial);
    }
  }
};

struct Chain {
  static constexpr size_t kLayers = 3;
  std::vector<Matrix> x, w, dw, dx;  // x[i] → x[i + 1]; dx[i] the gradient of x[i]
  Chain() {
    const int64_t sizes[] = {8, 16, 8, 24};
    x.push_back(random_matrix(16, sizes[0], 1));
    for (uint64_t i = 0; i < kLayers; ++i) {
      w.push_back(random_matrix(sizes[i], sizes[i + 1], 10 + i));
      x.push_back(x[i] * w[i]);
    }
    dx.assign(kLayers + 1, random_matrix(16, sizes[kLayers], 2));
    dw.assign(kLayers, Matrix(0, 0));
    for (size_t i = kLayers; i-- > 0;) {
      dw[i] = transpose(x[i]) * dx[i + 1];
      dx[i] = dx[i + 1] * transpose(w[i]);
    }
  }
};

/// Forward and backward; every rank starts from, and ends with, the whole x, y and their gradients.
void run_chain(const Rank& rank, const Chain& chain, const std::vector<Cut>& cuts) {
  const MeshShape& shape = rank.mesh.shape();
  const auto move = [&](const Layout& from, const Layout& to, Scratch&& in) {
    return redistribute(rank.ex, rank.mesh, Lane::critical, from, to, std::move(in));
  };
  std::vector<Scratch> inputs, weights;
  Layout now(shape, cuts[0].x.shape());
  Scratch x = shard(rank, now, chain.x[0]);
  for (size_t i = 0; i < cuts.size(); ++i) {
    inputs.push_back(move(now, cuts[i].x, std::move(x)));
    weights.push_back(shard(rank, cuts[i].w, chain.w[i]));
    x = rank.take("y", cuts[i].y.box());
    product(rank, inputs[i], false, weights[i], false, x);
    now = cuts[i].y;
  }
  const Layout whole(shape, now.shape());
  x = move(now, whole, std::move(x));
  check_runs(rank, x, whole.runs(rank.me()), chain.x.back(), "y");

  // The gradient of the whole y, as every rank would compute it: complete, not a partial sum.
  now = whole;
  Scratch d = shard(rank, now, chain.dx.back());
  for (size_t i = cuts.size(); i-- > 0;) {
    d = move(now, gradient_layout(cuts[i].y), std::move(d));
    Scratch dw = rank.take("dw", cuts[i].w.box());
    product(rank, inputs[i], true, d, false, dw);
    const Layout gradient = gradient_of(cuts[i].w, cuts[i].x);
    // Only axes that cut the tokens' rows leave W whole, so those are the axes of its sum.
    dw = move(gradient, cuts[i].w, std::move(dw));
    check_runs(rank, dw, cuts[i].w.runs(rank.me()), chain.dw[i], format("dW {}", i));
    Scratch dx = rank.take("dx", cuts[i].x.box());
    product(rank, d, false, weights[i], true, dx);
    d = std::move(dx);
    now = gradient_layout(cuts[i].x);
  }
  const Layout start(shape, now.shape());
  d = move(now, start, std::move(d));
  check_runs(rank, d, start.runs(rank.me()), chain.dx[0], "dx");
}

TEST(ChainSeams, LayersOfAnyThreeLayoutsMatchTheDenseChain) {
  const MeshShape shape({{"a", 2}, {"b", 2}});
  const Chain chain;
  std::vector<std::string> tags;
  for (const char a : {'r', 'c', 'k'})
    for (const char b : {'r', 'c', 'k'}) tags.push_back({a, b});
  comm::run_on_threads(4, {}, [&](comm::World& world) {
    device::CpuDevice device(1);
    Arena arena(device, Arena::Mode::heap);
    Meter meter;
    Exec ex{device, arena, meter};
    Mesh mesh(world, device, shape);
    const Rank rank{ex, mesh};
    for (const std::string& first : tags)
      for (const std::string& second : tags)
        for (const std::string& third : tags) {
          const std::vector<Cut> cuts = {
              {shape, first, 16, 8, 16}, {shape, second, 16, 16, 8}, {shape, third, 16, 8, 24}};
          try {
            run_chain(rank, chain, cuts);
          } catch (Error& error) {
            error.add_context(first + " " + second + " " + third);
            throw;
          }
        }
  });
}

TEST(ChainSeams, AColumnAndARowLinearNeedOneSumEachWay) {
  // Megatron's pair as two cuts: the seam between them is the identity both ways.
  const MeshShape shape({{"tensor", 4}});
  const int64_t m = 64, k = 64, n = 128;
  const Cut column(shape, "c", m, k, n), row(shape, "k", m, n, k);
  EXPECT_EQ(column.y, row.x);
  EXPECT_EQ(gradient_layout(row.x), gradient_layout(column.y));
  const Layout residual(shape, {m, k}), sequence = residual.with("tensor", split(0));
  const auto elements = [](const Layout& from, const Layout& to) { return find_route(from, to).ring_elements; };
  EXPECT_EQ(elements(residual, column.x) + elements(row.y, residual), 2 * 3 * m * k);
  EXPECT_EQ(elements(sequence, column.x) + elements(row.y, sequence), 2 * 3 * m * k);
  EXPECT_EQ(elements(gradient_layout(column.x), residual) + elements(residual, gradient_layout(row.y)), 2 * 3 * m * k);
  EXPECT_EQ(elements(gradient_layout(column.x), sequence) + elements(sequence, gradient_layout(row.y)), 2 * 3 * m * k);
}

}  // namespace
}  // namespace trainer::seams
