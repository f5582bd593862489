#include "params/initial_values.h"

#include <algorithm>

#include "base/philox.h"
#include "ops/normals.h"

namespace trainer::params {
namespace {

constexpr int64_t kInitChunk = 1 << 16;

template <typename T>
void fill_run(const device::Device& device, T* out, const mesh::Run& run, int64_t begin, int64_t end, const Init& init,
              PhiloxKey key) {
  // Draws elements [begin, end) of the run. A Philox block yields the normals of four consecutive global indices.
  constexpr int64_t kBlocks = 256;
  double draws[4 * kBlocks];
  for (int64_t i = begin; i < end;) {
    const int64_t global = run.global + i, skip = global % 4, n = std::min(4 * kBlocks - skip, end - i);
    ops::fill_normals(device, key, static_cast<uint64_t>(global / 4), divide_up(skip + n, int64_t{4}), draws);
    T* const to = out + run.local + i * run.stride;
    if (run.stride == 1) {  // for vector instructions
      for (int64_t j = 0; j < n; ++j) to[j] = static_cast<T>(init.std * draws[skip + j]);
    } else {
      for (int64_t j = 0; j < n; ++j) to[j * run.stride] = static_cast<T>(init.std * draws[skip + j]);
    }
    i += n;
  }
}

template <typename T>
void fill(device::Device& device, const Param& param, const std::vector<mesh::Run>& runs, T* flat, uint64_t seed) {
  const PhiloxKey key = philox_key(seed, param.name);
  // Long runs are split into chunks, one task each.
  std::vector<std::pair<size_t, int64_t>> chunks;
  for (size_t r = 0; r < runs.size(); ++r)
    for (int64_t at = 0; at < runs[r].length; at += kInitChunk) chunks.emplace_back(r, at);
  device.host_pool().parallel_for(static_cast<int64_t>(chunks.size()), [&](int64_t task) {
    const auto [index, begin] = chunks[static_cast<size_t>(task)];
    const mesh::Run& run = runs[index];
    const int64_t end = std::min(run.length, begin + kInitChunk);
    if (param.init.kind == Init::Kind::normal) {
      fill_run(device, flat, run, begin, end, param.init, key);
    } else {
      const auto value = static_cast<T>(param.init.kind == Init::Kind::ones ? 1.0 : 0.0);
      for (int64_t i = begin; i < end; ++i) flat[run.local + i * run.stride] = value;
    }
  });
}

}  // namespace

void initialize(device::Device& device, const Param& param, const std::vector<mesh::Run>& runs, const Tensor& flat,
                uint64_t seed) {
  if (flat.dtype == DType::f64) {
    fill(device, param, runs, flat.as<double>(), seed);
  } else if (flat.dtype == DType::bf16) {
    fill(device, param, runs, flat.as<bf16>(), seed);
  } else {
    fill(device, param, runs, flat.as<float>(), seed);
  }
}

}  // namespace trainer::params
