#pragma once
// Python's random.Random, on which published few-shot scores depend: the order of questions and their examples.
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

namespace trainer::data {

/// The Mersenne Twister MT19937 (Matsumoto and Nishimura 1998), seeded as random.Random(seed) does. Every function
/// draws what the function of that name draws in Python 3.2 and later.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed);

  /// Returns `bits` random bits, 1 to 32.
  uint32_t getrandbits(int bits);
  /// Returns a number below `end`, which must be above 0 (Random._randbelow).
  int64_t below(int64_t end);
  template <typename T>
  void shuffle(std::vector<T>& values) {
    for (auto i = std::ssize(values) - 1; i > 0; --i) {
      std::swap(*(values.begin() + i), *(values.begin() + below(i + 1)));
    }
  }
  /// Returns `count` different indices below `size`, in the order drawn; count <= size.
  std::vector<int64_t> sample(int64_t size, int64_t count);

 private:
  void refill();
  static constexpr uint32_t kWords = 624;
  std::array<uint32_t, kWords> state_;
  uint32_t next_ = kWords;
};

}  // namespace trainer::data
