#pragma once
// Power, clock and temperature of a GPU, read through NVML. The library comes with the driver, is loaded at run time
// and is optional.
#include <optional>
#include <string>

namespace trainer::device {

class PowerMeter {
 public:
  struct Reading {
    double watts = 0, sm_mhz = 0, celsius = 0;
  };
  /// `pci_bus_id` is as reported by the CUDA runtime. If the library or the device is missing, read() returns nothing.
  explicit PowerMeter(const std::string& pci_bus_id, const char* library = "libnvidia-ml.so.1");
  ~PowerMeter();
  PowerMeter(const PowerMeter&) = delete;
  PowerMeter& operator=(const PowerMeter&) = delete;

  /// Takes up to a millisecond.
  std::optional<Reading> read() const;
  /// Returns a reading that is at most a second old; cheap enough for every step of a run.
  std::optional<Reading> recent();

 private:
  template <typename F>
  F function(const char* name) const;

  std::optional<Reading> last_;
  double last_read_ = -1;
  void* library_ = nullptr;
  void* handle_ = nullptr;  // NVML's handle of the device
  int (*power_)(void*, unsigned*) = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
  int (*temperature_)(void*, int, unsigned*) = nullptr;
};

}  // namespace trainer::device
