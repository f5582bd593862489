#include "base/units.h"
#include "bench/offload.h"

#include <algorithm>

#include "cli/bench.h"
#include "offload/make.h"
#include "optim/make.h"

namespace trainer::cli {
namespace {

constexpr int64_t kUsual = 3'800'000'000, kSubgroup = 25'000'000;

std::string text_of(const config::Fraction& share) { return format("{}/{}", share.num, share.den); }

json to_json(const bench::OffloadRung& rung) {
  return {{"rung", rung.rung},
          {"name", rung.name},
          {"gpu_fraction", text_of(rung.streamed)},
          {"resident", text_of(rung.resident)},
          {"played_ms", rung.played_s * 1e3},
          {"predicted_ms", rung.predicted_s > 0 ? json(rung.predicted_s * 1e3) : json()}};
}

json to_json(const std::vector<bench::OffloadRung>& rungs) {
  json all = json::array();
  for (const bench::OffloadRung& rung : rungs) all.push_back(to_json(rung));
  return all;
}

json to_json(const offload::Rates& rates) {
  return {{"to_device_bytes_per_s", rates.to_device},
          {"to_host_bytes_per_s", rates.to_host},
          {"host_parameters_per_s", rates.host},
          {"device_parameters_per_s", rates.device},
          {"memory_bytes_per_s", rates.memory},
          {"pageable_bytes_per_s", rates.pageable > 0 ? json(rates.pageable) : json()}};
}

std::string origin_of(const config::Config& config, const setup::Machine& machine) {
  if (offload::rates_of(config.debug)) return "from debug.emulate_device, not measured";
  if (machine.gpu) return "measured between " + machine.gpu->name + " and its host";
  return "measured on the CPU only, where copies stay in host memory";
}

std::string table_of(const std::vector<bench::OffloadRung>& rungs) {
  std::string text = format("{:>5}{:>10}{:>10}{:>10}{:>11}\n", "rung", "streamed", "resident", "ms", "predicted");
  for (const bench::OffloadRung& rung : rungs)
    text +=
        format("{:>5}{:>10}{:>10}{:>10.1f}{:>11}  {}\n", rung.rung, text_of(rung.streamed), text_of(rung.resident),
               rung.played_s * 1e3, rung.predicted_s > 0 ? format("{:.1f}", rung.predicted_s * 1e3) : "", rung.name);
  return text;
}

}  // namespace

json bench_offload(const Bench& b) {
  const config::Config& config = b.config;
  const setup::Machine& machine = b.machine;
  const int64_t size = b.options.size;
  const bool bf16 = machine.compute == DType::bf16,
             sends_bf16 = config.offload.grad_transport != config::GradTransport::fp32;
  const int64_t state = machine.compute == DType::f64 ? 8 : 4;
  bench::OffloadCase work{.parameters = size > 0 ? size : kUsual,
                          .slots = static_cast<int>(config.offload.slots),
                          .sizes = {.master = state,
                                    .states = optim::state_bytes(*optim::make_rules(config, machine.compute).back()),
                                    .compute = bf16 ? 2 : state,
                                    .gradient = sends_bf16 ? 2 : state}};
  work.subgroup = std::min(kSubgroup, std::max<int64_t>(64, work.parameters));
  const std::unique_ptr<device::Device> device = setup::make_device(machine);
  work.rates = bench::rates_of(config, *device, machine.compute, kSubgroup);
  const std::vector<bench::OffloadRung> rungs = bench::offload_ladder(work);
  const offload::Rates& rates = work.rates;
  b.say(format(
      "rates {}: to the device {:.1f} GB/s, to the host {:.1f} GB/s, update on the host {:.2f} and on the "
      "device {:.2f} billion parameters/s, host memory {:.1f} GB/s\n"
      "update of {} parameters in subgroups of {}, simulated with a virtual clock at these rates, from the end of the "
      "backward pass until all weights are updated\n",
      origin_of(config, machine), rates.to_device * 1e-9, rates.to_host * 1e-9, rates.host * 1e-9, rates.device * 1e-9,
      rates.memory * 1e-9, format_count(work.parameters), format_count(work.subgroup)));
  b.say(table_of(rungs));
  return {{"clock", "virtual"},
          {"emulated", offload::rates_of(config.debug).has_value()},
          {"parameters", work.parameters},
          {"rates", to_json(rates)},
          {"rungs", to_json(rungs)},
          {"sweep", to_json(bench::offload_sweep(work))}};
}

}  // namespace trainer::cli
