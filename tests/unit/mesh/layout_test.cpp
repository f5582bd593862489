#include "mesh/layout.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "comm/bytes.h"

namespace trainer::mesh {
namespace {

using Stretch = mesh::Run;  // ::testing::Test has a Run of its own

// --- Storage of each strategy (the tables of their papers, at small sizes) ------------------------------------------

TEST(LayoutTables, MegatronHoldsWholeRowsAndSplitsWeightsOnce) {
  const MeshShape mesh({{"data", 2}, {"tensor", 4}});
  const int64_t N = 48, H = 32, F = 128, V = 1000;
  const Layout residual = Layout(mesh, {N, H}).with("data", split(0));
  EXPECT_EQ(residual.box(), (Shape{24, 32}));
  EXPECT_EQ(residual.with("tensor", split(0)).box(), (Shape{6, 32}));               // sequence parallel
  EXPECT_EQ(residual.with("tensor", split(1)).box(), (Shape{24, 8}));               // q, k, v, context
  EXPECT_EQ(Layout(mesh, {H, F}).with("tensor", split(1)).box(), (Shape{32, 32}));  // W_up, column-parallel
  EXPECT_EQ(Layout(mesh, {F, H}).with("tensor", split(0)).box(), (Shape{32, 32}));  // W_down, row-parallel
  EXPECT_EQ(Layout(mesh, {F}).with("tensor", split(0)).box(), (Shape{32}));         // b_up
  EXPECT_EQ(Layout(mesh, {H}).box(), (Shape{32}));                                  // γ, β, b_o, b_down
  const Layout table = Layout(mesh, {V, H}).padded(0, 1024).with("tensor", split(0));
  EXPECT_EQ(table.box(), (Shape{256, 32}));
  EXPECT_EQ(table.runs(3), (std::vector<Stretch>{{768 * 32, 0, 232 * 32}}));  // vocabulary 768…999, then padding
}

TEST(LayoutTables, MegatronStoresQueriesKeysAndValuesSideBySide) {
  const MeshShape mesh({{"data", 1}, {"tensor", 2}});
  const Layout part = Layout(mesh, {3, 4}).with("tensor", split(1));  // W_k: rank 1 has columns 2, 3
  EXPECT_EQ(part.runs(1, {.offset = 100 + 2, .pitch = 6}),
            (std::vector<Stretch>{{2, 102, 2}, {6, 108, 2}, {10, 114, 2}}));
}

TEST(LayoutTables, GroupedHeadsSplitTheKeysOverOneFactorAndRepeatThemOverTheOther) {
  const MeshShape mesh({{"data", 2}, {"kv", 2}, {"rep", 3}}, {{"tensor", 0b110}});
  const Layout q = Layout(mesh, {36, 36}).with("tensor", split(1));
  const Layout k = Layout(mesh, {36, 12}).with("kv", split(1));
  EXPECT_EQ(q.box(), (Shape{36, 6}));
  EXPECT_EQ(k.box(), (Shape{36, 6}));
  EXPECT_EQ(k.replicas(), 6);
  int owners = 0;
  for (int rank = 0; rank < mesh.world_size(); ++rank) owners += k.is_owner(rank);
  EXPECT_EQ(owners, 2);  // counted once in the norm
}

TEST(LayoutTables, OptimusSplitsEverythingByRowsAndColumnsAndHostsVectorsOnRowZero) {
  const MeshShape mesh({{"data", 2}, {"row", 3}, {"col", 3}});
  const int64_t N = 36, H = 18, V = 100;
  const Layout residual = Layout(mesh, {N, H}).with("data", split(0)).with("row", split(0)).with("col", split(1));
  EXPECT_EQ(residual.box(), (Shape{6, 6}));
  EXPECT_EQ(residual.replicas(), 1);
  const Layout up = Layout(mesh, {H, 4 * H}).with("row", split(0)).with("col", split(1));
  EXPECT_EQ(up.box(), (Shape{6, 24}));
  // W_down and the tied embedding are stored transposed, so that outputs are not moved: [H/q, F/q] and [H/q, V/q].
  const Layout down = Layout(mesh, {4 * H, H}).transposed().with("row", split(1)).with("col", split(0));
  EXPECT_EQ(down.box(), (Shape{6, 24}));
  const Layout table = Layout(mesh, {V, H}).padded(0, 120).transposed().with("row", split(1)).with("col", split(0));
  EXPECT_EQ(table.box(), (Shape{6, 40}));
  // Rank (data, row, col) = (0, 1, 2): features 6…11 of tokens 80…99; a token is one column of the block.
  const std::vector<Stretch> runs = table.runs(mesh.world_size() / 2 - 4);
  ASSERT_EQ(runs.size(), 20u);
  EXPECT_EQ(runs[0], (Stretch{80 * 18 + 6, 0, 6, 40}));
  EXPECT_EQ(runs[19], (Stretch{99 * 18 + 6, 19, 6, 40}));

  // Every row of ranks holds the vectors; row 0 owns them.
  const Layout bias = Layout(mesh, {4 * H}).with("col", split(0));
  const Layout positions = Layout(mesh, {8, H}).with("col", split(1));
  EXPECT_EQ(bias.local(1), (Shape{24}));
  EXPECT_EQ(bias.local(4), (Shape{24}));
  EXPECT_EQ(positions.local(5), (Shape{8, 6}));
  EXPECT_TRUE(bias.is_owner(2));
  EXPECT_FALSE(bias.is_owner(9 + 2));  // its copy in the other replica
  EXPECT_FALSE(bias.is_owner(3));
}

TEST(LayoutTables, AxonnSplitsTheLocalBlockOfAWeightOverZ) {
  const MeshShape mesh({{"data", 2}, {"z", 2}, {"x", 3}, {"y", 2}});
  const int64_t N = 32, H = 12, F = 48, P = 12;
  const Layout residual = Layout(mesh, {N, H}).with("data", split(0)).with("z", split(0)).with("y", split(1));
  EXPECT_EQ(residual.box(), (Shape{8, 6}));
  EXPECT_EQ(residual.replicas(), 3);
  const Layout gain = Layout(mesh, {H}).with("y", split(0));
  EXPECT_EQ(gain.box(), (Shape{6}));
  const Layout expand = Layout(mesh, {H, F}).with("y", split(0)).with("x", split(1)).with("z", kFlat);
  const Layout contract = Layout(mesh, {F, H}).with("x", split(0)).with("y", split(1)).with("z", kFlat);
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    EXPECT_EQ(expand.local(rank), (Shape{H * F / P}));
    EXPECT_EQ(contract.local(rank), (Shape{H * F / P}));
  }
  EXPECT_EQ(expand.box(), (Shape{6, 16}));
  EXPECT_EQ(expand.replicas(), 2);
  // (z, x, y) = (1, 2, 1): the second half of rows 6…11 × columns 32…47.
  const std::vector<Stretch> runs = expand.runs(6 + 2 * 2 + 1);
  EXPECT_EQ(runs, (std::vector<Stretch>{{9 * 48 + 32, 0, 16}, {10 * 48 + 32, 16, 16}, {11 * 48 + 32, 32, 16}}));
}

TEST(LayoutTables, TheCutOverZIsOfTheJoinedBlock) {
  const MeshShape mesh({{"z", 2}, {"x", 1}});
  // Local [3, 2+2+2] of q, k, v: 18 elements, 9 for each z: row 0, half of row 1 | the other half, row 2.
  const Layout part = Layout(mesh, {3, 2}).with("z", kFlat);
  EXPECT_EQ(part.runs(0, {.offset = 2, .pitch = 6}), (std::vector<Stretch>{{0, 2, 2}, {2, 8, 1}}));
  EXPECT_EQ(part.runs(1, {.offset = 2, .pitch = 6}), (std::vector<Stretch>{{3, 0, 1}, {4, 5, 2}}));
}

// --- Properties -----------------------------------------------------------------------------------------------------

struct Random {
  std::mt19937 draw;
  int below(int n) { return static_cast<int>(draw() % static_cast<unsigned>(n)); }
};

MeshShape random_mesh(Random& random) {
  std::vector<MeshAxis> axes;
  const int count = 1 + random.below(3);
  for (int a = 0; a < count; ++a) axes.push_back({std::string(1, static_cast<char>('a' + a)), 1 + random.below(3)});
  return MeshShape(axes);
}

Shape shape_of(const std::vector<int64_t>& e) {
  return e.size() == 1 ? Shape{e[0]} : e.size() == 2 ? Shape{e[0], e[1]} : Shape{e[0], e[1], e[2]};
}

Layout random_layout(Random& random, const MeshShape& mesh) {
  const int dims = 1 + random.below(3);
  std::vector<Placement> placements;
  std::vector<int64_t> extents, blocks(static_cast<size_t>(dims), 1);
  for (int a = 0; a < mesh.axes(); ++a) {
    const int kind = random.below(5);
    placements.push_back(kind == 0 ? kReplicate : kind == 1 ? kFlat : split(random.below(dims)));
    if (kind > 1) blocks[static_cast<size_t>(placements.back().dim)] *= mesh.size(a);
  }
  for (const int64_t block : blocks) extents.push_back(block * (1 + random.below(4)));
  const int padded_dim = random.below(dims);
  const int64_t padded = extents[static_cast<size_t>(padded_dim)];
  if (random.below(2) == 0) extents[static_cast<size_t>(padded_dim)] -= random.below(static_cast<int>(padded));
  Layout layout = Layout(mesh, shape_of(extents)).padded(padded_dim, padded);
  if (dims == 2 && random.below(2) == 0) layout = layout.transposed();
  for (int a = 0; a < mesh.axes(); ++a) layout = layout.with(AxisSet{1} << a, placements[static_cast<size_t>(a)]);
  return layout;
}

/// Computes the rank's box by the definition: each axis in turn divides the current extent of its dimension.
void reference_box(const Layout& layout, int rank, std::vector<int64_t>& begin, std::vector<int64_t>& extent) {
  begin.assign(static_cast<size_t>(layout.shape().dims()), 0);
  extent.clear();
  for (int dim = 0; dim < layout.shape().dims(); ++dim) extent.push_back(layout.extents()[dim]);
  for (int a = 0; a < layout.mesh().axes(); ++a) {
    if (layout.on(a).kind != Placement::Kind::split) continue;
    const auto dim = static_cast<size_t>(layout.on(a).dim);
    extent[dim] /= layout.mesh().size(a);
    begin[dim] += extent[dim] * layout.mesh().coordinate(rank, a);
  }
}

TEST(LayoutProperties, EveryElementIsOwnedOnceAndGatheringShardsIsTheIdentity) {
  Random random{std::mt19937(7)};
  for (int trial = 0; trial < 3000; ++trial) {
    const MeshShape mesh = random_mesh(random);
    const Layout layout = random_layout(random, mesh);
    SCOPED_TRACE(format("trial {}: {}", trial, to_string(layout)));
    const int64_t count = layout.shape().count();
    std::vector<int> owned(static_cast<size_t>(count), 0), held(static_cast<size_t>(count), 0);
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      const int64_t stored = layout.local(rank).count();
      std::vector<int64_t> memory(static_cast<size_t>(stored), -1);
      int64_t last_global = -1;
      for (const Stretch& run : layout.runs(rank)) {
        ASSERT_GE(run.global, last_global);
        last_global = run.global + run.length;
        for (int64_t i = 0; i < run.length; ++i) {
          const int64_t global = run.global + i, local = run.local + i * run.stride;
          ASSERT_LT(global, count);
          ASSERT_TRUE(local >= 0 && local < stored) << local;
          ASSERT_EQ(memory[static_cast<size_t>(local)], -1) << "stored twice";
          memory[static_cast<size_t>(local)] = global;
          ++held[static_cast<size_t>(global)];
          owned[static_cast<size_t>(global)] += layout.is_owner(rank);
        }
      }
      // Each element of the box must be at its position by definition, with padding everywhere else.
      std::vector<int64_t> begin, extent;
      reference_box(layout, rank, begin, extent);
      std::vector<int64_t> expected;
      std::vector<size_t> order(extent.size());
      for (size_t i = 0; i < order.size(); ++i) order[i] = layout.is_transposed() ? order.size() - 1 - i : i;
      std::vector<int64_t> index(extent.size(), 0);
      for (int64_t n = layout.box().count(); n > 0; --n) {
        int64_t global = 0;
        bool padding = false;
        for (size_t d = 0; d < extent.size(); ++d) {
          const int64_t at = begin[d] + index[d];
          global = global * layout.shape()[static_cast<int>(d)] + at;
          padding |= at >= layout.shape()[static_cast<int>(d)];
        }
        expected.push_back(padding ? -1 : global);
        for (size_t i = order.size(); i-- > 0;) {
          if (++index[order[i]] < extent[order[i]]) break;
          index[order[i]] = 0;
        }
      }
      const AxisSet flat = layout.axes(kFlat);
      const comm::Chunk piece = comm::chunk_of(layout.box().count(), mesh.group_size(flat), mesh.index(rank, flat));
      ASSERT_EQ(stored, piece.count);
      ASSERT_TRUE(std::equal(memory.begin(), memory.end(), expected.begin() + piece.begin));
    }
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(owned[static_cast<size_t>(i)], 1) << "element " << i;
      ASSERT_EQ(held[static_cast<size_t>(i)], layout.replicas()) << "element " << i;
    }
  }
}

TEST(LayoutProperties, SlicesDivideTheRunsOfATensorOfThreeDims) {
  Random random{std::mt19937(11)};
  for (int trial = 0; trial < 1000; ++trial) {
    const MeshShape mesh = random_mesh(random);
    const Layout layout = random_layout(random, mesh);
    if (layout.shape().dims() != 3) continue;
    SCOPED_TRACE(format("trial {}: {}", trial, to_string(layout)));
    const BoxPosition place{.offset = 1, .pitch = layout.box()[-1] + 2};
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      std::vector<Stretch> joined;
      for (int64_t slice = 0; slice < layout.shape()[0]; ++slice)
        for (const Stretch& run : layout.runs(rank, place, slice)) {
          ASSERT_EQ(run.global / (layout.shape()[1] * layout.shape()[2]), slice);
          append_run(joined, run);
        }
      std::vector<Stretch> whole;
      for (const Stretch& run : layout.runs(rank, place)) append_run(whole, run);
      ASSERT_EQ(joined, whole) << "rank " << rank;
    }
  }
}

TEST(LayoutTables, ExpertsAreRowsOfOneMatrix) {
  const MeshShape mesh({{"experts", 2}, {"tensor", 2}});
  // Gate and up of 4 experts [2, 6] side by side: rank (1, 1) has columns 3…5 of experts 2 and 3, in a matrix [4, 6].
  const Layout part = Layout(mesh, {4, 2, 6}).with("experts", split(0)).with("tensor", split(2));
  EXPECT_EQ(part.box(), (Shape{2, 2, 3}));
  EXPECT_EQ(part.runs(3, {.offset = 3, .pitch = 6}),
            (std::vector<Stretch>{{27, 3, 3}, {33, 9, 3}, {39, 15, 3}, {45, 21, 3}}));
  EXPECT_EQ(part.runs(3, {.offset = 3, .pitch = 6}, 3), (std::vector<Stretch>{{39, 15, 3}, {45, 21, 3}}));
  EXPECT_TRUE(part.runs(3, {.offset = 3, .pitch = 6}, 1).empty());
  // Down: rows 3…5 of each expert [6, 2].
  const Layout down = Layout(mesh, {4, 6, 2}).with("experts", split(0)).with("tensor", split(1));
  EXPECT_EQ(down.runs(1), (std::vector<Stretch>{{6, 0, 6}, {18, 6, 6}}));
}

TEST(LayoutProperties, PartsSideBySideFillAMatrixWithoutOverlap) {
  const MeshShape mesh({{"x", 2}, {"z", 3}});
  const std::vector<int64_t> widths = {6, 2, 2};
  for (int rank = 0; rank < mesh.world_size(); ++rank) {
    const int64_t pitch = 10 / 2, rows = 7;
    std::vector<int> filled;
    int64_t column = 0;
    for (const int64_t width : widths) {
      const Layout part = Layout(mesh, {rows, width}).with("x", split(1)).with("z", kFlat);
      for (const Stretch& run : part.runs(rank, {.offset = column, .pitch = pitch}))
        for (int64_t i = 0; i < run.length; ++i) filled.push_back(static_cast<int>(run.local + i));
      column += width / 2;
    }
    std::sort(filled.begin(), filled.end());
    ASSERT_EQ(static_cast<int64_t>(filled.size()), comm::chunk_of(rows * pitch, 3, mesh.coordinate(rank, 1)).count);
    for (size_t i = 0; i < filled.size(); ++i) ASSERT_EQ(filled[i], static_cast<int>(i));
  }
}

TEST(Layout, ARankMayHoldOnlyPadding) {
  const MeshShape mesh({{"x", 4}});
  const Layout table = Layout(mesh, {5, 3}).padded(0, 12).with("x", split(0));
  EXPECT_EQ(table.local(3), (Shape{3, 3}));
  EXPECT_EQ(table.runs(1), (std::vector<Stretch>{{9, 0, 6}}));
  EXPECT_TRUE(table.runs(2).empty());
}

TEST(Layout, OnAnAxisOfSizeOneAllPlacementsAreTheSame) {
  const MeshShape mesh({{"data", 1}, {"tensor", 2}});
  const Layout plain = Layout(mesh, {6, 4}).with("tensor", split(1));
  for (const Placement placement : {split(0), split(1), kPartial, kFlat})
    EXPECT_EQ(plain.with("data", placement), plain) << to_string(placement);
}

TEST(Layout, ADimThatDoesNotDivideIsAConfigurationErrorWithTheNumbers) {
  const MeshShape mesh({{"data", 2}, {"tensor", 3}});
  try {
    Layout(mesh, {16, 768}).with("data", split(0)).with("tensor", split(0));
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::config);
    EXPECT_STREQ(
        error.what(),
        "dim 0 of [16, 768] cannot be split evenly over data+tensor (6 ranks): make 16 a multiple of 6, or choose "
        "a different mesh");
  }
  EXPECT_THROW(Layout(mesh, {16, 768}).with("tensor", split(2)), Error);
  EXPECT_THROW(Layout(mesh, {16, 768}).padded(0, 15), Error);
  EXPECT_THROW(Layout(mesh, {16}).transposed(), Error);
  EXPECT_THROW(Layout(mesh, {16}).with("data", kPartial).is_owner(0), Error);
}

TEST(Layout, ReadsLikeASentence) {
  const MeshShape mesh({{"data", 2}, {"z", 2}, {"kv", 2}, {"rep", 2}}, {{"tensor", 0b1100}});
  EXPECT_EQ(to_string(Layout(mesh, {4, 8})), "[4, 8]");
  EXPECT_EQ(to_string(Layout(mesh, {4, 8}).with("data", split(0)).with("z", split(0)).with("kv", split(1))),
            "[4, 8] S0 over data+z, S1 over kv");
  EXPECT_EQ(to_string(Layout(mesh, {5, 8}).padded(0, 8).transposed().with("tensor", kPartial).with("z", kFlat)),
            "[5, 8] padded to [8, 8] transposed flat over z, P over tensor");
}

}  // namespace
}  // namespace trainer::mesh
