#include "device/power.h"

#include <dlfcn.h>

#include "base/clock.h"

namespace trainer::device {
namespace {

// Values from nvml.h: success, the multiprocessor clock, the GPU's temperature sensor.
constexpr int kSuccess = 0, kClockSm = 1, kTemperatureGpu = 0;

}  // namespace

template <typename F>
F PowerMeter::function(const char* name) const {
  return reinterpret_cast<F>(dlsym(library_, name));
}

PowerMeter::PowerMeter(const std::string& pci_bus_id, const char* library) : library_(dlopen(library, RTLD_NOW)) {
  if (library_ == nullptr) return;
  const auto start = function<int (*)()>("nvmlInit_v2");
  const auto find = function<int (*)(const char*, void**)>("nvmlDeviceGetHandleByPciBusId_v2");
  power_ = function<decltype(power_)>("nvmlDeviceGetPowerUsage");
  clock_ = function<decltype(clock_)>("nvmlDeviceGetClockInfo");
  temperature_ = function<decltype(temperature_)>("nvmlDeviceGetTemperature");
  if (start == nullptr || find == nullptr || power_ == nullptr || clock_ == nullptr || temperature_ == nullptr) return;
  if (start() != kSuccess || find(pci_bus_id.c_str(), &handle_) != kSuccess) handle_ = nullptr;
}

PowerMeter::~PowerMeter() {
  if (library_ == nullptr) return;
  if (const auto stop = function<int (*)()>("nvmlShutdown"); handle_ != nullptr && stop != nullptr) stop();
  dlclose(library_);
}

std::optional<PowerMeter::Reading> PowerMeter::read() const {
  if (handle_ == nullptr) return std::nullopt;
  unsigned milliwatts = 0, mhz = 0, celsius = 0;
  if (power_(handle_, &milliwatts) != kSuccess || clock_(handle_, kClockSm, &mhz) != kSuccess ||
      temperature_(handle_, kTemperatureGpu, &celsius) != kSuccess)
    return std::nullopt;
  return Reading{milliwatts * 1e-3, static_cast<double>(mhz), static_cast<double>(celsius)};
}

std::optional<PowerMeter::Reading> PowerMeter::recent() {
  if (const double now = now_seconds(); last_read_ < 0 || now - last_read_ >= 1) {
    last_read_ = now;
    last_ = read();
  }
  return last_;
}

}  // namespace trainer::device
