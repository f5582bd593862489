#include "huggingface/tensor_map.h"

#include <gtest/gtest.h>

namespace trainer::huggingface {
namespace {

using Part = MappedTensor::Part;

/// Returns for each element of the tensor's memory the number of its part, times 1000, plus the element's number there.
std::vector<int64_t> elements_of(const MappedTensor& tensor) {
  std::vector<int64_t> memory(static_cast<size_t>(tensor.shape.count()), -1);
  for (size_t part = 0; part < tensor.parts.size(); ++part)
    for (const mesh::Run& run : tensor.runs(part))
      for (int64_t i = 0; i < run.length; ++i) {
        int64_t& place = memory.at(static_cast<size_t>(run.local + i * run.stride));
        EXPECT_EQ(place, -1);  // no element has two places
        place = 1000 * static_cast<int64_t>(part) + run.global + i;
      }
  return memory;
}

TEST(MappedTensor, PartsOfDifferentWidthsLieSideBySide) {
  const std::vector<Part> parts{{"q", 2}, {"k", 1}};
  // Row i of q is 1000·0 + 2i + (0, 1), and of k 1000 + i.
  EXPECT_EQ(elements_of({.shape = {2, 3}, .parts = parts}), (std::vector<int64_t>{0, 1, 1000, 2, 3, 1001}));
  EXPECT_EQ(elements_of({.shape = {3}, .parts = parts}), (std::vector<int64_t>{0, 1, 1000}));
  EXPECT_EQ(elements_of({.shape = {3, 2}, .parts = parts, .transposed = true}),
            (std::vector<int64_t>{0, 2, 1, 3, 1000, 1001}));
}

TEST(MappedTensor, BlocksAreTakenFromEachPartInTurn) {
  const std::vector<Part> parts{{"q", 4}, {"k", 4}};  // two heads of two features
  const std::vector<int64_t> vector{0, 1, 1000, 1001, 2, 3, 1002, 1003};
  EXPECT_EQ(elements_of({.shape = {8}, .parts = parts, .block = 2}), vector);
  // Two inputs: column j of a part has elements j and 4 + j.
  EXPECT_EQ(elements_of({.shape = {8, 2}, .parts = parts, .transposed = true, .block = 2}),
            (std::vector<int64_t>{0, 4, 1, 5, 1000, 1004, 1001, 1005, 2, 6, 3, 7, 1002, 1006, 1003, 1007}));
  EXPECT_EQ(elements_of({.shape = {2, 8}, .parts = parts, .block = 2}),
            (std::vector<int64_t>{0, 1, 1000, 1001, 2, 3, 1002, 1003, 4, 5, 1004, 1005, 6, 7, 1006, 1007}));
}

TEST(MappedTensor, AnExpertIsOneMatrixOfItsTensor) {
  const MappedTensor expert{
      .shape = {3, 2}, .parts = {{"up", 3}}, .transposed = true, .slices = 4, .slice = 2};  // [4, 2, 3] here
  EXPECT_EQ(expert.part_shape(0), (Shape{4, 2, 3}));
  EXPECT_EQ(elements_of(expert), (std::vector<int64_t>{12, 15, 13, 16, 14, 17}));
}

}  // namespace
}  // namespace trainer::huggingface
