#include "ops/gemm_tuning.h"

#include <gtest/gtest.h>

namespace trainer::ops {
namespace {

GemmTuning example() {
  return {"NVIDIA H200",
          "cuBLASLt 13.1.0",
          {{"64x64x8 nt", {{1, 0xffffffffffffffffu, 3, 4, 5, 6, 7, 8}, 4096, 12.5}},
           {"64x64x8 nn", {{1}, 0, 2, GemmForm::left_first}},
           {"64x64x8 tn", {{2}, 0, 3, GemmForm::right_first}},
           {"1x2x3 nn \"x\"", {}}}};
}

TEST(GemmTuning, SurvivesItsFile) {
  EXPECT_EQ(parse_gemm_tuning(to_json(example())), example());
  EXPECT_EQ(parse_gemm_tuning(to_json({})), GemmTuning{});
}

TEST(GemmTuning, ProductsOfATableWithoutFormsAreTakenAsTheyAre) {
  const GemmTuning table = parse_gemm_tuning(
      R"({"device": "d", "library": "l", "products": [{"product": "p", "algorithm":
      ["0x1","0x2","0x3","0x4","0x5","0x6","0x7","0x8"], "workspace": 0, "microseconds": 1}]})");
  EXPECT_EQ(table.products.at("p").form, GemmForm::as_is);
  EXPECT_EQ(table.products.at("p").algorithm, (GemmAlgorithm{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(GemmTuning, NamesThePlaceOfAMistake) {
  const std::string entry = R"("algorithm": ["0x1","0x2","0x3","0x4","0x5","0x6","0x7","0x8"])";
  const auto with = [&](const std::string& product) {
    return R"({"device": "d", "library": "l", "products": [)" + product + "]}";
  };
  const std::pair<std::string, std::string> mistakes[] = {
      {"", "the file"},
      {"[1]", "the file"},
      {R"({"device": "d"})", "library"},
      {R"({"device": 1})", "device"},
      {R"({"device": "d", "library": "l", "products": 3})", "products"},
      {with("1"), "products[0]"},
      {with(R"({"product": "p", "workspace": 0, "microseconds": 1})"), "algorithm"},
      {with(R"({"product": "p", "algorithm": ["0x1"], "workspace": 0, "microseconds": 1})"), "eight words"},
      {with(R"({"product": "p", "algorithm": ["1","0x2","0x3","0x4","0x5","0x6","0x7","0x8"]})"), "algorithm[0]"},
      {with(R"({"product": "p", "algorithm": ["0x1","0xg","0x3","0x4","0x5","0x6","0x7","0x8"]})"), "algorithm[1]"},
      {with(R"({"product": "p", )" + entry + R"(, "workspace": -1, "microseconds": 1})"), "workspace"},
      {with(R"({"product": "p", )" + entry + R"(, "workspace": 1, "microseconds": -1})"), "microseconds"},
      {with(R"({"product": "p", )" + entry + R"(, "workspace": 1, "microseconds": 1, "form": "both"})"), "form"},
      {with(R"({"product": "p", )" + entry + R"(, "workspace": 1, "microseconds": 1, "form": 1})"), "form"},
      {with(R"({"product": "p", )" + entry + R"(, "workspace": 1, "microseconds": 1}, {"product": "p", )" + entry +
            R"(, "workspace": 1, "microseconds": 1})"),
       "products[1].product"}};
  for (const auto& [text, place] : mistakes) {
    try {
      parse_gemm_tuning(text);
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::config);
      EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what() << "\n" << text;
    }
  }
}

TEST(GemmTuning, IsUselessOnACpu) {
  const device::CpuDevice cpu(1);
  EXPECT_THROW(use_gemm_tuning(cpu, example()), Error);
}

}  // namespace
}  // namespace trainer::ops
