#include "cli/bench_offload.h"

#include <algorithm>

#include "bench/offload.h"
#include "device/lane.h"
#include "measure/units.h"
#include "offload/calibrate.h"
#include "offload/make.h"

namespace trainer::cli {

using nlohmann::json;

json offload_ladder(const config::Config& config, const plan::Machine& machine, int64_t size,
                    const std::function<void(const std::string&)>& say) {
  constexpr int64_t kUsual = 3'800'000'000, kSubgroup = 25'000'000;
  const int64_t parameters = size > 0 ? size : kUsual;
  const bool bf16 = machine.compute == DType::bf16;
  std::optional<offload::Rates> rates = offload::rates_of(config.debug);
  const bool emulated = rates.has_value();
  if (!rates) {
    const std::unique_ptr<device::Device> device = plan::make_device(machine);
    const std::unique_ptr<device::Device> host = device::make_host(*device);
    rates = offload::measure_rates(*device, *host, kSubgroup, machine.compute == DType::f64 ? DType::f64 : DType::f32);
  }
  const int64_t state = machine.compute == DType::f64 ? 8 : 4;
  const offload::Sizes sizes{.state = state, .compute = bf16 ? 2 : state, .gradient = state};
  const std::string origin = emulated      ? "of debug.emulate_device, not measured"
                             : machine.gpu ? "measured between " + machine.gpu->name + " and its host"
                                           : "measured on the CPU alone, where copies stay in the host's memory";
  say(format(
      "rates {}: to the device {:.1f} GB/s, to the host {:.1f} GB/s, update on the host {:.2f} and on the "
      "device {:.2f} billion parameters/s, host memory {:.1f} GB/s\n"
      "update of {} parameters in subgroups of {}, by a virtual clock at these rates\n{:>10}{:>10}{:>10}\n",
      origin, rates->to_device * 1e-9, rates->to_host * 1e-9, rates->host * 1e-9, rates->device * 1e-9,
      rates->memory * 1e-9, measure::format_count(static_cast<double>(parameters)),
      measure::format_count(static_cast<double>(std::min(kSubgroup, parameters))), "streamed", "ms", "predicted"));
  json rungs = json::array();
  for (const bench::OffloadRung& rung :
       bench::offload_ladder(parameters, kSubgroup, static_cast<int>(config.offload.slots), *rates, sizes)) {
    const std::string share = format("{}/{}", rung.share.num, rung.share.den);
    say(format("{:>10}{:>10.1f}{:>10}  {}\n", share, rung.played_s * 1e3,
               rung.predicted_s > 0 ? format("{:.1f}", rung.predicted_s * 1e3) : "", rung.name));
    rungs.push_back({{"name", rung.name},
                     {"gpu_fraction", share},
                     {"played_ms", rung.played_s * 1e3},
                     {"predicted_ms", rung.predicted_s > 0 ? json(rung.predicted_s * 1e3) : json()}});
  }
  return {{"clock", "virtual"},
          {"emulated", emulated},
          {"parameters", parameters},
          {"rates",
           {{"to_device_bytes_per_s", rates->to_device},
            {"to_host_bytes_per_s", rates->to_host},
            {"host_parameters_per_s", rates->host},
            {"device_parameters_per_s", rates->device},
            {"memory_bytes_per_s", rates->memory}}},
          {"rungs", rungs}};
}

}  // namespace trainer::cli
