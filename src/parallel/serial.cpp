#include "parallel/serial.h"

#include "parallel/weights.h"

namespace trainer::parallel {
namespace {

using params::Init;
using params::Part;

class SerialLinear final : public Linear {
 public:
  SerialLinear(ParamStore& store, int group, const LinearSpec& spec)
      : weights_(store, group, parts(store, spec), biases(store, spec)) {}

  Scratch forward(Exec& ex, Rows, const Tensor& x, const ForwardFusion& fusion) override {
    const Shape shape{x.rows(), weights_.out()};
    if (fusion.pre != nullptr) *fusion.pre = ex.take("linear.pre", shape, x.dtype);
    Scratch y = ex.take("linear.y", shape, x.dtype);
    const Weights::Held w = weights_.hold(ex);
    ops::Gemm product = w.product(ex, x, y);
    product.epilogue.bias = weights_.bias();
    product.epilogue.act = fusion.act;
    if (fusion.pre != nullptr) product.epilogue.pre = *fusion.pre;
    if (!fusion.dropout) product.epilogue.residual = fusion.residual;
    ops::run(ex, product);
    if (fusion.dropout) ops::run(ex, ops::DropoutAdd{y, fusion.residual, y, *fusion.dropout, {}});
    return y;
  }

  Scratch backward(Exec& ex, Rows, const Tensor& dy, const Tensor& x, const BackwardFusion& fusion,
                   GradSink& grads) override {
    Scratch dx = ex.take("linear.dx", {dy.rows(), weights_.in()}, dy.dtype);
    // dX = dY·Wᵀ, through the activation that made x
    const Weights::Held w = weights_.hold(ex);
    ops::Gemm product = w.transposed(ex, dy, dx);
    product.epilogue.act = fusion.act;
    product.epilogue.pre = fusion.pre;
    product.epilogue.gradient = fusion.act != ops::Activation::none;
    ops::run(ex, product);
    weights_.gradients(ex, x, dy, grads);
    return dx;
  }

 private:
  static std::vector<Part> parts(ParamStore& store, const LinearSpec& spec) {
    std::vector<Part> all;
    for (const LinearPart& part : spec.parts)
      all.push_back({part.name + ".weight", store.whole({spec.in, part.out}), {Init::Kind::normal, spec.init_std}});
    return all;
  }
  static std::vector<Part> biases(ParamStore& store, const LinearSpec& spec) {
    std::vector<Part> all;
    if (spec.bias)
      for (const LinearPart& part : spec.parts)
        all.push_back({part.name + ".bias", store.whole({part.out}), {Init::Kind::zeros, 0}});
    return all;
  }

  const Weights weights_;
};

}  // namespace

std::unique_ptr<Linear> Serial::linear(int, int group, const LinearSpec& spec) {
  return std::make_unique<SerialLinear>(store_, group, spec);
}

}  // namespace trainer::parallel
