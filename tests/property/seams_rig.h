#pragma once
// Integer-valued matrices, whole and in shards, and a chain of four products like those of a Transformer block: what
// the prototypes of the strategies share. Every sum is exact in f64, so distributed and dense results agree in every
// bit.
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "comm/world.h"
#include "ops/gemm.h"
#include "rigs/layout_moves.h"

namespace trainer::seams {

using mesh::Layout;
using mesh::Mesh;
using mesh::MeshShape;

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> values;
  Matrix(int64_t m, int64_t n) : rows(m), cols(n), values(static_cast<size_t>(m * n)) {}
  double& operator()(int64_t r, int64_t c) { return values[static_cast<size_t>(r * cols + c)]; }
  double operator()(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * cols + c)]; }
};

/// Integers −2 … 2.
inline Matrix random_matrix(int64_t rows, int64_t cols, uint64_t seed) {
  Matrix m(rows, cols);
  uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
  for (double& value : m.values) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    value = static_cast<double>((state >> 33) % 5) - 2;
  }
  return m;
}

inline Matrix transpose(const Matrix& a) {
  Matrix t(a.cols, a.rows);
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.cols; ++c) t(c, r) = a(r, c);
  return t;
}

inline Matrix operator*(const Matrix& a, const Matrix& b) {
  TRAINER_CHECK(a.cols == b.rows, "[{}, {}] times [{}, {}]", a.rows, a.cols, b.rows, b.cols);
  Matrix c(a.rows, b.cols);
  for (int64_t i = 0; i < a.rows; ++i)
    for (int64_t k = 0; k < a.cols; ++k)
      for (int64_t j = 0; j < b.cols; ++j) c(i, j) += a(i, k) * b(k, j);
  return c;
}

inline Matrix operator+(Matrix a, const Matrix& b) {
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] += b.values[i];
  return a;
}

/// One rank. A pass runs on real memory, or dry, to plan the memory that the real one then has.
struct Rank {
  Exec& ex;
  Mesh& mesh;
  int me() const { return mesh.rank(); }
  bool dry() const { return ex.device.dry(); }
  Scratch take(const char* tag, Shape shape) const { return ex.take(tag, shape, DType::f64); }
};

inline void write_runs(const Rank& rank, const Tensor& local, const std::vector<mesh::Run>& runs, const Matrix& whole) {
  if (rank.dry()) return;
  for (const mesh::Run& run : runs)
    for (int64_t i = 0; i < run.length; ++i)
      local.as<double>()[run.local + i * run.stride] = whole.values[static_cast<size_t>(run.global + i)];
}

inline void check_runs(const Rank& rank, const Tensor& local, const std::vector<mesh::Run>& runs, const Matrix& whole,
                       const std::string& what) {
  if (rank.dry()) return;
  for (const mesh::Run& run : runs)
    for (int64_t i = 0; i < run.length; ++i) {
      const double found = local.as<double>()[run.local + i * run.stride];
      const double expected = whole.values[static_cast<size_t>(run.global + i)];
      TRAINER_CHECK(found == expected, "{}, rank {}, element {}: {}, not {}", what, rank.me(), run.global + i, found,
                    expected);
    }
}

inline Scratch shard(const Rank& rank, const Layout& layout, const Matrix& whole) {
  Scratch local = rank.take("shard", layout.local(rank.me()));
  write_runs(rank, local, layout.runs(rank.me()), whole);
  return local;
}

inline void product(const Rank& rank, const Tensor& a, bool trans_a, const Tensor& b, bool trans_b, const Tensor& c,
                    bool accumulate = false) {
  ops::run(rank.ex,
           ops::Gemm{.a = a, .b = b, .c = c, .trans_a = trans_a, .trans_b = trans_b, .accumulate = accumulate});
}

/// A weight of one linear: global [k, n] parts of equal width, whose shards lie side by side in one local block.
class Weight {
 public:
  Weight(const Rank& rank, Layout part, const std::vector<Matrix>& parts)
      : part_(part), parts_(static_cast<int>(parts.size())), width_(part.box()[1]) {
    value_ = rank.take("weight", block());
    gradient_ = rank.take("gradient", block());
    for (int p = 0; p < parts_; ++p) write_runs(rank, value_, runs(rank, p), parts[static_cast<size_t>(p)]);
  }
  /// The block that products use: [k/…, parts · n/…].
  Shape block() const { return {part_.box()[0], parts_ * width_}; }
  const Tensor& value() const { return value_; }
  const Tensor& gradient() const { return gradient_; }
  void check_gradient(const Rank& rank, const std::vector<Matrix>& expected, const std::string& what) const {
    for (int p = 0; p < parts_; ++p) check_runs(rank, gradient_, runs(rank, p), expected[static_cast<size_t>(p)], what);
  }

 private:
  std::vector<mesh::Run> runs(const Rank& rank, int part) const {
    return part_.runs(rank.me(), {.offset = part * width_, .pitch = parts_ * width_});
  }
  Layout part_;
  int parts_;
  int64_t width_;
  Scratch value_, gradient_;
};

/// A strategy's linear. Activations and their gradients are complete on every rank that holds them.
class Linear {
 public:
  virtual ~Linear() noexcept(false) = default;  // a ticket that it holds may object to being forgotten
  virtual Scratch forward(const Tensor& x) = 0;
  virtual Scratch backward(const Tensor& dy, const Tensor& x) = 0;
  virtual void finish() {}  // the step's gradients are needed now
  virtual void check_gradient(const std::vector<Matrix>& expected, const std::string& what) const = 0;
};

/// y = ((x·(Wq + Wk + Wv))·Wo)·Wup)·Wdown: the products of a block, with sums in the place of attention and activation.
struct Block {
  static constexpr int kLinears = 4;
  Block(int64_t tokens, int64_t h)
      : x(random_matrix(tokens, h, 1)), dy(random_matrix(tokens, h, 2)), y(0, 0), dx(0, 0) {
    for (uint64_t p = 0; p < 3; ++p) w[0].push_back(random_matrix(h, h, 10 + p));
    w[1].push_back(random_matrix(h, h, 20));
    w[2].push_back(random_matrix(h, 4 * h, 30));
    w[3].push_back(random_matrix(4 * h, h, 40));
    std::vector<Matrix> activations = {x};
    for (const auto& parts : w) activations.push_back(activations.back() * sum(parts));
    y = activations.back();
    Matrix d = dy;
    for (size_t i = kLinears; i-- > 0;) {
      dw[i].assign(w[i].size(), transpose(activations[i]) * d);
      d = d * transpose(sum(w[i]));
    }
    dx = d;
  }
  static Matrix sum(const std::vector<Matrix>& parts) {
    return std::accumulate(parts.begin() + 1, parts.end(), parts.front());
  }
  Matrix x, dy, y, dx;
  std::vector<Matrix> w[kLinears], dw[kLinears];
};

/// The sum of `parts` blocks of columns, and its gradient.
inline Scratch sum_parts(const Rank& rank, const Tensor& y, int parts) {
  const int64_t m = y.rows(), n = y.cols() / parts;
  Scratch sum = rank.take("sum", {m, n});
  if (rank.dry()) return sum;
  for (int64_t r = 0; r < m; ++r)
    for (int64_t c = 0; c < n; ++c) {
      double total = 0;
      for (int p = 0; p < parts; ++p) total += y.as<double>()[r * parts * n + p * n + c];
      sum.tensor().as<double>()[r * n + c] = total;
    }
  return sum;
}
inline Scratch repeat_parts(const Rank& rank, const Tensor& d, int parts) {
  const int64_t m = d.rows(), n = d.cols();
  Scratch all = rank.take("parts", {m, parts * n});
  if (rank.dry()) return all;
  for (int64_t r = 0; r < m; ++r)
    for (int64_t c = 0; c < parts * n; ++c)
      all.tensor().as<double>()[r * parts * n + c] = d.as<double>()[r * n + c % n];
  return all;
}

using Linears = std::vector<std::unique_ptr<Linear>>;

/// One forward and backward pass through four linears, checked against the dense block.
/// `finish`: what else is to be done before the gradients are looked at.
inline void run_block(
    const Rank& rank, const Block& block, const Layout& residual, Linears& linears,
    const std::function<void()>& finish = [] {}) {
  std::vector<Scratch> inputs;
  inputs.push_back(shard(rank, residual, block.x));
  Scratch dy = shard(rank, residual, block.dy);

  for (size_t i = 0; i < linears.size(); ++i) {
    Scratch y = linears[i]->forward(inputs[i]);
    if (i == 0) y = sum_parts(rank, y, 3);
    inputs.push_back(std::move(y));
  }
  check_runs(rank, inputs.back(), residual.runs(rank.me()), block.y, "y");

  for (size_t i = linears.size(); i-- > 0;) {
    inputs.pop_back();
    if (i == 0) dy = repeat_parts(rank, dy, 3);
    dy = linears[i]->backward(dy, inputs[i]);
  }
  for (const auto& linear : linears) linear->finish();
  finish();
  check_runs(rank, dy, residual.runs(rank.me()), block.dx, "dx");
  for (size_t i = 0; i < linears.size(); ++i) linears[i]->check_gradient(block.dw[i], format("dW {}", i));
}

/// Elements on the wire, control messages left out, summed over all ranks of the mesh.
inline int64_t wire_elements(const Meter& meter, const MeshShape& shape) {
  int64_t total = 0;
  for (const auto& [key, count] : meter.comm())
    if (key.axes != mesh::kControlAxes)
      total += count.wire_bytes / size_of(key.dtype) * (shape.world_size() / shape.group_size(key.axes));
  return total;
}

/// Runs `pass` on every rank: dry first, which plans the memory, then on it. Returns what the ranks of the mesh sent
/// together, which every rank counts, and dry as in earnest.
template <typename Pass>
int64_t run_planned(const MeshShape& shape, const Pass& pass) {
  int64_t sent = 0;
  comm::run_on_threads(shape.world_size(), {}, [&](comm::World& world) {
    device::CpuDevice device(1);
    device::DryDevice dry(1);
    const auto dry_world = comm::dry_world(world.size(), world.rank());
    Mesh mesh(world, device, shape), dry_mesh(*dry_world, dry, shape);
    Arena arena(device);
    Meter planned, real;
    Exec plan{dry, arena, planned}, ex{device, arena, real};
    arena.record("pass", [&] { pass(Rank{plan, dry_mesh}); });
    arena.seal();
    arena.begin("pass");
    pass(Rank{ex, mesh});
    arena.end();
    TRAINER_CHECK(wire_elements(planned, shape) == wire_elements(real, shape), "planned {}, sent {}",
                  wire_elements(planned, shape), wire_elements(real, shape));
    if (world.first()) sent = wire_elements(real, shape);
  });
  return sent;
}

}  // namespace trainer::seams
