// The linear that is made of SUMMA's products, beside one rank's and beside gathered panels.
#include "parallel/summa.h"

#include "unit/parallel/pieces_rig.h"

namespace trainer::pieces {
namespace {

using parallel::LinearSpec;
using parallel::Site;

/// One linear of a kind, and all that it computes.
enum class Kind { serial, gathered, ring };
struct Case {
  Site site;
  bool input_stays;
  int64_t kv_heads = 12;
  bool bias = true;
};
LinearSpec spec_of(const Case& c) {
  constexpr int64_t kHidden = 36, kInner = 72;
  switch (c.site) {
    case Site::qkv:
      return {.site = c.site,
              .in = kHidden,
              .parts = {{"q", kHidden, 12}, {"k", 3 * c.kv_heads, c.kv_heads}, {"v", 3 * c.kv_heads, c.kv_heads}},
              .bias = c.bias};
    case Site::out:
      return {.site = c.site, .in = kHidden, .parts = {{"o", kHidden}}, .bias = c.bias};
    case Site::up:
      return {.site = c.site, .in = kHidden, .parts = {{"up", kInner}}, .bias = c.bias};
    default:
      return {.site = c.site, .in = kInner, .parts = {{"down", kHidden}}, .bias = c.bias};
  }
}

/// A square of ranks, all of whose linears are of one kind.
sharding::ModelSharding square(const Case& c, Kind kind, int q) {
  sharding::ModelSharding s;
  s.axes = {{"data", 1}, {"row", q}, {"col", q}};
  const sharding::LinearSharding linear{
      .rows = 2,
      .cols = c.input_stays ? 0u : 4u,
      .contraction = c.input_stays ? 4u : 0u,
      .flat = 2,
      .schedule = kind == Kind::ring ? sharding::GemmSchedule::ring : sharding::GemmSchedule::at_once};
  s.layers = {{.stream = {2, 4}, .attention = {2, 4}, .hidden = {2, 4}, .linears = {linear, linear, linear, linear}}};
  return sharding::on_mesh(std::move(s), c.kv_heads);
}

/// y, pre, dx and, after two micro-batches, gradients; of one rank or of a square.
Named results(const Case& c, Kind kind, int q, bool integers, DType type, bool overlap = true) {
  const LinearSpec spec = spec_of(c);
  const int64_t rows = 24;
  return on_ranks(kind == Kind::serial ? 1 : q * q, [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig(world, square(c, kind, kind == Kind::serial ? 1 : q), type, overlap);
    const mesh::MeshShape shape = rig.mesh.shape();
    const auto linear = rig.strategy->linear(0, rig.store.add_group("g"), spec);
    rig.store.allocate(true);
    GradSink sink(rig.store, {.overlap = overlap});
    sink.prepare(rig.device);
    sink.begin_step();
    fill_weights(rig.store, integers);
    const int64_t sharers = shape.group_size(shape.set("col")), groups = shape.group_size(shape.set("row"));
    const int64_t row = shape.index(world.rank(), shape.set("row")), col = shape.index(world.rank(), shape.set("col"));
    const auto piece = [&](const char* name, int64_t width) {
      return local(rig, name, {rows / groups, width / sharers}, {row * rows / groups, col * width / sharers, width},
                   integers);
    };
    const Scratch x = piece("x", spec.in);
    // Columns of a part: heads are shared out whole, or shared.
    struct Columns {
      int64_t first, count, sharers, sharer;
    };
    const auto columns = [&](const parallel::LinearPart& part) -> Columns {
      if (part.heads == 0 || part.heads % sharers == 0) return {col * part.out / sharers, part.out / sharers, 1, 0};
      const int64_t each = sharers / part.heads;
      return {col / each * (part.out / part.heads), part.out / part.heads, each, col % each};
    };
    int64_t width = 0;
    for (const auto& part : spec.parts) width += columns(part).count;
    Scratch residual, pre;
    parallel::ForwardFusion fusion;
    if (c.site == Site::out || c.site == Site::down) {
      residual = piece("residual", spec.parts[0].out);
      fusion.residual = residual;
      fusion.dropout = {.p = 0.5,
                        .key = philox_key(3, "mask"),
                        .first_row = row * rows / groups,
                        .first_col = col * spec.parts[0].out / sharers,
                        .width = spec.parts[0].out};
    }
    if (c.site == Site::up) {
      fusion.act = ops::Activation::gelu;
      fusion.pre = &pre;
    }
    parallel::BackwardFusion through;
    Scratch gelu;
    if (c.site == Site::down) {
      gelu = piece("gelu", spec.in);
      through = {.act = ops::Activation::gelu, .pre = gelu};
    }
    const Scratch dy = rig.ex.take("dy", {rows / groups, width}, type);
    int64_t at = 0;
    for (const auto& part : spec.parts) {
      const Columns mine = columns(part);
      for (int64_t i = 0; i < mine.count; ++i, ++at)
        for (int64_t r = 0; r < rows / groups; ++r)
          set(dy, r * width + at,
              mine.sharer != 0
                  ? 0
                  : draw("d" + part.name, (row * rows / groups + r) * part.out + mine.first + i, integers));
    }
    Scratch y, dx;
    for (const bool last : {false, true}) {
      sink.begin_micro(last);
      y.reset();
      dx.reset();
      pre.reset();
      y = linear->forward(rig.ex, {rows}, x, fusion);
      dx = linear->backward(rig.ex, {rows}, dy, x, through, sink);
      sink.end_group(rig.ex, 0);
      sink.end_micro(rig.ex);
    }
    sink.finish(rig.ex);
    const std::lock_guard lock(mutex);
    at = 0;
    for (const auto& part : spec.parts) {
      const Columns mine = columns(part);
      for (const auto& [name, tensor] : {std::pair{"y.", &y}, {"pre.", &pre}}) {
        if (!*tensor) continue;
        const Scratch own = rig.ex.take("columns", {rows / groups, mine.count}, type);
        ops::run(rig.ex, ops::Copy{tensor->tensor().col_range(at, mine.count), own});
        collect(all, name + part.name, own, {row * rows / groups, mine.first, part.out}, rows);
      }
      at += mine.count;
    }
    collect(all, "dx", dx, {row * rows / groups, col * spec.in / sharers, spec.in}, rows);
    collect_gradients(all, rig.store);
  });
}

const Case kCases[] = {
    {Site::qkv, false}, {Site::qkv, false, 2}, {Site::qkv, false, 1, false}, {Site::out, false},
    {Site::up, false},  {Site::down, false},   {Site::down, true},           {Site::down, true, 12, false}};
bool fits(const Case& c, int q) { return c.kv_heads % q == 0 || q % c.kv_heads == 0; }

TEST(SummaLinear, EqualsOneRankAndGatheredPanelsBitForBitOnIntegers) {
  for (const Case& c : kCases) {
    const bool rounds = c.site == Site::up || c.site == Site::down;  // of GELU: equal sums are rounded equally
    const Named one = results(c, Kind::serial, 1, true, DType::f64);
    for (const int q : {2, 3, 4}) {
      if (!fits(c, q)) continue;
      SCOPED_TRACE(format("site {}, input stays {}, {} kv heads, q = {}", static_cast<int>(c.site), c.input_stays,
                          c.kv_heads, q));
      const Named ring = results(c, Kind::ring, q, true, DType::f64);
      const Named gathered = results(c, Kind::gathered, q, true, DType::f64);
      ASSERT_EQ(ring.size(), one.size());
      for (const auto& [name, values] : one) {
        EXPECT_TRUE(ring.at(name) == gathered.at(name)) << name;
        EXPECT_LE(difference(ring.at(name), values), rounds ? 1e-15 : 0) << name;
      }
    }
  }
}

TEST(SummaLinear, StaysNearOneRank) {
  for (const Case& c : kCases) {
    const Named one = results(c, Kind::serial, 1, false, DType::f64);
    for (const auto& [type, tolerance] : {std::pair{DType::f64, 1e-14 * 72}, {DType::f32, 1e-5}}) {
      const Named ring = results(c, Kind::ring, 2, false, type);
      for (const auto& [name, values] : one) EXPECT_LE(difference(ring.at(name), values), tolerance) << name;
    }
  }
}

TEST(SummaLinear, WaitsChangeNoBit) {
  for (const Case& c : kCases) {
    const int q = fits(c, 3) ? 3 : 4;
    EXPECT_TRUE(results(c, Kind::ring, q, false, DType::f32, true) ==
                results(c, Kind::ring, q, false, DType::f32, false));
  }
}

/// Zero or the factor of what is kept: dropout of a linear whose result is one everywhere.
Values mask(Kind kind, int q, double p, int64_t rows) {
  constexpr int64_t kWidth = 48;
  const Named found = on_ranks(q * q, [&](comm::World& world, Named& all, std::mutex& mutex) {
    Rig rig(world, square({.site = Site::out, .input_stays = false}, kind, q));
    const auto linear = rig.strategy->linear(0, rig.store.add_group("g"),
                                             {.site = Site::out, .in = kWidth, .parts = {{"o", kWidth}}, .bias = true});
    rig.ready();
    for (const params::Param& param : rig.store.params())
      for (const mesh::Run& run : param.runs)
        for (int64_t i = 0; i < run.length; ++i)
          set(rig.store.groups()[0].master, run.local + i * run.stride, param.shape.dims() == 1 ? 1 : 0);
    rig.store.weights_changed();
    const Shape shape{rows / q, kWidth / q};
    const Piece piece{world.rank() / q * shape[0], world.rank() % q * shape[1], kWidth};
    const Scratch x = local(rig, "x", shape, piece, true), none = rig.ex.take("none", shape, rig.type);
    for (int64_t i = 0; i < shape.count(); ++i) set(none, i, 0);
    parallel::ForwardFusion fusion;
    fusion.residual = none;
    fusion.dropout = {.p = p,
                      .key = philox_key(3, "mask"),
                      .first_row = piece.first_row,
                      .first_col = piece.first_col,
                      .width = kWidth};
    const Scratch y = linear->forward(rig.ex, {rows}, x, fusion);
    const std::lock_guard lock(mutex);
    collect(all, "y", y, piece, rows);
  });
  return found.at("y");
}

TEST(SummaLinear, DropsTheSameElementsOnEverySquareAtTheRateThatWasAsked) {
  constexpr int64_t kRows = 480;
  constexpr double kRate = 0.1;
  const Values one = mask(Kind::gathered, 1, kRate, kRows);
  const auto count = static_cast<double>(one.size());
  double kept = 0;
  for (const double value : one) {
    ASSERT_TRUE(value == 0 || std::abs(value - 1 / (1 - kRate)) < 1e-7) << value;
    kept += value != 0;
  }
  EXPECT_NEAR(kept / count, 1 - kRate, 3 * std::sqrt(kRate * (1 - kRate) / count));
  for (const int q : {2, 3, 4})
    for (const Kind kind : {Kind::ring, Kind::gathered}) EXPECT_TRUE(mask(kind, q, kRate, kRows) == one) << "q = " << q;
  // Blocks of a square of four are as different as chance makes them: equal in 0.82 of their elements.
  const int64_t rows = kRows / 4, width = static_cast<int64_t>(one.size()) / kRows, cols = width / 4;
  for (int64_t a = 0; a < 16; ++a)
    for (int64_t b = 0; b < a; ++b) {
      double equal = 0;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) {
          const auto at = [&](int64_t block) {
            return one[static_cast<size_t>((block / 4 * rows + r) * width + block % 4 * cols + c)];
          };
          equal += at(a) == at(b);
        }
      EXPECT_NEAR(equal / static_cast<double>(rows * cols), 0.82, 0.06) << a << " and " << b;  // 6 deviations
    }
}

}  // namespace
}  // namespace trainer::pieces
