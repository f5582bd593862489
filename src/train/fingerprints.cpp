#include "train/fingerprints.h"

#include <algorithm>

#include "ops/fingerprint.h"
#include "tensor/host_copy.h"

namespace trainer::train {
namespace {

constexpr int64_t kLargestPart = int64_t{1} << 18;  // elements; small enough to occupy all threads

/// Appends the parts of a buffer that the runs describe. Runs of equal length at equal distances are rows of a matrix.
void append_parts(std::vector<ops::Fingerprint>& parts, const Tensor& x, const std::vector<mesh::Run>& runs) {
  for (size_t begin = 0, end = 0; begin < runs.size(); begin = end) {
    const mesh::Run& run = runs[begin];
    const int64_t most = std::max<int64_t>(1, kLargestPart / run.length);
    const auto distance = [&](size_t i) {
      return std::pair(runs[i].local - runs[i - 1].local, runs[i].global - runs[i - 1].global);
    };
    for (end = begin + 1; end < runs.size() && static_cast<int64_t>(end - begin) < most; ++end)
      if (runs[end].length != run.length || runs[end].stride != run.stride || distance(end) != distance(begin + 1))
        break;
    const auto [pitch, step] = end > begin + 1 ? distance(begin + 1) : std::pair<int64_t, int64_t>(0, 0);
    for (int64_t at = 0; at < run.length; at += kLargestPart)
      parts.push_back({.x = x.range(run.local + at * run.stride, x.count() - run.local - at * run.stride),
                       .rows = static_cast<int64_t>(end - begin),
                       .cols = std::min(kLargestPart, run.length - at),
                       .pitch = pitch,
                       .stride = run.stride,
                       .first = run.global + at,
                       .step = step});
  }
}

}  // namespace

std::vector<uint64_t> fingerprints(Exec& ex, const params::ParamStore& store,
                                   const std::function<Tensor(const params::Group&)>& flat, Tensor scratch) {
  std::vector<ops::Fingerprint> parts;
  std::vector<size_t> ends;  // by parameter: the number of parts up to its last one
  for (const params::Param& param : store.params()) {
    append_parts(parts, flat(store.groups()[static_cast<size_t>(param.group)]), param.runs);
    ends.push_back(parts.size());
  }
  scratch = {scratch.data, {scratch.bytes() / size_of(DType::i64)}, DType::i64, 0};
  TRAINER_CHECK(scratch.count() > 0, "fingerprints need memory for a sum");
  std::vector<uint64_t> sums(store.params().size());
  HostCopy copy;
  size_t param = 0, n = 0;
  for (size_t begin = 0; begin < parts.size(); begin += n) {
    n = std::min(parts.size() - begin, static_cast<size_t>(scratch.count()));
    const Tensor some = scratch.range(0, static_cast<int64_t>(n));
    ops::run(ex, ops::Fingerprints{std::span(parts).subspan(begin, n), some});
    const int64_t* found = copy.get(ex.device, some).as<int64_t>();
    for (size_t i = 0; i < n; ++i) {
      while (begin + i >= ends[param]) ++param;
      sums[param] += static_cast<uint64_t>(found[i]);
    }
  }
  return sums;
}

}  // namespace trainer::train
