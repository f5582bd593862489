#include "ops/finish.h"

#include "ops/cpu/finish_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

const FinishKernels& finish_kernels(const Exec& ex) {
  if (ex.device.isa() >= device::Isa::avx512bf16) return avx512::finish_kernels_near;
  return TRAINER_KERNELS(ex.device.isa(), finish_kernels);
}
TileIn in(const Tensor& t, int64_t r, int64_t c) { return {element_at(t, r, c), t.ld()}; }
TileOut out(const Tensor& t, int64_t r, int64_t c) { return {t ? element_at(t, r, c) : nullptr, t.ld()}; }

const void* bias_at(const Tensor& bias, int64_t c) { return bias ? bias.data + c * size_of(bias.dtype) : nullptr; }

}  // namespace

void run(Exec& ex, const BiasActivation& op) {
  const size_t type = kernel_index(op.x.dtype, "activation x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  expect_rows(op.y, rows, cols, op.x.dtype, "activation y");
  if (op.pre) expect_rows(op.pre, rows, cols, op.x.dtype, "activation pre");
  if (op.bias) expect_count(op.bias, cols, op.x.dtype, "activation bias");
  const OpTimer timer(ex.meter, OpKind::activation,
                      {20.0 * static_cast<double>(op.x.count()), bytes_of(op.x, op.pre ? 3 : 2)});
  if (ex.device.kind() == device::Kind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = finish_kernels(ex).bias_activation[type];
  const bool packed = !op.bias && op.x.packed() && op.y.packed() && (!op.pre || op.pre.packed());
  for_tiles(ex, rows, cols, packed, [&](int64_t r, int64_t n, int64_t c, int64_t width) {
    kernel(in(op.x, r, c), bias_at(op.bias, c), out(op.pre, r, c), out(op.y, r, c), op.act == Activation::gelu, n,
           width);
  });
}

void run(Exec& ex, const GeluBackward& op) {
  const size_t type = kernel_index(op.x.dtype, "gelu x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  expect_rows(op.dy, rows, cols, op.x.dtype, "gelu dy");
  expect_rows(op.dx, rows, cols, op.x.dtype, "gelu dx");
  const OpTimer timer(ex.meter, OpKind::activation, {30.0 * static_cast<double>(op.x.count()), bytes_of(op.x, 3)});
  if (ex.device.kind() == device::Kind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = finish_kernels(ex).gelu_backward[type];
  for_tiles(ex, rows, cols, op.dy.packed() && op.x.packed() && op.dx.packed(),
            [&](int64_t r, int64_t n, int64_t c, int64_t width) {
              kernel(in(op.dy, r, c), in(op.x, r, c), out(op.dx, r, c), n, width);
            });
}

void run(Exec& ex, const Add& op) {
  const size_t type = kernel_index(op.x.dtype, "add x");
  const int64_t rows = op.x.rows(), cols = op.x.cols();
  expect_rows(op.other, rows, cols, op.x.dtype, "add other");
  expect_rows(op.y, rows, cols, op.x.dtype, "add y");
  if (op.bias) expect_count(op.bias, cols, op.x.dtype, "add bias");
  const OpTimer timer(ex.meter, OpKind::elementwise, {2.0 * static_cast<double>(op.x.count()), bytes_of(op.x, 3)});
  if (ex.device.kind() == device::Kind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = finish_kernels(ex).add[type];
  const bool packed = !op.bias && op.x.packed() && op.other.packed() && op.y.packed();
  for_tiles(ex, rows, cols, packed, [&](int64_t r, int64_t n, int64_t c, int64_t width) {
    kernel(in(op.x, r, c), in(op.other, r, c), bias_at(op.bias, c), out(op.y, r, c), n, width);
  });
}

}  // namespace trainer::ops
