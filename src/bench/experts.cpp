#include "bench/experts.h"

#include "ops/grouped_gemm.h"
#include "parallel/mlp.h"
#include "parallel/routing.h"
#include "tensor/buffer.h"

namespace trainer::bench {

ExpertsTime bench_experts(Exec& ex, const config::Model& model, DType compute, int64_t rows, int repeats) {
  TRAINER_CHECK(repeats >= 1, "bench_experts() requires at least one repeat, not {}", repeats);
  device::Device& device = ex.device;
  params::ParamStore store(device, compute);
  parallel::Strategy strategy(store, model.n_layer);
  const int group = store.add_group("blocks");
  const std::unique_ptr<parallel::Mlp> mlp =
      strategy.mlp({static_cast<int>(moe_layers(model) * model.moe_every) - 1, group, model, config::Recompute::none});
  store.allocate(/*training=*/true);
  store.initialize(1);
  params::GradSink sink(store);
  sink.prepare(device);
  parallel::Routing routing(device, accumulator_of(compute), moe_layers(model), model.n_expert);
  routing.balance = 0.01 * static_cast<double>(model.n_expert) / static_cast<double>(rows);
  const Buffer x(device, "bench", {rows, model.d_model}, compute), dy(device, "bench", {rows, model.d_model}, compute);
  ops::fill_normal(device, x, "x");
  ops::fill_normal(device, dy, "dy");
  const parallel::Batch batch{.sequences = 1, .seq_len = rows, .routing = &routing};
  const auto pass = [&](Exec& in) {
    routing.begin_step();
    sink.begin_step();
    sink.begin_micro(/*last=*/true);
    parallel::Mlp::Saved saved;
    mlp->forward(in, batch, x.tensor(), saved);
    mlp->output(in, batch, {}, saved);
    const Scratch d = mlp->backward(in, batch, dy.tensor(), saved, sink);
    mlp->input_gradient(in, batch, d, x, saved, sink);
    sink.end_group(in, group);
    sink.end_micro(in);
  };
  const std::unique_ptr<device::Device> dry = device::make_dry(device);
  Arena arena(device);
  Meter unused, meter;
  arena.record("layer", [&] {
    Exec plan{*dry, arena, unused};
    pass(plan);
  });
  arena.seal();
  meter.timed = &device;
  Exec planned{device, arena, meter};
  std::vector<double> all, gemms;
  for (int i = 0; i <= repeats; ++i) {  // the first one is not counted
    meter.reset();
    device.synchronize();
    const double start = now_seconds();
    arena.begin("layer");
    pass(planned);
    arena.end();
    device.synchronize();
    if (i == 0) continue;
    all.push_back(now_seconds() - start);
    gemms.push_back(meter.of(OpKind::gemm).seconds);
  }
  return {median(all), median(gemms)};
}

GroupedRate bench_grouped_gemm(Exec& ex, DType dtype, const GemmShape& shape, int64_t groups, int repeats) {
  const auto [m, k, n] = shape;
  TRAINER_CHECK(repeats >= 1 && groups >= 1 && m % groups == 0, "{} rows in {} groups, {} repeats", m, groups, repeats);
  const auto buffer = [&](Shape of, DType type) { return Buffer(ex.device, "bench", of, type); };
  const Buffer x = buffer({m, k}, dtype), y = buffer({m, n}, dtype), weights = buffer({groups * k, n}, dtype),
               sums = buffer({groups * k, n}, accumulator_of(dtype));
  for (const auto& [tensor, name] : {std::pair{&x, "x"}, {&y, "y"}, {&weights, "w"}})
    ops::fill_normal(ex.device, *tensor, name);
  const std::vector<int64_t> rows(static_cast<size_t>(groups), m / groups);
  const Tensor w = weights.tensor().row_range(0, k), dw = sums.tensor().row_range(0, k);
  // dx overwrites x, and the forward GEMM overwrites y: the weight gradient comes first, on normal draws.
  std::vector<double> ratios[3];
  for (int turn = 0; turn < repeats; ++turn) {
    const auto add = [&](std::vector<double>& to, const auto& grouped, const ops::Gemm& one) {
      const ops::Timing timing{.repeats = 3};
      to.push_back(ops::seconds_of(ex, one, timing) / ops::seconds_of(ex, grouped, timing));
    };
    add(ratios[2], ops::GroupedWeightGradient{.x = x, .dy = y, .dw = sums, .rows = rows, .accumulate = true},
        {.a = x, .b = y, .c = dw, .trans_a = true, .accumulate = true});
    add(ratios[0], ops::GroupedGemm{.a = x, .b = weights, .c = y, .rows = rows}, {.a = x, .b = w, .c = y});
    add(ratios[1], ops::GroupedGemm{.a = y, .b = weights, .c = x, .rows = rows, .trans_b = true},
        {.a = y, .b = w, .c = x, .trans_b = true});
  }
  return {
      .shape = shape, .groups = groups, .forward = median(ratios[0]), .dx = median(ratios[1]), .dw = median(ratios[2])};
}

}  // namespace trainer::bench
