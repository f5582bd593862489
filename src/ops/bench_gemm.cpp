#include "ops/bench_gemm.h"

#include <algorithm>
#include <cstddef>

#include "base/philox.h"
#include "ops/bench_clock.h"
#include "ops/cpu/peak.h"
#include "tensor/host_copy.h"

namespace trainer::ops {
namespace {

/// Blocks [first, end) of four draws.
void fill_blocks(const Tensor& tensor, PhiloxKey key, int64_t first, int64_t end) {
  const int64_t count = tensor.count();
  for (int64_t block = first; block < end; ++block) {
    const std::array<double, 4> draws = philox_normals(key, static_cast<uint64_t>(block));
    for (int64_t i = 4 * block; i < std::min(count, 4 * block + 4); ++i) {
      const double value = draws[static_cast<size_t>(i % 4)];
      switch (tensor.dtype) {
        case DType::f64:
          tensor.as<double>()[i] = value;
          break;
        case DType::f32:
          tensor.as<float>()[i] = static_cast<float>(value);
          break;
        default:
          tensor.as<bf16>()[i] = bf16(value);
      }
    }
  }
}

void fill_normal(const Tensor& tensor, std::string_view name) {
  fill_blocks(tensor, philox_key(1, name), 0, divide_up(tensor.count(), int64_t{4}));
}
void fill_normal(device::Device& device, const Tensor& tensor, std::string_view name) {
  constexpr int64_t kBlocks = 1 << 14;  // of one task
  HostCopy here(device, tensor);
  const PhiloxKey key = philox_key(1, name);
  const int64_t blocks = divide_up(tensor.count(), int64_t{4});
  device.host_pool().parallel_for(divide_up(blocks, kBlocks), [&](int64_t task) {
    fill_blocks(here.tensor(), key, task * kBlocks, std::min(blocks, (task + 1) * kBlocks));
  });
  here.put();
}

/// GFLOP/s of one product.
double rate(Exec& ex, const Gemm& op, int repeats) { return cost(op).flops / median_seconds(ex, op, repeats) / 1e9; }

Buffer packed_weight(Exec& ex, const Tensor& w, bool trans) {
  const int64_t k = w.shape[trans ? 1 : 0], n = w.shape[trans ? 0 : 1];
  Buffer packed(ex.device, "bench", {packed_bytes(ex.device, w.dtype, k, n)}, DType::u8);
  run(ex, PackB{w, packed, trans});
  return packed;
}

PeakLoop peak_loop(const device::Device& device, DType dtype) {
  const bool wide = device.isa() >= device::Isa::avx512;
  if (dtype == DType::bf16 && device.isa() == device::Isa::amx) return avx512::peak_table.bf16_tiles;
  if (dtype == DType::bf16 && device.isa() == device::Isa::avx512bf16) return avx512::peak_table.bf16_pairs;
  const PeakTable& table = wide                                ? avx512::peak_table
                           : device.isa() == device::Isa::avx2 ? avx2::peak_table
                                                               : plain::peak_table;
  return dtype == DType::f64 ? table.f64 : table.f32;
}

/// Operands and results of one thread's peak loop.
struct alignas(64) PeakMemory {
  std::byte operands[kPeakOperandBytes], sink[8192];
};

/// FLOP/s of the fastest of several products that fill every multiprocessor many times.
double best_product(device::Device& device, DType dtype) {
  const int64_t n = 64 * int64_t{device.gpu().multiprocessors};
  Arena arena(device, Arena::Mode::heap);
  Meter meter;
  Exec ex{device, arena, meter};
  const GemmShape shape{n, n, n};
  return bench_gemm(ex, dtype, {&shape, 1}, 9).front().forward * 1e9;
}

}  // namespace

std::vector<GemmRate> bench_gemm(Exec& ex, DType dtype, std::span<const GemmShape> shapes, int repeats) {
  TRAINER_CHECK(repeats >= 1, "{} repeats", repeats);
  std::vector<GemmRate> rates;
  for (const GemmShape& shape : shapes) {
    const auto [m, k, n] = shape;
    Buffer x(ex.device, "bench", {m, k}, dtype), w(ex.device, "bench", {k, n}, dtype);
    Buffer y(ex.device, "bench", {m, n}, dtype), dw(ex.device, "bench", {k, n}, accumulator_of(dtype));
    fill_normal(ex.device, x, "x");
    fill_normal(ex.device, w, "w");
    fill_normal(ex.device, y, "y");

    Gemm forward{.a = x, .b = w, .c = y, .epilogue = {}, .packed_b = {}};
    Gemm dx{.a = y, .b = w, .c = x, .trans_b = true, .epilogue = {}, .packed_b = {}};
    const Gemm gradient{.a = x, .b = y, .c = dw, .trans_a = true, .accumulate = true, .epilogue = {}, .packed_b = {}};
    Buffer packed, packed_trans;
    if (prefers_packed(ex.device, dtype)) {
      forward.packed_b = packed = packed_weight(ex, w, false);
      dx.packed_b = packed_trans = packed_weight(ex, w, true);
    }
    // dx writes over x, and y over y: the weight gradient comes first, so that its operands are normal draws.
    GemmRate result{.shape = shape};
    result.dw = rate(ex, gradient, repeats);
    result.forward = rate(ex, forward, repeats);
    result.dx = rate(ex, dx, repeats);
    rates.push_back(result);
  }
  return rates;
}

double measured_peak_flops(device::Device& device, DType dtype) {
  if (device.kind() == device::Kind::cuda) return best_product(device, dtype);
  const PeakLoop loop = peak_loop(device, dtype);
  const int threads = device.threads();
  std::vector<PeakMemory> memory(static_cast<size_t>(threads));
  const bool narrow = dtype == DType::bf16 && device.isa() >= device::Isa::avx512bf16;  // bf16 operands in the loop
  const DType stored = dtype == DType::f64 ? DType::f64 : narrow ? DType::bf16 : DType::f32;
  for (PeakMemory& own : memory) fill_normal({own.operands, {kPeakOperandBytes / size_of(stored)}, stored}, "peak");

  std::vector<double> flops(memory.size());
  const auto pass = [&](int64_t rounds) {  // seconds
    const double start = now_seconds();
    device.host_pool().parallel_for(threads, [&](int64_t task) {
      PeakMemory& own = memory[static_cast<size_t>(task)];
      flops[static_cast<size_t>(task)] = loop(own.operands, rounds, own.sink);
    });
    return now_seconds() - start;
  };
  int64_t rounds = 256;
  while (pass(rounds) < 0.01) rounds *= 2;
  // The best of several passes: a peak is what the machine can do when nothing else disturbs it.
  double best = 0;
  for (int i = 0; i < 9; ++i) {
    const double seconds = pass(rounds);
    double total = 0;
    for (const double own : flops) total += own;
    best = std::max(best, total / seconds);
  }
  return best;
}

}  // namespace trainer::ops
