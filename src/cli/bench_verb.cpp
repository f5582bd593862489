#include <algorithm>
#include <numeric>

#include "base/json.h"
#include "base/memory_probe.h"
#include "base/units.h"
#include "bench/attention.h"
#include "bench/elementwise.h"
#include "bench/optimizer.h"
#include "bench/step.h"
#include "cli/bench.h"
#include "setup/run_plan.h"

namespace trainer::cli {
namespace {

constexpr int kPeakWindows = 100;  // number of windows in `bench peak`, a tenth of a second in all

std::vector<ops::AttentionShape> attention_shapes(const Bench& b) {
  const auto shape = [](int64_t batch, int64_t length, int64_t heads, int64_t kv_heads, int64_t head_dim) {
    return ops::AttentionShape{
        .batch = batch, .q_len = length, .k_len = length, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
  };
  if (b.options.config.file.empty()) {
    if (b.machine.gpu)
      return {shape(32, 1024, 12, 12, 64), shape(8, 1024, 25, 25, 64), shape(4, 4096, 16, 16, 128),
              shape(2, 4096, 32, 8, 128), shape(1, 16384, 16, 16, 128)};
    return {shape(4, 1024, 12, 12, 64), shape(4, 1024, 6, 6, 128), shape(12, 256, 6, 6, 64)};
  }
  const config::Model& m = b.config.model;
  return {shape(b.config.train.micro_batch, m.seq_len, m.n_head, m.n_kv_head, config::head_size(m))};
}

json bench_attention(const Bench& b) {
  Computing on(b.machine);
  setup::PeakTracker peak = b.measured_peak(*on.device);
  std::vector<std::pair<ops::AttentionShape, bench::AttentionRate>> measured;
  for (const ops::AttentionShape& shape : attention_shapes(b)) {
    measured.emplace_back(shape,
                          bench::bench_attention(on.ex, b.machine.compute, shape, {.repeats = b.options.repeats}));
    const bench::AttentionRate& rate = measured.back().second;
    peak.measure();
    peak.raise_to_rate(1e9 * std::max(rate.forward_gflops, rate.backward_gflops), "attention");
  }
  b.say(format("{}, {} threads; causal FLOPs, {}\n", name_of(b.machine.compute), b.machine.threads, b.peak_text(peak)));
  json rates = json::array();
  for (const auto& [s, rate] : measured) {
    const double forward = rate.forward_gflops * 1e9 / peak.flops(),
                 backward = rate.backward_gflops * 1e9 / peak.flops();
    b.say(format("b {:>2}, s {:>4}, heads {:>2} x {:>3}: forward {:.1f} GFLOP/s ({}), backward {:.1f} GFLOP/s ({})\n",
                 s.batch, s.q_len, s.heads, s.head_dim, rate.forward_gflops, format_percent(forward),
                 rate.backward_gflops, format_percent(backward)));
    rates.push_back({{"batch", s.batch},
                     {"seq_len", s.q_len},
                     {"heads", s.heads},
                     {"kv_heads", s.kv_heads},
                     {"head_dim", s.head_dim},
                     {"forward_gflops", rate.forward_gflops},
                     {"backward_gflops", rate.backward_gflops},
                     {"forward_share", forward},
                     {"backward_share", backward}});
  }
  return {{"compute", name_of(b.machine.compute)},
          {"threads", b.machine.threads},
          {"path", ops::attention_path(*on.device)},
          {"peak_gflops", peak.flops() / 1e9},
          {"peak", peak_json(peak)},
          {"data_sheet_gflops", b.data_sheet_json()},
          {"rates", rates}};
}

// Measures this machine's peak in the compute type, which takes a fraction of a second. Scripts use it to check that
// the machine is idle.
json bench_peak(const Bench& b) {
  const std::unique_ptr<device::Device> device = setup::make_device(b.machine);
  setup::PeakTracker peak = b.measured_peak(*device);
  if (!b.machine.gpu) peak.measure(kPeakWindows);
  const setup::PeakReport report = peak.report();
  b.say(format("{}, {} threads on {}: {}\n", name_of(b.machine.compute), b.machine.threads,
               setup::device_text(b.machine), b.peak_text(peak)));
  if (report.windows > 0)
    b.say(format("median {:.3g}, lowest {:.3g} TFLOP/s\n", report.median_flops * 1e-12, report.lowest_flops * 1e-12));
  return {{"compute", name_of(b.machine.compute)},
          {"threads", b.machine.threads},
          {"device", setup::device_text(b.machine)},
          {"peak_gflops", peak.flops() / 1e9},
          {"peak", peak_json(peak)},
          {"data_sheet_gflops", b.data_sheet_json()}};
}

json bench_optimizer(const Bench& b) {
  constexpr int64_t kUsual = int64_t{64} << 20;  // 1 GiB of state and gradients, far larger than the caches
  std::vector<int64_t> pieces{b.options.size > 0 ? divide_up(b.options.size, int64_t{4}) : kUsual};
  if (b.options.size == 0 && !b.options.config.file.empty()) pieces = bench::update_pieces(b.config, b.machine);
  b.require_memory("--size", 4 * static_cast<double>(b.options.size));
  Computing on(b.machine);
  const bench::OptimizerRate rate = bench::bench_optimizer(on.ex, pieces, b.options.repeats);
  const std::string where = b.machine.gpu ? b.machine.gpu->name : format("{} threads", b.machine.threads);
  b.say(format(
      "AdamW fp32, {}: {:.2f} billion parameters/s, {:.1f} GB/s = {} of the rate of copying the same 28 bytes per "
      "parameter\n"
      "with a bf16 copy of the weights in the same pass: {:.2f} billion parameters/s, {} of the copy's bytes/s\n"
      "with moments in bf16: {:.2f} billion parameters/s\n",
      where, rate.parameters_per_s * 1e-9, rate.gb_per_s, format_percent(rate.share()),
      rate.copying_parameters_per_s * 1e-9, format_percent(rate.copying_share()),
      rate.bf16_moments_parameters_per_s * 1e-9));
  if (rate.read_parameters_per_s > 0)
    b.say(format("only reading the operands, 16 bytes per parameter: {:.2f} billion parameters/s\n",
                 rate.read_parameters_per_s * 1e-9));
  json products = json::array();
  std::vector<Shape> shapes;  // with --size, only AdamW is measured
  if (!b.options.config.file.empty()) {
    shapes = bench::hidden_shapes(b.config.model);
  } else if (b.options.size == 0) {
    shapes = {{768, 768}, {768, 3072}, {3072, 768}};
  }
  for (const bench::OrthogonalizeRate& r :
       bench::bench_orthogonalize(on.ex, b.machine.compute, shapes, b.options.repeats)) {
    b.say(format(
        "Muon, Newton-Schulz of {} in {}: {:.1f} ms, {:.0f} GFLOP/s = {} of the rate of its GEMMs on their own\n",
        to_string(r.shape), name_of(b.machine.compute), r.seconds * 1e3, r.gflops, format_percent(r.share)));
    products.push_back({{"rows", r.shape[0]},
                        {"cols", r.shape[1]},
                        {"ms", r.seconds * 1e3},
                        {"gflops", r.gflops},
                        {"share_of_gemms", r.share}});
  }
  return {{"threads", b.machine.threads},
          {"parameters", std::accumulate(pieces.begin(), pieces.end(), int64_t{0})},
          {"pieces", pieces.size()},
          {"parameters_per_s", rate.parameters_per_s},
          {"gb_per_s", rate.gb_per_s},
          {"share_of_traffic", rate.share()},
          {"traffic_parameters_per_s", rate.traffic_parameters_per_s},
          {"read_parameters_per_s", rate.read_parameters_per_s > 0 ? json(rate.read_parameters_per_s) : json()},
          {"copying_parameters_per_s", rate.copying_parameters_per_s},
          {"copying_share_of_traffic", rate.copying_share()},
          {"bf16_moments_parameters_per_s", rate.bf16_moments_parameters_per_s},
          {"orthogonalize", products}};
}

json bench_elementwise(const Bench& b) {
  const int64_t usual = b.machine.gpu ? int64_t{256} << 20 : int64_t{64} << 20;  // far larger than the caches
  b.require_memory("--size", 5 * static_cast<double>(b.options.size));
  Computing on(b.machine);
  const bench::ElementwiseRates rates = bench::bench_elementwise(
      on.ex, b.machine.compute, b.options.size > 0 ? b.options.size : usual, b.options.repeats);
  b.say(format("{}; copying {:.1f} GB/s\n{:<26}{:>10}{:>10}{:>10}\n", name_of(b.machine.compute), rates.copy_gb_per_s,
               "operator", "us", "GB/s", "of copy"));
  json list = json::array();
  double lowest = 1e9;
  for (const bench::ElementwiseRate& rate : rates.operators) {
    b.say(format("{:<26}{:>10.1f}{:>10.1f}{:>10}\n", rate.name, rate.seconds * 1e6, rate.gb_per_s,
                 format_percent(rate.share)));
    list.push_back({{"name", rate.name},
                    {"microseconds", rate.seconds * 1e6},
                    {"gb_per_s", rate.gb_per_s},
                    {"share_of_copy", rate.share}});
    lowest = std::min(lowest, rate.share);
  }
  return {{"compute", name_of(b.machine.compute)},
          {"copy_gb_per_s", rates.copy_gb_per_s},
          {"lowest_share", lowest},
          {"rates", list}};
}

json count_step(const Bench& b) {
  const bench::StepCount count = bench::count_step(b.config, b.machine);
  b.say(bench::to_text(count));
  json operators = json::array();
  for (const bench::OpShare& op : count.operators)
    operators.push_back({{"name", op.name}, {"calls", op.calls}, {"gflop", op.gflops}, {"gb", op.gb}});
  return {{"parameters", count.parameters},
          {"tokens", count.tokens},
          {"compute", count.compute},
          {"model_flops_per_token", count.model_flops_per_token},
          {"operators", operators}};
}

json bench_step(const Bench& b) {
  b.require_config();
  if (b.options.dry_run) return count_step(b);
  const bench::StepBench s =
      bench::bench_step(b.config, b.machine, b.options.warmup, b.options.repeats, b.options.data);
  b.say(bench::to_text(s));
  json operators = json::array();
  for (const bench::OpShare& op : s.operators)
    operators.push_back({{"name", op.name},
                         {"calls", op.calls},
                         {"ms", op.ms},
                         {"gflop", op.gflops},
                         {"gb", op.gb},
                         {"least_ms", op.least_ms}});
  return {{"parameters", s.parameters},
          {"tokens", s.tokens},
          {"data", b.options.data},
          {"threads", s.threads},
          {"compute", s.compute},
          {"path", s.product_path},
          {"step_ms", s.step_ms},
          {"median_ms", s.median_ms},
          {"tokens_per_s", s.tokens_per_s},
          {"model_tflops", s.model_tflops},
          {"peak_tflops", s.peak.flops / 1e12},
          {"peak", report::to_json(s.peak)},
          {"mfu", s.mfu},
          {"mfu_causal", s.mfu_causal},
          {"hfu", s.hfu},
          {"memory_bytes", s.memory_bytes},
          {"copy_gb_per_s", s.copy_gb_per_s},
          {"operators", operators}};
}

// Compares predicted memory with the measured memory of the process over a few steps.
json bench_memory(const Bench& b) {
  b.require_config();
  const setup::RunPlan plan = setup::plan_run(b.config, b.config.data.vocab_size, b.machine, true);
  MemoryProbe probe;
  const int64_t measured = bench::memory_of_steps(b.config, b.machine, 3, probe);
  const double ratio = static_cast<double>(measured) / static_cast<double>(plan.total);
  b.say(to_text(plan, b.config, b.machine));
  b.say(format("measured growth of anonymous memory {} = {:.3f} x predicted\n", format_bytes(measured), ratio));
  return {
      {"predicted_bytes", plan.total}, {"measured_bytes", measured}, {"ratio", ratio}, {"by_category", plan.memory}};
}

}  // namespace

int bench_command(const BenchOptions& o) {
  if (!o.write_profile.empty()) return bench_profile_command(o);
  if (o.what == "collectives") return bench_collectives_command(o);
  if (const int ranks = comm::launched_ranks().value_or(1); ranks > 1)
    throw Error(Code::usage, format("`bench {}` measures one process, but {} ranks were started: run it without "
                                    "mpirun (only `bench collectives` and `bench all --write-profile` use ranks)",
                                    o.what, ranks));
  const Bench bench(o);
  if (o.what == "all") bench.require_config();
  const std::vector<std::pair<std::string, json (*)(const Bench&)>> all = {
      {"peak", bench_peak},           {"gemm", bench_gemm},
      {"attention", bench_attention}, {"elementwise", bench_elementwise},
      {"experts", bench_experts},     {"optimizer", bench_optimizer},
      {"offload", bench_offload},     {"step", bench_step},
      {"memory", bench_memory}};
  json document;
  for (const auto& [name, run] : all)
    if (o.what == "all" || o.what == name) document[name] = run(bench);
  if (o.json) print(json_text(o.what == "all" ? document : document[o.what]) + "\n");
  return 0;
}

}  // namespace trainer::cli
