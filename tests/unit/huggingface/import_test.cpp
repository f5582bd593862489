#include "huggingface/import.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/inspect.h"
#include "huggingface/export.h"
#include "huggingface/model_config.h"
#include "unit/huggingface/fixture.h"

namespace trainer::huggingface {
namespace {

using nlohmann::json;

TEST(Import, GivesBackWhatWasExported) {
  for (const config::Config& config :
       {gpt2(),
        llama(),
        config_of({"model.arch=gpt2", "model.tie_embeddings=false"}),
        config_of({"model.arch=gpt2", "model.activation=gelu_erf"}),
        config_of({"model.arch=gpt_neox"}),
        config_of({"model.arch=gpt_neox", "model.rotary_dim=4", "model.parallel_residual=false",
                   "model.activation=gelu", "model.attn_bias=none", "model.tie_embeddings=true"}),
        config_of({"model.arch=gpt_neox", "model.n_head=2", "model.rotary_dim=10", "model.rope_theta=5e4",
                   "model.rope_type=linear", "model.rope_factor=2"}),
        config_of({"model.arch=llama", "model.tie_embeddings=true", "model.n_kv_head=1"}),
        config_of({"model.arch=llama", "model.head_dim=6", "model.rope_type=llama3", "model.rope_factor=8",
                   "model.rope_original=64", "model.rope_high_freq=5"}),
        config_of({"model.arch=llama", "model.rope_type=yarn", "model.rope_factor=4", "model.rope_original=64",
                   "model.rope_attention=1.25", "model.rope_truncate=false", "model.rope_beta_slow=2"}),
        config_of({"model.arch=llama", "model.attn_bias=all", "model.n_kv_head=2"}),
        config_of({"model.arch=llama", "model.mlp_bias=true"}),
        config_of({"model.arch=mistral", "model.n_kv_head=2", "model.head_dim=10"}),
        config_of({"model.arch=qwen2", "model.n_kv_head=3", "model.tie_embeddings=true"}),
        config_of({"model.arch=qwen3", "model.n_kv_head=1", "model.head_dim=6", "model.rope_type=yarn",
                   "model.rope_factor=4", "model.rope_original=64"}),
        config_of({"model.arch=qwen3", "model.attn_bias=all", "model.head_dim=4"}),
        config_of({"model.arch=mistral", "model.window=3"}),
        config_of({"model.arch=qwen2", "model.window=3"}),
        config_of({"model.arch=qwen3", "model.window=3", "model.window_full_every=2"}),
        config_of({"model.arch=olmo2", "model.n_kv_head=2"}),
        config_of({"model.arch=olmo2", "model.head_dim=6", "model.attn_bias=all"}),
        config_of({"model.arch=olmo3", "model.n_kv_head=2", "model.window=3", "model.window_full_every=2"}),
        config_of({"model.arch=gemma3", "model.n_kv_head=2", "model.window=3", "model.window_full_every=2"}),
        config_of({"model.arch=gemma3", "model.head_dim=6", "model.attn_scalar=10", "model.logit_softcap=30",
                   "model.window=3", "model.window_full_every=2", "model.window_rope_theta=2e4",
                   "model.rope_type=linear", "model.rope_factor=8", "model.tie_embeddings=false"}),
        config_of({"model.arch=gemma3", "model.window=0"}),
        config_of({"model.arch=olmo3", "model.window=0", "model.attn_bias=all"}),
        config_of({"model.arch=olmo3", "model.window=3", "model.window_full_every=0", "model.rope_type=yarn",
                   "model.rope_factor=8", "model.rope_original=64"}),
        config_of({"model.arch=olmo3", "model.window=3", "model.window_full_every=2", "model.rope_type=yarn",
                   "model.rope_factor=8", "model.rope_original=64", "model.rope_theta=3e4"}),
        config_of({"model.arch=smollm3", "model.nope_every=2", "model.tie_embeddings=true"}),
        config_of({"model.arch=smollm3", "model.n_kv_head=2", "model.nope_every=0"}),
        config_of({"model.arch=llama", "model.rope_type=linear", "model.rope_factor=2"}),
        config_of({"model.arch=mixtral", "model.n_kv_head=2", "model.window=3"}),
        config_of({"model.arch=olmoe", "model.experts_per_token=3", "model.norm_topk=true"}),
        config_of({"model.arch=qwen2_moe", "model.n_kv_head=3"}),
        config_of({"model.arch=qwen2_moe", "model.moe_every=2"}),
        config_of({"model.arch=qwen3_moe", "model.head_dim=6", "model.norm_topk=false"}),
        config_of({"model.arch=qwen3_moe", "model.attn_bias=all", "model.moe_every=2"})}) {
    TempFolder folder;
    const fs::path step = save(folder / "run", config);
    export_model(step, folder / "hf");
    const Imported done = import_model(folder / "hf", folder / "back");
    EXPECT_EQ(checkpoint::verify(folder / "back").problems, std::vector<std::string>());
    const checkpoint::Reader before(step), after(folder / "back");
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
    export_model(folder / "back", folder / "again");
    EXPECT_EQ(files_in(folder / "again"), files_in(folder / "hf"));
  }
}

// The published folders of Gemma 3 from 4B on: only some sizes, and tensors of the vision model.
TEST(Import, TakesTheTextModelOfAMultimodalFolder) {
  TempFolder folder;
  const config::Config config =
      config_of({"model.arch=gemma3", "model.n_kv_head=2", "model.window=3", "model.window_full_every=2"});
  export_model(save(folder / "run", config), folder / "hf");
  rewrite(folder / "hf", folder / "whole", [](std::map<std::string, Exported32>& all) {
    std::map<std::string, Exported32> named{{"vision_tower.a.weight", {{1}, {1.0f}}},
                                            {"multi_modal_projector.b", {{1}, {1.0f}}}};
    for (auto& [name, tensor] : all) named["language_model." + name] = std::move(tensor);
    named["language_model.lm_head.weight"] = named.at("language_model.model.embed_tokens.weight");
    all = std::move(named);
  });
  json text = json::parse(content_of(folder / "hf/config.json"));
  write(folder / "whole/config.json",
        json{{"model_type", "gemma3"}, {"text_config", text}, {"vision_config", {{"hidden_size", 8}}}}.dump());
  import_model(folder / "whole", folder / "back");
  export_model(folder / "back", folder / "again");
  const auto before = read_all(folder / "hf"), after = read_all(folder / "again");
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [name, tensor] : before) EXPECT_EQ(after.at(name).values, tensor.values) << name;
}

TEST(Import, KeepsSpecialTokensAndExportWritesThemBack) {
  TempFolder folder;
  save(folder / "run", llama());
  export_model(folder / "run", folder / "hf");
  const data::SpecialTokens special{.eos = {3, 5, 7}, .bos = 1, .pad = 4};
  write(folder / "hf/config.json", to_config_json(llama().model, kVocab, special, FloatType::f32));
  write(folder / "hf/generation_config.json", to_generation_config_json(special));
  EXPECT_EQ(json::parse(content_of(folder / "hf/config.json"))["eos_token_id"], (json{3, 5, 7}));
  import_model(folder / "hf", folder / "back");
  data::SpecialTokens stored = checkpoint::Reader(folder / "back").header().special;
  stored.fields.clear();
  EXPECT_EQ(stored, special);
  export_model(folder / "back", folder / "again");
  EXPECT_EQ(files_in(folder / "again"), files_in(folder / "hf"));
  write(folder / "hf/generation_config.json", json{{"eos_token_id", {3, kVocab}}}.dump());
  expect_error(Code::data, {"generation_config.json: eos_token_id: 29, ", "between 0 and 28"},
               [&] { import_model(folder / "hf", folder / "other"); });
  write(folder / "hf/generation_config.json", "{\"eos_token_id\": ");
  expect_error(Code::data, {"generation_config.json"}, [&] { import_model(folder / "hf", folder / "other"); });
  EXPECT_FALSE(fs::exists(folder / "other"));
}

TEST(Import, GivesBackTheIdsOfEachFileAsTheyWere) {
  TempFolder folder;
  save(folder / "run", llama());
  export_model(folder / "run", folder / "hf");
  json config = json::parse(content_of(folder / "hf/config.json"));
  for (const char* field : {"bos_token_id", "eos_token_id"}) config.erase(field);
  struct Case {
    json config, generation;  // null: no such file
  };
  int index = 0;
  for (const auto& [ids, generation] : std::vector<Case>{
           {{{"bos_token_id", 1}, {"eos_token_id", 2}}, {{"bos_token_id", 1}, {"eos_token_id", {2, 3, 4}}}},
           {{{"bos_token_id", nullptr}, {"eos_token_id", {5}}, {"pad_token_id", 0}}, {{"pad_token_id", 6}}},
           {{{"eos_token_id", 7}}, {{"bos_token_id", 3}, {"eos_token_id", nullptr}}},
           {{{"bos_token_id", -1}, {"eos_token_id", 7}, {"pad_token_id", -1}}, {{"eos_token_id", 7}}}}) {
    json fields = config;
    fields.update(ids);
    write(folder / "hf/config.json", fields.dump());
    write(folder / "hf/generation_config.json", generation.dump());
    const fs::path back = folder / format("back{}", index), again = folder / format("again{}", index);
    import_model(folder / "hf", back);
    export_model(back, again);
    EXPECT_EQ(json::parse(content_of(again / "config.json")), fields);
    EXPECT_EQ(json::parse(content_of(again / "generation_config.json")), generation);
    ++index;
  }
}

TEST(Import, TakesATiedTableUnderTheNameOfTheHead) {
  for (const char* arch : {"gpt2", "llama", "qwen2"}) {
    TempFolder folder;
    save(folder / "run", config_of({std::string("model.arch=") + arch, "model.tie_embeddings=true"}));
    export_model(folder / "run", folder / "hf");
    const std::string table = arch == std::string("gpt2") ? "transformer.wte.weight" : "model.embed_tokens.weight";
    rewrite(folder / "hf", folder / "head", [&](auto& all) {
      all["lm_head.weight"] = all.at(table);
      all.erase(table);
    });
    import_model(folder / "head", folder / "back");
    export_model(folder / "back", folder / "again");
    EXPECT_EQ(files_in(folder / "again"), files_in(folder / "hf")) << arch;
  }
  TempFolder folder;
  save(folder / "run", config_of({"model.arch=llama", "model.tie_embeddings=false"}));
  export_model(folder / "run", folder / "hf");
  rewrite(folder / "hf", folder / "head", [&](auto& all) { all.erase("model.embed_tokens.weight"); });
  expect_error(Code::checkpoint, {"model.embed_tokens.weight: missing"},
               [&] { import_model(folder / "head", folder / "back"); });
}

TEST(Import, NamesPointersOfGitLfs) {
  TempFolder folder;
  save(folder / "run", llama());
  export_model(folder / "run", folder / "hf");
  for (const char* file : {"model.safetensors", "config.json", "tokenizer.json", "tokenizer.model"}) {
    const fs::path clone = folder / (std::string(file) + "-clone");
    fs::copy(folder / "hf", clone);
    write(clone / file, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 548105171\n");
    const bool weights = file == std::string("model.safetensors") || file == std::string("config.json");
    expect_error(weights ? Code::checkpoint : Code::data,
                 {(clone / file).string(), "a pointer of Git LFS", "git lfs pull"},
                 [&] { import_model(clone, folder / "back"); });
  }
}

TEST(Import, TakesNamesOfModelsWithoutAHeadMasksAndACopyOfTheTable) {
  TempFolder folder;
  save(folder / "run", gpt2());
  export_model(folder / "run", folder / "hf");
  rewrite(folder / "hf", folder / "old", [](auto& all) {
    std::map<std::string, Exported32> bare;
    for (const auto& [name, tensor] : all) bare[name.substr(std::string("transformer.").size())] = tensor;
    bare["h.0.attn.bias"] = {{1, 1, 10, 10}, std::vector<float>(100)};
    bare["h.1.attn.masked_bias"] = {{}, {-1e4f}};
    bare["lm_head.weight"] = bare["wte.weight"];
    all = bare;
  });
  import_model(folder / "old", folder / "back");
  export_model(folder / "back", folder / "again");
  EXPECT_EQ(files_in(folder / "again"), files_in(folder / "hf"));
}

TEST(Import, RejectsAFolderWithoutAModel) {
  TempFolder folder;
  const fs::path nowhere = folder / "nowhere";
  expect_error(Code::checkpoint, {"nowhere: not found", "hf download"},
               [&] { import_model(nowhere, folder / "back"); });
  fs::create_directory(nowhere);
  expect_error(Code::checkpoint, {"nowhere: has no config.json"}, [&] { import_model(nowhere, folder / "back"); });
}

TEST(Import, RejectsTensorsThatAreNotThoseOfTheModel) {
  TempFolder folder;
  save(folder / "run", gpt2());
  export_model(folder / "run", folder / "hf");
  const std::pair<std::string, Edit> cases[] = {{"model.safetensors: transformer.h.1.ln_2.bias: missing",
                                                 [](auto& all) { all.erase("transformer.h.1.ln_2.bias"); }},
                                                {"score.weight: this program's model",
                                                 [](auto& all) {
                                                   all["score.weight"] = {{1}, {1.0f}};
                                                 }},
                                                {"transformer.ln_f.bias: shape [12, 2]",
                                                 [](auto& all) {
                                                   all["transformer.ln_f.bias"] = {{12, 2}, std::vector<float>(24)};
                                                 }},
                                                {"lm_head.weight: tie_word_embeddings is true", [](auto& all) {
                                                   all["lm_head.weight"] = all["transformer.wte.weight"];
                                                   all["lm_head.weight"].values[500] += 1;
                                                 }}};
  for (const auto& [part, edit] : cases) {
    const fs::path changed = folder / part.substr(part.find('.') + 1, 12);
    rewrite(folder / "hf", changed, edit);
    expect_error(Code::checkpoint, {part}, [&] { import_model(changed, folder / "back"); });
    EXPECT_FALSE(fs::exists(folder / "back"));
  }
}

TEST(Import, RejectsTensorsOfAnotherFamily) {
  struct Case {
    const char *arch, *tensor, *part;
    std::function<void(std::map<std::string, Exported32>&, const std::string& name)> edit;
  };
  const auto erase = [](auto& all, const std::string& name) { all.erase(name); };
  const auto put = [](auto& all, const std::string& name) { all[name] = {{3}, {1, 2, 3}}; };
  for (const auto& [arch, tensor, part, edit] :
       {Case{"qwen3", "self_attn.q_norm.weight", "missing", erase},
        {"qwen3", "self_attn.k_norm.weight", "shape [3], but the model in config.json requires [4]", put},
        {"qwen2", "self_attn.v_proj.bias", "missing", erase},
        {"mistral", "self_attn.v_proj.bias", "this program's model has no such tensor", put},
        {"mixtral", "block_sparse_moe.experts.4.w3.weight", "missing", erase},
        {"mixtral", "mlp.gate.weight", "this program's model has no such tensor", put},
        {"olmoe", "mlp.experts.5.up_proj.weight", "this program's model has no such tensor", put},
        {"qwen3_moe", "mlp.experts.2.up_proj.weight", "shape [3], but the model in config.json requires [32, 24]", put},
        {"qwen2_moe", "mlp.shared_expert_gate.weight", "missing", erase},
        {"olmo2", "post_feedforward_layernorm.weight", "missing", erase},
        {"olmo2", "input_layernorm.weight", "this program's model has no such tensor", put}}) {
    TempFolder folder;
    save(folder / "run", config_of({std::string("model.arch=") + arch}));
    export_model(folder / "run", folder / "hf");
    const std::string name = std::string("model.layers.1.") + tensor;
    rewrite(folder / "hf", folder / "changed", [&](auto& all) { edit(all, name); });
    expect_error(Code::checkpoint, {format("changed/model.safetensors: {}: {}", name, part)},
                 [&] { import_model(folder / "changed", folder / "back"); });
    EXPECT_FALSE(fs::exists(folder / "back"));
  }
}

TEST(Import, RemembersThatWeightsAreNotFinite) {
  TempFolder folder;
  save(folder / "run", gpt2());
  export_model(folder / "run", folder / "hf");
  rewrite(folder / "hf", folder / "nan",
          [](auto& all) { all["transformer.wpe.weight"].values[3] = std::numeric_limits<float>::quiet_NaN(); });
  tests::Warnings warnings;
  import_model(folder / "nan", folder / "back");
  EXPECT_TRUE(std::ranges::any_of(warnings.lines,
                                  [](const std::string& line) { return line.find("not finite") != line.npos; }));
  EXPECT_FALSE(checkpoint::Reader(folder / "back").header().state.finite_weights);
  expect_error(Code::nonfinite, {"back", "--allow-nonfinite"},
               [&] { export_model(folder / "back", folder / "again"); });
  EXPECT_FALSE(fs::exists(folder / "again"));
  export_model(folder / "back", folder / "again", {.allow_nonfinite = true});
}

}  // namespace
}  // namespace trainer::huggingface
