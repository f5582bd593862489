// Which rank orthogonalizes which matrix, and what is sent: properties for random layouts, closed forms for evenly
// divided ones.
#include "optim/ownership.h"

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>
#include <set>

#include "optim/orthogonalize.h"

using namespace trainer;
using mesh::AxisSet;
using mesh::kFlat;
using mesh::Layout;
using mesh::MeshShape;
using mesh::split;
using optim::OwnedMatrix;
using optim::Ownership;

namespace {

/// Slots, each with matrices side by side, in consecutive groups.
struct Slots {
  MeshShape mesh;
  std::vector<std::vector<params::SlotPart>> parts;  // by slot
  std::vector<int> group;                            // by slot

  /// The table of a rank, as training creates it.
  params::ParamTable table(int rank) const {
    params::ParamTable table(mesh, rank);
    for (size_t s = 0; s < parts.size(); ++s) {
      while (static_cast<int>(table.slot_groups().size()) <= group[s]) table.add_group("group");
      table.add_slot(group[s], parts[s]);
    }
    table.close();
    return table;
  }
  std::vector<OwnedMatrix> matrices() const {
    const params::ParamTable first = table(0);
    std::vector<OwnedMatrix> all;
    for (size_t s = 0; s < parts.size(); ++s) {
      const auto slot = static_cast<params::SlotId>(s);
      const Shape box = first.box(slot);
      int64_t column = 0;
      for (const params::SlotPart& part : parts[s]) {
        const Shape shape = part.layout.shape();
        const bool sliced = shape.dims() == 3;
        for (int64_t i = 0; i < (sliced ? shape[0] : 1); ++i)
          all.push_back({.layout = part.layout,
                         .place = {.offset = column, .pitch = box[1]},
                         .slot_count = box.count(),
                         .slot_offset = first.range_of(slot).offset,
                         .group_elements = first.slot_groups()[static_cast<size_t>(group[s])].elements,
                         .slice = sliced ? i : -1});
        column += part.layout.box()[-1];
      }
    }
    return all;
  }
};

/// Returns linears of uneven sizes: split by rows, by columns or flat; joined; transposed; one replicated along `rep`;
/// several matrices in one tensor, divided over `rep` or not.
Slots random_slots(std::mt19937_64& engine) {
  const auto draw = [&](int n) { return static_cast<int>(engine() % static_cast<uint64_t>(n)); };
  Slots slots{MeshShape({{"data", 1 + draw(4)}, {"rep", 1 + draw(2)}, {"x", 1 + draw(3)}, {"z", 1 + draw(3)}}), {}, {}};
  const MeshShape& mesh = slots.mesh;
  const AxisSet rep = mesh.set("rep"), x = mesh.set("x"), z = mesh.set("z");
  const int count = 1 + draw(7);
  for (int s = 0; s < count; ++s) {
    const int64_t rows = 6 * (1 + draw(4)), cols = 12 * (1 + draw(4));
    const auto part = [&](int64_t width, AxisSet across) {
      Layout layout(mesh, {rows, width});
      layout = layout.with(across, split(1));
      return s % 2 == 0 ? layout.with(z, kFlat) : layout.with(z, split(0));
    };
    std::vector<params::SlotPart> parts;
    if (draw(4) == 0) {
      const int64_t matrices = 2 * (1 + draw(2));
      const AxisSet among = draw(2) == 0 ? rep : 0;
      for (int p = draw(2); p >= 0; --p) {
        const Layout layout = Layout(mesh, {matrices, rows, cols}).with(among, split(0)).with(x, split(2));
        parts.push_back({format("experts{}", p), s % 2 == 0 ? layout.with(z, kFlat) : layout.with(z, split(1)), {}});
      }
    } else if (draw(4) == 0) {
      parts.push_back({"transposed", Layout(mesh, {rows, cols}).with(x, split(0)).with(z, split(1)).transposed(), {}});
    } else {
      for (int p = draw(3); p >= 0; --p)
        parts.push_back({format("part{}", p), part(cols * (1 + p % 2), p == 0 ? x : x | rep), {}});
    }
    slots.parts.push_back(std::move(parts));
    slots.group.push_back(s < count / 2 ? 0 : 1);
  }
  return slots;
}

int64_t length(const std::vector<mesh::Run>& runs) {
  return std::accumulate(runs.begin(), runs.end(), int64_t{0},
                         [](int64_t sum, const mesh::Run& r) { return sum + r.length; });
}
/// Returns the number of elements that all ranks of the group send in all rounds.
double sum_of(Ownership::Counts (Ownership::*exchange)(int, int) const, const Ownership& ownership) {
  double sum = 0;
  for (int round = 0; round < ownership.rounds(); ++round)
    sum += static_cast<double>((ownership.*exchange)(round, 0).wire);
  return sum;
}

/// Returns a rank's FLOPs in one iteration.
int64_t load(const Ownership& o, int rank) {
  int64_t sum = 0;
  for (const int matrix : o.owned_by(rank))
    sum += optim::orthogonalize_flops(o.matrices()[static_cast<size_t>(matrix)].shape(), 1);
  return sum;
}

void check_work(const Ownership& o) {
  const int count = static_cast<int>(o.matrices().size());
  std::set<int> seen;
  int64_t total = 0, largest_cost = 0, largest_load = 0;
  for (int rank = 0; rank < o.ranks(); ++rank) {
    EXPECT_LE(o.owned_by(rank).size(), static_cast<size_t>(o.rounds()));
    for (size_t j = 0; j < o.owned_by(rank).size(); ++j) {
      const int matrix = o.owned_by(rank)[j];
      EXPECT_EQ(o.owner(matrix), rank);
      EXPECT_EQ(o.matrix_of(rank, static_cast<int>(j)), matrix);
      EXPECT_TRUE(seen.insert(matrix).second) << matrix << " has two owners";
    }
    EXPECT_EQ(o.matrix_of(rank, static_cast<int>(o.owned_by(rank).size())), -1);
    largest_load = std::max(largest_load, load(o, rank));
    total += load(o, rank);
  }
  for (const OwnedMatrix& m : o.matrices())
    largest_cost = std::max(largest_cost, optim::orthogonalize_flops(m.shape(), 1));
  EXPECT_EQ(static_cast<int>(seen.size()), count);
  EXPECT_LE(largest_load, total / o.ranks() + largest_cost);
}

/// Checks that each element is sent once or is already the owner's, and that ranks store what their tables describe.
void check_pieces(const Slots& slots, const Ownership& o, bool split_state) {
  const AxisSet data = slots.mesh.set("data");
  std::vector<std::vector<int>> senders;  // by matrix and element
  for (const OwnedMatrix& m : o.matrices()) senders.emplace_back(static_cast<size_t>(m.shape().count()));
  for (int rank = 0; rank < o.ranks(); ++rank) {  // one replica, or all: group ranks are world ranks
    const params::ParamTable table = slots.table(rank);
    std::set<std::pair<int, int64_t>> taken;
    int index = -1;
    for (int matrix = 0; matrix < static_cast<int>(o.matrices().size()); ++matrix) {
      const OwnedMatrix& owned = o.matrices()[static_cast<size_t>(matrix)];
      if (owned.slice <= 0) ++index;  // the next parameter
      const params::Param& param = table.params()[static_cast<size_t>(index)];
      std::vector<mesh::Run> runs;
      const int64_t elements = owned.shape().count(), begin = std::max<int64_t>(0, owned.slice) * elements;
      for (const mesh::Run& run : param.runs) {
        const int64_t from = std::max(run.global, begin), to = std::min(run.global + run.length, begin + elements);
        if (from < to)
          runs.push_back({from - begin, run.local + (from - run.global) * run.stride, to - from, run.stride});
      }
      if (split_state) {
        const comm::Chunk chunk = comm::chunk_of(table.slot_groups()[static_cast<size_t>(param.group)].elements,
                                                 slots.mesh.group_size(data), slots.mesh.index(rank, data));
        runs = mesh::clip_runs(runs, chunk.begin, chunk.count);
        for (mesh::Run& run : runs) run.local += chunk.begin;
      }
      const std::vector<mesh::Run> pieces = o.pieces(matrix, rank);
      EXPECT_EQ(pieces, runs) << matrix << " on rank " << rank;
      EXPECT_EQ(o.count(matrix, rank), length(pieces)) << matrix << " on rank " << rank;
      int64_t before = -1;
      for (const mesh::Run& run : pieces) {
        EXPECT_GT(run.global, before);
        before = run.global + run.length - 1;
        for (int64_t i = 0; i < run.length; ++i)
          EXPECT_TRUE(taken.insert({param.group, run.local + i * run.stride}).second) << "two matrices in one place";
        if (o.sends(matrix, rank))
          for (int64_t i = 0; i < run.length; ++i)
            ++senders[static_cast<size_t>(matrix)][static_cast<size_t>(run.global + i)];
      }
    }
  }
  for (int matrix = 0; matrix < static_cast<int>(senders.size()); ++matrix) {
    EXPECT_TRUE(o.sends(matrix, o.owner(matrix)));
    for (const int n : senders[static_cast<size_t>(matrix)]) EXPECT_EQ(n, 1) << "elements of matrix " << matrix;
  }
}

void check_counts(const Ownership& o) {
  for (int round = 0; round < o.rounds(); ++round)
    for (const bool back : {false, true}) {
      int64_t sent = 0, longest = 0;
      const auto counts = [&](int rank) { return back ? o.back(round, rank) : o.there(round, rank); };
      for (int a = 0; a < o.ranks(); ++a) {
        const Ownership::Counts mine = counts(a);
        EXPECT_EQ(mine.send[static_cast<size_t>(a)] + mine.receive[static_cast<size_t>(a)], 0);
        for (int b = 0; b < o.ranks(); ++b) {
          EXPECT_EQ(mine.send[static_cast<size_t>(b)], counts(b).receive[static_cast<size_t>(a)]) << a << " to " << b;
          sent += mine.send[static_cast<size_t>(b)];
          longest = std::max(longest, mine.send[static_cast<size_t>(b)]);
        }
        const int own = o.matrix_of(a, round);
        if (!back && own >= 0) {  // with its own pieces, the owner has the whole matrix
          const int64_t received = std::accumulate(mine.receive.begin(), mine.receive.end(), int64_t{0});
          EXPECT_EQ(received + o.count(own, a), o.matrices()[static_cast<size_t>(own)].shape().count());
        }
      }
      for (int rank = 0; rank < o.ranks(); ++rank) {
        EXPECT_EQ(counts(rank).wire, sent) << "round " << round;
        EXPECT_EQ(counts(rank).longest, longest) << "round " << round;
      }
    }
}

TEST(Ownership, OfRandomLayoutsIsWholeAndTheSameOnBothSides) {
  std::mt19937_64 engine(43);
  for (int trial = 0; trial < 60; ++trial) {
    const Slots slots = random_slots(engine);
    const AxisSet all = slots.mesh.all(), replica = all & ~slots.mesh.set("data");
    AxisSet wide = 0;  // without axes of one rank, "data" among them
    for (int axis = 0; axis < slots.mesh.axes(); ++axis)
      if (slots.mesh.size(axis) > 1) wide |= AxisSet{1} << axis;
    for (const auto& [among, split_state] :
         {std::pair(all, false), std::pair(all, true), std::pair(wide, true), std::pair(replica, false)}) {
      SCOPED_TRACE(format("seed 43, trial {}: {} ranks, among {}, ZeRO {}", trial, slots.mesh.world_size(),
                          slots.mesh.name_of(among), split_state));
      const Ownership ownership(slots.matrices(), among, split_state);
      check_work(ownership);
      check_pieces(slots, ownership, split_state);
      check_counts(ownership);
      if (HasFailure()) return;
    }
  }
}

TEST(Ownership, GoesByLongestProcessingTimeFirst) {
  const MeshShape mesh({{"data", 3}});
  std::vector<OwnedMatrix> matrices;
  // Costs 4k²n + 2k³: 6, 10, 48, 10, 18.
  for (const Shape shape : {Shape{1, 1}, Shape{1, 2}, Shape{2, 2}, Shape{2, 1}, Shape{1, 4}})
    matrices.push_back({Layout(mesh, shape), {}, shape.count(), 0, shape.count()});
  const Ownership o(matrices, mesh.all(), false);
  EXPECT_EQ(o.owned_by(0), (std::vector<int>{2}));     // 48
  EXPECT_EQ(o.owned_by(1), (std::vector<int>{4, 0}));  // 18, then 6, since the other load is 20
  EXPECT_EQ(o.owned_by(2), (std::vector<int>{1, 3}));  // 10 and 10, in order of declaration
}

TEST(Ownership, WithoutMatricesIsEmpty) {
  const Ownership o({}, 1, true);
  EXPECT_EQ(o.rounds(), 0);
  EXPECT_EQ(o.ranks(), 1);
}

TEST(Ownership, StripsMoveEveryElementToItsPlace) {
  const std::vector<mesh::Run> pieces = {{3, 100, 5, 1}, {20, 7, 4, 9}, {50, 200, 2 * ops::kStripElements + 1, 1}};
  const auto buffer = optim::buffer_strips(pieces, 11), matrix = optim::matrix_strips(pieces, 11);
  ASSERT_EQ(buffer.size(), 5u);
  ASSERT_EQ(matrix.size(), 5u);
  std::vector<std::array<int64_t, 3>> got, want;  // offsets in the message, the buffer and the matrix
  for (size_t i = 0; i < buffer.size(); ++i) {
    EXPECT_EQ(buffer[i].place, matrix[i].place);
    EXPECT_EQ(buffer[i].length, matrix[i].length);
    EXPECT_LE(buffer[i].length, ops::kStripElements);
    for (int64_t k = 0; k < buffer[i].length; ++k)
      got.push_back({buffer[i].place + k, buffer[i].at + k * buffer[i].stride, matrix[i].at + k * matrix[i].stride});
  }
  int64_t place = 11;
  for (const mesh::Run& run : pieces)
    for (int64_t k = 0; k < run.length; ++k) want.push_back({place++, run.local + k * run.stride, run.global + k});
  EXPECT_EQ(got, want);
}

/// The hidden matrices of GPT-2 with 124M parameters, tensor parallel, with the vectors in between.
Slots gpt2(int data, int tensor) {
  Slots slots{MeshShape({{"data", data}, {"tensor", tensor}}), {}, {}};
  for (int layer = 0; layer < 12; ++layer) {
    const auto add = [&](std::vector<params::SlotPart> parts) {
      slots.parts.push_back(std::move(parts));
      slots.group.push_back(layer);
    };
    const auto matrix = [&](const char* name, int64_t rows, int64_t cols, int dim) {
      return params::SlotPart{name, Layout(slots.mesh, {rows, cols}).with("tensor", split(dim)), {}};
    };
    add({matrix("q", 768, 768, 1), matrix("k", 768, 768, 1), matrix("v", 768, 768, 1)});
    add({matrix("out", 768, 768, 0)});
    add({matrix("up", 768, 3072, 1)});
    add({matrix("down", 3072, 768, 0)});
  }
  return slots;
}

TEST(Ownership, SendsTheBytesOfTheClosedForms) {
  struct Case {
    int s, r;
    double gigabytes;  // sent to owners and back in bf16, by a brute-force count
  };
  for (const Case c : {Case{8, 1, 0.30}, Case{2, 4, 0.68}, Case{1, 8, 1.19}, Case{8, 8, 1.49}, Case{1, 1, 0.0}}) {
    SCOPED_TRACE(format("state on {} ranks, {} copies", c.s, c.r));
    const Slots slots = gpt2(c.r, c.s);
    const Ownership o(slots.matrices(), slots.mesh.all(), false);
    const double elements = 12.0 * (4 * 768 * 768 + 2 * 768 * 3072), s = c.s, r = c.r;
    EXPECT_EQ(sum_of(&Ownership::there, o), elements * (1 - 1 / s));
    EXPECT_EQ(sum_of(&Ownership::back, o), elements * (r - 1 / s));
    EXPECT_NEAR(2e-9 * (sum_of(&Ownership::there, o) + sum_of(&Ownership::back, o)), c.gigabytes, 0.005);
  }
}

TEST(Ownership, InsideReplicasSendsNothingOverData) {
  const Slots slots = gpt2(4, 2);
  const Ownership o(slots.matrices(), slots.mesh.set("tensor"), false);
  const double elements = 12.0 * (4 * 768 * 768 + 2 * 768 * 3072);
  EXPECT_EQ(o.ranks(), 2);
  EXPECT_EQ(sum_of(&Ownership::there, o), elements / 2);  // in each replica
  EXPECT_EQ(sum_of(&Ownership::back, o), elements / 2);
}

TEST(Ownership, WithZeroIsCloseToTheClosedForms) {
  for (const auto& [data, tensor] : {std::pair(8, 1), std::pair(4, 2), std::pair(2, 4)}) {
    const Slots slots = gpt2(data, tensor);
    const Ownership o(slots.matrices(), slots.mesh.all(), true);
    const double even = 12.0 * (4 * 768 * 768 + 2 * 768 * 3072) * (1 - 1 / 8.0);
    EXPECT_NEAR(sum_of(&Ownership::there, o) / even, 1, 0.03) << "data " << data;
    EXPECT_EQ(sum_of(&Ownership::there, o), sum_of(&Ownership::back, o));  // there are no copies
  }
}

TEST(Ownership, BalancesTheWork) {
  for (const auto& [ranks, least] : {std::pair(4, 0.95), std::pair(8, 0.99), std::pair(64, 0.61)}) {
    const Slots slots = gpt2(ranks, 1);
    const Ownership o(slots.matrices(), slots.mesh.all(), false);
    int64_t largest = 0, total = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      largest = std::max(largest, load(o, rank));
      total += load(o, rank);
    }
    EXPECT_NEAR(5 * static_cast<double>(total), 1.63e12, 0.005e12);
    EXPECT_GE(static_cast<double>(total) / ranks / static_cast<double>(largest), least) << ranks;
  }
}

}  // namespace
