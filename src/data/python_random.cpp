#include "data/python_random.h"

#include <bit>
#include <cmath>
#include <numeric>
#include <set>

#include "base/error.h"

namespace trainer::data {

// init_genrand(19650218), then init_by_array with the seed as its only word.
PythonRandom::PythonRandom(uint32_t seed) {
  state_[0] = 19650218;
  const auto mixed = [&](uint32_t i, uint32_t factor) { return (state_[i - 1] ^ (state_[i - 1] >> 30)) * factor; };
  for (uint32_t i = 1; i < kWords; ++i) state_[i] = mixed(i, 1812433253) + i;
  uint32_t i = 1;
  const auto advance = [&] {
    if (++i < kWords) return;
    state_[0] = state_[kWords - 1];
    i = 1;
  };
  for (uint32_t k = 0; k < kWords; ++k, advance()) state_[i] = (state_[i] ^ mixed(i, 1664525)) + seed;
  for (uint32_t k = 1; k < kWords; ++k, advance()) state_[i] = (state_[i] ^ mixed(i, 1566083941)) - i;
  state_[0] = 0x80000000;
}

void PythonRandom::refill() {
  for (uint32_t i = 0; i < kWords; ++i) {
    const uint32_t y = (state_[i] & 0x80000000) | (state_[(i + 1) % kWords] & 0x7fffffff);
    state_[i] = state_[(i + 397) % kWords] ^ (y >> 1) ^ (y % 2 == 0 ? 0 : 0x9908b0df);
  }
  next_ = 0;
}

uint32_t PythonRandom::getrandbits(int bits) {
  if (next_ == kWords) refill();
  uint32_t y = state_[next_++];
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680;
  y ^= (y << 15) & 0xefc60000;
  return (y ^ (y >> 18)) >> (32 - bits);
}

int64_t PythonRandom::below(int64_t end) {
  TRAINER_CHECK(end > 0 && end <= UINT32_MAX, "a random number below {}", end);
  const int bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(end)));
  int64_t drawn = getrandbits(bits);
  while (drawn >= end) drawn = getrandbits(bits);
  return drawn;
}

std::vector<int64_t> PythonRandom::sample(int64_t size, int64_t count) {
  TRAINER_CHECK(count >= 0 && count <= size, "a sample of {} among {}", count, size);
  // Python takes whichever needs less memory: a list of all, or the set of those drawn.
  int64_t set_size = 21;
  if (count > 5)
    set_size += static_cast<int64_t>(std::pow(4, std::ceil(std::log(static_cast<double>(3 * count)) / std::log(4.0))));
  std::vector<int64_t> drawn;
  if (size <= set_size) {
    std::vector<int64_t> pool(static_cast<size_t>(size));
    std::iota(pool.begin(), pool.end(), 0);
    for (int64_t i = 0; i < count; ++i) {
      const auto j = static_cast<size_t>(below(size - i));
      drawn.push_back(pool[j]);
      pool[j] = pool[static_cast<size_t>(size - i - 1)];
    }
    return drawn;
  }
  std::set<int64_t> seen;
  while (std::ssize(drawn) < count)
    if (const int64_t j = below(size); seen.insert(j).second) drawn.push_back(j);
  return drawn;
}

}  // namespace trainer::data
