#include "ops/activation.h"

#include "ops/cpu/activation_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

const ActivationKernels& activation_kernels(const Exec& ex) {
  if (ex.device.isa() >= device::Isa::avx512bf16) return avx512::activation_kernels_near;
  return TRAINER_KERNELS(ex.device.isa(), activation_kernels);
}
TileIn in(const Tensor& t, int64_t r, int64_t c) { return {element_at(t, r, c), t.ld()}; }
TileOut out(const Tensor& t, int64_t r, int64_t c) { return {t ? element_at(t, r, c) : nullptr, t.ld()}; }

const void* bias_at(const Tensor& bias, int64_t c) { return bias ? bias.data + c * size_of(bias.dtype) : nullptr; }
/// Returns a pointer to the weight of row r, or null.
std::byte* weight_at(const Tensor& weights, int64_t r) {
  return weights ? weights.data + r * size_of(weights.dtype) : nullptr;
}

Cost cost(const Tensor& x, double flops_per_element, double passes) {
  return {flops_per_element * static_cast<double>(x.count()), passes * static_cast<double>(x.bytes())};
}

void expect_ungated(Activation act) {
  TRAINER_CHECK(act != Activation::silu, "silu is the activation of gated MLPs only");
}

}  // namespace

void run(Exec& ex, const BiasActivation& op) {
  const size_t type = kernel_index(op.x.dtype, "activation x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  expect_rows(op.y, rows, cols, op.x.dtype, "activation y");
  if (op.pre) expect_rows(op.pre, rows, cols, op.x.dtype, "activation pre");
  if (op.bias) expect_count(op.bias, cols, op.x.dtype, "activation bias");
  expect_ungated(op.act);
  const OpTimer timer(ex.meter, OpKind::activation, cost(op.x, 20, op.pre ? 3 : 2));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).bias_activation[type];
  const bool packed = !op.bias && op.x.packed() && op.y.packed() && (!op.pre || op.pre.packed());
  for_tiles(ex, rows, cols, packed, [&](int64_t r, int64_t n, int64_t c, int64_t width) {
    kernel(in(op.x, r, c), bias_at(op.bias, c), out(op.pre, r, c), out(op.y, r, c), op.act, n, width);
  });
}

void run(Exec& ex, const ActivationBackward& op) {
  const size_t type = kernel_index(op.x.dtype, "activation x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  expect_rows(op.dy, rows, cols, op.x.dtype, "activation dy");
  expect_rows(op.dx, rows, cols, op.x.dtype, "activation dx");
  expect_ungated(op.act);
  const OpTimer timer(ex.meter, OpKind::activation, cost(op.x, 30, 3));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).backward[type];
  for_tiles(ex, rows, cols, op.dy.packed() && op.x.packed() && op.dx.packed(),
            [&](int64_t r, int64_t n, int64_t c, int64_t width) {
              kernel(in(op.dy, r, c), in(op.x, r, c), out(op.dx, r, c), op.act, n, width);
            });
}

void run(Exec& ex, const Add& op) {
  const size_t type = kernel_index(op.x.dtype, "add x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  expect_rows(op.other, rows, cols, op.x.dtype, "add other");
  expect_rows(op.y, rows, cols, op.x.dtype, "add y");
  if (op.bias) expect_count(op.bias, cols, op.x.dtype, "add bias");
  const OpTimer timer(ex.meter, OpKind::elementwise, cost(op.x, 2, 3));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).add[type];
  const bool packed = !op.bias && op.x.packed() && op.other.packed() && op.y.packed();
  for_tiles(ex, rows, cols, packed, [&](int64_t r, int64_t n, int64_t c, int64_t width) {
    kernel(in(op.x, r, c), in(op.other, r, c), bias_at(op.bias, c), out(op.y, r, c), n, width);
  });
}

void run(Exec& ex, const SoftCap& op) {
  TRAINER_CHECK(op.x.dtype != DType::bf16 && op.cap > 0, "a soft cap of {} cannot be applied to {}", op.cap,
                to_string(op.x));
  const size_t type = kernel_index(op.x.dtype, "logits");
  const OpTimer timer(ex.meter, OpKind::loss, cost(op.x, 20, 2));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).soft_cap[type];
  for_tiles(ex, op.x.rows(), op.x.cols(), op.x.packed(),
            [&](int64_t r, int64_t n, int64_t c, int64_t width) { kernel(out(op.x, r, c), op.cap, n, width); });
}

void run(Exec& ex, const GatedForward& op) {
  const size_t type = kernel_index(op.gate.dtype, "gated gate");
  const int64_t rows = op.gate.rows(), cols = op.gate.cols();
  expect_rows(op.up, rows, cols, op.gate.dtype, "gated up");
  expect_rows(op.y, rows, cols, op.gate.dtype, "gated y");
  if (op.weights) expect_count(op.weights, rows, accumulator_of(op.gate.dtype), "gated weights");
  const OpTimer timer(ex.meter, OpKind::activation, cost(op.gate, 20, 3));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).gated[type];
  const bool packed = !op.weights && op.gate.packed() && op.up.packed() && op.y.packed();
  for_tiles(ex, rows, cols, packed, [&](int64_t r, int64_t n, int64_t c, int64_t width) {
    kernel(in(op.gate, r, c), in(op.up, r, c), weight_at(op.weights, r), out(op.y, r, c), op.act, n, width);
  });
}

void run(Exec& ex, const GatedBackward& op) {
  const size_t type = kernel_index(op.gate.dtype, "gated gate");
  const int64_t rows = op.gate.rows(), cols = op.gate.cols();
  expect_rows(op.dy, rows, cols, op.gate.dtype, "gated dy");
  expect_rows(op.up, rows, cols, op.gate.dtype, "gated up");
  expect_rows(op.dgate, rows, cols, op.gate.dtype, "gated dgate");
  expect_rows(op.dup, rows, cols, op.gate.dtype, "gated dup");
  if (op.weights) {
    expect_count(op.weights, rows, accumulator_of(op.gate.dtype), "gated weights");
    expect_count(op.dweights, rows, op.weights.dtype, "gated dweights");
  }
  const OpTimer timer(ex.meter, OpKind::activation, cost(op.gate, 30, 5));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).gated_backward[type];
  const bool packed =
      !op.weights && op.dy.packed() && op.gate.packed() && op.up.packed() && op.dgate.packed() && op.dup.packed();
  for_tiles(ex, rows, cols, packed, [&](int64_t r, int64_t n, int64_t c, int64_t width) {
    kernel(in(op.dy, r, c), in(op.gate, r, c), in(op.up, r, c), weight_at(op.weights, r), out(op.dgate, r, c),
           out(op.dup, r, c), weight_at(op.dweights, r), op.act, n, width);
  });
}

void run(Exec& ex, const Sigmoid& op) {
  const size_t type = state_index(op.x.dtype, "sigmoid x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  expect_rows(op.y, rows, cols, op.x.dtype, "sigmoid y");
  const OpTimer timer(ex.meter, OpKind::activation, cost(op.x, 20, 2));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).sigmoid[type];
  for_tiles(ex, rows, cols, op.x.packed() && op.y.packed(),
            [&](int64_t r, int64_t n, int64_t c, int64_t width) { kernel(in(op.x, r, c), out(op.y, r, c), n, width); });
}

void run(Exec& ex, const SigmoidBackward& op) {
  const size_t type = kernel_index(op.dx.dtype, "sigmoid dx");
  const int64_t rows = op.y.rows(), cols = op.y.cols();
  expect_rows(op.dx, rows, cols, op.dx.dtype, "sigmoid dx");
  expect_rows(op.y, rows, cols, accumulator_of(op.dx.dtype), "sigmoid y");
  expect_rows(op.dy, rows, cols, op.y.dtype, "sigmoid dy");
  const OpTimer timer(ex.meter, OpKind::activation, cost(op.y, 3, 3));
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).sigmoid_backward[type];
  for_tiles(ex, rows, cols, op.dy.packed() && op.y.packed() && op.dx.packed(),
            [&](int64_t r, int64_t n, int64_t c, int64_t width) {
              kernel(in(op.dy, r, c), in(op.y, r, c), out(op.dx, r, c), n, width);
            });
}

}  // namespace trainer::ops
