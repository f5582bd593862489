// The model keys that a checkpoint stores, and how a run whose keys differ is handled.
#include "checkpoint/model_keys.h"

#include <functional>
#include <map>

#include "checkpoint/reader.h"
#include "config/families.h"
#include "fixture.h"

namespace trainer::checkpoint {
namespace {

TEST(ModelKeys, WeightsAreNotUsedWithOtherMasksOrLayersWithoutRopeInSilence) {
  config::Model plain;
  set_family(plain, config::Arch::llama);
  plain.n_layer = plain.n_head = 4;
  plain.d_model = 32;
  plain.seq_len = 64;
  plain.tie_embeddings = plain.bias = false;
  struct Change {
    const char *key, *value;
    bool may_be_chosen;  // if the user set the key, a warning is enough
    std::function<void(config::Model&)> set;
  };
  for (const auto& [key, value, may_be_chosen, set] : std::vector<Change>{
           {"window", "5", true, [](config::Model& m) { m.window = 5; }},
           {"window_full_every", "2", true, [](config::Model& m) { m.window_full_every = 2; }},
           {"window_rope_theta", "500", true, [](config::Model& m) { m.window_rope_theta = 500; }},
           {"attn_scalar", "10", false, [](config::Model& m) { m.attn_scalar = 10; }},
           {"rotary_dim", "4", false, [](config::Model& m) { m.rotary_dim = 4; }},
           {"parallel_residual", "true", false, [](config::Model& m) { m.parallel_residual = true; }},
           {"nope_every", "4", false, [](config::Model& m) { m.nope_every = 4; }},
           {"norm_place", "post", false, [](config::Model& m) { m.norm_place = config::NormPlace::post; }},
           {"logit_softcap", "30", false, [](config::Model& m) { m.logit_softcap = 30; }}}) {
    SCOPED_TRACE(key);
    config::Model changed = plain;
    set(changed);
    Snapshot with, without;
    with.model_keys = model_keys(changed, 29);
    without.model_keys = model_keys(plain, 29);
    EXPECT_EQ(with.model_keys.size(), without.model_keys.size() + 1);
    const std::string_view name = key;
    const std::string before = name == "norm_place"                            ? "pre"
                               : name == "rotary_dim" || name == "attn_scalar" ? "none"
                               : name == "parallel_residual"                   ? "false"
                                                                               : "0";
    const auto nothing = [](const std::string&) { return false; };
    const auto it = [key = std::string(key)](const std::string& chosen) { return chosen == key; };
    expect_error(
        Code::checkpoint,
        {format("{}: {} in the checkpoint, the run has {}", key, value, before), format("model.{}={}", key, value)},
        [&] { require_same_use(with, without, "step-1", nothing); });
    const std::string remedy = before == "none"
                                   ? format("Leave out keys that the checkpoint does not have: model.{}", key)
                                   : format("--set model.{}={}", key, before);
    expect_error(Code::checkpoint, {format("{}: {} in the checkpoint, the run has {}", key, before, value), remedy},
                 [&] { require_same_use(without, with, "step-1", nothing); });
    require_same_use(with, with, "step-1", nothing);
    if (may_be_chosen) require_same_use(without, with, "step-1", it);
    expect_error(Code::checkpoint, {format("{}: not in the checkpoint, the run has {}", key, value)},
                 [&] { require_compatible(without, with, "step-1", true); });
  }
  config::Model smollm = plain;
  set_family(smollm, config::Arch::smollm3);
  EXPECT_EQ(model_keys(smollm, 29).at("nope_every"), "4");
  smollm.nope_every = 0;
  EXPECT_EQ(model_keys(smollm, 29).count("nope_every"), 0u);
}

TEST(ModelKeys, KeysOfUnusedFeaturesAreNotStored) {
  config::Model plain;
  set_family(plain, config::Arch::llama);
  plain.n_head = plain.n_kv_head = 4;
  plain.d_model = 32;
  plain.tie_embeddings = plain.bias = false;
  config::Model gpt2 = plain;
  set_family(gpt2, config::Arch::gpt2);
  gpt2.tie_embeddings = gpt2.bias = true;
  using Added = std::map<std::string, std::string>;
  struct Change {
    const char* name;
    const config::Model& of;
    Added added;
    std::function<void(config::Model&)> set;
  };
  for (const auto& [name, of, added, set] : std::vector<Change>{
           {"the width of heads by default", plain, {}, [](config::Model& m) { m.head_dim = 8; }},
           {"the width of heads", plain, {{"head_dim", "6"}}, [](config::Model& m) { m.head_dim = 6; }},
           {"no norms", plain, {}, [](config::Model& m) { m.qk_norm = config::QkNorm::none; }},
           {"norms", plain, {{"qk_norm", "head"}}, [](config::Model& m) { m.qk_norm = config::QkNorm::head; }},
           {"norms before", plain, {}, [](config::Model& m) { m.norm_place = config::NormPlace::pre; }},
           {"no biases", plain, {}, [](config::Model& m) { m.attn_bias = config::AttentionBias::none; }},
           {"biases",
            plain,
            {{"attn_bias", "all"}},
            [](config::Model& m) { m.attn_bias = config::AttentionBias::all; }},
           {"no biases of the MLP", plain, {}, [](config::Model& m) { m.mlp_bias = false; }},
           {"biases of the MLP", plain, {{"mlp_bias", "true"}}, [](config::Model& m) { m.mlp_bias = true; }},
           {"all biases", gpt2, {}, [](config::Model& m) { m.attn_bias = config::AttentionBias::all; }},
           {"fewer biases",
            gpt2,
            {{"attn_bias", "qkv"}},
            [](config::Model& m) { m.attn_bias = config::AttentionBias::qkv; }},
           {"no bias of the MLP", gpt2, {{"mlp_bias", "false"}}, [](config::Model& m) { m.mlp_bias = false; }},
           {"longer positions", plain, {}, [](config::Model& m) { m.max_positions = 131072; }},
           {"numbers of no RoPE scaling", plain, {}, [](config::Model& m) { m.rope_high_freq = 8; }},
           {"linear",
            plain,
            {{"rope_type", "linear"}, {"rope_factor", "2"}},
            [](config::Model& m) {
              m.rope_type = config::RopeType::linear;
              m.rope_factor = 2;
            }},
           {"all with RoPE", plain, {}, [](config::Model& m) { m.nope_every = 0; }},
           {"Mistral", plain, {{"arch", "mistral"}}, [](config::Model& m) { set_family(m, config::Arch::mistral); }},
           {"Qwen2",
            plain,
            {{"arch", "qwen2"}, {"attn_bias", "qkv"}},
            [](config::Model& m) { set_family(m, config::Arch::qwen2); }},
           {"Qwen3",
            plain,
            {{"arch", "qwen3"}, {"qk_norm", "head"}},
            [](config::Model& m) { set_family(m, config::Arch::qwen3); }},
           {"Mixtral",
            plain,
            {{"arch", "mixtral"},
             {"n_expert", "8"},
             {"experts_per_token", "2"},
             {"d_expert", "96"},
             {"norm_topk", "true"}},
            [](config::Model& m) {
              set_family(m, config::Arch::mixtral);
              m.n_expert = 8;
              m.d_expert = 96;
            }},
           {"OLMo 2", plain, {{"arch", "olmo2"}, {"qk_norm", "full"}, {"norm_place", "post"}}, [](config::Model& m) {
              set_family(m, config::Arch::olmo2);
            }}}) {
    config::Model changed = of;
    set(changed);
    Added expected = model_keys(of, 29);
    for (const auto& [key, value] : added) expected[key] = value;
    EXPECT_EQ(model_keys(changed, 29), expected) << name;
  }
}

TEST(ModelKeys, WeightsOfScaledPositionsAreNotUsedWithoutThemInSilence) {
  config::Model plain;
  set_family(plain, config::Arch::llama);
  plain.n_head = 4;
  plain.d_model = 32;
  plain.tie_embeddings = plain.bias = false;
  config::Model scaled = plain;
  scaled.rope_type = config::RopeType::yarn;
  scaled.rope_factor = 4;
  scaled.rope_original = 64;
  Snapshot stored, run;
  stored.model_keys = model_keys(scaled, 29);
  run.model_keys = model_keys(plain, 29);
  EXPECT_EQ(run.model_keys.size(), 12u);  // no more than those that every model stores
  const auto nothing = [](const std::string&) { return false; };
  expect_error(Code::checkpoint,
               {"rope_type: yarn in the checkpoint, the run has default", "model.rope_type=yarn", "model.rope_factor=4",
                "model.rope_original=64"},
               [&] { require_same_use(stored, run, "step-1", nothing); });
  expect_error(Code::checkpoint, {"rope_type: default in the checkpoint, the run has yarn"},
               [&] { require_same_use(run, stored, "step-1", nothing); });
  require_same_use(stored, run, "step-1", [](const std::string& key) { return key == "rope_type"; });
  require_same_use(stored, stored, "step-1", nothing);
  expect_error(Code::checkpoint, {"rope_type: not in the checkpoint, the run has yarn"},
               [&] { require_compatible(run, stored, "step-1", true); });
}

}  // namespace
}  // namespace trainer::checkpoint
