#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/units.h"
#include "bench/collectives.h"
#include "bench/profile.h"
#include "cli/cli.h"
#include "cli/process.h"
#include "cli/ranks.h"
#include "comm/gpu_transport.h"
#include "setup/machine.h"

namespace trainer::cli {
namespace {

using nlohmann::json;

int run(comm::World& world, const config::Config& config, const BenchOptions& o) {
  setup::Machine machine = setup::choose_machine(config, world);
  machine.threads = 1;  // progress threads compute the reductions of collectives
  const std::unique_ptr<device::Device> device = setup::make_device(machine);
  const comm::GpuTransport between =
      comm::choose_gpu_transport(world, *device, config::requested_nccl(config.parallel));
  const std::unique_ptr<comm::World> gpus = comm::gpu_world(world, *device, between);
  comm::World& carrier = gpus ? *gpus : world;
  const std::vector<int64_t> payloads = {1 << 10, 16 << 10, 256 << 10, 1 << 20, 16 << 20};
  const std::vector<bench::CollectiveRate> rates = bench::bench_collectives(carrier, *device, payloads, o.repeats);
  if (!world.first()) return 0;
  const std::string memory = machine.gpu ? format("memory of {}", device_text(machine)) : "host memory";
  json list = json::array();
  std::string text =
      format("{} ranks ({}), {}, fp32, median of {}\n{:<16}{:>10}{:>12}{:>12}{:>18}\n", world.size(),
             carrier.transport(), memory, o.repeats, "operation", "payload", "us", "GB/s bus", "MPI library us");
  for (const bench::CollectiveRate& rate : rates) {
    const std::string library = rate.mpi_microseconds ? format("{:.1f}", *rate.mpi_microseconds) : "";
    text += format("{:<16}{:>10}{:>12.1f}{:>12.2f}{:>18}\n", name_of(rate.op), format_bytes(rate.bytes),
                   rate.microseconds, rate.bus_gbps, library);
    json entry{{"operation", name_of(rate.op)},
               {"bytes", rate.bytes},
               {"microseconds", rate.microseconds},
               {"bus_gbps", rate.bus_gbps}};
    if (rate.mpi_microseconds) entry["mpi_library_microseconds"] = *rate.mpi_microseconds;
    list.push_back(std::move(entry));
  }
  if (o.json)
    text = json_text(
               json{{"ranks", world.size()}, {"transport", carrier.transport()}, {"memory", memory}, {"rates", list}}) +
           "\n";
  print(text);
  return 0;
}

}  // namespace

int bench_profile_command(const BenchOptions& o) {
  return run_on_ranks(o.config, [&](comm::World& world, const config::Config& config) {
    world.control().run_on_all_ranks([&] {
      if (world.first()) require_replaceable(o.write_profile);
    });
    const setup::Machine machine = setup::choose_machine(config, world);
    const std::unique_ptr<device::Device> device = setup::make_device(machine);
    const comm::GpuTransport between =
        comm::choose_gpu_transport(world, *device, config::requested_nccl(config.parallel));
    const std::unique_ptr<comm::World> gpus = comm::gpu_world(world, *device, between);
    const plan::Cluster cluster = bench::measure_profile(gpus ? *gpus : world, config, machine, {.repeats = o.repeats});
    world.control().run_on_all_ranks([&] {
      if (!world.first()) return;
      replace_file(o.write_profile, plan::to_toml(cluster));
      log::info("wrote {}: {} GEMMs, {} collectives over {}{}", o.write_profile, cluster.products.size(),
                cluster.collectives.size(), counted(cluster.ranks, "rank"), cluster.host.known() ? ", host rates" : "");
    });
    return 0;
  });
}

int bench_collectives_command(const BenchOptions& o) {
  return run_on_ranks(o.config,
                      [&](comm::World& world, const config::Config& config) { return run(world, config, o); });
}

}  // namespace trainer::cli
