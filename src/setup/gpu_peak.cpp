#include "setup/gpu_peak.h"

#include <cctype>

#include "base/error.h"
#include "ops/gemm.h"
#include "ops/op_timing.h"
#include "tensor/buffer.h"

namespace trainer::setup {

std::optional<double> data_sheet_peak(const std::string& name, DType compute) {
  // Dense TFLOP/s in bf16, and in fp32 without TF32. A device uses the entry with the longest name that occurs in the
  // device's name.
  struct Part {
    std::string_view name;
    double bf16, fp32;
  };
  static constexpr Part kParts[] = {
      {"A100", 312, 19.5},      {"A10", 125, 31.2},        {"A30", 165, 10.3},        {"H100", 989.4, 66.9},
      {"H100 PCIe", 756, 51.2}, {"H100 NVL", 835.5, 60.3}, {"H200", 989.4, 66.9},     {"H200 NVL", 835.5, 60.3},
      {"GH200", 989.4, 66.9},   {"H800", 989.4, 66.9},     {"H20", 148, 44},          {"L4", 121, 30.3},
      {"L40S", 362, 91.6},      {"RTX 3090", 71.2, 35.6},  {"RTX 4090", 165.2, 82.6}, {"RTX 5090", 209.5, 104.8}};
  const Part* best = nullptr;
  for (const Part& part : kParts) {
    const size_t at = name.find(part.name);
    if (at == std::string::npos) continue;
    const size_t end = at + part.name.size();  // so that "L4" does not match "L40S"
    if (end < name.size() && std::isalnum(static_cast<unsigned char>(name[end]))) continue;
    if (best == nullptr || part.name.size() > best->name.size()) best = &part;
  }
  if (best == nullptr) return std::nullopt;
  return (compute == DType::bf16 ? best->bf16 : best->fp32) * 1e12;
}

double best_product_flops(device::Device& device, DType dtype) {
  TRAINER_CHECK(device.kind() == device::DeviceKind::cuda, "best_product_flops() requires a GPU");
  const int64_t n = 64 * int64_t{device.gpu().multiprocessors};  // large enough for many tiles on every multiprocessor
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  const auto square = [&] { return Buffer(device, "bench", {n, n}, dtype); };
  const Buffer x = square(), w = square(), y = square();
  ops::fill_normal(device, x, "x");
  ops::fill_normal(device, w, "w");
  const ops::Gemm product{.a = x, .b = w, .c = y};
  return cost(product).flops / ops::median_seconds(ex, product, 9);
}

}  // namespace trainer::setup
