// Embedding, head and norm for any sets of axes, compared with those of one rank.
#include "parallel/vocab.h"

#include <cstring>

#include "parallel/loss.h"
#include "parallel/row_order.h"
#include "unit/parallel/pieces_rig.h"

namespace trainer::pieces {
namespace {

using parallel::VocabSpread;

/// The axes over which a strategy splits rows, columns and the vocabulary, by name.
struct Layout {
  std::vector<mesh::MeshAxis> axes;
  std::vector<std::string> rows, cols, vocab, hidden, flat;
  mesh::MeshShape shape() const { return mesh::MeshShape(axes); }
  mesh::AxisSet set(const std::vector<std::string>& names) const {
    mesh::AxisSet all = 0;
    for (const std::string& name : names) all |= shape().set(name);
    return all;
  }
  int ranks() const { return shape().world_size(); }
  std::string text() const {
    std::string text;
    for (const mesh::MeshAxis& axis : axes) text += format("{}{} ", axis.name, axis.size);
    return text + fmt::format("vocab {} hidden {} flat {}", vocab.size(), hidden.size(), flat.size());
  }
};

/// Returns a rank's rig; for a layout without axes, that of one rank.
Rig rig_of(comm::World& world, const Layout& layout, DType type = DType::f64) {
  sharding::ModelSharding s;
  if (layout.axes.empty() || layout.axes[0].name != "data")
    s.axes = {{"data", 1}};
  else
    s.axes.clear();
  const size_t shift = s.axes.size();
  for (const mesh::MeshAxis& axis : layout.axes) s.axes.push_back({axis.name, axis.size});
  const auto set = [&](const std::vector<std::string>& names) { return layout.set(names) << shift; };
  s.layers.front().stream = s.head = {set(layout.rows), set(layout.cols)};
  s.layers.front().count = 3;
  s.table = {set(layout.vocab), set(layout.hidden), set(layout.flat)};
  return Rig(world, s, type);
}

std::vector<Layout> layouts() {
  return {
      {{{"t", 4}}, {"t"}, {}, {"t"}, {}, {}},                                   // Megatron's
      {{{"t", 2}}, {"t"}, {}, {"t"}, {}, {}},                                   //
      {{{"t", 3}}, {}, {}, {"t"}, {}, {}},                                      // rows are not split
      {{{"t", 4}}, {}, {}, {"t"}, {}, {}},                                      //
      {{{"a", 2}, {"t", 3}}, {}, {}, {"t"}, {}, {}},                            //   and copies along a
      {{{"z", 3}}, {"z"}, {}, {}, {}, {}},                                      // only rows
      {{{"z", 2}}, {"z"}, {}, {}, {}, {"z"}},                                   //   and a flat table
      {{{"row", 2}, {"col", 2}}, {"row"}, {"col"}, {"col"}, {}, {"row"}},       // Optimus'
      {{{"row", 3}, {"col", 3}}, {"row"}, {"col"}, {"col"}, {}, {"row"}},       //
      {{{"row", 4}, {"col", 4}}, {"row"}, {"col"}, {"col"}, {}, {"row"}},       //
      {{{"z", 2}, {"x", 2}, {"y", 2}}, {"z"}, {"y"}, {"x"}, {"y"}, {"z"}},      // AxoNN's
      {{{"z", 1}, {"x", 3}, {"y", 2}}, {"z"}, {"y"}, {"x"}, {"y"}, {"z"}},      //
      {{{"z", 2}, {"x", 2}, {"y", 2}}, {"z", "y"}, {}, {"x"}, {}, {"z", "y"}},  // whole columns
      {{{"a", 2}, {"b", 3}}, {"a", "b"}, {}, {}, {"b"}, {"a"}},                 // one axis splits rows and a table
      {{{"a", 2}, {"b", 2}}, {"a", "b"}, {}, {"a"}, {"b"}, {}},                 //
      {{{"data", 2}, {"row", 2}, {"col", 2}}, {"row"}, {"col"}, {"col"}, {}, {"row"}},  // replicas
      {{{"data", 2}, {"t", 2}}, {"t"}, {}, {"t"}, {}, {}},                              //
      {{{"data", 3}, {"z", 2}, {"y", 2}}, {"z"}, {"y"}, {}, {"y"}, {}},                 //
  };
}

constexpr int64_t kVocab = 37, kWidth = 12;

/// First and last tokens of blocks, some repeated: a table of 48 rows is split into 2, 3 or 4 blocks, perhaps stored
/// flat.
constexpr int32_t kEdges[kRows] = {0, 11, 12, 35, 36, 23, 24, 36, 15, 16, 31, 32,
                                   5, 5,  5,  36, 35, 24, 23, 1,  2,  3,  0,  36};

/// Returns results of embedding and head, both gradients and the logits of one row, for `replicas` times kSequences
/// sequences. The head's features are at most `size`. `order`: the natural row of each stored row; empty: its own.
Named vocabulary(const Layout& layout, int64_t replicas, bool tied, double size, const parallel::RowOrder& order = {}) {
  const bool dense = layout.axes.empty();
  return on_ranks(layout.ranks(), [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig = rig_of(world, layout);
    const int64_t sequences = dense ? kSequences * replicas : kSequences, rows = sequences * kLength;
    const int64_t first = dense ? 0 : rig.store.replicas().index() * kRows;  // the first of this replica's rows
    rig.batch.sequences = sequences;
    const parallel::EmbeddingSpec spec{.vocab = kVocab, .d_model = kWidth, .positions = kLength, .vocab_multiple = 48};
    const auto embedding = rig.strategy->embedding(rig.store.add_group("embedding"), spec);
    const auto head = rig.strategy->head(3, rig.store.add_group("head"), spec, tied);
    rig.ready();
    fill_weights(rig.store, false);
    std::vector<int32_t> ids, targets;
    ops::RowsByToken sorted, sorted_positions;
    std::vector<int32_t> positions = order.positions(), natural = order.rows();
    const Scratch weights = rig.ex.take("weights", {rows}, DType::f64);
    for (int64_t stored = 0; stored < rows; ++stored) {
      const int64_t r = first + (natural.empty() ? stored : natural[static_cast<size_t>(stored)]);
      const bool masked = r % 5 == 2;
      ids.push_back(kEdges[r % kRows]);
      targets.push_back(masked ? -100 : kEdges[r * 7 % kRows]);
      set(weights, stored, masked ? 0 : 1);
    }
    const auto view = [](std::vector<int32_t>& values) {
      return values.empty() ? Tensor()
                            : Tensor{reinterpret_cast<std::byte*>(values.data()), {std::ssize(values)}, DType::i32};
    };
    embedding->sort(ids, sorted);
    embedding->sort_positions(positions, sorted_positions);
    rig.batch.ids = view(ids);
    rig.batch.sorted = view(sorted.rows);
    rig.batch.targets = view(targets);
    rig.batch.order = view(natural);
    rig.batch.positions = view(positions);
    rig.batch.sorted_positions = view(sorted_positions.rows);
    rig.batch.weights = weights;

    const parallel::Tile tile = rig.tile(kWidth);
    Piece piece{first + tile.first_row, tile.first_col, kWidth};
    if (!natural.empty())
      piece = {first, tile.first_col, kWidth,
               std::span(natural).subspan(static_cast<size_t>(tile.first_row), static_cast<size_t>(tile.rows))};
    const Shape shape{tile.rows, tile.cols};
    const Scratch y = embedding->forward(rig.ex, rig.batch);
    const Scratch x = local(rig, "x", shape, piece, false), dy = local(rig, "dy", shape, piece, false);
    for (int64_t i = 0; i < shape.count(); ++i) set(x, i, size * get(x, i));
    const Scratch dx = rig.backward(*embedding, *head, x, dy);
    const Scratch again = rig.ex.take("again", rig.losses.tensor().shape, DType::f64);
    head->loss(rig.ex, rig.batch, x, {again});  // without gradients: the same losses
    const Scratch row = local(rig, "row", {1, tile.cols}, {0, tile.first_col, kWidth}, false);
    const Scratch logits = head->logits(rig.ex, row);

    const std::lock_guard lock(mutex);
    const int64_t total = kRows * replicas;
    collect(all, "y", y, piece, total);
    collect(all, "dx", dx, piece, total);
    collect_gradients(all, rig.store);
    const mesh::MeshShape& mesh = rig.mesh.shape();
    const mesh::AxisSet counted = head->loss_axes() | (mesh.has("data") ? mesh.set("data") : 0);
    if (mesh.index(world.rank(), mesh.all() & ~counted) == 0) {
      all["loss"].resize(2);
      for (const double each : rig.losses.tensor().span<double>()) all["loss"][0] += each;
      all["loss"][1] += parallel::sum_of_losses(rig.ex, again);
    }
    Scratch real = rig.ex.take("real", {1, kVocab}, DType::f64);
    for (int64_t v = 0; v < kVocab; ++v) set(real, v, get(logits, v));
    collect(all, "logits", real, {0, 0, kVocab}, 1);
  });
}

/// Returns the order of rows of three ranks that share sequences.
parallel::RowOrder order_of_three() {
  sharding::ModelSharding sharding;
  sharding.axes = {{"data", 1}, {"context", 3}};
  sharding.layers.front().attention.rows = sharding.layers.front().context.axes = 0b10;
  return {sharding, kSequences, kLength};
}

/// Expects the values of `dense`. Replicas hold equal gradients, summed over all of them.
void expect_same(const Named& cut, const Named& dense, double tolerance) {
  ASSERT_EQ(cut.size(), dense.size());
  for (const auto& [name, values] : dense) {
    ASSERT_EQ(cut.at(name).size(), values.size()) << name;
    EXPECT_LE(difference(cut.at(name), values), tolerance) << name;
  }
}

TEST(Vocabulary, EmbeddingAndHeadEqualThoseOfOneRankInAnySpread) {
  // Unless the largest logit of all ranks is subtracted, exponentials of logits of a thousand overflow.
  for (const Layout& layout : layouts())
    for (const auto& [tied, size] : {std::pair{true, 1.0}, {false, 1.0}, {false, 1e3}}) {
      SCOPED_TRACE(format("{}, tied {}, features of {}", layout.text(), tied, size));
      const int64_t replicas = layout.shape().has("data") ? layout.axes[0].size : 1;
      const Named dense = vocabulary({}, replicas, tied, size);
      Named cut = vocabulary(layout, replicas, tied, size), again = vocabulary(layout, replicas, tied, size);
      EXPECT_EQ(cut.at("y"), dense.at("y"));  // only one partial sum of each element is not zero
      expect_same(cut, dense, 1e-13 * size);
      for (Named* each : {&cut, &again}) each->erase("loss");  // added here, in the order in which ranks finish
      EXPECT_TRUE(cut == again) << "twice the same";
      if (size > 1) continue;
      const Named ordered = vocabulary(layout, replicas, tied, size, order_of_three());
      EXPECT_EQ(ordered.at("y"), dense.at("y"));
      expect_same(ordered, dense, 1e-13);
    }
}

TEST(Vocabulary, FlatPiecesOverRanksWithTheSameRowsAreRejected) {
  EXPECT_THROW(vocabulary({{{"z", 2}}, {}, {}, {}, {}, {"z"}}, 1, true, 1), Error);
}

/// Returns y, also recomputed, dx added to a residual, and both gradients of a norm in the residual stream of `layout`;
/// its input has a deviation of 1 about `mean`.
Named norm(const Layout& layout, bool center, DType type, double mean = 0) {
  constexpr int64_t kHidden = 24;
  return on_ranks(layout.ranks(), [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig = rig_of(world, layout, type);
    const auto norm = rig.strategy->norm(0, rig.store.add_group("g"),
                                         {.name = "norm", .width = kHidden, .center = center, .bias = center});
    rig.ready();
    fill_weights(rig.store, false);
    const parallel::Tile tile = rig.tile(kHidden);
    const Piece piece{tile.first_row, tile.first_col, kHidden};
    const Shape shape{tile.rows, tile.cols};
    const Scratch x = local(rig, "x", shape, piece, false), dy = local(rig, "dy", shape, piece, false),
                  residual = local(rig, "residual", shape, piece, false);
    // Rounded to single precision, in every type.
    for (int64_t i = 0; i < shape.count(); ++i) set(x, i, static_cast<float>(mean + std::sqrt(3.0) * get(x, i)));
    parallel::NormStats stats;
    const Scratch y = norm->forward(rig.ex, x, &stats), again = norm->forward(rig.ex, x, &stats),
                  unkept = norm->forward(rig.ex, x, nullptr);
    const Scratch dx = norm->backward(rig.ex, dy, x, stats, residual, *rig.sink);
    rig.done();
    const std::lock_guard lock(mutex);
    collect(all, "y", y, piece, kRows);
    collect(all, "y", again, piece, kRows);  // in every bit
    collect(all, "y", unkept, piece, kRows);
    collect(all, "dx", dx, piece, kRows);
    collect_gradients(all, rig.store);
  });
}

TEST(Norms, OverColumnsThatRanksShareEqualThoseOfWholeRows) {
  const Layout cut[] = {
      {{{"y", 2}}, {}, {"y"}, {}, {}, {}},
      {{{"y", 3}}, {}, {"y"}, {}, {}, {}},
      {{{"row", 2}, {"col", 2}}, {"row"}, {"col"}, {}, {}, {}},
      {{{"z", 3}, {"x", 2}, {"y", 4}}, {"z"}, {"y"}, {}, {}, {}},  // copies along x
      {{{"z", 4}}, {"z"}, {}, {}, {}, {}},
  };
  for (const bool center : {true, false}) {
    const Named dense = norm({}, center, DType::f64);
    for (const Layout& layout : cut) {
      SCOPED_TRACE(layout.text() + (center ? "layer norm" : "RMS norm"));
      const Named found = norm(layout, center, DType::f64);
      expect_same(found, dense, 1e-13);
      EXPECT_TRUE(found == norm(layout, center, DType::f64)) << "twice the same";
      expect_same(norm(layout, center, DType::f32), dense, 2e-6);
    }
  }
}

/// The results of a head in bf16 on one rank.
struct HeadResults {
  std::vector<std::byte> losses, z_terms, dx;
  Values dtable;
};
/// Passes 602 rows to a head, `rows` at a time, with a vocabulary of which logits of 256 rows are computed at a time.
HeadResults head_in_bf16(int64_t rows, bool copies) {
  constexpr int64_t kAll = 602, kTokens = 50000, kFeatures = 16;
  HeadResults results;
  on_ranks(1, [&](comm::World& world, Named& all, std::mutex&) {
    Rig rig = rig_of(world, {}, DType::bf16);
    const auto head = rig.strategy->head(3, rig.store.add_group("head"),
                                         {.vocab = kTokens, .d_model = kFeatures, .logit_softcap = 3}, /*tied=*/false);
    rig.store.allocate(true);
    rig.store.weights().expect_micro_batches(copies ? 3 : 1);
    if (!copies) rig.store.weights().save_memory_if_few();
    fill_weights(rig.store, false);
    rig.store.refresh_compute();
    rig.sink = std::make_unique<GradSink>(rig.store);
    rig.sink->prepare(rig.device);
    rig.sink->begin_step();
    std::vector<bf16> features(kAll * kFeatures);
    std::vector<int32_t> targets(kAll);
    for (size_t i = 0; i < features.size(); ++i) features[i] = bf16(draw("features", static_cast<int64_t>(i), false));
    for (size_t i = 0; i < targets.size(); ++i) targets[i] = static_cast<int32_t>(i * 7919 % kTokens);
    const Scratch weights = rig.ex.take("weights", {kAll}, DType::f32);
    for (int64_t r = 0; r < kAll; ++r) set(weights, r, r % 5 == 2 ? 0 : 1);
    const Tensor x{reinterpret_cast<std::byte*>(features.data()), {kAll, kFeatures}, DType::bf16};
    const Tensor all_targets{reinterpret_cast<std::byte*>(targets.data()), {kAll}, DType::i32};
    const auto append = [](std::vector<std::byte>& to, const Tensor& t) {
      to.insert(to.end(), t.data, t.data + t.bytes());
    };
    rig.batch.seq_len = 2;
    rig.batch.sequences = rows / rig.batch.seq_len;
    rig.batch.z_loss = 1e-3;
    for (int64_t first = 0; first < kAll; first += rows) {
      rig.sink->begin_micro(first + rows == kAll);
      rig.batch.targets = all_targets.range(first, rows);
      rig.batch.weights = weights.tensor().range(first, rows);
      const Scratch losses = rig.ex.take("losses", {2 * rows}, DType::f64),
                    again = rig.ex.take("losses", {2 * rows}, DType::f64);
      Scratch dx;
      const auto terms = [&](const Tensor& both) {
        return parallel::Losses{both.range(0, rows), both.range(rows, rows)};
      };
      head->loss_backward(rig.ex, rig.batch, x.row_range(first, rows), terms(losses), dx, *rig.sink);
      rig.sink->end_group(rig.ex, 0);
      rig.sink->end_micro(rig.ex);
      head->loss(rig.ex, rig.batch, x.row_range(first, rows), terms(again));
      EXPECT_EQ(std::memcmp(losses.tensor().data, again.tensor().data, static_cast<size_t>(losses.tensor().bytes())),
                0);
      append(results.losses, losses.tensor().range(0, rows));
      append(results.z_terms, losses.tensor().range(rows, rows));
      append(results.dx, dx);
    }
    rig.sink->finish(rig.ex);
    collect_gradients(all, rig.store);
    results.dtable = all.begin()->second;
  });
  return results;
}

TEST(Head, LogitsOfAFewRowsAtATimeGiveTheBitsOfAllRows) {
  const HeadResults apart = head_in_bf16(86, true);
  for (const bool copies : {true, false}) {
    const HeadResults parts = head_in_bf16(602, copies);  // parts of 201, 201 and 200 rows
    EXPECT_EQ(parts.losses, apart.losses);
    EXPECT_EQ(parts.z_terms, apart.z_terms);
    EXPECT_EQ(parts.dx, apart.dx);
    EXPECT_LE(difference(parts.dtable, apart.dtable), 1e-5) << "only the order of its sums in f32 differs";
  }
}

TEST(Head, ComputesLogitsInEqualPartsOnlyWhereThatSavesMemory) {
  using device::Isa;
  const auto part = [](Isa isa, int64_t rows, int64_t padded, DType compute = DType::bf16, bool unshared = true) {
    return parallel::head_part(device::DryDevice(1, isa), rows, padded, compute, unshared);
  };
  EXPECT_EQ(part(Isa::avx512bf16, 1280, 50304), 256);  // 48 MiB hold 250 rows
  EXPECT_EQ(part(Isa::avx512bf16, 513, 50304), 171);
  EXPECT_EQ(part(Isa::avx512bf16, 512, 50304), 512) << "two parts and the gradients take as much as all logits";
  EXPECT_EQ(part(Isa::avx512bf16, 4096, 4096), 4096);
  EXPECT_EQ(part(Isa::avx512bf16, 16384, 4096), 2731);  // 48 MiB hold 3072 rows
  EXPECT_EQ(part(Isa::avx512bf16, 1280, 50304, DType::f32), 1280);
  EXPECT_EQ(part(Isa::avx512bf16, 1280, 50304, DType::bf16, false), 1280);
  for (const Isa other : {Isa::plain, Isa::avx2, Isa::avx512, Isa::amx}) EXPECT_EQ(part(other, 1280, 50304), 1280);
  device::cuda::Facts facts;
  facts.memory_bytes = int64_t{80} << 30;
  EXPECT_EQ(parallel::head_part(device::DryDevice(facts, 1), 1280, 50304, DType::bf16, true), 1280);
}

TEST(HeadChunks, AreEqualAndGrowWithTheMemoryOfASingleGpu) {
  constexpr int64_t kRows = 32768, kPadded = 50304;
  const auto gpu = [](int64_t gib) {
    device::cuda::Facts facts;
    facts.memory_bytes = gib << 30;
    return device::DryDevice(facts, 1);
  };
  const auto chunk = [&](int64_t gib, bool unshared) {
    return parallel::head_chunk(gpu(gib), kRows, kPadded, DType::bf16, unshared);
  };
  EXPECT_EQ(chunk(140, true), kRows / 2);  // 4.4 GiB hold 23,347 rows of f32
  EXPECT_EQ(chunk(80, true), 10944);       // three chunks of at most 13,341 rows, a multiple of 64
  EXPECT_EQ(chunk(8, true), 4736);         // 1 GiB holds 5,336 rows: seven chunks
  EXPECT_EQ(chunk(140, false), chunk(8, false)) << "ranks of other memory take part";
  EXPECT_EQ(parallel::head_chunk(gpu(80), 1000, kPadded, DType::bf16, true), 1000);
  const device::DryDevice cpu(1);
  EXPECT_EQ(parallel::head_chunk(cpu, kRows, kPadded, DType::bf16, true), 1280);  // 256 MiB hold 1,334 rows
}

TEST(Norms, OverSharedColumnsKeepTheirDigitsFarFromZero) {
  // A variance from mean(x²) − mean(x)² has no digit left at 1e3 in single precision.
  const Named dense = norm({}, true, DType::f64, 1e3);
  for (const Layout& layout :
       {Layout{{{"y", 2}}, {}, {"y"}, {}, {}, {}}, Layout{{{"row", 2}, {"col", 2}}, {"row"}, {"col"}, {}, {}, {}},
        Layout{{{"row", 3}, {"col", 3}}, {"row"}, {"col"}, {}, {}, {}},
        Layout{{{"row", 4}, {"col", 4}}, {"row"}, {"col"}, {}, {}, {}}}) {
    SCOPED_TRACE(layout.text());
    expect_same(norm(layout, true, DType::f32, 1e3), dense, 1e-4);
  }
}

}  // namespace
}  // namespace trainer::pieces
