#include "data/file_parts.h"

#include <algorithm>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/join.h"
#include "base/json.h"
#include "base/log.h"
#include "config/file_kind.h"
#include "config/resolve.h"
#include "data/files.h"
#include "data/input_key.h"

namespace trainer::data {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

json member_of(const json& object, const std::string& name) {
  return object.is_object() && object.contains(name) ? object.at(name) : json();
}

}  // namespace

std::vector<FilePart> training_parts(const config::Data& data) {
  if (data.source.empty()) return {{"", data, "train.bin"}};
  std::vector<FilePart> parts;
  for (const config::FileSet& set : data.source)
    parts.push_back({set.name, config::data_of(data, set), set.name + ".bin", set.weight});
  return parts;
}

std::vector<FilePart> validation_parts(const config::Data& data) {
  std::vector<FilePart> parts;
  if (!data.val.empty()) parts.push_back({"", config::data_of(data, {.files = data.val}), "val.bin"});
  for (const config::FileSet& set : data.validation)
    parts.push_back({set.name, config::data_of(data, set), set.name + ".val.bin"});
  return parts;
}

bool all_token_files(const std::vector<std::string>& files, config::DataFormat stated) {
  return std::ranges::all_of(
      files, [&](const auto& file) { return config::file_kind(file, stated) == config::FileKind::tokens; });
}

TextOptions text_options(const config::Data& data) {
  return {.text_key = data.text_key.empty() ? "text" : data.text_key,
          .document = data.document,
          .strict = data.strict,
          .format = data.format};
}

Tokenizer trained_tokenizer(const config::Data& data, const std::vector<FilePart>& parts, const fs::path& cache,
                            const Watch& watch) {
  const fs::path model = cache / "tokenizer.model", manifest = cache / "tokenizer.json";
  const json known = read_json_or_null(manifest);
  std::vector<std::string> gone;
  json record;
  std::string key;
  const std::vector<std::string> symbols = control_symbols(data.chat_format);
  std::vector<TrainingText> texts;
  double total = 0;
  for (const FilePart& part : parts) {
    if (all_token_files(part.files, part.data.format)) continue;
    const TextOptions options = text_options(part.data);
    const json before = inputs_in(part.name.empty() ? known : member_of(member_of(known, "sources"), part.name));
    const auto [inputs, missing] = interruptible("reading the text", watch, [files = part.files, options, before] {
      std::vector<std::string> names;
      json described = describe_inputs(files, options, before, names);
      return std::pair(std::move(described), std::move(names));
    });
    gone.insert(gone.end(), missing.begin(), missing.end());
    const std::string part_key =
        input_key(inputs, options, fmt::format("tokenizer-1 {}{}", data.vocab_size, fmt::join(symbols, " ")));
    double share = part.weight.value_or(0);
    if (!part.weight)
      for (const json& input : inputs) share += input.at("size").get<double>();
    total += share;
    texts.push_back({part.files, options, share});
    (part.name.empty() ? record : record["sources"][part.name])["inputs"] = inputs;
    key += fmt::format("{} {} {}\n", part.name, part_key, share);
  }
  key = to_string(checksum_of(key));
  for (TrainingText& text : texts) text.share = total > 0 ? text.share / total : 1;
  if (text_in(known, "key") == key && fs::exists(model)) {
    if (text_in(known, "hash") == hash_file(model)) return Tokenizer::load(model.string());
    log::warning("{}: its checksum differs from that in {}: the file is damaged or was edited", model.string(),
                 manifest.string());
  }
  if (!gone.empty())
    throw Error(Code::data, fmt::format("{} not found, and {} has no tokenizer trained on it; restore the text",
                                        gone.front(), cache.string()));
  const double start = now_seconds();
  Tokenizer tokenizer = interruptible("training the tokenizer", watch, [texts, symbols, size = data.vocab_size] {
    return Tokenizer::train(texts, size, Tokenizer::kSampleBytes, symbols);
  });
  log::info("tokenizer: trained {} tokens in {:.1f} s", tokenizer.vocab_size(), now_seconds() - start);
  std::error_code failed;
  fs::create_directories(cache, failed);
  if (failed) throw Error(Code::io, fmt::format("{}: cannot create the folder: {}", cache.string(), failed.message()));
  replace_file(model, tokenizer.bytes());
  record["key"] = key;
  record["hash"] = tokenizer.hash();
  replace_file(manifest, json_text(record, 2) + "\n");
  return tokenizer;
}

}  // namespace trainer::data
