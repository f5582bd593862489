// `trainer bench gemm`.
#include "base/files.h"
#include "bench/gemm.h"
#include "bench/step.h"
#include "cli/bench.h"
#include "config/block_linears.h"
#include "device/cuda/cuda_device.h"

namespace trainer::cli {
namespace {

/// Returns the shapes of --shape, else those of the configuration's linear layers, else common shapes.
std::vector<bench::GemmShape> gemm_shapes(const Bench& b) {
  std::vector<bench::GemmShape> requested;
  for (const auto& [m, k, n] : b.options.shapes) requested.push_back({m, k, n});
  if (!requested.empty()) return requested;
  if (b.options.config.file.empty()) {
    if (b.machine.gpu)
      return {{32768, 768, 2304}, {32768, 768, 768},  {32768, 768, 3072}, {32768, 3072, 768}, {8192, 768, 50304},
              {8192, 1600, 4800}, {8192, 1600, 6400}, {8192, 6400, 1600}, {8192, 8192, 8192}};
    return {{4096, 768, 3072}, {4096, 3072, 768}, {4096, 768, 768}, {4096, 768, 2304},
            {512, 768, 50304}, {3072, 384, 1536}, {3072, 384, 384}};
  }
  const config::Model& m = b.config.model;
  const int64_t tokens = b.config.train.micro_batch * m.seq_len;
  std::vector<bench::GemmShape> shapes;
  for (const config::BlockLinear& linear : linears_of(m, m.moe_every - 1))
    shapes.push_back({std::max<int64_t>(1, tokens * linear.active / linear.matrices), linear.in, linear.out()});
  if (b.config.data.vocab_size > 0) shapes.push_back({tokens, m.d_model, b.config.data.vocab_size});
  return shapes;
}

/// Finds the fastest form and algorithm for each GEMM of the configuration, and writes them to a file.
json tune_gemm(const Bench& b) {
  constexpr int kMost = 16;  // algorithms per GEMM: the library proposes few beyond these, and they are slow
  b.require_config();
  if (!b.machine.gpu)
    throw Error(Code::usage, "--write-tuning requires a GPU, whose library's algorithms it compares; none was found: " +
                                 device::cuda::no_device_reason());
  require_replaceable(b.options.write_tuning);
  const ops::MeasuredGemms measured = bench::tune_products(b.config, b.machine, kMost, b.options.repeats);
  replace_file(b.options.write_tuning, to_json(measured.tuning));
  b.say(format("{}, {}\n{:>10}{:>10}{:>7}  {:<12}GEMM\n", measured.tuning.device, measured.tuning.made_with, "us",
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
  b.say(format("{} GEMMs in {}; use them with --set hardware.gemm_tuning={}\n", measured.tuning.products.size(),
               b.options.write_tuning, b.options.write_tuning));
  return {{"device", measured.tuning.device}, {"library", measured.tuning.made_with}, {"products", list}};
}

}  // namespace

json bench_gemm(const Bench& b) {
  if (!b.options.write_tuning.empty()) return tune_gemm(b);
  for (const bench::GemmShape& shape : gemm_shapes(b)) {
    const auto m = static_cast<double>(shape.m), k = static_cast<double>(shape.k), n = static_cast<double>(shape.n);
    const auto size = static_cast<double>(size_of(b.machine.compute));
    b.require_memory("--shape", (m * k + k * n + m * n) * size);
  }
  Computing on(b.machine);
  setup::PeakTracker peak = b.measured_peak(*on.device);
  std::vector<bench::GemmRate> measured;
  for (const bench::GemmShape& shape : gemm_shapes(b)) {
    measured.push_back(
        bench::bench_gemm(on.ex, b.machine.compute, {&shape, 1}, {.repeats = b.options.repeats}).front());
    const bench::GemmRate& rate = measured.back();
    peak.measure();
    peak.raise_to_rate(1e9 * std::max({rate.forward, rate.dx, rate.dw}), "a GEMM");
  }
  b.say(format("{}, {} threads, {}; {}\n{:>22}{:>12}{:>12}{:>12}   GFLOP/s (share of peak)\n",
               name_of(b.machine.compute), b.machine.threads, ops::product_path(*on.device, b.machine.compute),
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
          {"path", ops::product_path(*on.device, b.machine.compute)},
          {"rates", rates}};
}

}  // namespace trainer::cli
