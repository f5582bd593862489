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
TileOut out(const Tensor& t, int64_t r, int64_t c) { return {element_at(t, r, c), t.ld()}; }

Cost cost(const Tensor& x, double flops_per_element, double passes) {
  return {flops_per_element * static_cast<double>(x.count()), passes * static_cast<double>(x.bytes())};
}

}  // namespace

void run(Exec& ex, const GeluForward& op) {
  const size_t type = kernel_index(op.x.dtype, "gelu x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  expect_rows(op.y, rows, cols, op.x.dtype, "gelu y");
  const OpTimer timer(ex.meter, OpKind::activation, cost(op.x, 20, 2));
  if (ex.device.kind() == device::Kind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).gelu[type];
  for_tiles(ex, rows, cols, op.x.packed() && op.y.packed(),
            [&](int64_t r, int64_t n, int64_t c, int64_t width) { kernel(in(op.x, r, c), out(op.y, r, c), n, width); });
}

void run(Exec& ex, const SwigluForward& op) {
  const size_t type = kernel_index(op.gate.dtype, "swiglu gate");
  const int64_t rows = op.gate.rows(), cols = op.gate.cols();
  expect_rows(op.up, rows, cols, op.gate.dtype, "swiglu up");
  expect_rows(op.y, rows, cols, op.gate.dtype, "swiglu y");
  const OpTimer timer(ex.meter, OpKind::activation, cost(op.gate, 20, 3));
  if (ex.device.kind() == device::Kind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).swiglu[type];
  const bool packed = op.gate.packed() && op.up.packed() && op.y.packed();
  for_tiles(ex, rows, cols, packed, [&](int64_t r, int64_t n, int64_t c, int64_t width) {
    kernel(in(op.gate, r, c), in(op.up, r, c), out(op.y, r, c), n, width);
  });
}

void run(Exec& ex, const SwigluBackward& op) {
  const size_t type = kernel_index(op.gate.dtype, "swiglu gate");
  const int64_t rows = op.gate.rows(), cols = op.gate.cols();
  expect_rows(op.dy, rows, cols, op.gate.dtype, "swiglu dy");
  expect_rows(op.up, rows, cols, op.gate.dtype, "swiglu up");
  expect_rows(op.dgate, rows, cols, op.gate.dtype, "swiglu dgate");
  expect_rows(op.dup, rows, cols, op.gate.dtype, "swiglu dup");
  const OpTimer timer(ex.meter, OpKind::activation, cost(op.gate, 30, 5));
  if (ex.device.kind() == device::Kind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = activation_kernels(ex).swiglu_backward[type];
  const bool packed = op.dy.packed() && op.gate.packed() && op.up.packed() && op.dgate.packed() && op.dup.packed();
  for_tiles(ex, rows, cols, packed, [&](int64_t r, int64_t n, int64_t c, int64_t width) {
    kernel(in(op.dy, r, c), in(op.gate, r, c), in(op.up, r, c), out(op.dgate, r, c), out(op.dup, r, c), n, width);
  });
}

}  // namespace trainer::ops
