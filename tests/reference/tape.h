#pragma once
// A number that records how it was computed, for exact gradients of the reference model: one reverse sweep over the
// tape gives the derivative of the loss with respect to every input. Scalar, slow and plain on purpose; one tape per
// thread.
#include <cmath>
#include <cstdint>
#include <vector>

namespace trainer::reference {

// Var has overloads of these, so that templates can call exp(x) for any scalar type.
using std::exp, std::log, std::sqrt, std::tanh;

/// The operations since the last clear(): each has at most two operands and the two local derivatives.
class Tape {
 public:
  static Tape& current() {
    static thread_local Tape tape;
    return tape;
  }
  void clear() { nodes_.clear(); }
  int64_t record(int64_t a, double da, int64_t b, double db) {
    nodes_.push_back({a, b, da, db});
    return static_cast<int64_t>(nodes_.size()) - 1;
  }
  /// d(node `output`)/d(node i) for every i.
  std::vector<double> adjoints(int64_t output) const {
    std::vector<double> adjoint(nodes_.size(), 0.0);
    adjoint[static_cast<size_t>(output)] = 1.0;
    for (size_t i = nodes_.size(); i-- > 0;) {
      const Node& node = nodes_[i];
      if (node.a >= 0) adjoint[static_cast<size_t>(node.a)] += node.da * adjoint[i];
      if (node.b >= 0) adjoint[static_cast<size_t>(node.b)] += node.db * adjoint[i];
    }
    return adjoint;
  }

 private:
  struct Node {
    int64_t a, b;
    double da, db;
  };
  std::vector<Node> nodes_;
};

/// A value on the tape; node −1 is a constant.
struct Var {
  double value;
  int64_t node = -1;

  Var(double constant) : value(constant) {}
  /// A new input, whose derivative adjoints() reports at `node`.
  static Var input(double value) { return Var(value, Tape::current().record(-1, 0, -1, 0)); }
  /// f(a) or f(a, b) with the derivatives with respect to the operands.
  static Var result(double value, const Var& a, double da, const Var& b, double db) {
    if (a.node < 0 && b.node < 0) return Var(value);
    return Var(value, Tape::current().record(a.node, da, b.node, db));
  }
  static Var result(double value, const Var& a, double da) { return result(value, a, da, Var(0.0), 0); }

 private:
  Var(double v, int64_t n) : value(v), node(n) {}
};

inline Var operator+(const Var& a, const Var& b) { return Var::result(a.value + b.value, a, 1, b, 1); }
inline Var operator-(const Var& a, const Var& b) { return Var::result(a.value - b.value, a, 1, b, -1); }
inline Var operator*(const Var& a, const Var& b) { return Var::result(a.value * b.value, a, b.value, b, a.value); }
inline Var operator/(const Var& a, const Var& b) {
  return Var::result(a.value / b.value, a, 1 / b.value, b, -a.value / (b.value * b.value));
}
inline Var operator-(const Var& a) { return Var::result(-a.value, a, -1); }
inline Var& operator+=(Var& a, const Var& b) { return a = a + b; }
inline Var exp(const Var& a) {
  const double y = std::exp(a.value);
  return Var::result(y, a, y);
}
inline Var log(const Var& a) { return Var::result(std::log(a.value), a, 1 / a.value); }
inline Var sqrt(const Var& a) {
  const double y = std::sqrt(a.value);
  return Var::result(y, a, 0.5 / y);
}
inline Var tanh(const Var& a) {
  const double y = std::tanh(a.value);
  return Var::result(y, a, 1 - y * y);
}

}  // namespace trainer::reference
