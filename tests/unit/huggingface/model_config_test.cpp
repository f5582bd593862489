#include "huggingface/model_config.h"

#include <nlohmann/json.hpp>

#include "unit/huggingface/fixture.h"

namespace trainer::huggingface {
namespace {

using nlohmann::json;

/// Returns config.json of an exported model with one field set to `value`.
std::string with_field(const config::Config& config, const std::string& field, const json& value) {
  json object = json::parse(to_config_json(config.model, kVocab, std::nullopt, FloatType::f32));
  object[field] = value;
  return object.dump();
}

TEST(ModelConfig, TakesNullKeyValueHeadsAsAllHeads) {
  for (const char* arch : {"llama", "qwen2", "qwen3", "smollm3", "olmo2"})
    EXPECT_EQ(parse_config_json(with_field(config_of({std::string("model.arch=") + arch, "model.n_kv_head=1"}),
                                           "num_key_value_heads", nullptr),
                                "c")
                  .config.model.n_kv_head,
              6)
        << arch;
  EXPECT_EQ(parse_config_json(with_field(llama(), "initializer_range", 0), "c").config.model.init_std, 0.02);
  EXPECT_THROW(parse_config_json(with_field(llama(), "initializer_range", -1), "c"), Error);
}

// A file of transformers 5 for a Pythia, and an old one, whose defaults are those of the class.
TEST(ModelConfig, ReadsBothFormsOfNeox) {
  const json sizes = {{"model_type", "gpt_neox"},       {"vocab_size", 29},         {"hidden_size", 64},
                      {"num_hidden_layers", 2},         {"num_attention_heads", 4}, {"intermediate_size", 256},
                      {"max_position_embeddings", 2048}};
  json recent = sizes;
  recent["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e4}, {"partial_rotary_factor", 0.5}};
  recent["use_parallel_residual"] = false;
  const config::Model before = parse_config_json(sizes.dump(), "c").config.model,
                      now = parse_config_json(recent.dump(), "c").config.model;
  EXPECT_EQ(rotary_size(before), 4);
  EXPECT_EQ(before.rope_theta, 1e4);
  EXPECT_EQ(before.norm_eps, 1e-5);
  EXPECT_EQ(activation_of(before), config::Activation::gelu_erf);
  EXPECT_TRUE(has_parallel_residual(before));
  EXPECT_EQ(attention_bias(before), config::AttentionBias::all);
  EXPECT_EQ(rotary_size(now), 8);
  EXPECT_EQ(now.rope_theta, 5e4);
  EXPECT_FALSE(has_parallel_residual(now));
}

// Files of transformers 4, whose values are those of the class, and of transformers 5, with scaled layers and without.
TEST(ModelConfig, ReadsBothFormsOfOlmo3) {
  json old = json::parse(to_config_json(config_of({"model.arch=olmo3"}).model, kVocab, std::nullopt, FloatType::f32));
  for (const char* field : {"layer_types", "sliding_window", "rms_norm_eps"}) old.erase(field);
  old["num_hidden_layers"] = 9;
  json recent = old;
  for (const char* field : {"rope_theta", "rope_scaling"}) recent.erase(field);
  recent["rope_parameters"]["full_attention"] = {
      {"rope_type", "yarn"}, {"rope_theta", 1e6}, {"factor", 8.0}, {"original_max_position_embeddings", 8192}};
  const config::Model before = parse_config_json(old.dump(), "c").config.model,
                      now = parse_config_json(recent.dump(), "c").config.model;
  for (const config::Model& model : {before, now}) {
    EXPECT_EQ(model.window, 4096);
    EXPECT_EQ(model.window_full_every, 4);
    EXPECT_EQ(model.norm_eps, 1e-5);
  }
  EXPECT_EQ(before.rope_theta, 5e5);
  EXPECT_EQ(before.window_rope_theta, 0);
  EXPECT_EQ(now.rope_theta, 1e6);
  EXPECT_EQ(now.window_rope_theta, 5e5);  // a missing object is the default
  EXPECT_EQ(now.rope_type, config::RopeType::yarn);
  json few = old;
  few["num_hidden_layers"] = 2;
  few["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(parse_config_json(few.dump(), "c").config.model.window_full_every, 0);
}

// The text part of the published 4B file.
TEST(ModelConfig, FillsInTheSizesOfAMultimodalGemma) {
  const json text = {{"hidden_size", 2560},
                     {"intermediate_size", 10240},
                     {"num_hidden_layers", 34},
                     {"model_type", "gemma3_text"},
                     {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                     {"sliding_window", 1024}};
  const ModelConfig parsed = parse_config_json(json{{"model_type", "gemma3"}, {"text_config", text}}.dump(), "c");
  const config::Model& model = parsed.config.model;
  EXPECT_EQ(parsed.vocab, 262208);
  EXPECT_EQ(model.n_head, 8);
  EXPECT_EQ(model.n_kv_head, 4);
  EXPECT_EQ(head_size(model), 256);
  EXPECT_EQ(model.attn_scalar, 256);
  EXPECT_EQ(model.window, 1024);
  EXPECT_EQ(model.window_full_every, 6);
  EXPECT_EQ(model.rope_theta, 1e6);
  EXPECT_EQ(model.rope_factor, 8);
  EXPECT_EQ(model.window_rope_theta, 1e4);
  EXPECT_EQ(model.norm_eps, 1e-6);
  EXPECT_TRUE(model.tie_embeddings.value());
}

TEST(ModelConfig, RejectsFieldsThatItCannotRepresent) {
  struct Case {
    config::Config config;
    const char* field;
    json value;
    const char* part;
  };
  for (const auto& [config, field, value, part] : std::vector<Case>{
           {gpt2(), "model_type", "gemma", "model_type: \"gemma\" is not supported; expected one of gpt2, llama"},
           {gpt2(), "model_type", nullptr, "model_type: missing"},
           {gpt2(), "n_layer", nullptr, "n_layer: missing"},
           {gpt2(), "n_layer", 0, "n_layer: 0, expected a whole number"},
           {gpt2(), "n_layer", 2000000000, "n_layer"},
           {gpt2(), "n_embd", "24", "n_embd: \"24\""},
           {gpt2(), "n_head", 5, "n_head: 5 does not divide n_embd = 24"},
           {gpt2(), "activation_function", "relu", "activation_function: \"relu\""},
           {gpt2(), "scale_attn_weights", false, "scale_attn_weights: false"},
           {gpt2(), "scale_attn_by_inverse_layer_idx", true, "scale_attn_by_inverse_layer_idx: true"},
           {gpt2(), "add_cross_attention", true, "add_cross_attention: true"},
           {gpt2(), "attn_pdrop", 0.2, "attn_pdrop: 0.2, but resid_pdrop is 0.1"},
           {gpt2(), "tie_word_embeddings", 1, "tie_word_embeddings: 1"},
           {gpt2(), "layer_norm_epsilon", -1, "norm_eps"},
           {gpt2(), "quantization_config", {{"bits", 4}}, "quantization_config: {\"bits\":4}"},
           {llama(), "hidden_act", "gelu", "hidden_act: \"gelu\""},
           {llama(), "rope_scaling", {{"type", "dynamic"}, {"factor", 8.0}}, "rope_scaling: \"dynamic\""},
           {llama(), "rope_parameters", {{"rope_type", "longrope"}}, "rope_parameters: \"longrope\""},
           {llama(), "rope_scaling", {{"rope_type", "spiral"}, {"factor", 8.0}}, "rope_scaling: \"spiral\""},
           {llama(), "rope_scaling", {{"rope_type", 3}}, "rope_scaling: 3"},
           {llama(), "rope_scaling", {{"mrope_section", {16, 24, 24}}}, "rope_scaling.mrope_section: "},
           {llama(), "rope_parameters", {{"rope_type", "yarn"}}, "rope_parameters.factor: missing"},
           {llama(), "rope_scaling", {{"rope_type", "linear"}, {"factor", 0.5}}, "rope_scaling.factor: 0.5"},
           {llama(), "rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}, "full_attention: {"},
           {llama(), "rope_parameters", {{"partial_rotary_factor", 0.75}}, "partial_rotary_factor: 0.75"},
           {llama(), "rope_parameters", 3, "rope_parameters: 3"},
           {llama(), "attention_bias", 1, "attention_bias: 1"},
           {llama(), "mlp_bias", "no", "mlp_bias: \"no\""},
           {llama(), "head_dim", 7, "head_dim: 7 is odd"},
           {llama(), "num_key_value_heads", 4, "num_key_value_heads: 4 does not divide"},
           {llama(), "attention_dropout", 0.5, "attention_dropout: 0.5"},
           {llama(), "sliding_window", 4096, "sliding_window: 4096"},
           {llama(), "vocab_size", nullptr, "vocab_size: missing"},
       }) {
    const std::string text = with_field(config, field, value);
    expect_error(Code::checkpoint, {"dir/config.json: ", part}, [&] { parse_config_json(text, "dir/config.json"); });
  }
  const config::Config qwen3 = config_of({"model.arch=qwen3", "model.head_dim=6"}),
                       mixtral = config_of({"model.arch=mixtral"}), moe = config_of({"model.arch=qwen3_moe"}),
                       neox = config_of({"model.arch=gpt_neox"}), olmo3 = config_of({"model.arch=olmo3"}),
                       gemma = config_of({"model.arch=gemma3"});
  for (const auto& [config, field, value, part] : std::vector<Case>{
           {config_of({"model.arch=smollm3"}), "use_sliding_window", true, "use_sliding_window: true"},
           {config_of({"model.arch=olmo2"}), "sliding_window", 8, "sliding_window: 8"},
           {qwen3, "layer_types", {"full_attention", "sliding_attention"}, "layer 1 is \"sliding_attention\""},
           {neox, "rotary_pct", 0.25, "rotary_pct: 0.25 of a head of 4 features is 1, of which transformers rotates 2"},
           {neox, "rotary_pct", 1.5, "rotary_pct: 1.5, expected a number above 0"},
           {neox, "partial_rotary_factor", 1.0, "partial_rotary_factor: 1, but rotary_pct is 0.5"},
           {neox, "rope_theta", 5, "rope_theta: 5, but rotary_emb_base is 10000"},
           {neox,
            "rope_parameters",
            {{"rope_theta", 7}},
            "rope_parameters.rope_theta: 7, but rotary_emb_base is 10000"},
           {olmo3, "rope_theta", 1e6, "rope_theta: 1000000, which transformers 5 ignores"},
           {olmo3, "rope_theta", nullptr, "rope_theta: missing, and versions of transformers"},
           {olmo3,
            "rope_parameters",
            {{"rope_type", "default"}, {"rope_theta", 5e5}},
            "rope_parameters: transformers ignores"},
           {olmo3,
            "rope_parameters",
            {{"full_attention", {{"rope_theta", 1e6}}}},
            "rope_theta: 500000, but rope_parameters"},
           {olmo3,
            "rope_parameters",
            {{"full_attention", {{"rope_theta", 5e5}}},
             {"sliding_attention", {{"rope_type", "linear"}, {"factor", 2}}}},
            "only layers without a window"},
           {olmo3,
            "rope_parameters",
            {{"full_attention", {{"rope_theta", 5e5}, {"partial_rotary_factor", 0.5}}}},
            "partial_rotary_factor: 0.5 is not supported"},
           {olmo3,
            "rope_parameters",
            {{"full_attention", {{"rope_theta", 5e5}}}, {"sliding_attention", {{"partial_rotary_factor", 0.5}}}},
            "partial_rotary_factor: 0.5 is not supported"},
           {olmo3,
            "rope_parameters",
            {{"full_attention", {{"rope_type", "linear"}, {"rope_theta", 5e5}, {"factor", 2.0}}}},
            "rope_scaling: differs from rope_parameters.full_attention"},
           {olmo3, "layer_types", {"sliding_attention", "full"}, "layer 1 is \"full\""},
           {gemma, "hidden_activation", "gelu", "hidden_activation: \"gelu\""},
           {gemma, "attn_logit_softcapping", 50.0, "attn_logit_softcapping: 50.0 is not supported"},
           {gemma, "use_bidirectional_attention", true, "use_bidirectional_attention: true"},
           {gemma, "rope_scaling", {{"rope_type", "yarn"}, {"factor", 2.0}}, "\"yarn\" is not supported"},
           {gemma, "rope_parameters", {{"rope_type", "default"}}, "rope_parameters: transformers ignores"},
           {gemma, "model_type", "gemma3", "text_config: missing"},
           {gemma, "model_type", "gemma2", "\"gemma2\" is not supported: it has a soft cap"},
           {neox, "hidden_act", "relu", "hidden_act: \"relu\""},
           {neox, "attention_dropout", 0.3, "attention_dropout: 0.3, but hidden_dropout is 0.1"},
           {neox, "num_key_value_heads", 3, "num_key_value_heads: 3, but gpt_neox has as many"},
           {qwen3, "partial_rotary_factor", 0.5, "partial_rotary_factor: 0.5"},
           {gpt2(), "model_type", "deepseek_v3",
            "model_type: \"deepseek_v3\" is not supported: it has latent attention"},
           {gpt2(), "model_type", "gpt_oss", "model_type: \"gpt_oss\" is not supported: it has attention sinks"},
           {mixtral, "num_local_experts", nullptr, "num_local_experts: missing"},
           {mixtral, "num_experts_per_tok", nullptr, "num_experts_per_tok: missing"},
           {mixtral, "num_experts_per_tok", 6, "experts_per_token"},
           {mixtral, "num_local_experts", 1000000000, "num_local_experts: 1000000000 in each of 2 layers"},
           {moe, "num_experts", nullptr, "num_experts: missing"},
           {moe, "num_local_experts", 7, "num_local_experts: 7, but num_experts is 5"},
           {mixtral, "router_jitter_noise", 0.1, "router_jitter_noise: 0.1"},
           {mixtral, "hidden_act", "gelu", "hidden_act: \"gelu\""},
           {config_of({"model.arch=olmoe"}), "clip_qkv", 8.0, "clip_qkv: 8.0 is not supported; expected null"},
           {moe, "mlp_only_layers", {1}, "mlp_only_layers: [1], so that layer 1 has no experts"},
           {moe, "mlp_only_layers", {0, 1}, "mlp_only_layers: [0,1], so that no layer has experts"},
           {moe, "mlp_only_layers", {2}, "mlp_only_layers: 2, expected layers from 0 to 1"},
           {moe, "mlp_only_layers", {-1}, "mlp_only_layers: -1, expected layers"},
           {moe, "decoder_sparse_step", 3, "decoder_sparse_step: 3, so that no layer has experts"},
           {moe, "use_sliding_window", true, "use_sliding_window: true"},
           {config_of({"model.arch=qwen2_moe"}), "qkv_bias", false, "qkv_bias: false"},
           {config_of({"model.arch=qwen2_moe"}), "shared_expert_intermediate_size", 0,
            "shared_expert_intermediate_size: 0"},
       }) {
    const std::string text = with_field(config, field, value);
    expect_error(Code::checkpoint, {"c: ", part}, [&] { parse_config_json(text, "c"); });
  }
  for (const char* text : {"", "[]", "{", "{\"model_type\":[[[[]]]]}"})
    expect_error(Code::checkpoint, {"c: "}, [&] { parse_config_json(text, "c"); });
}

TEST(ModelConfig, TakesTheFieldsOfExperts) {
  const config::Config moe = config_of({"model.arch=qwen3_moe"});
  const auto model = [&](const char* field, const json& value) {
    return parse_config_json(with_field(moe, field, value), "c").config.model;
  };
  json renamed = json::parse(with_field(moe, "num_local_experts", 7));  // the name in transformers 5
  renamed.erase("num_experts");
  EXPECT_EQ(parse_config_json(renamed.dump(), "c").config.model.n_expert, 7);
  EXPECT_FALSE(normalizes_topk(model("norm_topk_prob", nullptr)));
  EXPECT_TRUE(normalizes_topk(model("norm_topk_prob", true)));
  EXPECT_EQ(model("mlp_only_layers", {0}).moe_every, 2);
  EXPECT_EQ(model("mlp_only_layers", {0}).d_ff, 32);
  EXPECT_EQ(model("decoder_sparse_step", 2).moe_every, 2);
  const config::Model mixtral =
      parse_config_json(with_field(config_of({"model.arch=mixtral"}), "intermediate_size", 96), "c").config.model;
  EXPECT_EQ(mixtral.d_expert, 96);
  EXPECT_TRUE(normalizes_topk(mixtral));
}

TEST(ModelConfig, TakesTheFieldsOfOtherVersions) {
  const ModelConfig newer =
      parse_config_json(with_field(llama(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7e5}}), "c");
  EXPECT_EQ(newer.config.model.rope_theta, 7e5);
  const config::Model llama3 = parse_config_json(with_field(llama(), "rope_scaling",
                                                            {{"rope_type", "llama3"},
                                                             {"factor", 8.0},
                                                             {"low_freq_factor", 1.0},
                                                             {"high_freq_factor", 4.5},
                                                             {"original_max_position_embeddings", 8192}}),
                                                 "c")
                                   .config.model;
  EXPECT_EQ(llama3.rope_type, config::RopeType::llama3);
  EXPECT_EQ(llama3.rope_theta, 5e5);
  EXPECT_EQ(llama3.rope_factor, 8);
  EXPECT_EQ(llama3.rope_original, 8192);
  EXPECT_EQ(llama3.rope_high_freq, 4.5);
  json outside = json::parse(with_field(llama(), "rope_scaling",
                                        {{"rope_type", "llama3"},
                                         {"factor", 8.0},
                                         {"low_freq_factor", 1.0},
                                         {"high_freq_factor", 4.0},
                                         {"original_max_position_embeddings", 8192}}));
  outside["original_max_position_embeddings"] = 6;  // takes precedence
  EXPECT_EQ(parse_config_json(outside.dump(), "c").config.model.rope_original, 6);
  const config::Model yarn = parse_config_json(with_field(llama(), "rope_scaling",
                                                          {{"type", "yarn"},
                                                           {"factor", 4.0},
                                                           {"beta_fast", nullptr},
                                                           {"beta_slow", 0},
                                                           {"mscale", 1.0},
                                                           {"mscale_all_dim", 0.5}}),
                                               "c")
                                 .config.model;
  EXPECT_EQ(yarn.rope_type, config::RopeType::yarn);
  EXPECT_EQ(yarn.rope_original, 10);  // max_position_embeddings
  EXPECT_EQ(yarn.rope_beta_fast, 32);
  EXPECT_EQ(yarn.rope_beta_slow, 1);
  EXPECT_NEAR(yarn.rope_attention, (0.1 * std::log(4) + 1) / (0.05 * std::log(4) + 1), 1e-15);
  json both = json::parse(with_field(llama(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}, {"mscale", 1.0}}));
  both["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7e5}};
  tests::Warnings warnings;
  EXPECT_EQ(parse_config_json(both.dump(), "c").config.model.rope_type, config::RopeType::linear);
  EXPECT_EQ(parse_config_json(both.dump(), "c").config.model.rope_theta, 5e5);  // outside the two
  both["rope_scaling"] = json::object();
  EXPECT_EQ(parse_config_json(both.dump(), "c").config.model.rope_type, config::RopeType::plain);
  EXPECT_EQ(parse_config_json(both.dump(), "c").config.model.rope_theta, 7e5);
  expect_parts(warnings.lines.at(0), {"rope_scaling.mscale: ignored"});
  const config::Config qwen3 = config_of({"model.arch=qwen3", "model.head_dim=6"});
  EXPECT_EQ(parse_config_json(with_field(qwen3, "head_dim", nullptr), "c").config.model.head_dim, 128);
  const config::Config mistral = config_of({"model.arch=mistral"});
  const auto length = [&](const json& window, int64_t positions) {
    json object = json::parse(with_field(mistral, "max_position_embeddings", positions));
    window == "absent" ? object.erase("sliding_window") : (object["sliding_window"] = window, 0u);
    const config::Model model = parse_config_json(object.dump(), "c").config.model;
    return std::vector{model.seq_len, model.max_positions, model.window};
  };
  using Lengths = std::vector<int64_t>;
  EXPECT_EQ(length("absent", 32768), (Lengths{4096, 32768, 4096}));  // the family's window
  EXPECT_EQ(length(nullptr, 32768), (Lengths{4096, 32768, 0}));
  EXPECT_EQ(length(512, 32768), (Lengths{4096, 32768, 512}));
  EXPECT_EQ(length(nullptr, 100), (Lengths{100, 0, 0}));
  json qwen2 = json::parse(with_field(config_of({"model.arch=qwen2"}), "use_sliding_window", true));
  qwen2["sliding_window"] = 5;
  const auto windows_from = [&](const json& layer) {
    qwen2["max_window_layers"] = layer;
    return parse_config_json(qwen2.dump(), "c").config.model.window;
  };
  EXPECT_EQ(windows_from(0), 5);
  EXPECT_EQ(windows_from(2), 0);  // the model has two layers
  EXPECT_EQ(windows_from(1e300), 0);
  EXPECT_EQ(windows_from(nullptr), 0);  // default: 28
  expect_error(Code::checkpoint, {"max_window_layers: 1, but the model has 2 layers"}, [&] { windows_from(1); });
  const auto windows = [&](const json& types) {
    json object = json::parse(with_field(mistral, "layer_types", types));
    object["num_hidden_layers"] = types.size();
    object["sliding_window"] = 5;
    const config::Model model = parse_config_json(object.dump(), "c").config.model;
    return std::pair(model.window, model.window_full_every);
  };
  const char *full = "full_attention", *sliding = "sliding_attention";
  EXPECT_EQ(windows({sliding, sliding}), std::pair(int64_t{5}, int64_t{0}));
  EXPECT_EQ(windows({full, full}), std::pair(int64_t{0}, int64_t{0}));
  EXPECT_EQ(windows({sliding, full, sliding, full, sliding}), std::pair(int64_t{5}, int64_t{2}));
  expect_error(Code::checkpoint, {"layer_types: layer 2 is \"full_attention\"", "all but every n-th"}, [&] {
    windows({sliding, full, full});
  });
  json smollm = json::parse(with_field(config_of({"model.arch=smollm3"}), "num_hidden_layers", 9));
  const auto without_rope = [&] { return nope_interval(parse_config_json(smollm.dump(), "c").config.model); };
  smollm["no_rope_layers"] = {1, 1, 0, 1, 1, 0, 1, 1, 0};
  EXPECT_EQ(without_rope(), 3);
  smollm["no_rope_layers"] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(without_rope(), 0);
  for (const auto& [list, part] :
       std::vector<std::pair<json, std::string>>{{{1, 1, 0, 1, 1, 1, 1, 1, 0}, "layer 5 is 1"},
                                                 {{1, 1, 2, 1, 1, 1, 1, 1, 0}, "layer 2 is 2"},
                                                 {json::array(), "0 elements for 9 layers"}}) {
    smollm["no_rope_layers"] = list;
    expect_error(Code::checkpoint, {"no_rope_layers: ", part}, without_rope);
  }
  for (const char* field : {"no_rope_layers", "no_rope_layer_interval", "rope_theta", "tie_word_embeddings"})
    smollm.erase(field);
  EXPECT_EQ(without_rope(), 4);
  EXPECT_EQ(parse_config_json(smollm.dump(), "c").config.model.rope_theta, 2e6);
  EXPECT_TRUE(parse_config_json(smollm.dump(), "c").config.model.tie_embeddings.value());
  smollm["no_rope_layer_interval"] = 2;
  EXPECT_EQ(without_rope(), 2);
  const config::Config longer = config_of({"model.arch=llama", "model.max_positions=32768"});
  EXPECT_EQ(json::parse(with_field(longer, "vocab_size", 29))["max_position_embeddings"], 32768);
  const ModelConfig older = parse_config_json(with_field(gpt2(), "n_inner", nullptr), "c");
  EXPECT_EQ(older.config.model.d_ff, 96);
  EXPECT_EQ(older.config.model.dropout, 0.1);
  EXPECT_EQ(older.vocab, kVocab);
}

TEST(ModelConfig, IgnoresNumbersThatOnlyPythonWritesWhereItReadsNone) {
  const std::string text = with_field(llama(), "rms_norm_eps", 0.5);
  const auto with = [&](const std::string& number) {
    std::string changed = text;
    return changed.replace(changed.find("0.5"), 3, number);
  };
  EXPECT_EQ(parse_config_json(with("0.25, \"time_step_limit\": [0.0, Infinity]"), "c").config.model.norm_eps, 0.25);
  for (const char* number : {"NaN", "Infinity", "-Infinity"})
    expect_error(Code::checkpoint, {format("c: rms_norm_eps: \"{}\", expected a number", number)},
                 [&] { parse_config_json(with(number), "c"); });
}

}  // namespace
}  // namespace trainer::huggingface
