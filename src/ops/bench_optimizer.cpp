#include "ops/bench_optimizer.h"

#include <vector>

#include "base/clock.h"
#include "base/median.h"
#include "ops/adamw.h"
#include "ops/cpu/peak.h"
#include "ops/operands.h"
#include "tensor/buffer.h"

namespace trainer::ops {
OptimizerRate bench_optimizer(Exec& ex, int64_t parameters, int repeats) {
  TRAINER_CHECK(parameters >= 1 && repeats >= 1, "{} parameters, {} repeats", parameters, repeats);
  const auto array = [&] { return Buffer(ex.device, "bench", {parameters}, DType::f32); };
  const Buffer p = array(), m = array(), v = array(), g = array();
  for_row_blocks(ex, parameters, kTaskElements, [&](int64_t first, int64_t n) {
    for (int64_t i = first; i < first + n; ++i) g.tensor().as<float>()[i] = 1e-3f * static_cast<float>(i % 1000 + 1);
  });
  const AdamWScalars scalars{.beta1 = 0.9,
                             .beta2 = 0.95,
                             .inv_sqrt_correction = 1,
                             .eps = 1e-8,
                             .negative_step = -1e-6,
                             .negative_decay = -1e-7};
  const TrafficLoop traffic = table_for(ex, plain::peak_table, avx2::peak_table, avx512::peak_table).traffic;
  std::vector<double> update, alone;
  for (int i = 0; i <= repeats; ++i) {
    const double start = now_seconds();
    run(ex, AdamW{p, m, v, g, {}, scalars});
    const double between = now_seconds();
    for_row_blocks(ex, parameters, kTaskElements, [&](int64_t first, int64_t n) {
      const auto at = [first](const Buffer& x) { return x.tensor().as<float>() + first; };
      traffic(at(p), at(m), at(v), at(g), n);
    });
    const double end = now_seconds();
    if (i == 0) continue;
    update.push_back(between - start);
    alone.push_back(end - between);
  }
  const double count = static_cast<double>(parameters);
  return {.parameters_per_s = count / median(update),
          .gb_per_s = 28e-9 * count / median(update),
          .traffic_parameters_per_s = count / median(alone)};
}

}  // namespace trainer::ops
