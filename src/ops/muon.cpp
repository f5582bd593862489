#include "ops/muon.h"

#include <cmath>

#include "ops/cpu/muon_kernels.h"
#include "ops/cpu/squared_norm_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"
#include "ops/squared_norm.h"

namespace trainer::ops {
namespace {

const MuonKernels& muon_kernels_of(const Exec& ex) { return TRAINER_KERNELS(ex.device.isa(), muon_kernels); }
void check_strips(const Tensor& flat, const Tensor& strips, const Tensor& packed) {
  TRAINER_CHECK(
      strips.dtype == DType::i64 && strips.packed() && strips.count() % 4 == 0 && flat.packed() && packed.packed(),
      "strips {} of {} and {}: expected i64 [n, 4] and packed elements", to_string(strips), to_string(flat),
      to_string(packed));
}
/// Calls fn(first strip, number of strips) in parallel; strips of about equal length are expected.
template <typename F>
void for_strips(Exec& ex, const Tensor& strips, const Tensor& packed, F&& fn) {
  const int64_t n = strips.count() / 4;
  const int64_t average = std::max<int64_t>(1, packed.count() / std::max<int64_t>(1, n));
  const auto* first = reinterpret_cast<const Strip*>(strips.data);
  static_assert(sizeof(Strip) == 4 * sizeof(int64_t));
  for_row_blocks(ex, n, std::max<int64_t>(1, kTaskElements / average),
                 [&](int64_t begin, int64_t count) { fn(first + begin, count); });
}

}  // namespace

void run(Exec& ex, const MuonMomentum& op) {
  const int64_t n = op.m.count();
  const size_t type = state_index(op.m.dtype, "muon m");
  expect_count(op.m, n, op.m.dtype, "muon m");
  expect_count(op.g, n, op.m.dtype, "muon g");
  const OpTimer timer(ex.meter, OpKind::optimizer,
                      {6.0 * static_cast<double>(n), bytes_of(op.m, 2) + bytes_of(op.g, 2)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = muon_kernels_of(ex).momentum[type];
  for_elements(ex, n, [&](int64_t first, int64_t count) {
    require_usual_rounding();
    const int64_t at = first * size_of(op.m.dtype);
    kernel(op.momentum, op.gradient_scale, op.nesterov, op.m.data + at, op.g.data + at, count);
  });
}

void run(Exec& ex, const GatherStrips& op) {
  check_strips(op.flat, op.strips, op.packed);
  const size_t from = kernel_index(op.flat.dtype, "flat"), to = kernel_index(op.packed.dtype, "packed");
  const auto n = static_cast<double>(op.packed.count());
  const OpTimer timer(ex.meter, OpKind::optimizer,
                      {0, n * static_cast<double>(size_of(op.flat.dtype) + size_of(op.packed.dtype))});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = muon_kernels_of(ex).gather[from][to];
  for_strips(ex, op.strips, op.packed,
             [&](const Strip* first, int64_t count) { kernel(op.flat.data, first, count, op.packed.data); });
}

void run(Exec& ex, const ScatterStrips& op) {
  check_strips(op.flat, op.strips, op.packed);
  const size_t from = kernel_index(op.packed.dtype, "packed"), to = kernel_index(op.flat.dtype, "flat");
  const auto n = static_cast<double>(op.packed.count());
  const OpTimer timer(ex.meter, OpKind::optimizer,
                      {n, n * static_cast<double>(size_of(op.flat.dtype) + size_of(op.packed.dtype))});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = muon_kernels_of(ex).scatter[to][from];
  for_strips(ex, op.strips, op.packed,
             [&](const Strip* first, int64_t count) { kernel(op.packed.data, first, count, op.scale, op.flat.data); });
}

void run(Exec& ex, const MuonNormalize& op) {
  const int64_t n = op.x.count();
  const size_t type = kernel_index(op.x.dtype, "muon x");
  expect_count(op.x, n, op.x.dtype, "muon x");
  expect_count(op.blocks, divide_up(n, kNormBlock), DType::f64, "muon blocks");
  const OpTimer timer(ex.meter, OpKind::optimizer, {3.0 * static_cast<double>(n), bytes_of(op.x, 3)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  double* blocks = op.blocks.as<double>();
  const auto squares = TRAINER_KERNELS(ex.device.isa(), squared_norm_kernels).square_sum[type];
  for_row_blocks(ex, n, kNormBlock, [&](int64_t first, int64_t count) {
    blocks[first / kNormBlock] = squares(op.x.data + first * size_of(op.x.dtype), count);
  });
  double sum = 0;
  for (const double block : op.blocks.span<double>()) sum += block;
  const double factor = 1 / std::max(std::sqrt(sum) * op.room, op.floor);
  const auto kernel = muon_kernels_of(ex).multiply[type];
  for_elements(ex, n, [&](int64_t first, int64_t count) {
    require_usual_rounding();
    kernel(op.x.data + first * size_of(op.x.dtype), factor, count);
  });
}

void run(Exec& ex, const MuonCombine& op) {
  const int64_t n = op.x.count();
  const DType dtype = op.x.dtype;
  const size_t type = kernel_index(dtype, "muon x");
  expect_count(op.x, n, dtype, "muon x");
  expect_count(op.y, n, dtype, "muon y");
  expect_count(op.product, n, accumulator_of(dtype), "muon product");
  const OpTimer timer(ex.meter, OpKind::optimizer,
                      {3.0 * static_cast<double>(n), bytes_of(op.product) + bytes_of(op.x) + bytes_of(op.y)});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = muon_kernels_of(ex).combine[type];
  for_elements(ex, n, [&](int64_t first, int64_t count) {
    const int64_t at = first * size_of(dtype);
    kernel(op.product.data + first * size_of(op.product.dtype), op.x.data + at, op.y.data + at, op.alpha, op.beta,
           count);
  });
}

}  // namespace trainer::ops
