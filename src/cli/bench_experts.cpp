// `trainer bench experts`.
#include "bench/experts.h"
#include "cli/bench.h"
#include "config/load.h"

namespace trainer::cli {
namespace {

/// The layer and the grouped GEMMs that are measured.
struct Mixture {
  config::Model model;
  int64_t rows = 0;
  std::vector<bench::GemmShape> gemms;
  int64_t groups = 0;
};

Mixture mixture_of(const Bench& b) {
  const config::Model& m = b.config.model;
  if (m.n_expert > 0) {
    const int64_t rows = b.config.train.micro_batch * m.seq_len;
    const int64_t each = std::max<int64_t>(1, rows * m.experts_per_token / m.n_expert);
    return {m, rows, {{each * m.n_expert, m.d_model, 2 * m.d_expert}}, m.n_expert};
  }
  const config::Config usual = config::load_text(
      "[model]\narch = 'mixtral'\nn_layer = 1\nn_head = 8\nd_model = 512\nn_expert = 8\nd_expert = "
      "512\n[data]\nvocab_size = 64\n",
      "", {}, {.files = false});
  return {usual.model, 2048, {{16 * (b.machine.gpu ? 1024 : 256), 512, 1024}, {16 * 32, 512, 1024}}, 16};
}

}  // namespace

json bench_experts(const Bench& b) {
  if (!b.options.config.file.empty() && b.config.model.n_expert == 0) {
    b.say("the model has no experts: set model.n_expert, or leave out --config for common shapes\n");
    return {};
  }
  const Mixture mixture = mixture_of(b);
  const config::Model& m = mixture.model;
  const auto rows = static_cast<double>(mixture.rows), width = static_cast<double>(m.d_model),
             inner = static_cast<double>(m.d_expert), per_row = static_cast<double>(m.experts_per_token);
  b.require_memory("--config", 10 * 3 * static_cast<double>(m.n_expert) * width * inner +
                                   8 * rows * per_row * (2 * width + 4 * inner));
  Computing on(b.machine);
  const bench::ExpertsTime layer = bench::bench_experts(on.ex, m, b.machine.compute, mixture.rows, b.options.repeats);
  b.say(
      format("{}, {} threads; {}\n{} of {} experts of {} on {} rows of {}, forward and backward: {:.2f} ms, {} of them "
             "outside GEMMs\n{:>22}{:>9}{:>10}{:>10}{:>10}   grouped GEMMs, rate relative to one GEMM of all rows\n",
             name_of(b.machine.compute), b.machine.threads, ops::product_path(*on.device, b.machine.compute),
             m.experts_per_token, m.n_expert, m.d_expert, mixture.rows, m.d_model, layer.seconds * 1e3,
             format_percent(layer.outside_gemms()), "m, k, n", "groups", "forward", "dX", "dW"));
  json grouped = json::array();
  for (const bench::GemmShape& shape : mixture.gemms) {
    const bench::GroupedRate rate =
        bench::bench_grouped_gemm(on.ex, b.machine.compute, shape, mixture.groups, b.options.repeats);
    b.say(format("{:>22}{:>9}{:>10.2f}{:>10.2f}{:>10.2f}\n", format("{}, {}, {}", shape.m, shape.k, shape.n),
                 rate.groups, rate.forward, rate.dx, rate.dw));
    grouped.push_back({{"m", shape.m},
                       {"k", shape.k},
                       {"n", shape.n},
                       {"groups", rate.groups},
                       {"forward", rate.forward},
                       {"dx", rate.dx},
                       {"dw", rate.dw}});
  }
  return {{"compute", name_of(b.machine.compute)},
          {"threads", b.machine.threads},
          {"path", ops::product_path(*on.device, b.machine.compute)},
          {"rows", mixture.rows},
          {"layer_ms", layer.seconds * 1e3},
          {"gemm_ms", layer.gemm_seconds * 1e3},
          {"outside_gemms", layer.outside_gemms()},
          {"grouped", grouped}};
}

}  // namespace trainer::cli
