#include "huggingface/export.h"

#include <nlohmann/json.hpp>

#include "config/families.h"
#include "huggingface/import.h"
#include "huggingface/model_config.h"
#include "unit/huggingface/fixture.h"

namespace trainer::huggingface {
namespace {

using nlohmann::json;

TEST(Export, PutsColumnsOfGpt2SideBySide) {
  TempFolder folder;
  save(folder / "run", gpt2());
  export_model(folder / "run", folder / "hf");
  const auto all = read_all(folder / "hf");
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
  save(folder / "run", llama());
  export_model(folder / "run", folder / "hf");
  const auto all = read_all(folder / "hf");
  EXPECT_EQ(all.size(), 1u + 2 * 9 + 2);
  const Exported32& keys = all.at("model.layers.0.self_attn.k_proj.weight");
  ASSERT_EQ(keys.shape, (std::vector<int64_t>{12, 24}));
  for (int64_t out = 0; out < 12; ++out)
    for (int64_t in = 0; in < 24; ++in)
      ASSERT_EQ(keys.values[out * 24 + in], value_of("blocks.0.attn.k.weight", in * 12 + out));
  EXPECT_EQ(all.at("model.layers.1.mlp.gate_proj.weight").values[24 + 3],
            value_of("blocks.1.mlp.gate.weight", 3 * 40 + 1));
  EXPECT_EQ(all.at("lm_head.weight").values[30], value_of("head.weight", 30));
  const json config = json::parse(content_of(folder / "hf/config.json"));
  EXPECT_EQ(config["num_key_value_heads"], 3);
  EXPECT_EQ(config["rope_theta"], 5e5);
  EXPECT_EQ(config["rms_norm_eps"], 3e-6);
  EXPECT_EQ(config["max_position_embeddings"], 10);
}

TEST(Export, AlternatesQueriesKeysAndValuesOfNeoxByHead) {
  TempFolder folder;
  save(folder / "run", config_of({"model.arch=gpt_neox"}));  // 6 heads of 4
  export_model(folder / "run", folder / "hf");
  const auto all = read_all(folder / "hf");
  EXPECT_EQ(all.size(), 1u + 2 * 12 + 3);
  const std::string name = "gpt_neox.layers.1.attention.query_key_value";
  const Exported32 &weight = all.at(name + ".weight"), &bias = all.at(name + ".bias");
  ASSERT_EQ(weight.shape, (std::vector<int64_t>{72, 24}));
  for (int64_t row = 0; row < 72; ++row) {
    const int64_t head = row / 12, part = row % 12 / 4, column = head * 4 + row % 4;
    const std::string ours = format("blocks.1.attn.{}", "qkv"[part]);
    ASSERT_EQ(bias.values[static_cast<size_t>(row)], value_of(ours + ".bias", column));
    for (int64_t in = 0; in < 24; ++in)
      ASSERT_EQ(weight.values[static_cast<size_t>(row * 24 + in)], value_of(ours + ".weight", in * 24 + column));
  }
  EXPECT_EQ(all.at("gpt_neox.layers.0.post_attention_layernorm.bias").values[3], value_of("blocks.0.norm2.bias", 3));
  EXPECT_EQ(all.at("gpt_neox.layers.0.mlp.dense_h_to_4h.weight").values[24 + 3],
            value_of("blocks.0.mlp.up.weight", 3 * 40 + 1));
  EXPECT_EQ(all.at("embed_out.weight").values[30], value_of("head.weight", 30));
  const json config = json::parse(content_of(folder / "hf/config.json"));
  EXPECT_EQ(config["architectures"], json({"GPTNeoXForCausalLM"}));
  EXPECT_EQ(config["rotary_pct"], 0.5);
  EXPECT_EQ(config["rotary_emb_base"], 1e4);
  EXPECT_EQ(config["hidden_act"], "gelu");
  EXPECT_EQ(config["layer_norm_eps"], 3e-6);
  EXPECT_EQ(config["use_parallel_residual"], true);
  EXPECT_EQ(config["hidden_dropout"], 0.1);
}

TEST(Export, GivesEachExpertTensorsOfItsOwn) {
  for (const auto& [arch, gate, up, down, router] :
       {std::array{"mixtral", "experts.4.w1", "experts.4.w3", "experts.4.w2", "gate"},
        std::array{"olmoe", "experts.4.gate_proj", "experts.4.up_proj", "experts.4.down_proj", "gate"}}) {
    TempFolder folder;
    save(folder / "run", config_of({format("model.arch={}", arch)}));
    export_model(folder / "run", folder / "hf");
    const auto all = read_all(folder / "hf");
    const std::string mlp = std::string(arch) == "mixtral" ? "block_sparse_moe." : "mlp.";
    const auto check = [&](const char* name, const char* ours, int64_t in, int64_t out, int64_t expert) {
      const Exported32& tensor = all.at("model.layers.1." + mlp + name + ".weight");
      ASSERT_EQ(tensor.shape, (std::vector<int64_t>{out, in})) << name;
      for (int64_t o = 0; o < out; ++o)
        for (int64_t i = 0; i < in; ++i)
          ASSERT_EQ(tensor.values[o * in + i],
                    value_of(format("blocks.1.mlp.{}.weight", ours), (expert * in + i) * out + o));
    };
    check(gate, "experts.gate", 24, 32, 4);
    check(up, "experts.up", 24, 32, 4);
    check(down, "experts.down", 32, 24, 4);
    check(router, "router", 24, 5, 0);
  }
}

TEST(Export, SplitsWeightsIntoFilesThatImportReads) {
  TempFolder folder;
  save(folder / "run", llama());
  export_model(folder / "run", folder / "one");
  const Exported done = export_model(folder / "run", folder / "many", {.shard_bytes = 5000});
  EXPECT_GT(done.files.size(), 3u);
  EXPECT_EQ(done.files.front(), format("model-00001-of-{:05}.safetensors", done.files.size()));
  const json index = json::parse(content_of(folder / "many/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], done.bytes);
  EXPECT_EQ(index["weight_map"].size(), done.tensors);
  const auto one = read_all(folder / "one"), many = read_all(folder / "many");
  ASSERT_EQ(one.size(), many.size());
  for (const auto& [name, tensor] : one) EXPECT_EQ(many.at(name).values, tensor.values) << name;
  import_model(folder / "many", folder / "back");
  export_model(folder / "back", folder / "again", {.shard_bytes = 5000});
  EXPECT_EQ(files_in(folder / "again"), files_in(folder / "many"));
}

TEST(Export, RoundsToTheRequestedTypeOnce) {
  TempFolder folder;
  save(folder / "run", gpt2());
  save(folder / "wide", gpt2(), DType::f64);
  export_model(folder / "run", folder / "fp32");
  export_model(folder / "wide", folder / "from64");
  EXPECT_EQ(files_in(folder / "from64"), files_in(folder / "fp32"));
  for (const FloatType type : {FloatType::bf16, FloatType::f16}) {
    const fs::path output = folder / std::string(stored_name(type));
    export_model(folder / "run", output, {.type = type});
    EXPECT_EQ(json::parse(content_of(output / "config.json"))["torch_dtype"], torch_name(type));
    const double step = type == FloatType::bf16 ? 0x1p-8 : 0x1p-11;  // half a unit in the last of 8 or 11 bits
    for (const auto& [name, tensor] : read_all(output)) {
      const auto exact = read_all(folder / "fp32").at(name);
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
  save(folder / "run", config_of({"model.arch=gpt2", "model.bias=false"}));
  export_model(folder / "run", folder / "hf");
  for (const auto& [name, tensor] : read_all(folder / "hf")) {
    if (!name.ends_with(".bias")) continue;
    EXPECT_EQ(tensor.values, std::vector<float>(tensor.values.size())) << name;
  }
}

TEST(Export, RejectsWhatHuggingFaceCannotRepresent) {
  TempFolder folder;
  for (const auto& [arch, set] : {std::pair{"gpt2", "model.n_kv_head=3"}, {"llama", "model.bias=true"}}) {
    save(folder / set, config_of({std::string("model.arch=") + arch, set}));
    const std::string key = set, name = key.substr(0, key.find('='));
    expect_error(Code::checkpoint, {name + " = " + key.substr(name.size() + 1)},
                 [&] { export_model(folder / set, folder / "hf"); });
    EXPECT_FALSE(fs::exists(folder / "hf"));
  }
}

TEST(Export, NamesTheFamilyThatCanRepresentAModel) {
  struct Case {
    std::vector<std::string> sets;
    std::vector<std::string> parts;
  };
  for (const auto& [sets, parts] : std::vector<Case>{
           {{"model.arch=llama", "model.window=4"}, {"model.window = 4", "llama has no windows", "\"mistral\""}},
           {{"model.arch=llama", "model.parallel_residual=true"}, {"model.parallel_residual = true", "\"gpt_neox\""}},
           {{"model.arch=llama", "model.rotary_dim=2"}, {"model.rotary_dim = 2", "all features", "\"gpt_neox\""}},
           {{"model.arch=llama", "model.activation=gelu"}, {"model.activation = \"gelu\"", "\"silu\""}},
           {{"model.arch=qwen3", "model.window=4", "model.window_rope_theta=1e4"},
            {"model.window_rope_theta = 10000", "\"olmo3\""}},
           {{"model.arch=olmo3", "model.window_rope_theta=1e4"},
            {"model.window_rope_theta = 10000", "rope_theta = 500000"}},
           {{"model.arch=olmo3", "model.rope_type=linear", "model.rope_factor=2", "model.window_rope_theta=0"},
            {"model.window_rope_theta = 0", "without scaling"}},
           {{"model.arch=gemma3", "model.norm_place=pre"}, {"model.norm_place = \"pre\"", "before and after"}},
           {{"model.arch=gemma3", "model.rope_type=yarn", "model.rope_factor=2", "model.rope_original=64"},
            {"model.rope_type = \"yarn\"", "\"linear\""}},
           {{"model.arch=llama", "model.norm_place=both"}, {"model.norm_place = \"both\"", "\"gemma3\""}},
           {{"model.arch=olmo3", "model.attn_scalar=10"}, {"model.attn_scalar = 10", "head_dim = 4", "\"gemma3\""}},
           {{"model.arch=gpt_neox", "model.bias=false"}, {"model.bias = false", "biases"}},
           {{"model.arch=gpt_neox", "model.mlp_bias=false"}, {"model.mlp_bias = false", "biases"}},
           {{"model.arch=gpt_neox", "model.attn_bias=qkv"}, {"model.attn_bias = \"qkv\"", "all linears"}},
           {{"model.arch=gpt_neox", "model.n_kv_head=3"}, {"model.n_kv_head = 3", "as many"}},
           {{"model.arch=gpt_neox", "model.head_dim=6"}, {"model.head_dim = 6", "24 / 6"}},
           {{"model.arch=smollm3", "model.window=4"}, {"model.window = 4", "smollm3 has no windows"}},
           {{"model.arch=olmo2", "model.logit_softcap=30"}, {"model.logit_softcap = 30", "olmo2"}},
           {{"model.arch=llama", "model.qk_norm=full"},
            {"model.qk_norm = \"full\"", "llama does not normalize", "\"olmo2\""}},
           {{"model.arch=olmo2", "model.qk_norm=head"},
            {"model.qk_norm = \"head\"", "olmo2 always normalizes", "\"qwen3\""}},
           {{"model.arch=qwen3", "model.norm_place=post"}, {"model.norm_place = \"post\"", "before", "\"olmo2\""}},
           {{"model.arch=olmo2", "model.norm_place=pre"}, {"model.norm_place = \"pre\"", "after", "\"llama\""}},
           {{"model.arch=gpt2", "model.norm_place=post"}, {"model.norm_place = \"post\"", "GPT-2"}},
           {{"model.arch=mistral", "model.window=4", "model.window_full_every=2"}, {"model.window_full_every = 2"}},
           {{"model.arch=gpt2", "model.window=4"}, {"model.window = 4", "GPT-2 has no windows"}},
           {{"model.arch=qwen3", "model.nope_every=2"},
            {"model.nope_every = 2", "qwen3 has RoPE in all layers", "\"smollm3\""}},
           {{"model.arch=llama", "model.qk_norm=head"},
            {"model.qk_norm = \"head\"", "llama does not normalize", "\"qwen3\""}},
           {{"model.arch=qwen3", "model.qk_norm=none"},
            {"model.qk_norm = \"none\"", "qwen3 always normalizes", "\"llama\""}},
           {{"model.arch=llama", "model.attn_bias=qkv"},
            {"model.attn_bias = \"qkv\"", "all linear layers", "\"qwen2\""}},
           {{"model.arch=qwen2", "model.attn_bias=all"}, {"model.attn_bias = \"all\"", "key and value projections"}},
           {{"model.arch=mistral", "model.attn_bias=all"},
            {"model.attn_bias = \"all\"", "no linear layer", "\"llama\""}},
           {{"model.arch=qwen2", "model.mlp_bias=true"},
            {"model.mlp_bias = true", "qwen2 has no MLP biases", "\"llama\""}},
           {{"model.arch=llama", "model.n_head=5", "model.head_dim=4"}, {"model.n_head = 5", "d_model = 24"}},
           {{"model.arch=gpt2", "model.head_dim=7"}, {"model.head_dim = 7", "24 / 6"}},
           {{"model.arch=mixtral", "model.norm_topk=false"}, {"model.norm_topk = false", "mixtral always normalizes"}},
           {{"model.arch=olmoe", "model.moe_every=2"}, {"model.moe_every = 2", "olmoe has experts in all layers"}},
           {{"model.arch=olmoe", "model.head_dim=6"}, {"model.head_dim = 6", "n_head * head_dim = d_model"}},
           {{"model.arch=qwen2_moe", "model.d_shared=0"}, {"model.d_shared = 0", "always has a shared expert"}},
       }) {
    const config::Model model = config_of(sets).model;
    expect_error(Code::checkpoint, parts, [&] { to_config_json(model, kVocab, std::nullopt, FloatType::f32); });
    expect_parts(export_obstacle(model), parts);  // reported at the start of a run
  }
  for (const auto& family : config::families())
    EXPECT_EQ(export_obstacle(config_of({std::string("model.arch=") + family.name}).model), "") << family.name;
}

TEST(Export, WritesWindowsInTheFieldsOfTheFamily) {
  const auto fields_of = [](const std::vector<std::string>& sets) {
    return json::parse(to_config_json(config_of(sets).model, kVocab, std::nullopt, FloatType::f32));
  };
  const json mistral = fields_of({"model.arch=mistral", "model.window=4"});
  EXPECT_EQ(mistral["sliding_window"], 4);
  EXPECT_FALSE(mistral.contains("layer_types"));
  for (const char* arch : {"qwen2", "qwen3"}) {
    const std::string set = std::string("model.arch=") + arch;
    const json without = fields_of({set}), with = fields_of({set, "model.window=4", "model.window_full_every=2"});
    EXPECT_EQ(without["use_sliding_window"], false);
    EXPECT_FALSE(without.contains("layer_types"));
    EXPECT_EQ(with["use_sliding_window"], true);
    EXPECT_EQ(with["sliding_window"], 4);
    EXPECT_EQ(with["layer_types"], json({"sliding_attention", "full_attention"}));
    EXPECT_EQ(fields_of({set, "model.window=4"})["layer_types"], json({"sliding_attention", "sliding_attention"}));
  }
}

// Version 5 of transformers reads the fields of version 4, but not the other way round.
TEST(Export, WritesRopeInTheFieldsOfOlderVersions) {
  const auto fields_of = [](std::vector<std::string> sets) {
    sets.insert(sets.end(), {"model.arch=llama", "model.rope_theta=3e4"});
    const json fields = json::parse(to_config_json(config_of(sets).model, kVocab, std::nullopt, FloatType::f32));
    EXPECT_EQ(fields["rope_theta"], 3e4);
    EXPECT_FALSE(fields.contains("rope_parameters"));
    return fields.at("rope_scaling");
  };
  EXPECT_EQ(fields_of({}), json());
  EXPECT_EQ(fields_of({"model.rope_type=linear", "model.rope_factor=2"}),
            (json{{"rope_type", "linear"}, {"factor", 2.0}}));
  const std::vector<std::string> sizes{"model.rope_factor=4", "model.rope_original=64"};
  std::vector<std::string> llama3 = sizes, yarn = sizes;
  llama3.push_back("model.rope_type=llama3");
  EXPECT_EQ(fields_of(llama3), (json{{"rope_type", "llama3"},
                                     {"factor", 4.0},
                                     {"original_max_position_embeddings", 64},
                                     {"low_freq_factor", 1.0},
                                     {"high_freq_factor", 4.0}}));
  yarn.insert(yarn.end(), {"model.rope_type=yarn", "model.rope_attention=1.5"});
  EXPECT_EQ(fields_of(yarn), (json{{"rope_type", "yarn"},
                                   {"factor", 4.0},
                                   {"original_max_position_embeddings", 64},
                                   {"beta_fast", 32.0},
                                   {"beta_slow", 1.0},
                                   {"attention_factor", 1.5},
                                   {"truncate", true}}));
}

TEST(Export, ReportsWhichWeightIsTooLargeForFp16) {
  TempFolder folder;
  save(folder / "run", gpt2());
  export_model(folder / "run", folder / "hf");
  rewrite(folder / "hf", folder / "large", [](auto& all) { all["transformer.ln_f.weight"].values[3] = 7e4f; });
  import_model(folder / "large", folder / "back");
  expect_error(Code::checkpoint, {"norm_f.gain", "70000", "float16"},
               [&] { export_model(folder / "back", folder / "half", {.type = FloatType::f16}); });
  EXPECT_FALSE(fs::exists(folder / "half"));
}

TEST(Export, RejectsDamageAndAnOutputThatExists) {
  TempFolder folder;
  const fs::path step = save(folder / "run", gpt2());
  fs::create_directory(folder / "there");
  expect_error(Code::io, {folder / "there"}, [&] { export_model(step, folder / "there"); });
  std::string bytes = content_of(step / "rank-00000.shard");
  bytes[bytes.size() / 3] ^= 4;
  write(step / "rank-00000.shard", bytes);
  bool damaged = false;
  try {
    export_model(step, folder / "hf");
  } catch (const checkpoint::Damage&) {
    damaged = true;
  }
  EXPECT_EQ(damaged, !fs::exists(folder / "hf"));  // the byte may be in a moment, which is not read
}

}  // namespace
}  // namespace trainer::huggingface
