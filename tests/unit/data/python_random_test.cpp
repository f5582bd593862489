// Python's generator: values of CPython 3.
#include "data/python_random.h"

#include <gtest/gtest.h>

#include <numeric>

namespace trainer::data {
namespace {

using Numbers = std::vector<int64_t>;

Numbers shuffled(int64_t size) {
  Numbers values(static_cast<size_t>(size));
  std::iota(values.begin(), values.end(), 0);
  PythonRandom(1337).shuffle(values);
  return values;
}

/// Returns the examples of question `index` among `size`: indices of the other questions.
Numbers examples(int64_t index, int64_t size, int64_t count) {
  Numbers drawn = PythonRandom(static_cast<uint32_t>(1234 + index)).sample(size - 1, count);
  for (int64_t& i : drawn) i += i >= index;
  return drawn;
}

TEST(PythonRandom, DrawsWhatPythonDraws) {
  PythonRandom random(1337);
  EXPECT_EQ(random.getrandbits(32), 2653228291);
  EXPECT_EQ(random.getrandbits(32), 3975144315);
  EXPECT_EQ(random.getrandbits(32), 2290358181);
  EXPECT_EQ(shuffled(10), (Numbers{0, 3, 7, 2, 1, 6, 4, 5, 8, 9}));
  Numbers hundred = shuffled(100);
  hundred.resize(12);
  EXPECT_EQ(hundred, (Numbers{83, 17, 10, 9, 89, 52, 7, 32, 37, 77, 61, 34}));
}

TEST(PythonRandom, SamplesFromAListAndFromASet) {
  EXPECT_EQ(examples(0, 10, 3), (Numbers{8, 2, 1}));
  EXPECT_EQ(examples(1, 10, 3), (Numbers{7, 8, 4}));
  EXPECT_EQ(examples(9, 10, 3), (Numbers{8, 5, 4}));
  EXPECT_EQ(examples(0, 30, 10), (Numbers{25, 15, 4, 1, 3, 19, 2, 22, 29, 27}));
  EXPECT_EQ(examples(0, 2000, 10), (Numbers{1980, 1594, 903, 240, 16, 186, 1866, 1931, 1924, 1653}));
  EXPECT_EQ(PythonRandom(1).sample(4, 4).size(), 4u);
  EXPECT_TRUE(PythonRandom(1).sample(0, 0).empty());
}

}  // namespace
}  // namespace trainer::data
