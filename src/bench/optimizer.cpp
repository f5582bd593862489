#include "bench/optimizer.h"

#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "base/median.h"
#include "config/block_linears.h"
#include "ops/cpu/peak.h"
#include "ops/elementwise.h"
#include "ops/gemm.h"
#include "ops/op_timing.h"
#include "ops/operands.h"
#include "ops/update.h"
#include "optim/orthogonalize.h"
#include "optim/selection.h"
#include "tensor/buffer.h"
#include "tensor/host_copy.h"
#include "train/trainer.h"

namespace trainer::bench {
namespace {

struct Arrays {
  Buffer p, m, v, g;
};

float* at(const Buffer& x, int64_t first) { return x.tensor().as<float>() + first; }

/// Moves the same 28 bytes per parameter as an update, and computes nothing.
void move(Exec& ex, const Arrays& arrays, int64_t parameters) {
  if (ex.device.kind() == device::DeviceKind::cuda) {  // as copies of 8 bytes per element
    for (int i = 0; i < 3; ++i) ops::run(ex, ops::Copy{arrays.p, arrays.m});
    ops::run(ex, ops::Copy{arrays.p.tensor().range(0, parameters / 2), arrays.m.tensor().range(0, parameters / 2)});
    return;
  }
  ops::for_elements(ex, parameters, [&](int64_t first, int64_t n) {
    ops::peak_loops(ex.device.isa())
        .traffic(at(arrays.p, first), at(arrays.m, first), at(arrays.v, first), at(arrays.g, first), n);
  });
}

/// Reads the 16 bytes per parameter that an update reads.
void read(Exec& ex, const Arrays& arrays, int64_t parameters) {
  if (ex.device.kind() == device::DeviceKind::cuda) return;
  ops::for_elements(ex, parameters, [&](int64_t first, int64_t n) {
    ops::peak_loops(ex.device.isa())
        .read(at(arrays.p, first), at(arrays.m, first), at(arrays.v, first), at(arrays.g, first), n);
  });
}

}  // namespace

std::vector<int64_t> update_pieces(const config::Config& config, const setup::Machine& machine) {
  const std::unique_ptr<device::Device> dry = setup::make_dry_device(machine);
  const std::unique_ptr<comm::World> world = comm::solo_world();
  train::Trainer trainer(*dry, *world, config, config.data.vocab_size, machine.compute);
  const optim::Selection all(trainer.store());
  std::vector<int64_t> pieces;
  for (size_t g = 0; g < trainer.store().groups().size(); ++g)
    all.each(static_cast<int>(g), trainer.store().groups()[g].held,
             [&](comm::Chunk part, optim::ParamClass) { pieces.push_back(part.count); });
  return pieces;
}

OptimizerRate bench_optimizer(Exec& ex, std::span<const int64_t> pieces, int repeats) {
  const int64_t parameters = std::accumulate(pieces.begin(), pieces.end(), int64_t{0});
  TRAINER_CHECK(parameters >= 1 && repeats >= 1,
                "bench_optimizer() requires at least one parameter and one repeat, not {} and {}", parameters, repeats);
  const auto array = [&] { return Buffer(ex.device, "bench", {parameters}, DType::f32); };
  const Arrays arrays{array(), array(), array(), array()};
  const auto narrow = [&] { return Buffer(ex.device, "bench", {parameters}, DType::bf16); };
  const Buffer copy = narrow(), first_moments = narrow(), second_moments = narrow();
  HostCopy gradients(ex.device, arrays.g);
  float* const g = gradients.tensor().as<float>();
  for (int64_t i = 0; i < parameters; ++i) g[i] = 1e-3f * static_cast<float>(i % 1000 + 1);
  gradients.put();
  using K = ops::rules::AdamW;
  const double scalars[K::scalars] = {0.9, 0.95, 0.1, 0.05, 1, 1e-8, -1e-6, -1e-7, -HUGE_VAL};
  const auto update = [&](bool copies, const Buffer& m, const Buffer& v) {
    int64_t first = 0;
    for (const int64_t n : pieces) {
      const auto of = [&](const Buffer& x) { return x.tensor().range(first, n); };
      const Tensor states[] = {of(m), of(v)};
      ops::run(ex, ops::Update{.rule = ops::RuleId::AdamW,
                               .p = of(arrays.p),
                               .states = states,
                               .g = of(arrays.g),
                               .compute = copies ? of(copy) : Tensor{},
                               .scalars = scalars});
      first += n;
    }
  };
  // The loops take turns; the first pass is not counted.
  const std::function<void()> works[] = {
      [&] { update(false, arrays.m, arrays.v); }, [&] { move(ex, arrays, parameters); },
      [&] { update(true, arrays.m, arrays.v); }, [&] { read(ex, arrays, parameters); },
      [&] { update(false, first_moments, second_moments); }};
  std::vector<double> seconds[std::size(works)];
  for (int i = 0; i <= repeats; ++i)
    for (size_t which = 0; which < std::size(works); ++which) {
      ex.device.synchronize();
      const double start = now_seconds();
      works[which]();
      ex.device.synchronize();
      if (i > 0) seconds[which].push_back(now_seconds() - start);
    }
  const auto rate = [&](size_t which) { return static_cast<double>(parameters) / median(seconds[which]); };
  return {.parameters_per_s = rate(0),
          .gb_per_s = 28e-9 * rate(0),
          .traffic_parameters_per_s = rate(1),
          .copying_parameters_per_s = rate(2),
          .read_parameters_per_s = ex.device.kind() == device::DeviceKind::cuda ? 0 : rate(3),
          .bf16_moments_parameters_per_s = rate(4)};
}

std::vector<Shape> hidden_shapes(const config::Model& m) {
  std::vector<Shape> shapes;
  for (const int64_t layer : {int64_t{0}, m.moe_every - 1})  // the first one, and the first one with experts
    for (const config::BlockLinear& linear : linears_of(m, layer))
      for (const config::LinearPart& part : linear.parts) {
        const Shape shape{linear.in, part.width};
        if (linear.whole_matrix && std::ranges::find(shapes, shape) == shapes.end()) shapes.push_back(shape);
      }
  return shapes;
}

std::vector<OrthogonalizeRate> bench_orthogonalize(Exec& ex, DType dtype, std::span<const Shape> shapes, int repeats) {
  TRAINER_CHECK(repeats >= 1, "bench_orthogonalize() requires at least one repeat, not {}", repeats);
  std::vector<OrthogonalizeRate> rates;
  const optim::NewtonSchulz how;
  for (const Shape& shape : shapes) {
    const bool wide = shape[0] <= shape[1];
    const int64_t k = std::min(shape[0], shape[1]);
    const Buffer x(ex.device, "bench", shape, dtype);
    ops::fill_normal(ex.device, x, "x");
    const auto gemms = [&](Exec& in) {
      const Scratch gram = in.take("gram", {k, k}, dtype), sums = in.take("sums", shape, accumulator_of(dtype));
      const Tensor square{sums.tensor().data, {k, k}, sums.tensor().dtype, 0};
      for (int step = 0; step < how.steps; ++step) {
        ops::run(in, ops::Gemm{.a = x, .b = x, .c = gram, .trans_a = !wide, .trans_b = wide});
        ops::run(in, ops::Gemm{.a = gram, .b = gram, .c = square});
        ops::run(in, wide ? ops::Gemm{.a = gram, .b = x, .c = sums} : ops::Gemm{.a = x, .b = gram, .c = sums});
      }
    };
    const std::pair<const char*, std::function<void(Exec&)>> works[] = {
        {"orthogonalize", [&](Exec& in) { optim::orthogonalize(in, x, how); }}, {"gemms", gemms}};
    const std::unique_ptr<device::Device> dry = device::make_dry(ex.device);
    Arena arena(ex.device);
    Meter unused;
    Exec plan{*dry, arena, unused}, planned{ex.device, arena, ex.meter};
    for (const auto& [name, work] : works) arena.record(name, [&, &work = work] { work(plan); });
    arena.seal();
    std::vector<double> seconds[std::size(works)];
    for (int i = 0; i <= repeats; ++i)  // the first ones are not counted
      for (size_t which = 0; which < std::size(works); ++which) {
        ex.device.synchronize();
        const double start = now_seconds();
        arena.begin(works[which].first);
        works[which].second(planned);
        arena.end();
        ex.device.synchronize();
        if (i > 0) seconds[which].push_back(now_seconds() - start);
      }
    const double all = median(seconds[0]);
    rates.push_back({.shape = shape,
                     .seconds = all,
                     .gflops = 1e-9 * static_cast<double>(optim::orthogonalize_flops(shape, how.steps)) / all,
                     .share = median(seconds[1]) / all});
  }
  return rates;
}

}  // namespace trainer::bench
