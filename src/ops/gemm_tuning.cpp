#include "ops/gemm_tuning.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "ops/cuda/ops.h"

namespace trainer::ops {
namespace {

using nlohmann::json;

[[noreturn]] void fail(std::string_view place, const char* expected) {
  throw Error(Code::config, format("tuning table: {}: expected {}", place, expected));
}

const json& member(const json& object, std::string_view place, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) fail(place, format("a member \"{}\"", key).c_str());
  return *found;
}
std::string text_of(const json& object, std::string_view place, const char* key) {
  const json& value = member(object, place, key);
  if (!value.is_string()) fail(format("{}.{}", place, key), "a string");
  return value.get<std::string>();
}

uint64_t hexadecimal(const json& value, const std::string& place) {
  if (!value.is_string()) fail(place, "a string \"0x…\"");
  const auto& text = value.get_ref<const std::string&>();
  uint64_t word = 0;
  const char* end = text.data() + text.size();
  if (!text.starts_with("0x")) fail(place, "a string \"0x…\"");
  const auto [stop, error] = std::from_chars(text.data() + 2, end, word, 16);
  if (error != std::errc{} || stop != end) fail(place, "a 64-bit hexadecimal number");
  return word;
}

constexpr std::string_view kForms[] = {"as is", "left first", "right first"};  // in the order of GemmForm

TunedProduct product_of(const json& entry, const std::string& place) {
  TunedProduct product;
  const json& words = member(entry, place, "algorithm");
  if (!words.is_array() || words.size() != product.algorithm.size())
    fail(place + ".algorithm", "an array of eight words");
  for (size_t i = 0; i < product.algorithm.size(); ++i)
    product.algorithm[i] = hexadecimal(words[i], format("{}.algorithm[{}]", place, i));
  const json& workspace = member(entry, place, "workspace");
  if (!workspace.is_number_unsigned() || workspace.get<uint64_t>() >> 40 != 0)
    fail(place + ".workspace", "a number of bytes");
  product.workspace = workspace.get<int64_t>();
  const json& time = member(entry, place, "microseconds");
  if (!time.is_number() || !(time.get<double>() >= 0)) fail(place + ".microseconds", "a time in microseconds");
  product.microseconds = time.get<double>();
  if (entry.contains("form")) {
    const auto form = std::find(std::begin(kForms), std::end(kForms), text_of(entry, place, "form"));
    if (form == std::end(kForms)) fail(place + ".form", "\"as is\", \"left first\" or \"right first\"");
    product.form = static_cast<GemmForm>(form - std::begin(kForms));
  }
  return product;
}

}  // namespace

std::string_view name_of(GemmForm form) { return kForms[static_cast<size_t>(form)]; }

GemmTuning parse_gemm_tuning(std::string_view text) {
  const json all = parse_json(text);
  if (!all.is_object()) fail("the file", "a JSON object");
  GemmTuning tuning{text_of(all, "the file", "device"), text_of(all, "the file", "library"), {}};
  const json& products = member(all, "the file", "products");
  if (!products.is_array()) fail("products", "an array");
  for (size_t i = 0; i < products.size(); ++i) {
    const std::string place = format("products[{}]", i);
    if (!products[i].is_object()) fail(place, "an object");
    if (!tuning.products.emplace(text_of(products[i], place, "product"), product_of(products[i], place)).second)
      fail(place + ".product", "each GEMM to be listed once");
  }
  return tuning;
}

std::string to_json(const GemmTuning& tuning) {
  json products = json::array();
  for (const auto& [name, product] : tuning.products) {
    json words = json::array();
    for (const uint64_t word : product.algorithm) words.push_back(format("{:#018x}", word));
    products.push_back({{"product", name},
                        {"algorithm", words},
                        {"workspace", static_cast<uint64_t>(product.workspace)},
                        {"microseconds", product.microseconds},
                        {"form", name_of(product.form)}});
  }
  return json{{"device", tuning.device}, {"library", tuning.made_with}, {"products", products}}.dump(1) + "\n";
}

void use_gemm_tuning(const device::Device& device, const GemmTuning& tuning) {
  const std::optional<std::string> misfit = gemm_tuning_misfit(device, tuning);
  if (misfit && !tuning.products.empty()) throw Error(Code::config, *misfit);
  cuda::use_gemm_tuning(device, tuning);
}

std::optional<std::string> gemm_tuning_misfit(const device::Device& device, const GemmTuning& tuning) {
  if (device.kind() != device::DeviceKind::cuda) return "GEMMs on a CPU use the built-in kernels";
  const std::string& here = device.gpu().name;
  const std::string library = cuda::library_name();
  if (tuning.device == here && tuning.made_with == library) return std::nullopt;
  return format("the tuning table was measured on {} with {}; this is {} with {}", tuning.device, tuning.made_with,
                here, library);
}

void measure_gemms(const device::Device& device, int most, int repeats, bool forms) {
  TRAINER_CHECK(most >= 1 && repeats >= 1,
                "measure_gemms() requires at least one algorithm and one repeat, not {} and {}", most, repeats);
  cuda::measure_gemms(device, most, repeats, forms);
}
MeasuredGemms measured_gemms(const device::Device& device) { return cuda::measured_gemms(device); }

}  // namespace trainer::ops
