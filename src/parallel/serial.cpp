#include "parallel/serial.h"

#include "parallel/finish.h"

namespace trainer::parallel {
namespace {

using params::Init;
using params::Part;

class SerialLinear final : public Linear {
 public:
  SerialLinear(ParamStore& store, int group, const LinearSpec& spec)
      : weights_(store, group, parts(store, spec), biases(store, spec)) {}

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
  static std::vector<Part> parts(ParamStore& store, const LinearSpec& spec) {
    std::vector<Part> all;
    for (const LinearPart& part : spec.parts)
      all.push_back(
          {part.name + ".weight", store.replicated({spec.in, part.out}), {Init::Kind::normal, spec.init_std}});
    return all;
  }
  static std::vector<Part> biases(ParamStore& store, const LinearSpec& spec) {
    std::vector<Part> all;
    if (spec.bias)
      for (const LinearPart& part : spec.parts)
        all.push_back({part.name + ".bias", store.replicated({part.out}), {Init::Kind::zeros, 0}});
    return all;
  }

  const Weights weights_;
};

}  // namespace

std::unique_ptr<Linear> Serial::linear(int, int group, const LinearSpec& spec) {
  return std::make_unique<SerialLinear>(store_, group, spec);
}

}  // namespace trainer::parallel
