#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "bench/attention.h"
#include "bench/elementwise.h"
#include "bench/gemm.h"
#include "bench/optimizer.h"
#include "bench/step.h"
#include "cli/bench_offload.h"
#include "cli/cli.h"
#include "cli/configuration.h"
#include "cli/later.h"
#include "cli/process.h"
#include "config/load.h"
#include "device/cuda/cuda_device.h"
#include "measure/gpu_peak.h"
#include "measure/memory_probe.h"
#include "measure/peak.h"
#include "measure/units.h"
#include "plan/run_plan.h"
#include "report/events_json.h"

namespace trainer::cli {
namespace {

using nlohmann::json;

/// Bench says where a benchmark runs and in which type. Text goes to stdout, or to stderr where JSON is asked for.
struct Bench {
  explicit Bench(const BenchOptions& o) : options(o) {
    config = o.config.file.empty() ? config::load_text("", "", o.config.sets, {.files = false})
                                   : load_configuration(o.config);
    if (o.threads > 0) config.run.threads = o.threads;
    if (o.compute == "fp32") config.precision.compute = config::Compute::fp32;
    if (o.compute == "bf16") config.precision.compute = config::Compute::bf16;
    if (o.compute == "fp64") config.precision.compute = config::Compute::fp64;
    machine = plan::choose_machine(config, *world);
  }
  void require_config() const {
    if (options.config.file.empty())
      throw Error(Code::usage, format("`bench {}` needs --config FILE: the model to measure", options.what));
    if (config.data.vocab_size <= 0) throw Error(Code::usage, format("`bench {}` needs data.vocab_size", options.what));
  }
  /// Returns the peak that rates are shares of. A peak given by the user saves the time of measuring one. On a GPU the
  /// data sheet's stands beside it.
  measure::PeakTracker measured_peak(device::Device& device) const {
    if (machine.gpu && config.hardware.peak_tflops == 0)
      return {measure::best_product_flops(device, machine.compute), "measured", "products of the library"};
    measure::PeakTracker peak = measure::make_peak(device, machine.compute, config, *world);
    peak.measure();
    return peak;
  }
  /// Returns the data sheet's peak of a GPU whose part is known.
  std::optional<double> data_sheet_peak() const {
    return machine.gpu ? measure::data_sheet_peak(machine.gpu->name, machine.compute) : std::nullopt;
  }
  std::string peak_text(const measure::PeakTracker& peak) const {
    const std::optional<double> promised = data_sheet_peak();
    return "peak " + to_string(peak.report()) +
           (promised ? format(", data sheet {:.3g} TFLOP/s", *promised * 1e-12) : "");
  }
  json data_sheet_json() const {
    const std::optional<double> promised = data_sheet_peak();
    return promised ? json(*promised * 1e-9) : json();
  }
  void say(const std::string& text) const {
    if (options.json) {
      std::fputs(text.c_str(), stderr);
    } else {
      print(text);
    }
  }

  BenchOptions options;
  std::unique_ptr<comm::World> world = comm::solo_world();
  config::Config config;
  plan::Machine machine;
};

constexpr int kPeakWindows = 100;  // of `bench peak`: a tenth of a second

json peak_json(const measure::PeakTracker& peak) { return report::to_json(peak.report()); }

/// Returns the shapes asked for; else those of the configuration's linear layers, or some usual ones.
std::vector<bench::GemmShape> gemm_shapes(const Bench& b) {
  std::vector<bench::GemmShape> asked;
  for (const auto& [m, k, n] : b.options.shapes) asked.push_back({m, k, n});
  if (!asked.empty()) return asked;
  if (b.options.config.file.empty()) {
    if (b.machine.gpu)
      return {{32768, 768, 2304}, {32768, 768, 768},  {32768, 768, 3072}, {32768, 3072, 768}, {8192, 768, 50304},
              {8192, 1600, 4800}, {8192, 1600, 6400}, {8192, 6400, 1600}, {8192, 8192, 8192}};
    return {{4096, 768, 3072}, {4096, 3072, 768}, {4096, 768, 768}, {4096, 768, 2304},
            {512, 768, 50304}, {3072, 384, 1536}, {3072, 384, 384}};
  }
  const config::Model& m = b.config.model;
  const int64_t tokens = b.config.train.micro_batch * m.seq_len, head = m.d_model / m.n_head;
  const int64_t up = m.arch == config::Arch::llama ? 2 * m.d_ff : m.d_ff;
  std::vector<bench::GemmShape> shapes = {{tokens, m.d_model, (m.n_head + 2 * m.n_kv_head) * head},
                                          {tokens, m.d_model, m.d_model},
                                          {tokens, m.d_model, up},
                                          {tokens, m.d_ff, m.d_model}};
  if (b.config.data.vocab_size > 0) shapes.push_back({tokens, m.d_model, b.config.data.vocab_size});
  return shapes;
}

/// Finds the fastest form and algorithm of each product of the configuration, and writes them to a file.
json tune_gemm(const Bench& b) {
  constexpr int kMost = 16;  // the library proposes few more, and those are slow
  b.require_config();
  if (!b.machine.gpu)
    throw Error(Code::usage, "--write-tuning chooses among the algorithms of a GPU's library, and there is no GPU: " +
                                 device::cuda::no_device_reason());
  const ops::MeasuredGemms measured = bench::tune_products(b.config, b.machine, kMost, b.options.repeats);
  replace_file(b.options.write_tuning, to_json(measured.tuning));
  b.say(format("{}, {}\n{:>10}{:>10}{:>7}  {:<12}product\n", measured.tuning.device, measured.tuning.made_with, "us",
               "guess us", "gain", "form"));
  json list = json::array();
  for (const auto& [name, product] : measured.tuning.products) {
    const double guess = measured.favourites.at(name);
    const std::string_view form = name_of(product.form);
    b.say(format("{:>10.1f}{:>10.1f}{:>7.2f}  {:<12}{}\n", product.microseconds, guess, guess / product.microseconds,
                 form, name));
    list.push_back(
        {{"product", name}, {"microseconds", product.microseconds}, {"guess_microseconds", guess}, {"form", form}});
  }
  b.say(format("{} products in {}; use them with --set hardware.gemm_tuning={}\n", measured.tuning.products.size(),
               b.options.write_tuning, b.options.write_tuning));
  return {{"device", measured.tuning.device}, {"library", measured.tuning.made_with}, {"products", list}};
}

/// Measures whether transposing an operand of a product first would pay.
json bench_forms(const Bench& b) {
  const std::unique_ptr<device::Device> device = plan::make_device(b.machine);
  Arena arena(*device, Arena::Mode::heap);
  Meter meter;
  Exec ex{*device, arena, meter};
  b.say(format("{}, {} threads; {}\n{:>22}{:>9}{:>12}{:>22}{:>22}\n", name_of(b.machine.compute), b.machine.threads,
               ops::product_path(*device, b.machine.compute), "m, k, n", "product", "as is us", "left first (no copy)",
               "right first (no copy)"));
  json list = json::array();
  const auto text = [](const bench::GemmForms::Gain& gain) {
    return gain.alone > 0 ? format("{:.2f} ({:.2f})", gain.with_copy, gain.alone) : "packed";
  };
  for (const bench::GemmShape& shape : gemm_shapes(b))
    for (const bench::GemmForms& f : bench::bench_gemm_forms(ex, b.machine.compute, shape, b.options.repeats)) {
      const auto [m, k, n] = f.shape;
      b.say(format("{:>22}{:>9}{:>12.1f}{:>22}{:>22}\n", format("{}, {}, {}", m, k, n), f.product, f.seconds * 1e6,
                   text(f.a), text(f.b)));
      const auto gain = [](const bench::GemmForms::Gain& g) {
        return json{{"with_copy", g.with_copy}, {"alone", g.alone}};
      };
      list.push_back({{"m", m},
                      {"k", k},
                      {"n", n},
                      {"product", f.product},
                      {"microseconds", f.seconds * 1e6},
                      {"left_first", gain(f.a)},
                      {"right_first", gain(f.b)}});
    }
  return {{"compute", name_of(b.machine.compute)},
          {"threads", b.machine.threads},
          {"path", ops::product_path(*device, b.machine.compute)},
          {"forms", list}};
}

json bench_gemm(const Bench& b) {
  if (!b.options.write_tuning.empty()) return tune_gemm(b);
  if (b.options.forms) return bench_forms(b);
  const std::unique_ptr<device::Device> device = plan::make_device(b.machine);
  Arena arena(*device, Arena::Mode::heap);
  Meter meter;
  Exec ex{*device, arena, meter};
  measure::PeakTracker peak = b.measured_peak(*device);
  std::vector<bench::GemmRate> measured;
  for (const bench::GemmShape& shape : gemm_shapes(b)) {
    measured.push_back(bench::bench_gemm(ex, b.machine.compute, {&shape, 1}, b.options.repeats).front());
    const bench::GemmRate& rate = measured.back();
    peak.measure();
    peak.raise_to_rate(1e9 * std::max({rate.forward, rate.dx, rate.dw}), "a product");
  }
  b.say(format("{}, {} threads, {}; {}\n{:>22}{:>12}{:>12}{:>12}   GFLOP/s (share of peak)\n",
               name_of(b.machine.compute), b.machine.threads, ops::product_path(*device, b.machine.compute),
               b.peak_text(peak), "m, k, n", "forward", "dX", "dW"));
  json rates = json::array();
  for (const bench::GemmRate& rate : measured) {
    const auto cell = [&](double gflops) { return format("{:.0f} ({:.0f} %)", gflops, gflops * 1e11 / peak.flops()); };
    b.say(format("{:>22}{:>14}{:>14}{:>14}\n", format("{}, {}, {}", rate.shape.m, rate.shape.k, rate.shape.n),
                 cell(rate.forward), cell(rate.dx), cell(rate.dw)));
    rates.push_back({{"m", rate.shape.m},
                     {"k", rate.shape.k},
                     {"n", rate.shape.n},
                     {"forward_gflops", rate.forward},
                     {"dx_gflops", rate.dx},
                     {"dw_gflops", rate.dw}});
  }
  return {{"compute", name_of(b.machine.compute)},
          {"threads", b.machine.threads},
          {"peak_gflops", peak.flops() / 1e9},
          {"peak", peak_json(peak)},
          {"data_sheet_gflops", b.data_sheet_json()},
          {"path", ops::product_path(*device, b.machine.compute)},
          {"rates", rates}};
}

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
  return {shape(b.config.train.micro_batch, m.seq_len, m.n_head, m.n_kv_head, m.d_model / m.n_head)};
}

json bench_attention(const Bench& b) {
  const std::unique_ptr<device::Device> device = plan::make_device(b.machine);
  Arena arena(*device, Arena::Mode::heap);
  Meter meter;
  Exec ex{*device, arena, meter};
  measure::PeakTracker peak = b.measured_peak(*device);
  std::vector<std::pair<ops::AttentionShape, bench::AttentionRate>> measured;
  for (const ops::AttentionShape& shape : attention_shapes(b)) {
    measured.emplace_back(shape, bench::bench_attention(ex, b.machine.compute, shape, b.options.repeats));
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
                 s.batch, s.q_len, s.heads, s.head_dim, rate.forward_gflops, measure::format_percent(forward),
                 rate.backward_gflops, measure::format_percent(backward)));
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
          {"path", ops::attention_path(*device)},
          {"peak_gflops", peak.flops() / 1e9},
          {"peak", peak_json(peak)},
          {"data_sheet_gflops", b.data_sheet_json()},
          {"rates", rates}};
}

// Measures within a moment what this machine reaches at most in a compute type. Scripts ask it whether the machine is
// quiet.
json bench_peak(const Bench& b) {
  const std::unique_ptr<device::Device> device = plan::make_device(b.machine);
  measure::PeakTracker peak = b.measured_peak(*device);
  if (!b.machine.gpu) peak.measure(kPeakWindows);
  const measure::PeakReport report = peak.report();
  b.say(format("{}, {} threads on {}: {}\n", name_of(b.machine.compute), b.machine.threads,
               plan::device_text(b.machine), b.peak_text(peak)));
  if (report.windows > 0)
    b.say(format("median {:.3g}, lowest {:.3g} TFLOP/s\n", report.median_flops * 1e-12, report.lowest_flops * 1e-12));
  return {{"compute", name_of(b.machine.compute)},
          {"threads", b.machine.threads},
          {"device", plan::device_text(b.machine)},
          {"peak_gflops", peak.flops() / 1e9},
          {"peak", peak_json(peak)},
          {"data_sheet_gflops", b.data_sheet_json()}};
}

json bench_optimizer(const Bench& b) {
  constexpr int64_t kUsual = int64_t{64} << 20;  // 1 GiB of state and gradients: far beyond caches
  const int64_t parameters = b.options.size > 0 ? divide_up(b.options.size, int64_t{4}) : kUsual;
  const std::unique_ptr<device::Device> device = plan::make_device(b.machine);
  Arena arena(*device, Arena::Mode::heap);
  Meter meter;
  Exec ex{*device, arena, meter};
  const bench::OptimizerRate rate = bench::bench_optimizer(ex, parameters, b.options.repeats);
  const std::string where = b.machine.gpu ? b.machine.gpu->name : format("{} threads", b.machine.threads);
  b.say(
      format("AdamW fp32, {}: {:.2f} billion parameters/s, {:.1f} GB/s = {} of moving the same 28 bytes a parameter\n",
             where, rate.parameters_per_s * 1e-9, rate.gb_per_s, measure::format_percent(rate.share())));
  return {{"threads", b.machine.threads},
          {"parameters_per_s", rate.parameters_per_s},
          {"gb_per_s", rate.gb_per_s},
          {"share_of_traffic", rate.share()}};
}

json bench_offload(const Bench& b) {
  return offload_ladder(b.config, b.machine, b.options.size, [&](const std::string& text) { b.say(text); });
}

json bench_elementwise(const Bench& b) {
  const int64_t usual = b.machine.gpu ? int64_t{256} << 20 : int64_t{64} << 20;  // far beyond caches
  const std::unique_ptr<device::Device> device = plan::make_device(b.machine);
  Arena arena(*device, Arena::Mode::heap);
  Meter meter;
  Exec ex{*device, arena, meter};
  const bench::ElementwiseRates rates =
      bench::bench_elementwise(ex, b.machine.compute, b.options.size > 0 ? b.options.size : usual, b.options.repeats);
  b.say(format("{}; copying {:.1f} GB/s\n{:<26}{:>10}{:>10}{:>10}\n", name_of(b.machine.compute), rates.copy_gb_per_s,
               "operator", "us", "GB/s", "of copy"));
  json list = json::array();
  double lowest = 1e9;
  for (const bench::ElementwiseRate& rate : rates.operators) {
    b.say(format("{:<26}{:>10.1f}{:>10.1f}{:>10}\n", rate.name, rate.seconds * 1e6, rate.gb_per_s,
                 measure::format_percent(rate.share)));
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

json bench_step(const Bench& b) {
  b.require_config();
  const bench::StepBench s = bench::bench_step(b.config, b.machine, b.options.warmup, b.options.repeats);
  b.say(bench::to_text(s));
  json operators = json::array();
  for (const bench::OpShare& op : s.operators)
    operators.push_back({{"name", op.name}, {"calls", op.calls}, {"ms", op.ms}, {"gflop", op.gflops}, {"gb", op.gb}});
  return {{"parameters", s.parameters},
          {"tokens", s.tokens},
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
          {"operators", operators}};
}

// Compares predicted memory with what the process takes in a few steps.
json bench_memory(const Bench& b) {
  b.require_config();
  const plan::RunPlan plan = plan::plan_run(b.config, b.config.data.vocab_size, b.machine, true);
  measure::MemoryProbe probe;
  const int64_t measured = bench::memory_of_steps(b.config, b.machine, 3, probe);
  const double ratio = static_cast<double>(measured) / static_cast<double>(plan.total);
  b.say(plan::to_text(plan, b.config, b.machine));
  b.say(format("measured growth of anonymous memory {} = {:.3f} x predicted\n",
               measure::format_bytes(static_cast<double>(measured)), ratio));
  return {
      {"predicted_bytes", plan.total}, {"measured_bytes", measured}, {"ratio", ratio}, {"by_category", plan.memory}};
}

}  // namespace

int bench_command(const BenchOptions& o) {
  if (o.what == "collectives") return bench_collectives_command(o);
  const std::vector<std::pair<std::string, json (*)(const Bench&)>> all = {
      {"peak", bench_peak},           {"gemm", bench_gemm},
      {"attention", bench_attention}, {"elementwise", bench_elementwise},
      {"optimizer", bench_optimizer}, {"offload", bench_offload},
      {"step", bench_step},           {"memory", bench_memory}};
  if (o.what != "all" && std::none_of(all.begin(), all.end(), [&](const auto& item) { return item.first == o.what; }))
    throw unknown_word(
        "bench", o.what,
        {"peak", "gemm", "attention", "elementwise", "optimizer", "offload", "step", "memory", "collectives", "all"});
  for (const auto& [given, option] :
       {std::pair{o.forms, "--forms"}, {!o.shapes.empty(), "--shape"}, {!o.write_tuning.empty(), "--write-tuning"}})
    if (given && o.what != "gemm")
      throw Error(Code::usage, format("{} goes with `bench gemm`, not `bench {}`", option, o.what));
  if (!o.write_tuning.empty() && (o.forms || !o.shapes.empty()))
    throw Error(Code::usage,
                format("--write-tuning measures the products of the configuration in all forms: leave out {}",
                       o.forms ? "--forms" : "--shape"));
  const Bench bench(o);
  json document;
  for (const auto& [name, run] : all)
    if (o.what == "all" || o.what == name) document[name] = run(bench);
  if (o.json) print((o.what == "all" ? document : document[o.what]).dump() + "\n");
  return 0;
}

}  // namespace trainer::cli
