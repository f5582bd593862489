// What mesh axes may do to a product, in every combination of two and of three axes: each rank multiplies what it
// holds, forward and backward, and the results are in the states that the planner's tables say. Integers: sums are
// exact.
#include <gtest/gtest.h>

#include <algorithm>

#include "ops/gemm.h"
#include "parallel/tagged.h"
#include "rigs/layout_moves.h"
#include "unit/plan/sharded.h"

namespace trainer::signatures {
namespace {

using mesh::mesh_of;
using mesh::state;

/// Y [m, n] = X [m, k] · W [k, n] along one axis: B copies, P partial sums, 0 and 1 cut rows and columns.
struct Signature {
  char tag, x, w, y, dy, dx, dw;
};
constexpr Signature kSignatures[] = {
    {'r', '0', 'B', '0', '0', '0', 'P'},  // rows
    {'c', 'B', '1', '1', '1', 'P', '1'},  // columns
    {'k', '1', '0', 'P', 'B', '1', '0'},  // contraction
    {'b', 'B', 'B', 'B', 'B', 'B', 'B'},  // nothing: every rank does all of it
    {'x', 'P', 'B', 'P', 'B', 'B', 'P'},  // X arrives as partial sums
    {'w', 'B', 'P', 'P', 'B', 'P', 'B'},  // W does
};
constexpr int64_t kM = 16, kK = 8, kN = 24;

const Signature& signature(char tag) { return *std::ranges::find(kSignatures, tag, &Signature::tag); }

/// The layout of an operand, axis by axis.
mesh::Layout layout(const mesh::MeshShape& mesh, const std::string& tags, char Signature::*of, const Shape& shape) {
  std::string symbols;
  for (const char tag : tags) symbols += signature(tag).*of;
  return state(mesh, symbols, shape);
}

struct Dense {
  Values x = random_values("x", kM*kK, true), w = random_values("w", kK*kN, true),
         dy = random_values("dy", kM*kN, true);
  Values y = Values(static_cast<size_t>(kM * kN)), dx = Values(static_cast<size_t>(kM * kK)),
         dw = Values(static_cast<size_t>(kK * kN));
  Dense() {
    for (int64_t m = 0; m < kM; ++m)
      for (int64_t k = 0; k < kK; ++k)
        for (int64_t n = 0; n < kN; ++n) {
          const auto mk = static_cast<size_t>(m * kK + k), kn = static_cast<size_t>(k * kN + n),
                     mn = static_cast<size_t>(m * kN + n);
          y[mn] += x[mk] * w[kn];
          dx[mk] += dy[mn] * w[kn];
          dw[kn] += dy[mn] * x[mk];
        }
  }
};

TEST(ProductSignatures, OfEveryTupleGiveTheProductOfOneRank) {
  OneThread thread;
  Exec& ex = thread.ex;
  const Dense dense;
  for (const mesh::MeshShape& mesh : {mesh_of({2, 2}), mesh_of({2, 2, 2})})
    for (const std::string& tags : words("rckbxw", mesh.axes())) {
      SCOPED_TRACE(tags);
      const Sharded x(ex, layout(mesh, tags, &Signature::x, {kM, kK}), dense.x),
          w(ex, layout(mesh, tags, &Signature::w, {kK, kN}), dense.w),
          dy(ex, layout(mesh, tags, &Signature::dy, {kM, kN}), dense.dy);
      const Sharded y(ex, layout(mesh, tags, &Signature::y, {kM, kN})),
          dx(ex, layout(mesh, tags, &Signature::dx, {kM, kK})), dw(ex, layout(mesh, tags, &Signature::dw, {kK, kN}));
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        ops::run(ex, ops::Gemm{.a = x[rank], .b = w[rank], .c = y[rank]});
        ops::run(ex, ops::Gemm{.a = dy[rank], .b = w[rank], .c = dx[rank], .trans_b = true});
        ops::run(ex, ops::Gemm{.a = x[rank], .b = dy[rank], .c = dw[rank], .trans_a = true});
      }
      EXPECT_EQ(y.whole(), dense.y);
      EXPECT_EQ(dx.whole(), dense.dx);
      EXPECT_EQ(dw.whole(), dense.dw);
      // Layouts derive the same states of gradients: copies and partial sums change places, and a matrix that rows pass
      // by has partial sums.
      const mesh::Layout duals[] = {mesh::gradient_layout(x.layout()), mesh::gradient_layout(y.layout())};
      const mesh::Layout gradient = mesh::gradient_of(w.layout(), x.layout());
      for (int a = 0; a < mesh.axes(); ++a) {
        const char tag = tags[static_cast<size_t>(a)];
        if (tag != 'b') {
          EXPECT_EQ(duals[0].on(a), dx.layout().on(a));
          EXPECT_EQ(duals[1].on(a), dy.layout().on(a));
        }
        if (tag != 'x' && tag != 'w') {
          EXPECT_EQ(gradient.on(a), dw.layout().on(a));
        }
      }
    }
}

// Partial sums of both operands give neither partial sums nor copies of the product. No table of layers can ask for
// them.
TEST(ProductSignatures, OfPartialSumsOnBothSidesThereAreNone) {
  OneThread thread;
  Exec& ex = thread.ex;
  const Dense dense;
  const mesh::MeshShape mesh = mesh_of({2, 2});
  for (const std::string& other : words("rckbxw", 1)) {
    const std::string tags = "x" + other;
    const auto with_partial_sums = [](const mesh::Layout& l) { return l.with("a0", mesh::kPartial); };
    const Sharded x(ex, with_partial_sums(layout(mesh, tags, &Signature::x, {kM, kK})), dense.x),
        w(ex, with_partial_sums(layout(mesh, tags, &Signature::w, {kK, kN})), dense.w);
    for (const mesh::Placement placement : {mesh::kPartial, mesh::kReplicate}) {
      const Sharded y(ex, layout(mesh, tags, &Signature::y, {kM, kN}).with("a0", placement));
      for (int rank = 0; rank < mesh.world_size(); ++rank)
        ops::run(ex, ops::Gemm{.a = x[rank], .b = w[rank], .c = y[rank]});
      EXPECT_NE(y.whole(), dense.y) << tags;
    }
  }
  for (const char* tags : {"pp", "xr", "rw"}) EXPECT_THROW(parallel::grid_of(mesh, tags), Error) << tags;
}

}  // namespace
}  // namespace trainer::signatures
