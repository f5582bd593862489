#include "ops/adamw.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "ops/cpu/adamw_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

const AdamWKernels& adamw_kernels(const Exec& ex) { return TRAINER_KERNELS(ex.device.isa(), adamw_kernels); }

/// True if the bf16 copy is written with non-temporal stores: a thread's part of the whole update is larger than its
/// caches, so they would not keep the copy, and lines that are written whole need not be read first.
bool streams_copy(const Exec& ex, const AdamW& op) {
  constexpr int64_t kLine = 64;
  const int64_t each =
      size_of(op.p.dtype) + size_of(op.m.dtype) + size_of(op.v.dtype) + size_of(op.g.dtype) + size_of(DType::bf16);
  return op.compute && std::max(op.whole, op.p.count()) * each > ex.device.threads() * kCoreCaches &&
         reinterpret_cast<uintptr_t>(op.compute.data) % kLine == 0;
}

}  // namespace

void require_usual_rounding() {
#if defined(__x86_64__)
  constexpr unsigned kUnusual = 0x8040 | 0x6000;  // MXCSR: FTZ and DAZ; rounding modes other than to nearest
  const unsigned control = _mm_getcsr();
#elif defined(__aarch64__)
  constexpr uint64_t kUnusual = 1u << 24 | 3u << 22;  // FPCR: FZ; rounding modes other than to nearest
  uint64_t control = 0;
  asm volatile("mrs %0, fpcr" : "=r"(control));
#endif
  TRAINER_CHECK((control & kUnusual) == 0,
                "a thread that updates weights flushes subnormals or has a non-default rounding mode (MXCSR or FPCR "
                "{:#x}), probably set by a library linked with -ffast-math",
                control);
}

void run(Exec& ex, const AdamW& op) {
  const int64_t n = op.p.count();
  const DType dtype = op.p.dtype;
  const size_t type = state_index(dtype, "adamw p");
  expect_count(op.p, n, dtype, "adamw p");
  const bool small = op.m.dtype == DType::bf16;
  expect_count(op.m, n, small ? DType::bf16 : dtype, "adamw m");
  expect_count(op.v, n, small ? DType::bf16 : dtype, "adamw v");
  const bool narrow = op.g.dtype == DType::bf16;
  expect_count(op.g, n, narrow ? DType::bf16 : dtype, "adamw g");
  TRAINER_CHECK(dtype == DType::f32 || (!narrow && !op.round_gradient), "bf16 gradients require fp32 weights");
  TRAINER_CHECK(dtype == DType::f32 || !small, "bf16 moments require fp32 weights");
  if (op.compute) {
    expect_count(op.compute, n, DType::bf16, "adamw compute");
    TRAINER_CHECK(dtype == DType::f32, "a bf16 copy of the weights requires fp32 weights");
  }
  const double bytes =
      bytes_of(op.p, 2) + bytes_of(op.m, 2) + bytes_of(op.v, 2) + bytes_of(op.g) + bytes_of(op.compute);
  const OpTimer timer(ex.meter, OpKind::optimizer, {14.0 * static_cast<double>(n), bytes});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;

  const AdamWScalars& s = op.scalars;
  const AdamWConstants constants{s.beta1, s.beta2,         1 - s.beta1,      1 - s.beta2,      s.inv_sqrt_correction,
                                 s.eps,   s.negative_step, s.negative_decay, s.gradient_scale, rounding_salt(s)};
  const AdamWKernels& table = adamw_kernels(ex);
  const auto kernel = type == 0 ? table.f64 : table.f32[small ? 1 : 0][narrow ? 2 : op.round_gradient ? 1 : 0];
  const bool streams = streams_copy(ex, op);
  for_elements(ex, n, [&](int64_t first, int64_t count) {
    require_usual_rounding();
    const int64_t at = first * size_of(dtype);
    const int64_t moment = first * size_of(op.m.dtype);
    kernel(constants, op.p.data + at, op.m.data + moment, op.v.data + moment, op.g.data + first * size_of(op.g.dtype),
           op.compute ? op.compute.as<bf16>() + first : nullptr, streams, count);
  });
}

void run(Exec& ex, const SquaredNorm& op) { run(ex, SquaredNorms{{&op, 1}}); }

void run(Exec& ex, const SquaredNorms& op) {
  if (op.parts.empty()) return;
  const DType dtype = op.parts.front().x.dtype;
  const size_t type = kernel_index(dtype, "squared norm x");
  Cost cost;
  for (const SquaredNorm& part : op.parts) {
    const int64_t n = part.x.count();
    expect_count(part.x, n, dtype, "squared norm x");
    expect_count(part.blocks, divide_up(n, kNormBlock), DType::f64, "squared norm blocks");
    cost.flops += 2.0 * static_cast<double>(n);
    cost.bytes += static_cast<double>(part.x.bytes());
  }
  const OpTimer timer(ex.meter, OpKind::grad_norm, cost);
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;
  const auto kernel = adamw_kernels(ex).square_sum[type];
  for (const SquaredNorm& part : op.parts) {
    double* blocks = part.blocks.as<double>();
    for_row_blocks(ex, part.x.count(), kNormBlock, [&](int64_t first, int64_t count) {
      blocks[first / kNormBlock] = kernel(part.x.data + first * size_of(dtype), count);
    });
  }
}

}  // namespace trainer::ops
