// The rules of shardings compared with a brute-force check that splits ranges and inspects the parts.
#include "sharding/rules.h"

#include <gtest/gtest.h>

#include "rigs/draws.h"

namespace trainer::sharding {
namespace {

/// Random draws with a printed seed.
using tests::Draws;

/// Adds each axis but "data" to one of the sets, or to none.
template <size_t n>
void scatter(Draws& draw, size_t axes, AxisSet* const (&sets)[n]) {
  for (size_t a = 1; a < axes; ++a)
    if (const int64_t choice = draw.below(n + 1); choice < static_cast<int64_t>(n)) *sets[choice] |= AxisSet{1} << a;
}

constexpr Site kSites[] = {Site::qkv, Site::out, Site::up, Site::down};

ModelSharding random_sharding(Draws& draw, int64_t n_layer) {
  ModelSharding s;
  for (int64_t a = draw.below(3); a >= 0; --a)
    s.axes.push_back({std::string(1, static_cast<char>('a' + a)), draw.one_of<int64_t>({1, 2, 2, 3, 4})});
  const size_t axes = s.axes.size();
  s.layers.clear();
  for (int64_t left = n_layer; left > 0;) {
    Layer layer;
    for (Spread* spread : {&layer.stream, &layer.attention, &layer.mlp})
      scatter(draw, axes, {&spread->rows, &spread->cols});
    for (const Site site : kSites) {
      LinearSharding& l = layer.at(site);
      scatter(draw, axes, {&l.rows, &l.cols, &l.contraction, &l.flat});
      l.rows |= l.flat;
    }
    if (draw.below(4) == 0) scatter(draw, axes, {&layer.experts});
    if (draw.below(4) != 0) layer.experts &= layer.stream.rows & layer.mlp.rows & layer.at(Site::up).rows;
    if (draw.below(4) == 0) scatter(draw, axes, {&layer.context.axes});
    if (draw.below(4) != 0) layer.context.axes &= layer.attention.rows;
    layer.count = 1 + draw.below(left);
    left -= layer.count;
    s.layers.push_back(layer);
  }
  s.head = draw.below(2) == 0 ? s.layers.back().stream : Spread{};
  scatter(draw, axes, {&s.table.vocab, &s.table.width, &s.table.flat});
  return s;
}

/// Splits [0, n) at floor(n · i / ranks), and returns true if all pieces are equal and not empty.
bool cuts_evenly(int64_t n, int64_t ranks) {
  for (int64_t i = 0; i < ranks; ++i)
    if (n * (i + 1) / ranks - n * i / ranks != n / ranks || n / ranks * ranks != n) return false;
  return true;
}

/// True if heads divide over all ranks, or a factor of an axis forms as many groups of ranks as there are heads.
bool heads_can_be_shared(const ModelSharding& s, AxisSet cols, int64_t heads) {
  if (cuts_evenly(heads, s.ranks(cols))) return true;
  int64_t outer = 1;
  for (size_t a = 0; a < s.axes.size(); ++a) {
    if ((cols >> a & 1) == 0) continue;
    for (int64_t factor = 1; factor <= s.axes[a].size; ++factor)
      if (s.axes[a].size % factor == 0 && outer * factor == heads) return true;
    outer *= s.axes[a].size;
  }
  return false;
}

bool is_legal(const ModelSharding& s, const Extents& e) {
  bool legal = true;
  const auto require = [&](bool holds) { legal = legal && holds; };
  const auto even = [&](int64_t n, AxisSet axes) { require(cuts_evenly(n, s.ranks(axes))); };
  const int64_t rows = e.micro_batch * e.seq_len, head_dim = e.head_dim > 0 ? e.head_dim : e.d_model / e.n_head;
  for (int64_t l = 0; l < e.n_layer; ++l) {
    const Layer& layer = s.layer(l);
    even(rows, layer.stream.rows);
    even(e.d_model, layer.stream.cols);
    even(e.micro_batch, layer.attention.rows & ~layer.context.axes);
    require(s.ranks(layer.context.axes) == 1 || cuts_evenly(e.seq_len, 2 * s.ranks(layer.context.axes)));
    for (size_t a = 0; a < s.axes.size(); ++a) {
      const auto on = [&](AxisSet set) { return s.axes[a].size > 1 && (set >> a & 1) != 0; };
      require(!on(layer.context.axes) || on(layer.attention.rows));
      for (const Layer& other : s.layers)  // one order of rows
        require(s.ranks(layer.context.axes) == 1 || (on(layer.context.axes) == on(other.context.axes) &&
                                                     on(layer.attention.rows) == on(other.attention.rows)));
    }
    even(e.n_head, layer.attention.cols);
    require(heads_can_be_shared(s, layer.attention.cols, e.n_kv_head));
    even(rows, layer.mlp.rows);
    const bool moe = e.n_expert > 0 && (l + 1) % e.moe_every == 0;
    const auto even_inside = [&](AxisSet axes) {
      even(moe ? e.d_expert : e.d_ff, axes);
      if (moe) even(e.d_shared, axes);
    };
    even_inside(layer.mlp.cols);
    for (size_t a = 0; moe && a < s.axes.size(); ++a) {
      const LinearSharding &up = layer.at(Site::up), &down = layer.at(Site::down);
      const auto on = [&](AxisSet set) { return (set >> a & 1) != 0; };
      require(s.axes[a].size == 1 || (!on(up.contraction) && !on(down.cols) && on(up.rows) == on(layer.mlp.rows) &&
                                      on(up.rows) == on(down.rows) && on(up.cols) == on(layer.mlp.cols) &&
                                      on(up.cols) == on(down.contraction)));
    }
    if (moe) even(e.n_expert, layer.experts);
    for (size_t a = 0; a < s.axes.size(); ++a) {
      const bool divided = (layer.experts >> a & 1) != 0 && s.axes[a].size > 1;
      const AxisSet rows_of_all =
          layer.stream.rows & layer.mlp.rows & layer.at(Site::up).rows & layer.at(Site::down).rows;
      require(!divided || (e.n_expert > 0 && (!moe || (rows_of_all >> a & 1) != 0)));
    }
    for (const Site site : kSites) {
      const LinearSharding& linear = layer.at(site);
      even(rows, linear.rows);
      if (site == Site::down)
        even_inside(linear.contraction);
      else
        even(site == Site::out ? e.n_head * head_dim : e.d_model, linear.contraction);
      if (site == Site::up)
        even_inside(linear.cols);
      else
        even(site == Site::qkv ? e.n_head * head_dim : e.d_model, linear.cols);
    }
    if (layer.at(Site::qkv).cols != layer.attention.cols) even(head_dim * e.n_kv_head, layer.at(Site::qkv).cols);
  }
  even(rows, s.head.rows);
  even(e.d_model, s.head.cols);
  if (e.vocab_multiple > 0) even(e.vocab_multiple, s.table.vocab);
  even(e.d_model, s.table.width);
  const auto has = [&](AxisSet set, size_t a) { return s.axes[a].size > 1 && (set >> a & 1) != 0; };
  AxisSet at_first = 0, at_last = 0;
  size_t outermost_shared = s.axes.size();
  for (size_t a = 0; a < s.axes.size(); ++a) {
    const bool cuts = has(s.table.vocab | s.table.width, a);
    require(!has(s.table.flat, a) || has(s.head.rows, a));
    if (!cuts && has(s.layer(0).stream.rows | s.table.flat, a)) at_first |= AxisSet{1} << a;
    if (!cuts && has(s.head.rows, a)) at_last |= AxisSet{1} << a;
    if (cuts && has(s.head.rows, a)) outermost_shared = std::min(outermost_shared, a);
  }
  even(rows, at_first);
  require(!e.tied || at_first == at_last);
  for (size_t a = 0; a < s.axes.size(); ++a)
    require((at_last >> a & 1) == 0 || outermost_shared == s.axes.size() || a < outermost_shared);
  return legal;
}

TEST(Rules, AgreeWithABruteForceOverRandomShardings) {
  int legal = 0, shared = 0;
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    Draws draw(seed, "sharding");
    Extents e{.n_layer = 1 + draw.below(3),
              .n_head = draw.one_of<int64_t>({2, 4, 6, 12}),
              .n_kv_head = 1,
              .d_model = 0,
              .d_ff = draw.one_of<int64_t>({8, 24, 36}),
              .vocab_multiple = draw.one_of<int64_t>({0, 2, 48}),
              .micro_batch = draw.one_of<int64_t>({1, 2, 4, 12}),
              .seq_len = draw.one_of<int64_t>({5, 12}),
              .tied = draw.below(2) == 0};
    e.n_kv_head = draw.one_of<int64_t>({1, 2, e.n_head});
    e.d_model = e.n_head * draw.one_of<int64_t>({1, 4});
    e.head_dim = draw.one_of<int64_t>({0, 3});
    const ModelSharding s = random_sharding(draw, e.n_layer);
    e.n_expert = draw.one_of<int64_t>({0, 0, 8});
    e.d_expert = draw.one_of<int64_t>({8, 12});
    e.d_shared = draw.one_of<int64_t>({0, 6});
    e.moe_every = 1 + draw.below(2);
    const bool expected = is_legal(s, e);
    EXPECT_EQ(violations(s, e).empty(), expected) << "seed " << seed;
    const std::optional<Violation> first = first_violation(s, e);
    ASSERT_EQ(first.has_value(), !expected) << "seed " << seed;
    if (first) {
      EXPECT_EQ(first->text(s), violations(s, e).front().text(s)) << "seed " << seed;
      const ModelSharding staged = add_stages(s, {.count = 2});
      EXPECT_EQ(first->text(s), first_violation(staged, e).value().text(staged)) << "seed " << seed;
    }
    legal += expected;
    shared += expected && s.ranks(s.layers.front().context.axes) > 1;
  }
  EXPECT_GT(legal, 300);
  EXPECT_GT(shared, 0);
}

/// Returns Optimus-2D's sharding of four sequences of 8 tokens over 2 x 2 ranks.
ModelSharding square(Transfer schedule) {
  ModelSharding s;
  s.axes = {{"data", 1}, {"row", 2}, {"col", 2}};
  const LinearSharding all{.rows = 2, .cols = 4, .flat = 2, .schedule = schedule};
  s.layers = {{.stream = {2, 4}, .attention = {2, 4}, .mlp = {2, 4}, .count = 2}};
  for (const Site site : kSites) s.layers[0].at(site) = all;
  s.head = {2, 4};
  s.table = {.vocab = 4, .flat = 2};
  return s;
}
constexpr Extents kExtents{.n_layer = 2,
                           .n_head = 4,
                           .n_kv_head = 4,
                           .d_model = 16,
                           .d_ff = 24,
                           .vocab_multiple = 8,
                           .micro_batch = 4,
                           .seq_len = 8};

TEST(Rules, OfARingAskForASquareInTheLinearAndAroundIt) {
  EXPECT_FALSE(first_violation(square(Transfer::ring), kExtents));
  const auto broken = [](const std::function<void(ModelSharding&)>& change) {
    ModelSharding s = square(Transfer::ring);
    change(s);
    const std::optional<Violation> first = first_violation(s, kExtents);
    return first && first->rule == Violation::Rule::ring;
  };
  EXPECT_TRUE(broken([](ModelSharding& s) { s.axes[1].size = 4; }));
  EXPECT_TRUE(broken([](ModelSharding& s) { s.layers[0].mlp = {2, 0}; }));
  EXPECT_TRUE(broken([](ModelSharding& s) { s.layers[0].at(Site::up).flat = 0; }));
  // The input of `down` may be stationary, that of qkv may not: q, k and v would be blocks of three matrices.
  EXPECT_FALSE(broken(
      [](ModelSharding& s) { std::swap(s.layers[0].at(Site::down).cols, s.layers[0].at(Site::down).contraction); }));
  EXPECT_TRUE(broken(
      [](ModelSharding& s) { std::swap(s.layers[0].at(Site::qkv).cols, s.layers[0].at(Site::qkv).contraction); }));
}

TEST(Rules, OfExpertsAskForWholeRowsAndOneSplit) {
  ModelSharding s = square(Transfer::at_once);
  Extents e = kExtents;
  e.n_expert = 4, e.d_expert = 6;
  const auto text = [&] {
    const std::optional<Violation> first = first_violation(s, e);
    return first ? first->text(s) : "";
  };
  EXPECT_NE(text().find("col splits columns of down"), std::string::npos) << text();
  LinearSharding& down = s.layers[0].at(Site::down);
  std::swap(down.cols, down.contraction);
  EXPECT_EQ(text(), "");
  e.d_expert = 5;
  EXPECT_NE(text().find("d_expert = 5 cannot"), std::string::npos) << text();
  e.d_expert = 6, e.d_shared = 7;
  EXPECT_NE(text().find("d_shared = 7 cannot"), std::string::npos) << text();
  e.d_shared = 0;
  s.layers[0].at(Site::up).schedule = Transfer::ring;
  EXPECT_NE(text().find("ring schedule of up"), std::string::npos) << text();
  s.layers[0].at(Site::up) = {};
  EXPECT_NE(text().find("must be split in the same way"), std::string::npos) << text();
}

TEST(Rules, OfDividedExpertsAskForDifferentRows) {
  ModelSharding s = square(Transfer::at_once);
  std::swap(s.layers[0].at(Site::down).cols, s.layers[0].at(Site::down).contraction);
  Extents e = kExtents;
  e.n_expert = 4, e.d_expert = 6;
  const auto text = [&] {
    const std::optional<Violation> first = first_violation(s, e);
    return first ? first->text(s) : "";
  };
  s.layers[0].experts = 2;
  EXPECT_EQ(text(), "");
  EXPECT_EQ(add_stages(s, {.count = 2}).layers[0].experts, 4u);
  e.n_expert = 5;
  EXPECT_NE(text().find("n_expert = 5 experts cannot"), std::string::npos) << text();
  e.n_expert = 0, e.d_ff = 24;
  EXPECT_NE(text().find("row divides experts, but the model has none"), std::string::npos) << text();
  e.n_expert = 4;
  s.layers[0].experts = 4;
  EXPECT_NE(text().find("divided along col, so ranks along col must have different token rows: col must"),
            std::string::npos)
      << text();
  s.layers[0].experts = 1;
  s.axes[0].size = 2;
  EXPECT_NE(text().find("divided along data"), std::string::npos) << text();
}

TEST(Rules, OfSharedSequencesAskForSegmentsRowsAndOneOrder) {
  ModelSharding s = square(Transfer::at_once);
  Extents e = kExtents;
  const auto text = [&] {
    const std::optional<Violation> first = first_violation(s, e);
    return first ? first->text(s) : "";
  };
  const auto remedy = [&] { return first_violation(s, e).value().remedy(s); };
  e.micro_batch = 3;
  EXPECT_NE(text().find("micro_batch = 3 sequences cannot"), std::string::npos) << text();
  s.layers[0].context.axes = 2;
  EXPECT_EQ(text(), "") << "sequences need not be whole where they are shared";
  e.seq_len = 6;
  EXPECT_EQ(text(),
            "2 ranks along row split the tokens of a sequence into 4 equal segments, which do not divide seq_len = 6");
  EXPECT_EQ(remedy(), "seq_len = 4 or 8 fits");
  e.seq_len = 2;
  EXPECT_EQ(remedy(), "seq_len = 4 fits");

  e = kExtents;
  s.layers[0].context.axes = 6;
  EXPECT_EQ(text(), "col splits the tokens of sequences, so it must split rows of attention");
  EXPECT_EQ(remedy(), "");
  s.layers[0].context.axes = 3;
  EXPECT_EQ(text(), "") << "an axis of one rank splits nothing";

  s.layers[0].count = 1;
  s.layers[0].context.axes = 2;
  s.layers.push_back(s.layers[0]);
  Layer &first = s.layers[0], &second = s.layers[1];
  second.context.schedule = Transfer::ring;
  EXPECT_EQ(text(), "") << "the order of rows does not depend on how keys and values reach a rank";
  second.context.axes = 0;
  EXPECT_EQ(text(),
            "blocks.1: attention must split rows along the same axes in all layers if sequences are shared, since a "
            "batch has one order of rows, but layers differ along row");
  EXPECT_EQ(remedy(), "");
  std::swap(first, second);
  EXPECT_TRUE(text().starts_with("blocks.0: ") && text().ends_with("differ along row")) << text();
  first = second;
  first.attention = {.rows = 6};
  EXPECT_TRUE(text().starts_with("blocks.1: ") && text().ends_with("differ along col")) << text();
  first.context.axes = second.context.axes = 0;
  EXPECT_EQ(text(), "") << "without shared sequences, layers may split attention in different ways";
}

// Numbers that divide the ranks, and with them the query heads.
TEST(Rules, NameNumbersOfKeyHeadsThatRanksCanSplitOrShare) {
  ModelSharding s = square(Transfer::at_once);
  s.axes[2].size = 8;
  const auto remedy = [&](int64_t heads) {
    const Violation violation{
        .rule = Violation::Rule::shares_heads, .extent = Extent::n_kv_head, .value = heads, .axes = 4};
    return violation.remedy(s);
  };
  EXPECT_EQ(remedy(3), "n_kv_head = 2 or 4 fits");
  EXPECT_EQ(remedy(6), "n_kv_head = 4 or 8 fits");
  EXPECT_EQ(remedy(12), "n_kv_head = 8 fits");
}

TEST(Rules, NameExtentRanksAxesAndWhatWouldFit) {
  Extents e = kExtents;
  e.d_ff = 25;
  const ModelSharding s = square(Transfer::at_once);
  const Violation first = first_violation(s, e).value();
  for (const char* part : {"d_ff = 25", "2 ranks along col", "between up and down"})
    EXPECT_NE(first.text(s).find(part), std::string::npos) << first.text(s);
  EXPECT_EQ(first.remedy(s), "d_ff = 24 or 26 fits");
}

TEST(OnMesh, SplitsTheAxisAlongWhichRanksShareHeads) {
  ModelSharding s;
  s.axes = {{"data", 2}, {"tensor", 8}};
  s.layers[0].attention.cols = 2;
  const ModelSharding split = on_mesh(s, 2);
  EXPECT_EQ(split.axes, (std::vector<Axis>{{"data", 2}, {"tensor0", 2}, {"tensor1", 4}}));
  EXPECT_EQ(split.find("tensor"), 6u);
  EXPECT_EQ(split.find("kv"), 2u);
  EXPECT_EQ(split.find("rep"), 4u);
  EXPECT_EQ(split.layers[0].attention.cols, 6u);
  EXPECT_EQ(on_mesh(s, 8), s) << "a head for each rank";
}

TEST(Anonymous, ForgetsNamesAndAxesOfOneRank) {
  ModelSharding a = square(Transfer::ring), b;
  b.axes = {{"data", 1}, {"x", 1}, {"y", 2}, {"z", 2}};
  const LinearSharding all{.rows = 4, .cols = 8, .contraction = 2, .flat = 4, .schedule = Transfer::ring};
  b.layers = {{.stream = {4, 8}, .attention = {4, 8}, .mlp = {4, 8}, .count = 1}};
  for (const Site site : kSites) b.layers[0].at(site) = all;
  b.layers.push_back(b.layers[0]);
  b.head = {4, 8};
  b.table = {.vocab = 8, .flat = 4};
  EXPECT_EQ(anonymous(a), anonymous(b));
  b.table.width = 2;
  EXPECT_EQ(anonymous(a), anonymous(b));
  b.table.flat = 8;
  EXPECT_NE(anonymous(a), anonymous(b));
}

TEST(DataAxis, IsFoundByName) {
  ModelSharding s;
  s.axes = {{"x", 2}, {"y", 1}, {"data", 1}, {"z", 3}};
  s.layers[0].stream.rows = 0b1001;
  EXPECT_EQ(s.replica_axis(), 2u);
  EXPECT_EQ(s.ranks_of_replica(), 6);
  EXPECT_EQ(s.depth(), 1);
  EXPECT_EQ(anonymous(s).axes, (std::vector<Axis>{{"", 2}, {"data", 1}, {"", 3}}));
  EXPECT_EQ(anonymous(s).layers[0].stream.rows, 0b101u);
  s.axes = {{"x", 2}, {"replica", 4}, {"depth", 3}};
  s.groups = {{"data", 0b110}};
  EXPECT_EQ(s.replica_axis(), 1u);
  EXPECT_EQ(s.ranks_of_replica(), 6);
  EXPECT_EQ(s.depth(), 3);
}

}  // namespace
}  // namespace trainer::sharding
