// What mesh axes may do to every operator but products, in every combination of two and of three axes. Double
// precision, beside one rank.
#include <gtest/gtest.h>

#include "base/join.h"
#include "unit/plan/sharded_operators.h"

namespace trainer::signatures {
namespace {

using mesh::mesh_of;
using mesh::state;

/// The tensors after a run with these signatures, one for each axis.
Tensors after(Exec& ex, const Operator& op, const mesh::MeshShape& mesh, const std::vector<std::string>& signatures) {
  Tensors tensors;
  for (size_t i = 0; i < op.shapes.size(); ++i) {
    std::string symbols;
    for (const std::string& signature : signatures) symbols += signature.at(i);
    const mesh::Layout layout = state(mesh, symbols, op.shapes[i]);
    if (i >= op.inputs) {
      tensors.emplace_back(ex, layout);
      continue;
    }
    Values values = random_values(format("{} {}", op.name, i), op.shapes[i].count(), op.integers);
    if (static_cast<int>(i) == op.tokens)
      for (double& value : values) value = std::floor((value + 1) / 2 * kVocab);
    tensors.emplace_back(ex, layout, values);
  }
  op.run(ex, tensors);
  return tensors;
}

/// The largest difference of a result from that of one rank.
double error_of(Exec& ex, const Operator& op, const mesh::MeshShape& mesh, const std::vector<std::string>& signatures) {
  const Tensors one = after(ex, op, mesh_of({1}), {std::string(op.shapes.size(), 'B')}),
                many = after(ex, op, mesh, signatures);
  double largest = 0;
  for (size_t i = op.inputs; i < one.size(); ++i)
    largest = std::max(largest, difference(many[i].whole(), *one[i].whole()));
  return largest;
}

TEST(Signatures, OfEveryTupleGiveTheResultsOfOneRank) {
  OneThread thread;
  for (const Operator& op : operators())
    for (const mesh::MeshShape& mesh : {mesh_of({2, 2}), mesh_of({2, 2, 2})})
      for (const std::string& places : words(std::string("0123").substr(0, op.signatures.size()), mesh.axes())) {
        std::vector<std::string> signatures;
        for (const char place : places) signatures.push_back(op.signatures[static_cast<size_t>(place - '0')]);
        EXPECT_LE(error_of(thread.ex, op, mesh, signatures), 1e-12)
            << op.name << " " << fmt::format("{}", fmt::join(signatures, " "));
      }
}

// The function of a partial sum is not a partial sum of the function. Copies count once for each rank beside partial
// sums.
TEST(Signatures, OfOtherKindsGiveOthers) {
  OneThread thread;
  const std::vector<std::pair<const char*, std::string>> wrong = {
      {"gelu", "PBPB"},           {"dropout", "BP"},       {"add", "BPP"},
      {"bias", "PBBPB"},          {"swiglu", "PPBPPP"},    {"swiglu", "PBBPBP"},
      {"layer norm", "PBBBPBBB"}, {"optimizer", "PPPPPPP"}};
  for (const Operator& op : operators())
    for (const auto& [name, signature] : wrong)
      if (name == std::string_view(op.name)) {
        EXPECT_GT(error_of(thread.ex, op, mesh_of({2}), {signature}), 1e-3) << name << " " << signature;
      }
}

// A matrix of heads side by side, cut by columns, is cut by whole heads; where they do not divide it is refused.
TEST(Signatures, OfColumnsAreThoseOfHeads) {
  const mesh::MeshShape mesh = mesh_of({2, 2, 2});
  for (const std::string& symbols : words("B01", mesh.axes())) {
    const mesh::Layout columns = state(mesh, symbols, {kRows, kHeads * kHeadDim}),
                       heads = state(mesh, symbols, {kRows, kHeads, kHeadDim});
    for (int rank = 0; rank < mesh.world_size(); ++rank) {
      EXPECT_EQ(columns.box(), (Shape{heads.box()[0], heads.box()[1] * kHeadDim}));
      const auto elements = [&](const mesh::Layout& layout) {
        std::vector<std::pair<int64_t, int64_t>> all;
        for (const mesh::Run& run : layout.runs(rank))
          for (int64_t i = 0; i < run.length; ++i) all.emplace_back(run.global + i, run.local + i * run.stride);
        return all;
      };
      EXPECT_EQ(elements(columns), elements(heads)) << symbols << " rank " << rank;
    }
  }
  EXPECT_THROW(state(mesh, "111", {kRows, 12, kHeadDim}), Error) << "twelve heads over eight ranks";
}

}  // namespace
}  // namespace trainer::signatures
