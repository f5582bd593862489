// The wiring of AxoNN-4D through the strategy itself: who is where, who holds what, and that its linears, embedding and
// head equal dense ones in every bit where all numbers are integers, so that sums are exact in single precision.
#include <cmath>
#include <ostream>
#include <tuple>

#include "property/seams_rig.h"
#include "unit/parallel/pieces_rig.h"

namespace trainer::pieces {
namespace {

using mesh::AxisSet;
using mesh::MeshShape;
using parallel::LinearSpec;
using parallel::Site;
using seams::Matrix;

constexpr int64_t kHidden = 24, kInner = 48, kHeads = 24, kVocab = 37;

struct Grid {
  int64_t x, y, z, data;
  const char* order;
  int ranks() const { return static_cast<int>(x * y * z * data); }
  int64_t rows() const { return kRows * data; }
  config::Config config() const {
    config::Config c;
    c.parallel.strategy = "axonn-4d";
    c.parallel.grid = {x, y, z};
    c.parallel.order = order;
    c.parallel.data = data;
    return c;
  }
  sharding::ModelSharding sharding() const { return on_ranks(config(), ranks(), kHeads); }
  MeshShape shape() const { return parallel::mesh_shape(sharding()); }
  std::string text() const { return format("X{}Y{}Z{}Data{}{}", x, y, z, data, order); }
};
std::ostream& operator<<(std::ostream& out, const Grid& g) { return out << g.text(); }

/// All ways to make 4 and 8 ranks of three axes and replicas, and an uneven one; the second order where it differs.
std::vector<Grid> grids() {
  std::vector<Grid> all;
  for (const int64_t ranks : {4, 8})
    for (int64_t x = 1; x <= ranks; x *= 2)
      for (int64_t y = 1; x * y <= ranks; y *= 2)
        for (int64_t z = 1; x * y * z <= ranks; z *= 2)
          for (const char* order : {"yxzd", "xyzd"})
            if (std::string_view(order) == "yxzd" || (x > 1 && y > 1))
              all.push_back({x, y, z, ranks / (x * y * z), order});
  all.push_back({3, 2, 2, 1, "yxzd"});
  all.push_back({3, 2, 2, 1, "zxyd"});
  return all;
}

class AxonnWiring : public testing::TestWithParam<Grid> {
 protected:
  const Grid grid = GetParam();
  Rig make_rig(comm::World& world) const { return {world, grid.sharding(), DType::f32}; }
};
INSTANTIATE_TEST_SUITE_P(Grids, AxonnWiring, testing::ValuesIn(grids()),
                         [](const auto& info) { return info.param.text(); });

/// Dense integers by name.
Matrix drawn(const std::string& name, int64_t rows, int64_t cols) {
  Matrix m(rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) m.values[static_cast<size_t>(i)] = draw(name, i, true);
  return m;
}
Matrix plus_row(Matrix m, const Matrix& row) {
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t c = 0; c < m.cols; ++c) m(r, c) += row(0, c);
  return m;
}
Matrix column_sums(const Matrix& m) {
  Matrix sums(1, m.cols);
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t c = 0; c < m.cols; ++c) sums(0, c) += m(r, c);
  return sums;
}

TEST_P(AxonnWiring, RanksAreTheirCoordinates) {
  const MeshShape shape = grid.shape();
  ASSERT_EQ(shape.world_size(), grid.ranks());
  const std::map<char, int64_t> extent = {{'x', grid.x}, {'y', grid.y}, {'z', grid.z}, {'d', grid.data}};
  const auto axis = [&](char name) { return shape.set(name == 'd' ? "data" : std::string(1, name)); };
  std::map<char, int64_t> stride;
  int64_t next = 1;
  for (const char name : std::string(grid.order)) stride[name] = std::exchange(next, next * extent.at(name));
  std::map<std::vector<int>, int> at;
  for (int rank = 0; rank < grid.ranks(); ++rank) {
    std::vector<int> coordinate;
    int64_t back = 0;
    for (const auto& [name, size] : extent) {
      coordinate.push_back(shape.index(rank, axis(name)));
      back += coordinate.back() * stride.at(name);
      EXPECT_EQ(coordinate.back(), rank / stride.at(name) % size) << name << " of rank " << rank;
      const std::vector<int> members = shape.members(rank, axis(name));
      ASSERT_EQ(static_cast<int64_t>(members.size()), size);
      for (size_t i = 0; i < members.size(); ++i)
        EXPECT_EQ(members[i], rank + (static_cast<int64_t>(i) - coordinate.back()) * stride.at(name));
      for (const auto& [other, unused] : extent) {
        if (other == name) continue;
        for (const int member : shape.members(rank, axis(other)))
          EXPECT_TRUE(member == rank || std::ranges::find(members, member) == members.end()) << name << other;
      }
    }
    EXPECT_EQ(back, rank);
    EXPECT_TRUE(at.emplace(coordinate, rank).second) << "two ranks at one place";
  }
}

TEST_P(AxonnWiring, RowsAreSharedOutOverDataAndZ) {
  std::mutex mutex;
  std::map<std::pair<int64_t, int64_t>, std::vector<int>> holders;  // of each row, by x and y
  comm::run_on_threads(grid.ranks(), {.timeout_s = 60}, [&](comm::World& world) {
    Rig rig = make_rig(world);
    const MeshShape shape = grid.shape();
    const auto at = [&](const char* axis) { return shape.index(world.rank(), shape.set(axis)); };
    const int64_t q = at("data") * grid.z + at("z"), share = grid.rows() / (grid.z * grid.data);
    const parallel::Tile tile = rig.tile(kHidden);
    const int64_t first = rig.store.replicas().index() * kRows + tile.first_row;
    EXPECT_EQ(first, q * share);
    EXPECT_EQ(tile.rows, share);
    EXPECT_EQ(tile.first_col, at("y") * kHidden / grid.y);
    EXPECT_EQ(tile.cols, kHidden / grid.y);
    rig.batch.sequences = 2 * grid.z;
    const parallel::AttentionTile attention = rig.strategy->attention_tile(0, rig.batch, kHeads, kHeads);
    EXPECT_EQ(attention.sequences, 2);
    EXPECT_EQ(attention.first_sequence, 2 * at("z"));
    EXPECT_EQ(attention.heads, kHeads / grid.x);
    EXPECT_EQ(attention.first_head, at("x") * kHeads / grid.x);
    const std::lock_guard lock(mutex);
    auto& rows = holders[{at("x"), at("y")}];
    rows.resize(static_cast<size_t>(grid.rows()));
    for (int64_t r = first; r < first + tile.rows; ++r) ++rows[static_cast<size_t>(r)];
  });
  EXPECT_EQ(static_cast<int64_t>(holders.size()), grid.x * grid.y);
  for (const auto& [place, rows] : holders)
    EXPECT_EQ(rows, std::vector<int>(static_cast<size_t>(grid.rows()), 1)) << "each row once";
}

const LinearSpec kQkv{.site = Site::qkv,
                      .in = kHidden,
                      .parts = {{"q", kHidden, kHeads}, {"k", kHidden, kHeads}, {"v", kHidden, kHeads}},
                      .bias = true};
const LinearSpec kOut{.site = Site::out, .in = kHidden, .parts = {{"out", kHidden}}, .bias = true};
const LinearSpec kUp{.site = Site::up, .in = kHidden, .parts = {{"up", kInner}}, .bias = true};
const LinearSpec kDown{.site = Site::down, .in = kInner, .parts = {{"down", kHidden}}, .bias = true};
const parallel::EmbeddingSpec kTable{.vocab = kVocab, .d_model = kHidden, .positions = kLength, .vocab_multiple = 48};

TEST_P(AxonnWiring, EveryElementIsHeldAsOftenAsItsTensorHasCopies) {
  std::mutex mutex;
  std::map<std::string, std::vector<int>> holders;
  std::map<std::tuple<std::string, int, int, int>, std::vector<mesh::Run>> runs;  // of replicas
  comm::run_on_threads(grid.ranks(), {.timeout_s = 60}, [&](comm::World& world) {
    Rig rig = make_rig(world);
    Strategy& strategy = *rig.strategy;
    const auto embedding = strategy.embedding(rig.store.add_group("embedding"), kTable);
    const int group = rig.store.add_group("block");
    const auto norm = strategy.norm(0, group, {.name = "norm", .width = kHidden});
    std::vector<std::unique_ptr<parallel::Linear>> linears;
    for (const LinearSpec& spec : {kQkv, kOut, kUp, kDown}) linears.push_back(strategy.linear(0, group, spec));
    const auto head = strategy.head(1, rig.store.add_group("head"), kTable, /*tied=*/false);
    rig.store.allocate(true);
    const MeshShape shape = grid.shape();
    const auto at = [&](const char* axis) { return shape.index(world.rank(), shape.set(axis)); };
    const std::lock_guard lock(mutex);
    for (const params::Param& param : rig.store.params()) {
      std::vector<int>& count = holders[param.name];
      count.resize(static_cast<size_t>(param.count()));
      for (const mesh::Run& run : param.runs)
        for (int64_t i = 0; i < run.length; ++i) ++count.at(static_cast<size_t>(run.global + i));
      const auto [known, added] = runs.emplace(std::tuple(param.name, at("x"), at("y"), at("z")), param.runs);
      EXPECT_EQ(known->second, param.runs) << param.name << ": replicas";
    }
  });
  ASSERT_EQ(holders.size(), 2u + 2 + 12 + 1);
  for (const auto& [name, count] : holders) {
    // Matrices and tables have one place in a replica; vectors are cut along the axis of their elements.
    int64_t copies = grid.data;
    const bool inner = name == "q.bias" || name == "k.bias" || name == "v.bias" || name == "up.bias";
    if (inner) copies *= grid.y * grid.z;
    if (name == "out.bias" || name == "down.bias" || name.starts_with("norm.") || name == "wpe")
      copies *= grid.x * grid.z;
    EXPECT_EQ(count, std::vector<int>(count.size(), static_cast<int>(copies))) << name;
  }
}

/// A rank's part of a whole matrix, and where it lies.
struct Part {
  Shape shape;
  Piece piece;
};
Part part_of(const Rig& rig, Spread spread, int64_t width) {
  const parallel::Tile tile = rig.strategy->ranks().tile(spread, rig.batch.rows(), width);
  const int64_t before = rig.store.replicas().index() * kRows;
  return {{tile.rows, tile.cols}, {before + tile.first_row, tile.first_col, width}};
}

/// The output columns of a linear's parts, which lie side by side.
void collect_parts(Rig& rig, Named& all, const Tensor& y, Spread spread, const LinearSpec& spec, int64_t rows) {
  int64_t col = 0;
  for (const parallel::LinearPart& part : spec.parts) {
    const Part at = part_of(rig, spread, part.out);
    const Scratch columns = rig.ex.take("columns", at.shape, rig.type);
    ops::run(rig.ex, ops::Copy{y.col_range(col, at.shape[1]), columns});
    collect(all, part.name, columns, at.piece, rows);
    col += at.shape[1];
  }
  EXPECT_EQ(col, y.cols());
}
Scratch drawn_parts(Rig& rig, Spread spread, const LinearSpec& spec) {
  int64_t width = 0, col = 0;
  for (const parallel::LinearPart& part : spec.parts) width += part_of(rig, spread, part.out).shape[1];
  Scratch dy = rig.ex.take("dy", {part_of(rig, spread, spec.parts[0].out).shape[0], width}, rig.type);
  for (const parallel::LinearPart& part : spec.parts) {
    const Part at = part_of(rig, spread, part.out);
    ops::run(rig.ex, ops::Copy{local(rig, ("d" + part.name).c_str(), at.shape, at.piece, true),
                               dy.tensor().col_range(col, at.shape[1])});
    col += at.shape[1];
  }
  return dy;
}

void expect_equal(const Named& found, const std::string& name, const Matrix& dense) {
  ASSERT_TRUE(found.contains(name)) << name;
  EXPECT_EQ(found.at(name), dense.values) << name;
}

/// Calls of collectives by axis and operation.
std::map<std::string, int64_t> calls(const Meter& meter, const MeshShape& shape) {
  std::map<std::string, int64_t> all;
  for (const auto& [key, count] : meter.comm())
    if (key.axes != mesh::kControlAxes && count.calls > 0)
      all[shape.name_of(key.axes) + " " + std::string(name_of(key.op))] += count.calls;
  return all;
}

TEST_P(AxonnWiring, LinearsThatLeadOutEqualDenseOnesBitForBit) {
  const Named found = on_ranks(grid.ranks(), [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig = make_rig(world);
    const auto linear = rig.strategy->linear(0, rig.store.add_group("g"), kQkv);
    rig.ready();
    fill_weights(rig.store, true);
    const Part in = part_of(rig, rig.strategy->stream(0), kHidden);
    const Spread out = grid.sharding().layer(0).attention;
    const Scratch x = local(rig, "x", in.shape, in.piece, true);
    const Scratch y = linear->forward(rig.ex, rig.batch.rows(), x, {});
    const Scratch dy = drawn_parts(rig, out, kQkv);
    const Scratch dx = linear->backward(rig.ex, rig.batch.rows(), dy, x, {}, *rig.sink);
    rig.done();
    const std::lock_guard lock(mutex);
    collect_parts(rig, all, y, out, kQkv, grid.rows());
    collect(all, "dx", dx, in.piece, grid.rows());
    collect_gradients(all, rig.store);
  });
  const Matrix x = drawn("x", grid.rows(), kHidden);
  Matrix dx(grid.rows(), kHidden);
  for (const std::string part : {"q", "k", "v"}) {
    const Matrix w = drawn(part + ".weight", kHidden, kHidden), dy = drawn("d" + part, grid.rows(), kHidden);
    expect_equal(found, part, plus_row(x * w, drawn(part + ".bias", 1, kHidden)));
    expect_equal(found, "d" + part + ".weight", seams::transpose(x) * dy);
    expect_equal(found, "d" + part + ".bias", column_sums(dy));
    dx = dx + dy * seams::transpose(w);
  }
  expect_equal(found, "dx", dx);
}

TEST_P(AxonnWiring, LinearsThatLeadBackFollowThoseThatLeadOutWithoutAMove) {
  const Named found = on_ranks(grid.ranks(), [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig = make_rig(world);
    const auto up = rig.strategy->linear(0, rig.store.add_group("up"), kUp);
    const auto down = rig.strategy->linear(0, rig.store.add_group("down"), kDown);
    rig.ready();
    fill_weights(rig.store, true);
    const Part stream = part_of(rig, rig.strategy->stream(0), kHidden);
    const Part inner = part_of(rig, grid.sharding().layer(0).attention, kInner);
    const Scratch x = local(rig, "x", stream.shape, stream.piece, true),
                  residual = local(rig, "residual", stream.shape, stream.piece, true),
                  dy = local(rig, "dy", stream.shape, stream.piece, true);
    rig.meter.reset();
    const Scratch h = up->forward(rig.ex, rig.batch.rows(), x, {});
    const Scratch y = down->forward(rig.ex, rig.batch.rows(), h, {.residual = residual});
    std::map<std::string, int64_t> expected;
    if (grid.y > 1) expected["y all_reduce"] = 1;
    if (grid.x > 1) expected["x all_reduce"] = 1;
    if (grid.z > 1) expected["z all_gather"] = 2;
    EXPECT_EQ(calls(rig.meter, grid.shape()), expected) << "sums of both products, both weights, nothing between";
    const Scratch dh = down->backward(rig.ex, rig.batch.rows(), dy, h, {}, *rig.sink);
    const Scratch dx = up->backward(rig.ex, rig.batch.rows(), dh, x, {}, *rig.sink);
    rig.done();
    const std::lock_guard lock(mutex);
    collect(all, "h", h, inner.piece, grid.rows());
    collect(all, "y", y, stream.piece, grid.rows());
    collect(all, "dh", dh, inner.piece, grid.rows());
    collect(all, "dx", dx, stream.piece, grid.rows());
    collect_gradients(all, rig.store);
  });
  const Matrix x = drawn("x", grid.rows(), kHidden), dy = drawn("dy", grid.rows(), kHidden);
  const Matrix up = drawn("up.weight", kHidden, kInner), down = drawn("down.weight", kInner, kHidden);
  const Matrix h = plus_row(x * up, drawn("up.bias", 1, kInner)), dh = dy * seams::transpose(down);
  expect_equal(found, "h", h);
  expect_equal(found, "y",
               plus_row(h * down, drawn("down.bias", 1, kHidden)) + drawn("residual", grid.rows(), kHidden));
  expect_equal(found, "dh", dh);
  expect_equal(found, "dx", dh * seams::transpose(up));
  expect_equal(found, "dup.weight", seams::transpose(x) * dh);
  expect_equal(found, "dup.bias", column_sums(dh));
  expect_equal(found, "ddown.weight", seams::transpose(h) * dy);
  expect_equal(found, "ddown.bias", column_sums(dy));
}

TEST_P(AxonnWiring, EmbeddingPositionsAndTiedHeadEqualDenseOnesBitForBit) {
  // Features are multiples of 128, and so are the distances of logits: the softmax of a row is exactly one where the
  // largest is, half where two are, and nothing elsewhere, so that the head's own gradient of the logits is integers.
  const auto feature = [](int64_t i) {
    return 128 * (static_cast<double>(philox_at(philox_key(12, "features"), static_cast<uint64_t>(i)) % 101) - 50);
  };
  constexpr double kScale = 2;
  const auto id_of = [](int64_t r) { return r * 7919 % kVocab; };
  const auto target_of = [](int64_t r) { return r * 104729 % kVocab; };
  const auto weight_of = [](int64_t r) { return r % 5 == 2 ? 0.0 : 1.0; };
  const Named found = on_ranks(grid.ranks(), [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig = make_rig(world);
    const auto embedding = rig.strategy->embedding(rig.store.add_group("embedding"), kTable);
    const auto head = rig.strategy->head(1, rig.store.add_group("head"), kTable, /*tied=*/true);
    rig.ready();
    fill_weights(rig.store, true);
    const int64_t first = rig.store.replicas().index() * kRows;
    std::vector<int32_t> ids, targets;
    const Scratch weights = rig.ex.take("weights", {kRows}, rig.type);
    for (int64_t r = first; r < first + kRows; ++r) {
      ids.push_back(static_cast<int32_t>(id_of(r)));
      targets.push_back(static_cast<int32_t>(target_of(r)));
      set(weights, r - first, weight_of(r));
    }
    rig.batch.ids = {reinterpret_cast<std::byte*>(ids.data()), {kRows}, DType::i32};
    rig.batch.targets = {reinterpret_cast<std::byte*>(targets.data()), {kRows}, DType::i32};
    rig.batch.weights = weights;
    rig.batch.loss_scale = kScale;
    const Part stream = part_of(rig, rig.strategy->stream(1), kHidden);
    const Scratch x = rig.ex.take("x", stream.shape, rig.type);
    for (int64_t r = 0; r < stream.shape[0]; ++r)
      for (int64_t c = 0; c < stream.shape[1]; ++c)
        set(x, r * stream.shape[1] + c, feature((stream.piece.first_row + r) * kHidden + stream.piece.first_col + c));
    const Scratch y = embedding->forward(rig.ex, rig.batch), dy = local(rig, "dy", stream.shape, stream.piece, true);
    const Scratch dx = rig.backward(*embedding, *head, x, dy);
    const std::lock_guard lock(mutex);
    collect(all, "y", y, stream.piece, grid.rows());
    collect(all, "dx", dx, stream.piece, grid.rows());
    collect_gradients(all, rig.store);
  });

  const int64_t rows = grid.rows();
  const Matrix table = drawn("wte", kVocab, kHidden), positions = drawn("wpe", kLength, kHidden);
  const Matrix dy = drawn("dy", rows, kHidden);
  Matrix x(rows, kHidden), y(rows, kHidden), dlogits(rows, kVocab), dpositions(kLength, kHidden);
  for (int64_t i = 0; i < rows * kHidden; ++i) x.values[static_cast<size_t>(i)] = feature(i);
  const Matrix logits = x * seams::transpose(table);
  for (int64_t r = 0; r < rows; ++r) {
    double most = logits(r, 0);
    int64_t ties = 0;
    for (int64_t v = 0; v < kVocab; ++v) most = std::max(most, logits(r, v));
    for (int64_t v = 0; v < kVocab; ++v) ties += logits(r, v) == most ? 1 : 0;
    ASSERT_LE(ties, 2) << "row " << r;
    for (int64_t v = 0; v < kVocab; ++v)
      dlogits(r, v) = kScale * weight_of(r) *
                      ((logits(r, v) == most ? 1 / static_cast<double>(ties) : 0) - (v == target_of(r) ? 1 : 0));
  }
  Matrix dtable = seams::transpose(dlogits) * x;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < kHidden; ++c) {
      y(r, c) = table(id_of(r), c) + positions(r % kLength, c);
      dtable(id_of(r), c) += dy(r, c);
      dpositions(r % kLength, c) += dy(r, c);
    }
  expect_equal(found, "y", y);
  expect_equal(found, "dx", dlogits * table);
  expect_equal(found, "dwte", dtable);
  expect_equal(found, "dwpe", dpositions);
}

}  // namespace
}  // namespace trainer::pieces
