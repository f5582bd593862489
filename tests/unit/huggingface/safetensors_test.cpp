#include "huggingface/safetensors.h"

#include <gtest/gtest.h>

#include <set>

#include "huggingface/index.h"
#include "huggingface/weight_files.h"
#include "unit/checkpoint/fixture.h"

namespace trainer::huggingface {
namespace {

namespace fs = std::filesystem;
using checkpoint::content_of;
using checkpoint::TempFolder;
using checkpoint::write;
using tests::expect_parts;

std::string with_length(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

/// Returns the reason for which a file is rejected; empty if it is accepted.
template <typename F>
std::string refusal(F&& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(exit_status(error.code()), 5) << error.what();
    return error.what();
  }
  return "";
}

TEST(Safetensors, AreWrittenInTheFormat) {
  TempFolder folder;
  const fs::path path = folder / "a.safetensors";
  const float one[] = {1, 2, 3};
  const uint16_t other[] = {4, 5};
  SafetensorsWriter writer(path, {{"b", "F32", {3}, 0, 0}, {"a", "BF16", {2, 1}, 0, 0}});
  writer.write(std::as_bytes(std::span(one)));
  writer.write(std::as_bytes(std::span(other)));
  writer.finish();
  const std::string header = R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},)"
                             R"("a":{"dtype":"BF16","shape":[2,1],"data_offsets":[12,16]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  const std::string data =
      std::string(reinterpret_cast<const char*>(one), 12) + std::string(reinterpret_cast<const char*>(other), 4);
  EXPECT_EQ(content_of(path), with_length(padded, data));

  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[1].name, "a");
  EXPECT_EQ(file.tensors()[1].shape, (std::vector<int64_t>{2, 1}));
  uint16_t last = 0;
  file.read(file.tensors()[1], 2, std::as_writable_bytes(std::span(&last, 1)));
  EXPECT_EQ(last, 5);
}

TEST(Safetensors, AcceptScalarsEmptyTensorsAndTypesOtherThanWeights) {
  const std::vector<TensorEntry> tensors = parse_safetensors_header(
      R"({"n":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"F16","shape":[0,7],"data_offsets":[8,8]},)"
      R"("m":{"dtype":"BOOL","shape":[3],"data_offsets":[8,11]}}  )",
      11, "x");
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "n");
  EXPECT_EQ(tensors[2].end, 11);
}

TEST(Safetensors, AreRejectedIfTheHeaderIsWrong) {
  struct Case {
    const char *header, *part;
  };
  for (
      const auto& [header, part] : {
          Case{"", "not a JSON object"},
          {"[]", "not a JSON object"},
          {R"({"a":3})", "\"dtype\" is missing"},
          {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)", "not a JSON object"},
          {R"({"a":{"dtype":"F32","shape":[2]}})", "\"data_offsets\" is missing"},
          {R"({"a":{"dtype":"F5","shape":[2],"data_offsets":[0,8]}})", "a: unknown element type \"F5\""},
          {R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", "unknown element type 7"},
          {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "-2 is not a size"},
          {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "2.0 is not a size"},
          {R"({"a":{"dtype":"F32","shape":"2","data_offsets":[0,8]}})", "\"shape\" is not a list"},
          {R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", "nested too deeply"},
          {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "data_offsets [0]"},
          {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "data_offsets [8,0]"},
          {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "its shape requires more bytes"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})",
           "8 bytes from 0 to 8, but its type and shape need 4"},
          {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8]}})", "requires more bytes"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "4 bytes of tensors, but the file has 8"},
          {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", "is not a size"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "tensors leave a gap"},
          {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           "tensors overlap"},
          {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
           "a: the tensor occurs twice"},
          {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"x":{"y":{"z":[[]]}}}})", "nested too deeply"},
      }) {
    const std::string message = refusal([&] { parse_safetensors_header(header, 8, "dir/x.safetensors"); });
    expect_parts(message, {"dir/x.safetensors: ", part});
  }
}

TEST(Safetensors, AreRejectedIfTheFileIsShortOrItsHeaderHuge) {
  TempFolder folder;
  const fs::path path = folder / "x.safetensors";
  const std::string whole = with_length(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  for (size_t size = 0; size <= whole.size(); ++size) {
    write(path, whole.substr(0, size));
    const std::string message = refusal([&] { SafetensorsFile file(path); });
    EXPECT_EQ(message.empty(), size == whole.size()) << size << message;
    if (!message.empty()) expect_parts(message, {"x.safetensors: "});
  }
  write(path, std::string(7, '\xff') + "\x7f" + whole);
  expect_parts(refusal([&] { SafetensorsFile file(path); }), {"its header would have"});
  expect_parts(refusal([&] { SafetensorsFile file(folder / "none"); }), {"none"});
}

TEST(WeightIndex, ReportsWhichFileHasATensor) {
  const WeightIndex index{{"b", weights_file(0, 2)}, {"a", weights_file(1, 2)}};
  EXPECT_EQ(index[1].second, "model-00002-of-00002.safetensors");
  const WeightIndex again = parse_index_json(to_index_json(index, 77), "x");
  EXPECT_EQ(std::set(again.begin(), again.end()), std::set(index.begin(), index.end()));
  expect_parts(to_index_json(index, 77), {"\"total_size\": 77"});
}

TEST(WeightIndex, IsRejectedIfItNamesSomethingOtherThanAFileOfWeights) {
  for (const auto& [text, part] : {std::pair{"{}", "weight_map: missing"},
                                   {"", "weight_map: missing"},
                                   {R"({"weight_map":{}})", "empty"},
                                   {R"({"weight_map":{"a":3}})", "a: 3 is not the name"},
                                   {R"({"weight_map":{"a":"model.safetensors.index.json"}})", "is not the name"},
                                   {R"({"weight_map":{"a":"../x.safetensors"}})", "is not the name"},
                                   {R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})", "a: occurs twice"},
                                   {R"({"weight_map":{"a":{"b":{"c":[1]}}}})", "nested too deeply"}}) {
    expect_parts(refusal([&] { parse_index_json(text, "i.json"); }), {part});
  }
}

TEST(WeightFiles, AreRejectedIfIndexAndFilesDisagree) {
  TempFolder folder;
  const auto put = [&](const std::string& file, const std::string& tensor) {
    write(folder / file,
          with_length(R"({")" + tensor + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  };
  const auto read = [&] { return refusal([&] { WeightFiles files(folder.path()); }); };
  const auto index = [&](const std::string& map) { write(folder / kIndexFile, R"({"weight_map":)" + map + "}"); };
  expect_parts(read(), {"neither model.safetensors nor"});
  put("1.safetensors", "a");
  put("2.safetensors", "b");
  index(R"({"a":"1.safetensors","b":"2.safetensors"})");
  EXPECT_EQ(read(), "");
  index(R"({"a":"2.safetensors","b":"2.safetensors"})");
  expect_parts(read(), {"2.safetensors: a: missing from this file"});
  index(R"({"a":"1.safetensors","b":"2.safetensors","model.layers.0.self_attn.rotary_emb.inv_freq":"1.safetensors"})");
  EXPECT_EQ(read(), "") << "a buffer that the model does not need";
  index(R"({"a":"1.safetensors","b":"3.safetensors"})");
  expect_parts(read(), {"3.safetensors"});
  put("2.safetensors", "a");
  index(R"({"a":"1.safetensors","b":"2.safetensors"})");
  expect_parts(read(), {"2.safetensors: a: also in 1.safetensors"});
  fs::remove(folder / "1.safetensors");
  fs::create_symlink("1.safetensors", folder / "1.safetensors");  // a link to itself
  EXPECT_NE(read(), "");
  put(kWeightsFile, "c");  // transformers then ignores the index
  EXPECT_EQ(read(), "");
  EXPECT_NE(WeightFiles(folder.path()).find("c").file, nullptr);
}

}  // namespace
}  // namespace trainer::huggingface
