// Linears on many ranks compared with one rank: GridLinear for every sharding spec on meshes of two and three axes, and
// SummaLinear on square meshes.
#include "parallel/grid_linear.h"

#include <atomic>

#include "parallel/summa.h"
#include "unit/parallel/pieces_rig.h"

namespace trainer::pieces {
namespace {

using parallel::GridLinear;
using parallel::LinearSpec;
using parallel::Site;
using parallel::SummaLinear;
using sharding::LinearSharding;

/// Returns the axes whose letter is one of `letters`; `word` has one letter per axis of the mesh.
mesh::AxisSet axes_of(const std::string& word, std::string_view letters) {
  mesh::AxisSet found = 0;
  for (size_t a = 0; a < word.size(); ++a)
    if (letters.find(word[a]) != std::string_view::npos) found |= mesh::AxisSet{1} << a;
  return found;
}
Spread spread_of(const std::string& word) { return {axes_of(word, "r"), axes_of(word, "c")}; }
LinearSharding grid_of(const std::string& word) {
  return {.rows = axes_of(word, "rf"),
          .cols = axes_of(word, "c"),
          .contraction = axes_of(word, "k"),
          .flat = axes_of(word, "f")};
}

/// The use of a linear: the sites of both families with their fusions, and grouped heads that ranks may have to share.
enum class Use { qkv, out, up, gated, down };
constexpr Use kUses[] = {Use::qkv, Use::out, Use::up, Use::gated, Use::down};

using Extents = std::vector<int>;  // sizes of the axes a, b, c

struct Case {
  std::string grid, from, to;  // letters of config/sharding_spec.h
  bool ring = false;           // SUMMA
  int64_t kv_heads = 2;
  std::string text() const { return format("{} -> {} -> {}{}", from, grid, to, ring ? " by a ring" : ""); }
};

/// Returns a linear whose extents divide over the ranks of the mesh: two axes of 2 or 3 ranks, or three axes.
LinearSpec spec_of(Use use, const Extents& extents, int64_t kv_heads) {
  const bool cube = extents.size() == 3;
  const int64_t hidden = cube ? 16 : 12, q = cube ? 64 : 72, heads = cube ? 16 : 12, kv = cube ? 8 : 12;
  switch (use) {
    case Use::qkv:
      return {.site = Site::qkv,
              .in = hidden,
              .parts = {{"q", q, heads}, {"k", kv, kv_heads}, {"v", kv, kv_heads}},
              .bias = true};
    case Use::out:
      return {.site = Site::out, .in = cube ? 40 : 36, .parts = {{"o", hidden}}, .bias = true};
    case Use::up:
      return {.site = Site::up, .in = hidden, .parts = {{"up", 24}}, .bias = true};
    case Use::gated:
      return {.site = Site::up, .in = hidden, .parts = {{"gate", 24}, {"up", 24}}};
    default:
      return {.site = Site::down, .in = 24, .parts = {{"down", hidden}}, .bias = true};
  }
}

/// The columns of a part that a rank has: whole heads, or one head that several ranks share.
struct Columns {
  int64_t first, count, sharers, sharer;
};
Columns columns_of(const parallel::LinearPart& part, int64_t ranks, int64_t index) {
  if (part.heads == 0 || part.heads % ranks == 0) return {index * part.width / ranks, part.width / ranks, 1, 0};
  const int64_t sharers = ranks / part.heads, width = part.width / part.heads;
  return {index / sharers * width, width, sharers, index % sharers};
}

/// The elements of a named tensor that a rank holds.
struct Held {
  std::string name;
  int64_t count;  // elements of the whole tensor
  std::vector<int64_t> at;
  Values values;
  bool operator==(const Held&) const = default;
};
using HeldAll = std::vector<Held>;

void hold(HeldAll& all, const std::string& name, const Tensor& t, Piece place) {
  Held held{name, kRows * place.width, {}, {}};
  for (int64_t r = 0; r < t.rows(); ++r)
    for (int64_t c = 0; c < t.cols(); ++c) {
      held.at.push_back((place.first_row + r) * place.width + place.first_col + c);
      held.values.push_back(get(t, r * t.ld() + c));
    }
  all.push_back(std::move(held));
}
void hold_gradients(HeldAll& all, const ParamStore& store) {
  for (const params::Param& param : store.params()) {
    Held held{"d" + param.name, param.count(), {}, {}};
    const Tensor flat = store.groups()[static_cast<size_t>(param.group)].grad;
    for (const mesh::Run& run : param.runs)
      for (int64_t i = 0; i < run.length; ++i) {
        held.at.push_back(run.global + i);
        held.values.push_back(get(flat, run.local + i * run.stride));
      }
    all.push_back(std::move(held));
  }
}

/// A rank's objects, used by one case after another.
struct RankOfCases {
  RankOfCases(comm::World& world, const Extents& all) : extents(all), mesh(world, device, shape_of(all)) {}
  static mesh::MeshShape shape_of(const Extents& extents) {
    std::vector<mesh::MeshAxis> axes;
    for (const int extent : extents) axes.push_back({std::string(1, static_cast<char>('a' + axes.size())), extent});
    return mesh::MeshShape(axes);
  }
  const Extents extents;
  device::CpuDevice device{1};
  mesh::Mesh mesh;
  Arena arena{device, Arena::Mode::heap};
  Meter meter;
  Exec ex{device, arena, meter};
};

/// Returns a rank's y, input of the activation, dx and gradients after one pass of a linear; on a mesh of one rank, the
/// linear is not sharded.
HeldAll pass(RankOfCases& place, const Case& c, Use use, bool integers, DType type, bool overlap) {
  const mesh::MeshShape& shape = place.mesh.shape();
  const bool single = shape.world_size() == 1;
  const LinearSpec spec = spec_of(use, place.extents, c.kv_heads);
  const LinearSharding grid = single ? LinearSharding() : grid_of(c.grid);
  const Spread from = single ? Spread{} : spread_of(c.from), to = single ? Spread{} : spread_of(c.to);
  ParamStore store(place.device, type, &place.mesh);
  const parallel::Ranks ranks = single ? parallel::Ranks() : parallel::Ranks(place.mesh, overlap);
  const int group = store.add_group("g");
  std::unique_ptr<parallel::Linear> linear;
  if (c.ring && !single) {
    linear = std::make_unique<SummaLinear>(ranks, store, group, spec, grid);
  } else {
    linear = std::make_unique<GridLinear>(ranks, store, group, spec, GridLinear::Place{grid, from, to});
  }
  store.allocate(true);
  GradSink sink(store, {.overlap = overlap});
  sink.prepare(place.device);
  sink.begin_step();
  sink.begin_micro(true);
  fill_weights(store, integers);

  Exec& ex = place.ex;
  const parallel::Rows rows{kRows};
  const auto piece = [&](const char* name, Shape shape_here, Piece at) {
    Scratch t = ex.take(name, shape_here, type);
    for (int64_t r = 0; r < shape_here[0]; ++r)
      for (int64_t i = 0; i < shape_here[1]; ++i)
        set(t, r * shape_here[1] + i, draw(name, (at.first_row + r) * at.width + at.first_col + i, integers));
    return t;
  };
  const parallel::Tile in = ranks.tile(from, rows, spec.in);
  const Piece x_at{in.first_row, in.first_col, spec.in};
  const Scratch x = piece("x", {in.rows, in.cols}, x_at);
  const int64_t sharers = ranks.size(to.cols), index = ranks.index(to.cols);
  const parallel::Tile out = ranks.tile(to, rows, sharers);
  int64_t width = 0;
  for (const auto& part : spec.parts) width += columns_of(part, sharers, index).count;
  const Piece y_at{out.first_row, index * width, width * sharers};

  Scratch residual, pre;
  parallel::ForwardFusion fusion;
  if (use == Use::out || use == Use::down) {
    residual = piece("residual", {out.rows, width}, y_at);
    fusion.residual = residual;
  }
  if (use == Use::down)
    fusion.dropout = {.p = 0.5,
                      .key = philox_key(3, "mask"),
                      .first_row = y_at.first_row,
                      .first_col = y_at.first_col,
                      .width = y_at.width};
  if (use == Use::up) {
    fusion.act = ops::Activation::gelu;
    fusion.pre = &pre;
  }
  const Scratch y = linear->forward(ex, rows, x, fusion);

  const Scratch dy = ex.take("dy", {out.rows, width}, type);
  int64_t col = 0;
  for (const auto& part : spec.parts) {
    // Ranks that share a head hold partial sums: the gradient plus one, minus one, and zeros.
    const Columns at = columns_of(part, sharers, index);
    const double more = at.sharers == 1 ? 0 : at.sharer == 0 ? 1 : at.sharer == 1 ? -1 : 0;
    for (int64_t i = 0; i < at.count; ++i, ++col)
      for (int64_t r = 0; r < out.rows; ++r) {
        const double value = draw("d" + part.name, (out.first_row + r) * part.width + at.first + i, integers);
        set(dy, r * width + col, (at.sharer == 0 ? value : 0) + more);
      }
  }
  parallel::BackwardFusion through;
  Scratch gelu;
  if (use == Use::down) {
    gelu = piece("gelu", {in.rows, in.cols}, x_at);
    through = {.act = ops::Activation::gelu, .pre = gelu};
  }
  const Scratch dx = linear->backward(ex, rows, dy, x, through, sink, false);
  sink.end_group(ex, 0);
  sink.end_micro(ex);
  sink.finish(ex);

  HeldAll all;
  TRAINER_CHECK(dx.tensor().shape == x.tensor().shape, "dx {}", to_string(dx.tensor()));
  hold(all, "dx", dx, x_at);
  col = 0;
  for (const auto& part : spec.parts) {
    const Columns at = columns_of(part, sharers, index);
    const Piece here{out.first_row, at.first, part.width};
    hold(all, "y." + part.name, y.tensor().col_range(col, at.count), here);
    if (pre) hold(all, "pre." + part.name, pre.tensor().col_range(col, at.count), here);
    col += at.count;
  }
  hold_gradients(all, store);
  return all;
}

/// Returns the values of the linear on one rank, for comparison with a mesh of `axes` axes.
Named dense(Use use, size_t axes, bool integers, int64_t kv_heads = 2) {
  Named all;
  comm::run_on_threads(1, {}, [&](comm::World& world) {
    RankOfCases place(world, Extents(axes, 1));
    for (const Held& held : pass(place, {.kv_heads = kv_heads}, use, integers, DType::f64, true))
      all[held.name] = held.values;
  });
  return all;
}

/// Compares every element that a rank holds with those of one rank, relative to the largest element of its tensor.
void expect_near(const HeldAll& held, const Named& whole, double tolerance) {
  EXPECT_EQ(held.size(), whole.size());
  for (const Held& one : held) {
    const Values& expected = whole.at(one.name);
    ASSERT_EQ(static_cast<int64_t>(expected.size()), one.count) << one.name;
    double largest = 0, error = 0;
    for (const double value : expected) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < one.at.size(); ++i) {
      const double d = std::abs(one.values[i] - expected[static_cast<size_t>(one.at[i])]);
      if (!(d <= error)) error = d;
    }
    EXPECT_LE(error, tolerance * largest) << one.name;
  }
}

std::vector<std::string> words(std::string_view letters, size_t length) {
  std::vector<std::string> all = {""};
  for (; length > 0; --length) {
    std::vector<std::string> longer;
    for (const std::string& word : all)
      for (const char letter : letters) longer.push_back(word + letter);
    all = std::move(longer);
  }
  return all;
}

/// Returns every sharding spec on a mesh, each with every `stride`-th pair of spreads of input and output.
std::vector<Case> cases(Use use, const Extents& extents, size_t stride) {
  const std::vector<std::string> spreads = words("rc-", extents.size());
  std::vector<Case> all;
  size_t first = 0;
  for (const std::string& grid : words("rckf-", extents.size()))
    for (size_t n = first++ * 37 % stride; n < spreads.size() * spreads.size(); n += stride) {
      const Case c{grid, spreads[n / spreads.size()], spreads[n % spreads.size()]};
      // Three ranks cannot share two heads.
      const bool refused = use == Use::qkv && extents[1] == 3 && c.to[0] != 'c' && c.to[1] == 'c';
      if (!refused) all.push_back(c);
    }
  return all;
}

/// Returns SUMMA's cases: blocks over rows and columns; Y is stationary or, for `down`, X. On 4 x 4 ranks columns are
/// split over two axes, and two ranks share a key/value head.
std::vector<Case> rings(Use use, const Extents& extents) {
  const std::string spread = "r" + std::string(extents.size() - 1, 'c');
  const int64_t kv_heads = extents[0] == 3 ? 3 : 2;
  std::vector<Case> all = {{"f" + spread.substr(1), spread, spread, true, kv_heads}};
  if (use == Use::down) all.push_back({"f" + std::string(extents.size() - 1, 'k'), spread, spread, true, kv_heads});
  return all;
}

/// Runs the cases on the ranks of a mesh, and calls `check` for each of them.
template <typename F>
void on_mesh(Use use, const Extents& extents, const std::vector<Case>& all, const comm::WorldOptions& options,
             F&& check) {
  comm::run_on_threads(RankOfCases::shape_of(extents).world_size(), options, [&](comm::World& world) {
    RankOfCases place(world, extents);
    for (const Case& c : all) {
      SCOPED_TRACE(format("use {}, {} axes, the second {}, rank {}: {}", static_cast<int>(use), extents.size(),
                          extents[1], world.rank(), c.text()));
      check(place, c);
    }
  });
}
const Extents kSquares[] = {{2, 2}, {2, 3}}, kCube = {2, 2, 2}, kRings[] = {{2, 2}, {3, 3}, {4, 2, 2}};

TEST(GridLinear, EveryPairOfLettersEqualsOneRankBitForBitOnIntegers) {
  for (const Use use : kUses) {
    const Named whole = dense(use, 2, true);
    for (const Extents& extents : kSquares)
      on_mesh(use, extents, cases(use, extents, 10), {.timeout_s = 60}, [&](RankOfCases& place, const Case& c) {
        expect_near(pass(place, c, use, true, DType::f64, true), whole, 0);
      });
  }
}

TEST(GridLinear, EveryTripleOfLettersEqualsOneRankBitForBitOnIntegers) {
  for (const Use use : kUses) {
    const Named whole = dense(use, 3, true);
    on_mesh(use, kCube, cases(use, kCube, 365), {.timeout_s = 60}, [&](RankOfCases& place, const Case& c) {
      expect_near(pass(place, c, use, true, DType::f64, true), whole, 0);
    });
  }
}

TEST(GridLinear, EveryPairOfLettersStaysNearOneRank) {
  for (const Use use : kUses) {
    const Named whole = dense(use, 2, false);
    for (const Extents& extents : kSquares)
      on_mesh(use, extents, cases(use, extents, 40), {.timeout_s = 60}, [&](RankOfCases& place, const Case& c) {
        expect_near(pass(place, c, use, false, DType::f64, true), whole, 1e-14 * 36);
        expect_near(pass(place, c, use, false, DType::f32, true), whole, 1e-5);
      });
  }
}

TEST(SummaLinear, EqualsOneRankBitForBitOnIntegersAndStaysNearIt) {
  for (const Use use : kUses)
    for (const Extents& extents : kRings) {
      const std::vector<Case> all = rings(use, extents);
      const Named whole = dense(use, extents.size(), true, all[0].kv_heads),
                  rounded = dense(use, extents.size(), false, all[0].kv_heads);
      const double gelu = use == Use::up || use == Use::down ? 1e-15 : 0;  // equal sums are rounded equally
      on_mesh(use, extents, all, {.timeout_s = 60}, [&](RankOfCases& place, const Case& c) {
        expect_near(pass(place, c, use, true, DType::f64, true), whole, gelu);
        expect_near(pass(place, c, use, false, DType::f64, true), rounded, 1e-14 * 36);
        expect_near(pass(place, c, use, false, DType::f32, true), rounded, 1e-5);
      });
    }
}

TEST(Linears, SchedulesChangeNoBit) {
  comm::WorldOptions late{.timeout_s = 60};
  late.delay = [n = std::make_shared<std::atomic<uint64_t>>(0)](int) {
    return 1e-5 * (philox_at(philox_key(1, "delay"), n->fetch_add(1)) % 30);
  };
  const auto check = [&](Use use, const Extents& extents, const std::vector<Case>& all) {
    on_mesh(use, extents, all, late, [&](RankOfCases& place, const Case& c) {
      EXPECT_TRUE(pass(place, c, use, false, DType::f32, true) == pass(place, c, use, false, DType::f32, false));
    });
  };
  for (const Use use : kUses) {
    for (const Extents& extents : kSquares) check(use, extents, cases(use, extents, 80));
    for (const Extents& extents : kRings) check(use, extents, rings(use, extents));
  }
}

}  // namespace
}  // namespace trainer::pieces
