#include "parallel/serial.h"

#include "parallel/finish.h"

namespace trainer::parallel {
namespace {

class SerialLinear final : public Linear {
 public:
  SerialLinear(ParamStore& store, int group, const LinearSpec& spec) : weights_(store, group, spec, whole, whole) {}

  Scratch forward(Exec& ex, Rows, const Tensor& x, const ForwardFusion& fusion) override {
    return multiply_and_finish(ex, weights_, x, fusion);
  }

  Scratch backward(Exec& ex, Rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads) override {
    Scratch dx = ex.take("linear.dx", {dy.rows(), weights_.in()}, dy.dtype);
    weights_.multiply_transposed(ex, dy, dx, activation_backward(fusion));
    weights_.add_gradients(ex, x, dy, grads);
    return dx;
  }

 private:
  static Weights::Placed whole(const LinearPart&, const mesh::Layout& layout) { return {layout}; }

  const Weights weights_;
};

}  // namespace

std::unique_ptr<Linear> Serial::linear(int, int group, const LinearSpec& spec) {
  return std::make_unique<SerialLinear>(store_, group, spec);
}

}  // namespace trainer::parallel
