#pragma once
// Common parts of the benchmarks of `trainer bench`: the device and the output.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/cli.h"
#include "cli/process.h"
#include "config/layout_choices.h"
#include "config/stages.h"
#include "report/events_json.h"
#include "setup/gpu_peak.h"
#include "setup/machine.h"
#include "setup/peak.h"

namespace trainer::cli {

using nlohmann::json;

/// The configuration and machine of a benchmark. Text is printed to stdout, or to stderr with --json.
struct Bench {
  explicit Bench(const BenchOptions& o) : options(o) {
    config = load_configuration(o.config);
    machine = setup::choose_machine(config, *world);
    config::choose_vocab_axes(config, config.data.vocab_size, machine.compute);  // as a run does
    config::choose_stage_layers(config, config.data.vocab_size);
  }
  void require_config() const {
    if (options.config.file.empty())
      throw Error(Code::usage,
                  format("`bench {}` requires --config FILE, the configuration of the model to measure", options.what));
    if (config.data.vocab_size <= 0)
      throw Error(Code::usage, format("`bench {}` requires data.vocab_size", options.what));
  }
  /// Returns the peak to which rates are compared: hardware.peak_tflops if it is set, else a measured peak.
  setup::PeakTracker measured_peak(device::Device& device) const {
    if (machine.gpu && config.hardware.peak_tflops == 0)
      return {setup::best_product_flops(device, machine.compute), "measured", "library GEMMs"};
    return setup::make_peak(device, machine.compute, config, *world);
  }
  /// Returns the data sheet's peak of a known GPU.
  std::optional<double> data_sheet_peak() const {
    return machine.gpu ? setup::data_sheet_peak(machine.gpu->name, machine.compute) : std::nullopt;
  }
  std::string peak_text(const setup::PeakTracker& peak) const {
    const std::optional<double> promised = data_sheet_peak();
    return "peak " + to_string(peak.report()) +
           (promised ? format(", data sheet {:.3g} TFLOP/s", *promised * 1e-12) : "");
  }
  json data_sheet_json() const {
    const std::optional<double> promised = data_sheet_peak();
    return promised ? json(*promised * 1e-9) : json();
  }
  /// Throws if operands of `bytes` bytes in all do not fit in memory. `option` is the option that sets their size.
  void require_memory(const char* option, double bytes) const {
    if (bytes > static_cast<double>(machine.memory_limit))
      throw Error(Code::plan, format("{}: operands take {:.3g} GiB, but {:.3g} GiB are free; use smaller operands",
                                     option, bytes / (1 << 30), static_cast<double>(machine.memory_limit) / (1 << 30)));
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
  setup::Machine machine;
};

/// The execution context of operators.
struct Computing {
  explicit Computing(const setup::Machine& machine) : device(setup::make_device(machine)) {}

  std::unique_ptr<device::Device> device;
  Arena arena{*device, Arena::Mode::heap};
  Meter meter;
  Exec ex{*device, arena, meter};
};

inline json peak_json(const setup::PeakTracker& peak) { return report::to_json(peak.report()); }

/// Measures the rates of GEMMs, or tunes the algorithms of the GPU's library for them (bench_gemm_verb.cpp).
json bench_gemm(const Bench& b);
/// Measures a layer with experts and its grouped GEMMs (bench_experts.cpp).
json bench_experts(const Bench& b);
/// Simulates the schedules of optimizer offload at the measured rates of this machine or those of an emulated device
/// (bench_offload.cpp).
json bench_offload(const Bench& b);

}  // namespace trainer::cli
