// Export and import of whole checkpoints, with values that are functions of tensor and index.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/inspect.h"
#include "checkpoint/model_keys.h"
#include "config/load.h"
#include "config/text.h"
#include "huggingface/export.h"
#include "huggingface/import.h"
#include "huggingface/model_config.h"
#include "huggingface/safetensors.h"
#include "huggingface/tensor_map.h"
#include "unit/checkpoint/fixture.h"

namespace trainer::huggingface {
namespace {

namespace fs = std::filesystem;
using checkpoint::content_of;
using checkpoint::overwrite;
using checkpoint::system_calls;
using checkpoint::TempFolder;
using nlohmann::json;

constexpr int64_t kVocab = 29;

config::Config config_of(const std::vector<std::string>& sets) {
  std::vector<std::string> all{"model.n_layer=2",  "model.n_head=6",      "model.d_model=24",      "model.d_ff=40",
                               "model.seq_len=10", "model.norm_eps=3e-6", "model.init_std=0.0123", "model.dropout=0.1"};
  all.insert(all.end(), sets.begin(), sets.end());
  return config::load_text("", "x", all, {.files = false});
}
config::Config gpt2() { return config_of({"model.arch=gpt2"}); }
config::Config llama() { return config_of({"model.arch=llama", "model.n_kv_head=3", "model.rope_theta=5e5"}); }

/// A value that names its tensor and place; exact in fp32, not in bf16.
float value_of(const std::string& tensor, int64_t index) {
  const auto name = static_cast<int64_t>(std::hash<std::string>{}(tensor) % 4093);
  return static_cast<float>(name * 4096 + index % 4096) * 0x1p-22f - 2.0f;
}

/// Shapes of this program's tensors by the definition of the model.
std::map<std::string, Shape> shapes_of(const config::Model& m) {
  const bool is_gpt2 = m.arch == config::Arch::gpt2;
  const int64_t d = m.d_model, kv = d / m.n_head * m.n_kv_head;
  std::map<std::string, Shape> shapes{{"wte", {kVocab, d}}};
  const auto norm = [&](const std::string& name) {
    shapes[name + ".gain"] = {d};
    if (m.bias.value()) shapes[name + ".bias"] = {d};
  };
  const auto linear = [&](const std::string& name, int64_t in, int64_t out) {
    shapes[name + ".weight"] = {in, out};
    if (m.bias.value()) shapes[name + ".bias"] = {out};
  };
  if (is_gpt2) shapes["wpe"] = {m.seq_len, d};
  for (int64_t l = 0; l < m.n_layer; ++l) {
    const std::string block = format("blocks.{}.", l);
    norm(block + "norm1");
    linear(block + "attn.q", d, d);
    linear(block + "attn.k", d, kv);
    linear(block + "attn.v", d, kv);
    linear(block + "attn.o", d, d);
    norm(block + "norm2");
    if (!is_gpt2) linear(block + "mlp.gate", d, m.d_ff);
    linear(block + "mlp.up", d, m.d_ff);
    linear(block + "mlp.down", m.d_ff, d);
  }
  norm("norm_f");
  if (!m.tie_embeddings.value()) shapes["head.weight"] = {kVocab, d};
  return shapes;
}

/// Saves a checkpoint of the model, its tensors cut into `ranks` shards, with moments.
fs::path save(const fs::path& folder, const config::Config& config, DType dtype = DType::f32) {
  checkpoint::Snapshot snapshot;
  snapshot.config_toml = config::to_toml(config);
  snapshot.model_keys = checkpoint::model_keys(config.model, kVocab);
  snapshot.tied = config.model.tie_embeddings.value();
  snapshot.compute = dtype == DType::f64 ? "fp64" : "bf16";
  std::vector<std::vector<std::byte>> memory;
  for (const auto& [name, shape] : shapes_of(config.model)) {
    for (const char* suffix : {"", "#m", "#v"}) {
      const int64_t count = shape.count();
      memory.emplace_back(static_cast<size_t>(count * size_of(dtype)));
      const Tensor local{memory.back().data(), {count}, dtype};
      for (int64_t i = 0; i < count; ++i) {
        if (dtype == DType::f64)
          local.as<double>()[i] = static_cast<double>(value_of(name + suffix, i));
        else
          local.as<float>()[i] = value_of(name + suffix, i);
      }
      snapshot.tensors.push_back({name + suffix, shape, local, {{0, 0, count}}});
    }
  }
  return checkpoint::CheckpointStore(folder, {}).save(snapshot);
}

/// All tensors of an exported folder in fp32, with their shapes.
struct Exported32 {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
std::map<std::string, Exported32> read_all(const fs::path& folder) {
  std::map<std::string, Exported32> all;
  for (const fs::directory_entry& each : fs::directory_iterator(folder)) {
    if (each.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(system_calls(), each.path());
    for (const TensorEntry& entry : file.tensors()) {
      std::vector<std::byte> bytes(static_cast<size_t>(entry.end - entry.begin));
      file.read(entry, 0, bytes);
      const FloatType type = *find_stored(entry.dtype);
      Exported32 tensor{entry.shape, std::vector<float>(bytes.size() / static_cast<size_t>(size_of(type)))};
      to_float(type, bytes, tensor.values);
      all[entry.name] = std::move(tensor);
    }
  }
  return all;
}

std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const fs::directory_entry& each : fs::directory_iterator(folder))
    files[each.path().filename().string()] = content_of(each.path());
  return files;
}

TEST(Export, PutsColumnsOfGpt2SideBySide) {
  TempFolder folder;
  save(folder.path() / "run", gpt2());
  export_model(folder.path() / "run", folder.path() / "hf");
  const auto all = read_all(folder.path() / "hf");
  EXPECT_EQ(all.size(), 2u + 2 * 12 + 2);
  const Exported32& joined = all.at("transformer.h.1.attn.c_attn.weight");
  ASSERT_EQ(joined.shape, (std::vector<int64_t>{24, 72}));
  for (int64_t row = 0; row < 24; ++row) {
    for (int64_t col = 0; col < 72; ++col) {
      const std::string part = format("blocks.1.attn.{}.weight", "qkv"[col / 24]);
      ASSERT_EQ(joined.values[row * 72 + col], value_of(part, row * 24 + col % 24)) << row << " " << col;
    }
  }
  for (int64_t i = 0; i < 72; ++i)
    ASSERT_EQ(all.at("transformer.h.0.attn.c_attn.bias").values[i],
              value_of(format("blocks.0.attn.{}.bias", "qkv"[i / 24]), i % 24));
  EXPECT_EQ(all.at("transformer.h.0.mlp.c_proj.weight").shape, (std::vector<int64_t>{40, 24}));
  EXPECT_EQ(all.at("transformer.h.0.mlp.c_proj.weight").values[41], value_of("blocks.0.mlp.down.weight", 41));
  EXPECT_EQ(all.at("transformer.wpe.weight").values[5], value_of("wpe", 5));
  EXPECT_EQ(all.at("transformer.ln_f.bias").values[23], value_of("norm_f.bias", 23));
}

TEST(Export, TurnsTheLinearsOfLlamaRound) {
  TempFolder folder;
  save(folder.path() / "run", llama());
  export_model(folder.path() / "run", folder.path() / "hf");
  const auto all = read_all(folder.path() / "hf");
  EXPECT_EQ(all.size(), 1u + 2 * 9 + 2);
  const Exported32& keys = all.at("model.layers.0.self_attn.k_proj.weight");
  ASSERT_EQ(keys.shape, (std::vector<int64_t>{12, 24}));
  for (int64_t out = 0; out < 12; ++out)
    for (int64_t in = 0; in < 24; ++in)
      ASSERT_EQ(keys.values[out * 24 + in], value_of("blocks.0.attn.k.weight", in * 12 + out));
  EXPECT_EQ(all.at("model.layers.1.mlp.gate_proj.weight").values[24 + 3],
            value_of("blocks.1.mlp.gate.weight", 3 * 40 + 1));
  EXPECT_EQ(all.at("lm_head.weight").values[30], value_of("head.weight", 30));
  const json config = json::parse(content_of(folder.path() / "hf/config.json"));
  EXPECT_EQ(config["num_key_value_heads"], 3);
  EXPECT_EQ(config["rope_theta"], 5e5);
  EXPECT_EQ(config["rms_norm_eps"], 3e-6);
  EXPECT_EQ(config["max_position_embeddings"], 10);
}

TEST(Import, GivesBackWhatWasExported) {
  for (const config::Config& config :
       {gpt2(), llama(), config_of({"model.arch=gpt2", "model.tie_embeddings=false"}),
        config_of({"model.arch=llama", "model.tie_embeddings=true", "model.n_kv_head=1"})}) {
    TempFolder folder;
    const fs::path step = save(folder.path() / "run", config);
    export_model(step, folder.path() / "hf");
    const Imported done = import_model(folder.path() / "hf", folder.path() / "back");
    EXPECT_EQ(checkpoint::verify(folder.path() / "back").problems, std::vector<std::string>());
    const checkpoint::Reader before(step), after(folder.path() / "back");
    EXPECT_EQ(after.header().model_keys, before.header().model_keys);
    EXPECT_EQ(after.header().tied, before.header().tied);
    EXPECT_EQ(after.header().compute, "fp32");
    EXPECT_TRUE(after.header().state.finite_weights);
    const auto shapes = shapes_of(config.model);
    EXPECT_EQ(done.tensors, static_cast<int64_t>(shapes.size()));
    std::vector<checkpoint::TensorSlice> slices;
    std::vector<std::vector<float>> memory;
    for (const auto& [name, shape] : shapes) {
      memory.emplace_back(static_cast<size_t>(shape.count()));
      const Tensor local{reinterpret_cast<std::byte*>(memory.back().data()), {shape.count()}, DType::f32};
      slices.push_back({name, shape, local, {{0, 0, shape.count()}}});
    }
    after.load(slices, {.weights_only = true, .tied = before.header().tied});
    for (size_t t = 0; t < slices.size(); ++t)
      for (int64_t i = 0; i < slices[t].shape.count(); ++i)
        ASSERT_EQ(memory[t][static_cast<size_t>(i)], value_of(slices[t].name, i)) << slices[t].name << " " << i;
    export_model(folder.path() / "back", folder.path() / "again");
    EXPECT_EQ(files_in(folder.path() / "again"), files_in(folder.path() / "hf"));
  }
}

TEST(Export, CutsWeightsIntoFilesThatImportReads) {
  TempFolder folder;
  save(folder.path() / "run", llama());
  export_model(folder.path() / "run", folder.path() / "one");
  const Exported done = export_model(folder.path() / "run", folder.path() / "many", {.shard_bytes = 5000});
  EXPECT_GT(done.files.size(), 3u);
  EXPECT_EQ(done.files.front(), format("model-00001-of-{:05}.safetensors", done.files.size()));
  const json index = json::parse(content_of(folder.path() / "many/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], done.bytes);
  EXPECT_EQ(index["weight_map"].size(), done.tensors);
  const auto one = read_all(folder.path() / "one"), many = read_all(folder.path() / "many");
  ASSERT_EQ(one.size(), many.size());
  for (const auto& [name, tensor] : one) EXPECT_EQ(many.at(name).values, tensor.values) << name;
  import_model(folder.path() / "many", folder.path() / "back");
  export_model(folder.path() / "back", folder.path() / "again", {.shard_bytes = 5000});
  EXPECT_EQ(files_in(folder.path() / "again"), files_in(folder.path() / "many"));
}

TEST(Export, RoundsToTheTypeAskedForOnce) {
  TempFolder folder;
  save(folder.path() / "run", gpt2());
  save(folder.path() / "wide", gpt2(), DType::f64);
  export_model(folder.path() / "run", folder.path() / "fp32");
  export_model(folder.path() / "wide", folder.path() / "from64");
  EXPECT_EQ(files_in(folder.path() / "from64"), files_in(folder.path() / "fp32"));
  for (const FloatType type : {FloatType::bf16, FloatType::f16}) {
    const fs::path output = folder.path() / std::string(stored_name(type));
    export_model(folder.path() / "run", output, {.type = type});
    EXPECT_EQ(json::parse(content_of(output / "config.json"))["torch_dtype"], torch_name(type));
    const double step = type == FloatType::bf16 ? 0x1p-8 : 0x1p-11;  // half a unit in the last of 8 or 11 places
    for (const auto& [name, tensor] : read_all(output)) {
      const auto exact = read_all(folder.path() / "fp32").at(name);
      for (size_t i = 0; i < exact.values.size(); ++i)
        ASSERT_LE(std::abs(tensor.values[i] - exact.values[i]), step * std::abs(exact.values[i])) << name;
    }
    import_model(output, output.string() + "-back");
    export_model(output.string() + "-back", output.string() + "-again", {.type = type});
    EXPECT_EQ(files_in(output.string() + "-again"), files_in(output));
  }
}

TEST(Export, WritesZerosForTheBiasesThatGpt2AlwaysHas) {
  TempFolder folder;
  save(folder.path() / "run", config_of({"model.arch=gpt2", "model.bias=false"}));
  export_model(folder.path() / "run", folder.path() / "hf");
  for (const auto& [name, tensor] : read_all(folder.path() / "hf")) {
    if (!name.ends_with(".bias")) continue;
    EXPECT_EQ(tensor.values, std::vector<float>(tensor.values.size())) << name;
  }
}

template <typename F>
std::string refusal(F&& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::checkpoint) << error.what();
    return error.what();
  }
  return "not refused";
}

TEST(Export, RefusesWhatHuggingFaceCannotRepresent) {
  TempFolder folder;
  const auto refused = [&](const std::string& name, const config::Config& config) {
    save(folder.path() / name, config);
    const std::string message = refusal([&] { export_model(folder.path() / name, folder.path() / "hf"); });
    EXPECT_FALSE(fs::exists(folder.path() / "hf"));
    return message;
  };
  EXPECT_NE(refused("a", config_of({"model.arch=gpt2", "model.n_kv_head=3"})).find("model.n_kv_head = 3"),
            std::string::npos);
  EXPECT_NE(refused("b", config_of({"model.arch=llama", "model.bias=true"})).find("model.bias = true"),
            std::string::npos);
}

/// config.json of an exported model with one field changed (null: taken away).
std::string with_field(const config::Config& config, const std::string& field, const json& value) {
  json object = json::parse(to_config_json(config.model, kVocab, std::nullopt, FloatType::f32));
  object[field] = value;
  return object.dump();
}

TEST(Import, RefusesFieldsThatItCannotRepresent) {
  struct Case {
    config::Config config;
    const char* field;
    json value;
    const char* part;
  };
  for (const auto& [config, field, value, part] : std::vector<Case>{
           {gpt2(), "model_type", "mistral", "model_type: \"mistral\""},
           {gpt2(), "model_type", nullptr, "model_type: missing"},
           {gpt2(), "n_layer", nullptr, "n_layer: missing"},
           {gpt2(), "n_layer", 0, "n_layer: 0, expected a whole number"},
           {gpt2(), "n_layer", 2000000000, "n_layer"},
           {gpt2(), "n_embd", "24", "n_embd: \"24\""},
           {gpt2(), "n_head", 5, "n_head: 5 does not divide n_embd = 24"},
           {gpt2(), "activation_function", "gelu", "activation_function: \"gelu\""},
           {gpt2(), "scale_attn_weights", false, "scale_attn_weights: false"},
           {gpt2(), "scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx: true"},
           {gpt2(), "add_cross_attention", true, "add_cross_attention: true"},
           {gpt2(), "attn_pdrop", 0.2, "attn_pdrop: 0.2, but resid_pdrop is 0.1"},
           {gpt2(), "tie_word_embeddings", 1, "tie_word_embeddings: 1"},
           {gpt2(), "layer_norm_epsilon", -1, "norm_eps"},
           {gpt2(), "quantization_config", {{"bits", 4}}, "quantization_config: {\"bits\":4}"},
           {llama(), "hidden_act", "gelu", "hidden_act: \"gelu\""},
           {llama(), "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}, "rope_scaling: \"llama3\""},
           {llama(), "rope_parameters", {{"rope_type", "yarn"}}, "rope_parameters: \"yarn\""},
           {llama(), "rope_parameters", 3, "rope_parameters: 3"},
           {llama(), "attention_bias", true, "attention_bias: true"},
           {llama(), "mlp_bias", true, "mlp_bias: true"},
           {llama(), "head_dim", 8, "head_dim: 8"},
           {llama(), "num_key_value_heads", 4, "num_key_value_heads: 4 does not divide"},
           {llama(), "attention_dropout", 0.5, "attention_dropout: 0.5"},
           {llama(), "sliding_window", 4096, "sliding_window: 4096"},
           {llama(), "vocab_size", nullptr, "vocab_size: missing"},
       }) {
    const std::string text = with_field(config, field, value);
    const std::string message = refusal([&] { parse_config_json(text, "dir/config.json"); });
    EXPECT_NE(message.find(part), message.npos) << field << ": " << message;
    EXPECT_TRUE(message.starts_with("dir/config.json: ")) << message;
  }
  for (const char* text : {"", "[]", "{", "{\"model_type\":[[[[]]]]}"})
    EXPECT_NE(refusal([&] { parse_config_json(text, "c"); }), "not refused") << text;
}

TEST(Import, TakesTheFieldsOfOtherVersions) {
  const ModelConfig newer =
      parse_config_json(with_field(llama(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e5}}), "c");
  EXPECT_EQ(newer.config.model.rope_theta, 7e5);
  const ModelConfig older = parse_config_json(with_field(gpt2(), "n_inner", nullptr), "c");
  EXPECT_EQ(older.config.model.d_ff, 96);
  EXPECT_EQ(older.config.model.dropout, 0.1);
  EXPECT_EQ(older.vocab, kVocab);
}

/// Writes one file of weights, changed by `edit` beforehand: name, shape and values.
using Edit = std::function<void(std::map<std::string, Exported32>&)>;
void rewrite(const fs::path& from, const fs::path& to, const Edit& edit) {
  auto all = read_all(from);
  edit(all);
  fs::create_directories(to);
  fs::copy_file(from / "config.json", to / "config.json");
  std::vector<TensorEntry> entries;
  for (const auto& [name, tensor] : all) entries.push_back({name, "F32", tensor.shape, 0, 0});
  SafetensorsWriter writer(system_calls(), to / "model.safetensors", entries);
  for (const auto& [name, tensor] : all) writer.write(std::as_bytes(std::span(tensor.values)));
  writer.finish();
}

TEST(Import, TakesNamesOfModelsWithoutAHeadMasksAndACopyOfTheTable) {
  TempFolder folder;
  save(folder.path() / "run", gpt2());
  export_model(folder.path() / "run", folder.path() / "hf");
  rewrite(folder.path() / "hf", folder.path() / "old", [](auto& all) {
    std::map<std::string, Exported32> bare;
    for (const auto& [name, tensor] : all) bare[name.substr(std::string("transformer.").size())] = tensor;
    bare["h.0.attn.bias"] = {{1, 1, 10, 10}, std::vector<float>(100)};
    bare["h.1.attn.masked_bias"] = {{}, {-1e4f}};
    bare["lm_head.weight"] = bare["wte.weight"];
    all = bare;
  });
  import_model(folder.path() / "old", folder.path() / "back");
  export_model(folder.path() / "back", folder.path() / "again");
  EXPECT_EQ(files_in(folder.path() / "again"), files_in(folder.path() / "hf"));
}

TEST(Import, RefusesTensorsThatAreNotThoseOfTheModel) {
  TempFolder folder;
  save(folder.path() / "run", gpt2());
  export_model(folder.path() / "run", folder.path() / "hf");
  int cases = 0;
  const auto refused = [&](const Edit& edit) {
    const fs::path changed = folder.path() / format("changed-{}", ++cases);
    rewrite(folder.path() / "hf", changed, edit);
    const std::string message = refusal([&] { import_model(changed, folder.path() / "back"); });
    EXPECT_FALSE(fs::exists(folder.path() / "back"));
    return message;
  };
  EXPECT_NE(
      refused([](auto& all) { all.erase("transformer.h.1.ln_2.bias"); }).find("transformer.h.1.ln_2.bias: not in"),
      std::string::npos);
  EXPECT_NE(refused([](auto& all) {
              all["score.weight"] = {{1}, {1.0f}};
            }).find("score.weight: this program's model"),
            std::string::npos);
  EXPECT_NE(refused([](auto& all) {
              all["transformer.ln_f.bias"] = {{12, 2}, std::vector<float>(24)};
            }).find("transformer.ln_f.bias: shape [12, 2]"),
            std::string::npos);
  EXPECT_NE(refused([](auto& all) {
              all["lm_head.weight"] = all["transformer.wte.weight"];
              all["lm_head.weight"].values[500] += 1;
            }).find("lm_head.weight: tie_word_embeddings is true"),
            std::string::npos);
}

TEST(Import, RemembersThatWeightsAreNotFinite) {
  TempFolder folder;
  save(folder.path() / "run", gpt2());
  export_model(folder.path() / "run", folder.path() / "hf");
  rewrite(folder.path() / "hf", folder.path() / "nan",
          [](auto& all) { all["transformer.wpe.weight"].values[3] = std::numeric_limits<float>::quiet_NaN(); });
  import_model(folder.path() / "nan", folder.path() / "back");
  EXPECT_FALSE(checkpoint::Reader(folder.path() / "back").header().state.finite_weights);
}

TEST(Export, SaysWhichWeightIsTooLargeForFp16) {
  TempFolder folder;
  save(folder.path() / "run", gpt2());
  export_model(folder.path() / "run", folder.path() / "hf");
  rewrite(folder.path() / "hf", folder.path() / "large",
          [](auto& all) { all["transformer.ln_f.weight"].values[3] = 7e4f; });
  import_model(folder.path() / "large", folder.path() / "back");
  const std::string message =
      refusal([&] { export_model(folder.path() / "back", folder.path() / "half", {.type = FloatType::f16}); });
  EXPECT_NE(message.find("norm_f.gain: a weight of 70000 is too large for float16"), message.npos) << message;
  EXPECT_FALSE(fs::exists(folder.path() / "half"));
}

TEST(Export, RefusesDamageAndAnOutputThatExists) {
  TempFolder folder;
  const fs::path step = save(folder.path() / "run", gpt2());
  fs::create_directory(folder.path() / "there");
  try {
    export_model(step, folder.path() / "there");
    FAIL() << "written";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::io);
  }
  std::string bytes = content_of(step / "rank-00000.shard");
  bytes[bytes.size() / 3] ^= 4;
  overwrite(step / "rank-00000.shard", bytes);
  bool damaged = false;
  try {
    export_model(step, folder.path() / "hf");
  } catch (const checkpoint::Damage&) {
    damaged = true;
  }
  EXPECT_EQ(damaged, !fs::exists(folder.path() / "hf"));  // the byte may be one of a moment, which is not read
}

}  // namespace
}  // namespace trainer::huggingface
