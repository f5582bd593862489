// Compute threads have the floating-point environment that canonical arithmetic requires.
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "unit/ops/op_fixture.h"

namespace trainer::ops::testing {
namespace {

#if defined(__x86_64__)
using Control = unsigned;                                                                      // MXCSR
constexpr Control kFlush = 0x8040, kRounding = 0x6000, kUnusual[] = {0x8000, 0x0040, 0x2000};  // FTZ, DAZ, downwards
Control control_register() { return _mm_getcsr(); }
void set_control_register(Control value) { _mm_setcsr(value); }
#elif defined(__aarch64__)
using Control = uint64_t;                                                                      // FPCR
constexpr Control kFlush = 1u << 24, kRounding = 3u << 22, kUnusual[] = {1u << 24, 2u << 22};  // FZ, downwards
Control control_register() {
  Control value = 0;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void set_control_register(Control value) { asm volatile("msr fpcr, %0" ::"r"(value)); }
#endif

TEST(FloatingPoint, ThreadsRoundToNearestAndKeepSubnormals) {
  device::CpuDevice device(3);
  device.host_pool().parallel_for(64, [](int64_t) {
    const Control control = control_register();
    TRAINER_CHECK((control & kFlush) == 0, "subnormals are flushed: {:#x}", control);
    TRAINER_CHECK((control & kRounding) == 0, "rounding mode is not to nearest: {:#x}", control);
  });
}

TEST(FloatingPoint, AThreadThatFlushesSubnormalsOrRoundsOtherwiseUpdatesNothing) {
  device::CpuDevice device(1);
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  TestTensor p({100}, DType::f32), m = p, v = p, g = p;
  for (TestTensor* const x : {&p, &m, &v, &g}) x->fill([] { return 0.5; });
  const Tensor states[] = {m, v};
  const double scalars[rules::AdamW::scalars] = {0.9, 0.95, 0.1, 0.05, 1, 1e-8};
  const Update op{.rule = RuleId::AdamW, .p = p, .states = states, .g = g, .compute = {}, .scalars = scalars};
  const Control before = control_register();
  for (const Control mode : kUnusual) {
    set_control_register(before | mode);
    try {
      run(ex, op);
      ADD_FAILURE() << "mode " << mode;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("MXCSR"), std::string::npos) << error.what();
    }
    set_control_register(before);
  }
  run(ex, op);
}

}  // namespace
}  // namespace trainer::ops::testing
