#include "ops/update.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "ops/cpu/update_kernels.h"
#include "ops/cuda/ops.h"
#include "ops/operands.h"

namespace trainer::ops {
namespace {

constexpr RuleFacts kFacts[] = {
#define TRAINER_FACTS(Rule) {rules::Rule::name, rules::Rule::flops, rules::Rule::states, rules::Rule::scalars},
    TRAINER_RULES(TRAINER_FACTS)
#undef TRAINER_FACTS
};
static_assert([] {
  bool fits = true;
  for (const RuleFacts& rule : kFacts) fits &= rule.states.size() <= kMostStates && rule.scalars <= kMostScalars;
  return fits;
}());

/// True if the bf16 copy is written with non-temporal stores: a thread's part of the whole update is larger than its
/// caches, so they would not keep the copy, and lines that are written whole need not be read first.
bool streams_copy(const Exec& ex, const Update& op) {
  constexpr int64_t kLine = 64;
  int64_t each = size_of(op.p.dtype) + size_of(op.g.dtype) + size_of(DType::bf16);
  for (const Tensor& state : op.states) each += size_of(state.dtype);
  return op.compute && std::max(op.whole, op.p.count()) * each > ex.device.threads() * kCoreCaches &&
         reinterpret_cast<uintptr_t>(op.compute.data) % kLine == 0;
}

}  // namespace

const RuleFacts& facts_of(RuleId rule) { return kFacts[static_cast<size_t>(rule)]; }

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

void run(Exec& ex, const Update& op) {
  const RuleFacts& rule = facts_of(op.rule);
  const int64_t n = op.p.count();
  const DType dtype = op.p.dtype;
  const size_t type = state_index(dtype, "update p");
  expect_count(op.p, n, dtype, "update p");
  TRAINER_CHECK(op.states.size() == rule.states.size() && op.scalars.size() == rule.scalars,
                "{} has {} states and {} scalars, not {} and {}", rule.name, rule.states.size(), rule.scalars,
                op.states.size(), op.scalars.size());
  const bool small = !op.states.empty() && op.states.front().dtype == DType::bf16;
  const bool narrow = op.g.dtype == DType::bf16;
  expect_count(op.g, n, narrow ? DType::bf16 : dtype, "update g");
  TRAINER_CHECK(dtype == DType::f32 || (!narrow && !op.round_gradient), "bf16 gradients require fp32 weights");
  TRAINER_CHECK(dtype == DType::f32 || !small, "bf16 states require fp32 weights");
  double bytes = bytes_of(op.p, 2) + bytes_of(op.g) + bytes_of(op.compute);
  for (const Tensor& state : op.states) {
    expect_count(state, n, small ? DType::bf16 : dtype, "update state");
    bytes += bytes_of(state, 2);
  }
  if (op.compute) {
    expect_count(op.compute, n, DType::bf16, "update compute");
    TRAINER_CHECK(dtype == DType::f32, "a bf16 copy of the weights requires fp32 weights");
  }
  const OpTimer timer(ex.meter, OpKind::optimizer, {rule.flops * static_cast<double>(n), bytes});
  if (ex.device.kind() == device::DeviceKind::cuda) return cuda::run(ex, op);
  if (ex.device.dry()) return;

  const auto& table = TRAINER_KERNELS(ex.device.isa(), update_kernels).rules[static_cast<size_t>(op.rule)];
  const auto kernel = type == 0 ? table.f64 : table.f32[small ? 1 : 0][narrow ? 2 : op.round_gradient ? 1 : 0];
  const bool streams = streams_copy(ex, op);
  for_elements(ex, n, [&](int64_t first, int64_t count) {
    require_usual_rounding();
    const auto from = [&](const Tensor& t) { return t.data + first * size_of(t.dtype); };
    UpdateCall call{.scalars = op.scalars.data(),
                    .gradient_scale = op.gradient_scale,
                    .salt = op.salt,
                    .streams = streams,
                    .p = from(op.p),
                    .states = {},
                    .g = from(op.g),
                    .compute = op.compute ? op.compute.as<bf16>() + first : nullptr,
                    .n = count};
    for (size_t i = 0; i < op.states.size(); ++i) call.states[i] = from(op.states[i]);
    kernel(call);
  });
}

}  // namespace trainer::ops
