#include "bench/optimizer.h"

#include <vector>

#include "base/clock.h"
#include "base/median.h"
#include "ops/adamw.h"
#include "ops/cpu/peak.h"
#include "ops/elementwise.h"
#include "ops/operands.h"
#include "tensor/buffer.h"
#include "tensor/host_copy.h"

namespace trainer::bench {
namespace {

struct Arrays {
  Buffer p, m, v, g;
};

/// Moves the 28 bytes per parameter that an update moves, and computes nothing.
void move(Exec& ex, const Arrays& arrays, int64_t parameters) {
  if (ex.device.kind() == device::Kind::cuda) {  // as copies of 8 bytes an element
    for (int i = 0; i < 3; ++i) ops::run(ex, ops::Copy{arrays.p, arrays.m});
    ops::run(ex, ops::Copy{arrays.p.tensor().range(0, parameters / 2), arrays.m.tensor().range(0, parameters / 2)});
    return;
  }
  const ops::TrafficLoop traffic =
      ops::table_for(ex, ops::plain::peak_table, ops::avx2::peak_table, ops::avx512::peak_table).traffic;
  ops::for_row_blocks(ex, parameters, ops::kTaskElements, [&](int64_t first, int64_t n) {
    const auto at = [first](const Buffer& x) { return x.tensor().as<float>() + first; };
    traffic(at(arrays.p), at(arrays.m), at(arrays.v), at(arrays.g), n);
  });
}

}  // namespace

OptimizerRate bench_optimizer(Exec& ex, int64_t parameters, int repeats) {
  TRAINER_CHECK(parameters >= 1 && repeats >= 1, "{} parameters, {} repeats", parameters, repeats);
  const auto array = [&] { return Buffer(ex.device, "bench", {parameters}, DType::f32); };
  const Arrays arrays{array(), array(), array(), array()};
  const Buffer copy(ex.device, "bench", {parameters}, DType::bf16);
  HostCopy gradients(ex.device, arrays.g);
  float* const g = gradients.tensor().as<float>();
  for (int64_t i = 0; i < parameters; ++i) g[i] = 1e-3f * static_cast<float>(i % 1000 + 1);
  gradients.put();
  const ops::AdamWScalars scalars{.beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .inv_sqrt_correction = 1,
                                  .eps = 1e-8,
                                  .negative_step = -1e-6,
                                  .negative_decay = -1e-7};
  const auto now = [&] {
    ex.device.synchronize();
    return now_seconds();
  };
  std::vector<double> update, alone, copying;
  for (int i = 0; i <= repeats; ++i) {
    const double start = now();
    ops::run(ex, ops::AdamW{arrays.p, arrays.m, arrays.v, arrays.g, {}, scalars});
    const double between = now();
    move(ex, arrays, parameters);
    const double moved = now();
    ops::run(ex, ops::AdamW{arrays.p, arrays.m, arrays.v, arrays.g, copy, scalars});
    const double end = now();
    if (i == 0) continue;
    update.push_back(between - start);
    alone.push_back(moved - between);
    copying.push_back(end - moved);
  }
  const double count = static_cast<double>(parameters);
  return {.parameters_per_s = count / median(update),
          .gb_per_s = 28e-9 * count / median(update),
          .traffic_parameters_per_s = count / median(alone),
          .copying_parameters_per_s = count / median(copying)};
}

}  // namespace trainer::bench
