// Who is where on the mesh of Optimus-2D, and who holds what.
#include "unit/parallel/pieces_rig.h"

namespace trainer::pieces {
namespace {

using mesh::MeshShape;
using parallel::LinearSpec;
using parallel::Site;

struct Place {
  int64_t q, depth, data, kv;
  std::vector<int64_t> tile;
  int ranks() const { return static_cast<int>(q * q * depth * data); }
  config::Config config() const {
    config::Config c;
    c.parallel.strategy = "optimus-2d";
    c.parallel.mesh = {q, q, depth};
    c.parallel.node_tile = tile;
    c.parallel.data = data;
    return c;
  }
  MeshShape shape() const { return parallel::mesh_shape(on_ranks(config(), ranks(), kv)); }
  std::string text() const {
    return format("q {}, depth {}, data {}, kv {}, tile {}x{}", q, depth, data, kv, tile[0], tile[1]);
  }
};

TEST(OptimusRanks, AreReplicaDepthRowColumnOrTilesOfNeighbours) {
  for (const Place& p :
       {Place{2, 1, 2, 8, {1, 1}}, Place{3, 2, 2, 6, {1, 1}}, Place{4, 2, 1, 8, {2, 2}}, Place{4, 1, 2, 2, {2, 2}},
        Place{4, 1, 1, 2, {1, 4}}, Place{4, 1, 1, 1, {2, 1}}, Place{6, 1, 1, 3, {3, 2}}, Place{6, 2, 2, 6, {2, 3}},
        Place{8, 2, 2, 4, {2, 4}}, Place{1, 4, 2, 1, {1, 1}}}) {
    SCOPED_TRACE(p.text());
    const MeshShape shape = p.shape();
    ASSERT_EQ(shape.world_size(), p.ranks());
    const int64_t r = p.tile[0], c = p.tile[1], square = p.q * p.q;
    for (int rank = 0; rank < p.ranks(); ++rank) {
      const int64_t at = rank % square, tile = at / (r * c), inside = at % (r * c);
      const int64_t row = tile / (p.q / c) * r + inside / c, col = tile % (p.q / c) * c + inside % c;
      EXPECT_EQ(shape.index(rank, shape.set("row")), row) << rank;
      EXPECT_EQ(shape.index(rank, shape.set("col")), col) << rank;
      EXPECT_EQ(shape.index(rank, shape.set("data")), rank / square) << rank;
      EXPECT_EQ(shape.group_size(shape.set("row")), p.q);
      EXPECT_EQ(shape.group_size(shape.set("col")), p.q);
      if (p.depth > 1) {
        EXPECT_EQ(shape.index(rank, shape.set("depth")), rank / square % p.depth) << rank;
      }
      if (p.kv > 1 && p.q > p.kv) {
        EXPECT_EQ(shape.group_size(shape.set("kv")), p.kv);
        EXPECT_EQ(shape.index(rank, shape.set("kv")), col / (p.q / p.kv)) << "ranks of a head are neighbours";
        EXPECT_EQ(shape.index(rank, shape.set("rep")), col % (p.q / p.kv));
      }
    }
    EXPECT_EQ(shape.name_of(shape.set("row")), "row");
    EXPECT_EQ(shape.name_of(shape.set("col")), "col");
    EXPECT_EQ(shape.name_of(shape.set("data")), "data");
  }
}

TEST(OptimusPieces, AreHeldOnceOrAsOftenAsVectorsHaveCopies) {
  constexpr int64_t kHidden = 24, kInner = 48, kHeads = 24, kVocab = 37;
  const auto spec = [](Site site, int64_t in, std::vector<parallel::LinearPart> parts) {
    return LinearSpec{.site = site, .in = in, .parts = std::move(parts), .bias = true};
  };
  const LinearSpec specs[] = {
      spec(Site::qkv, kHidden, {{"q", kHidden, kHeads}, {"k", kHidden, kHeads}, {"v", kHidden, kHeads}}),
      spec(Site::out, kHidden, {{"out", kHidden}}), spec(Site::up, kHidden, {{"up", kInner}}),
      spec(Site::down, kInner, {{"down", kHidden}})};
  for (const auto& [stationary, panels] : {std::pair{"auto", "ring"}, {"paper", "ring"}, {"auto", "gather"}})
    for (const Place& p : {Place{2, 1, 1, kHeads, {1, 1}}, Place{3, 1, 1, kHeads, {1, 1}},
                           Place{2, 2, 2, kHeads, {2, 1}}, Place{4, 1, 1, kHeads, {2, 2}}}) {
      SCOPED_TRACE(p.text());
      config::Config c = p.config();
      c.parallel.stationary = stationary;
      c.parallel.panels = panels;
      std::mutex mutex;
      std::map<std::string, std::vector<int>> holders;
      comm::run_on_threads(p.ranks(), {.timeout_s = 60}, [&](comm::World& world) {
        Rig rig(world, on_ranks(c, p.ranks(), p.kv));
        rig.batch.sequences = p.q;
        const parallel::EmbeddingSpec table{
            .vocab = kVocab, .d_model = kHidden, .positions = kLength, .vocab_multiple = 48};
        const auto embedding = rig.strategy->embedding(rig.store.add_group("embedding"), table);
        const int group = rig.store.add_group("block");
        const auto norm = rig.strategy->norm(0, group, {.name = "norm", .width = kHidden});
        std::vector<std::unique_ptr<parallel::Linear>> linears;
        for (const LinearSpec& each : specs) linears.push_back(rig.strategy->linear(0, group, each));
        const auto head = rig.strategy->head(1, rig.store.add_group("head"), table, /*tied=*/false);
        rig.store.allocate(true);

        const MeshShape shape = p.shape();
        const int64_t row = shape.index(world.rank(), shape.set("row")),
                      col = shape.index(world.rank(), shape.set("col"));
        const parallel::Tile tile = rig.tile(kHidden);
        EXPECT_EQ(tile.first_row, row * kLength);
        EXPECT_EQ(tile.rows, kLength);
        EXPECT_EQ(tile.first_col, col * kHidden / p.q);
        EXPECT_EQ(tile.cols, kHidden / p.q);
        const parallel::AttentionTile attention = rig.strategy->attention_tile(0, rig.batch, kHeads, kHeads);
        EXPECT_EQ(attention.first_sequence, row);
        EXPECT_EQ(attention.sequences, 1);
        EXPECT_EQ(attention.first_head, col * kHeads / p.q);
        EXPECT_EQ(attention.heads, kHeads / p.q);
        const std::lock_guard lock(mutex);
        for (const params::Param& param : rig.store.params()) {
          std::vector<int>& count = holders[param.name];
          count.resize(static_cast<size_t>(param.count()));
          for (const mesh::Run& run : param.runs)
            for (int64_t i = 0; i < run.length; ++i) ++count.at(static_cast<size_t>(run.global + i));
        }
      });
      ASSERT_EQ(holders.size(), 2u + 2 + 12 + 1);
      for (const auto& [name, count] : holders) {
        const bool vector = name.ends_with(".bias") || name.ends_with(".gain") || name == "wpe";
        const int64_t copies = p.data * p.depth * (vector ? p.q : 1);
        EXPECT_EQ(count, std::vector<int>(count.size(), static_cast<int>(copies))) << name;
      }
    }
}

}  // namespace
}  // namespace trainer::pieces
