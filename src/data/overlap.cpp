#include "data/overlap.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace trainer::data {
namespace {

constexpr int64_t kProbes = 8, kLongestProbe = 64, kShortestProbe = 16;
constexpr int64_t kBlock = int64_t{1} << 20;

using Tokens = std::vector<int32_t>;

std::vector<Tokens> probes_of(const TokenDataset& val) {
  const int64_t length = std::min(kLongestProbe, val.tokens() / kProbes);
  std::vector<Tokens> probes;
  for (int64_t i = 0; i < kProbes && length >= kShortestProbe; ++i) {
    Tokens& probe = probes.emplace_back(static_cast<size_t>(length));
    val.stream().copy(val.begin() + (val.tokens() - length) / (kProbes - 1) * i, probe);
  }
  return probes;
}

}  // namespace

std::string overlap_of(const TokenDataset& train, const TokenDataset& val, int64_t most) {
  std::vector<Tokens> probes = probes_of(val);
  if (probes.empty()) return {};
  const auto length = static_cast<int64_t>(probes.front().size());
  const int64_t end = std::min(train.end(), train.begin() + most);
  int64_t found = 0;
  Tokens block;
  for (int64_t begin = train.begin(); begin + length <= end && !probes.empty(); begin += kBlock - length + 1) {
    block.resize(static_cast<size_t>(std::min(kBlock, end - begin)));
    train.stream().copy(begin, block);
    found += static_cast<int64_t>(std::erase_if(probes, [&](const Tokens& probe) {
      return std::search(block.begin(), block.end(), probe.begin(), probe.end()) != block.end();
    }));
  }
  if (2 * found < kProbes) return {};
  return fmt::format(
      "validation text is part of the training text: {} of {} sampled passages were found there, so validation loss "
      "measures memorization; remove those files from the training files, or set data.val_fraction instead",
      found, kProbes);
}

}  // namespace trainer::data
