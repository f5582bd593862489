#include "huggingface/gguf.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "unit/huggingface/fixture.h"

namespace trainer::huggingface {
namespace {

using nlohmann::json;

/// A GGUF file, parsed according to the format's specification, independently of the writer.
struct Parsed {
  struct Entry {
    std::vector<uint64_t> sizes;  // as in the file: the row length first
    uint32_t type = 0;
    std::string bytes;
    float f32(size_t i) const {
      float value = 0;
      std::memcpy(&value, bytes.data() + 4 * i, 4);
      return value;
    }
  };
  std::map<std::string, json> metadata;
  std::map<std::string, Entry> tensors;
};

class Parser {
 public:
  explicit Parser(std::string bytes) : bytes_(std::move(bytes)) {}

  Parsed parse() {
    Parsed out;
    EXPECT_EQ(bytes_.substr(0, 4), "GGUF");
    at_ = 4;
    EXPECT_EQ(number<uint32_t>(), 3u);
    const auto tensors = number<uint64_t>(), keys = number<uint64_t>();
    for (uint64_t i = 0; i < keys; ++i) {
      const std::string key = text();
      EXPECT_TRUE(out.metadata.emplace(key, value(number<uint32_t>())).second) << key;
    }
    std::vector<std::pair<std::string, uint64_t>> places;
    for (uint64_t i = 0; i < tensors; ++i) {
      const std::string name = text();
      Parsed::Entry entry;
      entry.sizes.resize(number<uint32_t>());
      for (uint64_t& size : entry.sizes) size = number<uint64_t>();
      entry.type = number<uint32_t>();
      places.emplace_back(name, number<uint64_t>());
      EXPECT_EQ(places.back().second % 32, 0u) << name;
      EXPECT_TRUE(out.tensors.emplace(name, entry).second) << name;
    }
    const uint64_t data = (at_ + 31) / 32 * 32;
    for (const auto& [name, place] : places) {
      Parsed::Entry& entry = out.tensors.at(name);
      uint64_t elements = 1;
      for (const uint64_t size : entry.sizes) elements *= size;
      const uint64_t length = entry.type == 0 ? 4 * elements : entry.type == 8 ? elements / 32 * 34 : 2 * elements;
      EXPECT_LE(data + place + length, bytes_.size()) << name;
      entry.bytes = bytes_.substr(data + place, length);
    }
    return out;
  }

 private:
  template <typename T>
  T number() {
    T value{};
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string text() {
    const auto length = number<uint64_t>();
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }
  json value(uint32_t type) {
    switch (type) {
      case 4:
        return number<uint32_t>();
      case 5:
        return number<int32_t>();
      case 6:
        return number<float>();
      case 7:
        return number<uint8_t>() != 0;
      case 8:
        return text();
      default:
        break;
    }
    EXPECT_EQ(type, 9u);
    const auto element = number<uint32_t>();
    json list = json::array();
    for (auto left = number<uint64_t>(); left > 0; --left) list.push_back(value(element));
    return list;
  }

  std::string bytes_;
  uint64_t at_ = 0;
};

Parsed exported(const fs::path& checkpoint, const fs::path& file, GgufType type = GgufType::f32) {
  const Exported done = export_gguf(checkpoint, file, {.type = type});
  const Parsed parsed = Parser(content_of(file)).parse();
  EXPECT_EQ(done.tensors, static_cast<int64_t>(parsed.tensors.size()));
  int64_t bytes = 0;
  for (const auto& [name, entry] : parsed.tensors) bytes += static_cast<int64_t>(entry.bytes.size());
  EXPECT_EQ(done.bytes, bytes);
  return parsed;
}

TEST(Gguf, HeadsOfLlamaAreStoredAsPairs) {
  TempFolder folder;
  save(folder / "run", llama());  // 6 heads of 4, 3 key heads, d_model 24
  const Parsed all = exported(folder / "run", folder / "llama.gguf");
  EXPECT_EQ(all.tensors.size(), 1u + 2 * 9 + 2);
  const auto& q = all.tensors.at("blk.1.attn_q.weight");
  EXPECT_EQ(q.sizes, (std::vector<uint64_t>{24, 24}));
  // Features 0, 1, 2, 3 of a head, of which RoPE rotates (0, 2) and (1, 3), are stored as 0, 2, 1, 3.
  const int64_t order[] = {0, 2, 1, 3};
  for (int64_t head = 0; head < 6; ++head)
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t in = 0; in < 24; ++in)
        ASSERT_EQ(q.f32((head * 4 + i) * 24 + in), value_of("blocks.1.attn.q.weight", in * 24 + head * 4 + order[i]));
  EXPECT_EQ(all.tensors.at("blk.0.attn_k.weight").sizes, (std::vector<uint64_t>{24, 12}));
  EXPECT_EQ(all.tensors.at("blk.0.attn_k.weight").f32(24), value_of("blocks.0.attn.k.weight", 2));
  EXPECT_EQ(all.tensors.at("blk.0.attn_v.weight").f32(24), value_of("blocks.0.attn.v.weight", 1));
  EXPECT_EQ(all.tensors.at("blk.0.ffn_down.weight").sizes, (std::vector<uint64_t>{40, 24}));
  EXPECT_EQ(all.tensors.at("output_norm.weight").f32(3), value_of("norm_f.gain", 3));
  EXPECT_EQ(all.tensors.at("output.weight").f32(30), value_of("head.weight", 30));
  const auto& keys = all.metadata;
  EXPECT_EQ(keys.at("general.architecture"), "llama");
  EXPECT_EQ(keys.at("llama.attention.head_count_kv"), 3);
  EXPECT_EQ(keys.at("llama.context_length"), 10);
  EXPECT_EQ(keys.at("llama.rope.freq_base"), 5e5);
  EXPECT_EQ(keys.at("llama.attention.layer_norm_rms_epsilon"), 3e-6f);
  EXPECT_EQ(keys.at("llama.vocab_size"), kVocab);
  EXPECT_EQ(keys.at("tokenizer.ggml.model"), "none");
}

TEST(Gguf, LinearsOfGpt2AreTransposed) {
  TempFolder folder;
  save(folder / "run", gpt2());
  const Parsed all = exported(folder / "run", folder / "gpt2.gguf");
  EXPECT_EQ(all.tensors.size(), 2u + 2 * 12 + 2);
  const auto& qkv = all.tensors.at("blk.1.attn_qkv.weight");
  EXPECT_EQ(qkv.sizes, (std::vector<uint64_t>{24, 72}));
  for (int64_t out = 0; out < 72; ++out)
    for (int64_t in = 0; in < 24; ++in)
      ASSERT_EQ(qkv.f32(out * 24 + in),
                value_of(format("blocks.1.attn.{}.weight", "qkv"[out / 24]), in * 24 + out % 24));
  EXPECT_EQ(all.tensors.at("position_embd.weight").f32(25), value_of("wpe", 25));
  EXPECT_EQ(all.tensors.at("blk.0.ffn_up.bias").f32(7), value_of("blocks.0.mlp.up.bias", 7));
  EXPECT_EQ(all.metadata.at("gpt2.attention.layer_norm_epsilon"), 3e-6f);
}

TEST(Gguf, NeoxHasQueriesThenKeysThenValues) {
  TempFolder folder;
  save(folder / "run", config_of({"model.arch=gpt_neox", "model.parallel_residual=false"}));
  const Parsed all = exported(folder / "run", folder / "n.gguf");
  EXPECT_EQ(all.tensors.size(), 1u + 2 * 12 + 3);
  const auto &weight = all.tensors.at("blk.1.attn_qkv.weight"), &bias = all.tensors.at("blk.1.attn_qkv.bias");
  EXPECT_EQ(weight.sizes, (std::vector<uint64_t>{24, 72}));
  for (int64_t out = 0; out < 72; ++out) {
    const std::string ours = format("blocks.1.attn.{}", "qkv"[out / 24]);
    ASSERT_EQ(bias.f32(static_cast<size_t>(out)), value_of(ours + ".bias", out % 24));
    for (int64_t in = 0; in < 24; ++in)
      ASSERT_EQ(weight.f32(static_cast<size_t>(out * 24 + in)), value_of(ours + ".weight", in * 24 + out % 24));
  }
  EXPECT_EQ(all.tensors.at("blk.0.ffn_norm.bias").f32(7), value_of("blocks.0.norm2.bias", 7));
  EXPECT_EQ(all.metadata.at("gptneox.use_parallel_residual"), false);
  EXPECT_EQ(all.metadata.at("gptneox.rope.dimension_count"), 2);
  EXPECT_EQ(all.metadata.at("gptneox.attention.layer_norm_epsilon"), 3e-6f);
}

TEST(Gguf, Olmo3HasWindowsWithAnUnscaledRope) {
  TempFolder folder;
  save(folder / "run", config_of({"model.arch=olmo3", "model.window=4", "model.window_full_every=2",
                                  "model.rope_type=yarn", "model.rope_factor=4", "model.rope_original=64"}));
  const Parsed all = exported(folder / "run", folder / "o.gguf");
  EXPECT_EQ(all.metadata.at("general.architecture"), "olmo2");
  EXPECT_EQ(all.metadata.at("olmo2.attention.sliding_window"), 4);
  EXPECT_EQ(all.metadata.at("olmo2.attention.sliding_window_pattern"), 2);
  EXPECT_EQ(all.metadata.at("olmo2.rope.freq_base_swa"), 5e5f);
  EXPECT_EQ(all.metadata.at("olmo2.rope.scaling.type"), "yarn");
  EXPECT_EQ(all.tensors.at("blk.1.post_attention_norm.weight").f32(5), value_of("blocks.1.norm1.gain", 5));
  EXPECT_EQ(all.tensors.at("blk.1.post_ffw_norm.weight").f32(5), value_of("blocks.1.norm2.gain", 5));
  EXPECT_EQ(all.tensors.at("blk.0.attn_q_norm.weight").sizes, (std::vector<uint64_t>{24}));
}

TEST(Gguf, GainsOfGemmaAreStoredWhole) {
  TempFolder folder;
  save(folder / "run",
       config_of({"model.arch=gemma3", "model.window=4", "model.rope_type=linear", "model.rope_factor=8"}));
  const Parsed all = exported(folder / "run", folder / "g.gguf", GgufType::bf16);
  for (const auto& [theirs, ours] : {std::pair("blk.1.attn_norm", "blocks.1.norm1"),
                                     {"blk.1.post_attention_norm", "blocks.1.norm1_post"},
                                     {"blk.1.ffn_norm", "blocks.1.norm2"},
                                     {"blk.1.post_ffw_norm", "blocks.1.norm2_post"},
                                     {"blk.1.attn_k_norm", "blocks.1.attn.k_norm"},
                                     {"output_norm", "norm_f"}}) {
    const auto& tensor = all.tensors.at(std::string(theirs) + ".weight");
    EXPECT_EQ(tensor.type, 0u) << theirs;
    EXPECT_EQ(tensor.f32(3), 1.0f + value_of(std::string(ours) + ".gain", 3)) << theirs;
  }
  EXPECT_EQ(all.metadata.at("gemma3.attention.sliding_window"), 4);
  EXPECT_EQ(all.metadata.at("gemma3.rope.freq_base"), 1e6f);
  EXPECT_EQ(all.metadata.at("gemma3.rope.freq_base_swa"), 1e4f);
  EXPECT_EQ(all.metadata.at("gemma3.rope.scaling.factor"), 8.0f);
}

TEST(Gguf, QwenKeepsTheOrderOfFeaturesAndNorms) {
  TempFolder folder;
  save(folder / "run", config_of({"model.arch=qwen3", "model.n_kv_head=3", "model.head_dim=6", "model.rope_type=yarn",
                                  "model.rope_factor=4", "model.rope_original=64", "model.rope_attention=1.25",
                                  "model.max_positions=256"}));
  const Parsed all = exported(folder / "run", folder / "q.gguf");
  EXPECT_EQ(all.tensors.at("blk.0.attn_q.weight").f32(24), value_of("blocks.0.attn.q.weight", 1));
  EXPECT_EQ(all.tensors.at("blk.1.attn_k_norm.weight").f32(5), value_of("blocks.1.attn.k_norm.gain", 5));
  EXPECT_EQ(all.metadata.at("qwen3.attention.key_length"), 6);
  EXPECT_EQ(all.metadata.at("qwen3.context_length"), 256);
  EXPECT_EQ(all.metadata.at("qwen3.rope.scaling.type"), "yarn");
  EXPECT_EQ(all.metadata.at("qwen3.rope.scaling.original_context_length"), 64);
  EXPECT_NEAR(all.metadata.at("qwen3.rope.scaling.attn_factor").get<double>(), 1.25 / (0.1 * std::log(4) + 1), 1e-7);
}

TEST(Gguf, ExpertsOfALayerAreOneTensor) {
  TempFolder folder;
  save(folder / "run", config_of({"model.arch=qwen2_moe", "model.experts_per_token=3"}));
  const Parsed all = exported(folder / "run", folder / "q.gguf", GgufType::bf16);
  EXPECT_EQ(all.tensors.size(), 3u + 2 * (2 + 4 + 3 + 4 + 4));
  for (const auto& [key, value] : {std::pair("count", 5), std::pair("used_count", 3),
                                   std::pair("feed_forward_length", 32), std::pair("shared_feed_forward_length", 48)})
    EXPECT_EQ(all.metadata.at(format("qwen2moe.expert_{}", key)), value) << key;
  const Parsed::Entry& router = all.tensors.at("blk.1.ffn_gate_inp.weight");
  EXPECT_EQ(router.type, 0u) << "fp32";
  EXPECT_EQ(router.sizes, (std::vector<uint64_t>{24, 5}));
  EXPECT_EQ(all.tensors.at("blk.1.ffn_gate_inp_shexp.weight").sizes, (std::vector<uint64_t>{24}));
  EXPECT_EQ(all.tensors.at("blk.1.ffn_gate_inp_shexp.weight").type, 0u);
  EXPECT_EQ(all.tensors.at("blk.1.ffn_down_shexp.weight").sizes, (std::vector<uint64_t>{48, 24}));
  EXPECT_EQ(all.tensors.at("blk.1.ffn_up_exps.weight").type, 30u);
  EXPECT_EQ(all.tensors.at("blk.1.ffn_down_exps.weight").sizes, (std::vector<uint64_t>{32, 24, 5}));
  save(folder / "mixtral", config_of({"model.arch=mixtral"}));
  const Parsed mixtral = exported(folder / "mixtral", folder / "m.gguf");
  EXPECT_EQ(mixtral.metadata.at("general.architecture"), "llama");
  EXPECT_EQ(mixtral.metadata.at("llama.expert_count"), 5);
  EXPECT_EQ(mixtral.metadata.at("llama.feed_forward_length"), 32);
  const Parsed::Entry& gate = mixtral.tensors.at("blk.0.ffn_gate_exps.weight");
  ASSERT_EQ(gate.sizes, (std::vector<uint64_t>{24, 32, 5}));
  for (int64_t e = 0; e < 5; ++e)
    for (int64_t out = 0; out < 32; ++out)
      for (int64_t in = 0; in < 24; ++in)
        ASSERT_EQ(gate.f32(static_cast<size_t>((e * 32 + out) * 24 + in)),
                  value_of("blocks.0.mlp.experts.gate.weight", (e * 24 + in) * 32 + out));
}

TEST(Gguf, FrequenciesOfLlama3AreDividedByATensor) {
  TempFolder folder;
  save(folder / "run",
       config_of({"model.arch=llama", "model.n_head=3", "model.rope_theta=1e4", "model.rope_type=llama3",
                  "model.rope_factor=4", "model.rope_high_freq=8", "model.rope_original=256"}));
  const Parsed all = exported(folder / "run", folder / "l.gguf");
  const auto& divisors = all.tensors.at("rope_freqs.weight");
  ASSERT_EQ(divisors.sizes, std::vector<uint64_t>{4});  // for frequencies 1, 0.1, 0.01, 0.001
  EXPECT_EQ(divisors.f32(0), 1);
  EXPECT_NEAR(divisors.f32(1), 0.1 / 5.793964153377701e-02, 1e-6);
  EXPECT_NEAR(divisors.f32(2), 4, 1e-6);
  EXPECT_NEAR(divisors.f32(3), 4, 1e-6);
  EXPECT_FALSE(all.metadata.contains("llama.rope.scaling.type"));
}

// The places of the ramp are those of gpt-oss, 8.0928 and 17.3980, which are not rounded.
TEST(Gguf, FrequenciesOfYarnThatLlamaCppLacksAreDividedByATensor) {
  TempFolder folder;
  save(folder / "run", config_of({"model.arch=mistral", "model.n_head=2", "model.head_dim=64", "model.rope_theta=1.5e5",
                                  "model.rope_type=yarn", "model.rope_factor=32", "model.rope_original=4096",
                                  "model.rope_truncate=false"}));
  const Parsed all = exported(folder / "run", folder / "y.gguf");
  const auto& divisors = all.tensors.at("rope_freqs.weight");
  ASSERT_EQ(divisors.sizes, std::vector<uint64_t>{32});
  for (size_t i = 0; i < 32; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - 8.092779115512402) / 9.305245386076158, 0.0, 1.0);
    EXPECT_NEAR(divisors.f32(i), 1 / (1 - ramp * 31 / 32), 1e-5) << i;
  }
  EXPECT_NEAR(all.metadata.at("llama.rope.scaling.attn_factor").get<double>(), 1.346573590279973, 1e-6);
  EXPECT_FALSE(all.metadata.contains("llama.rope.scaling.type")) << "the frequencies are scaled once";
  for (const char* set : {"model.rope_beta_fast=16", "model.rope_beta_slow=2"}) {
    save(folder / set, config_of({"model.arch=llama", "model.rope_type=yarn", "model.rope_factor=4",
                                  "model.rope_original=64", "model.rope_attention=1.25", set}));
    const Parsed other = exported(folder / set, folder / (std::string(set) + ".gguf"));
    EXPECT_TRUE(other.tensors.contains("rope_freqs.weight")) << set;
    EXPECT_EQ(other.metadata.at("llama.rope.scaling.attn_factor"), 1.25) << set;
  }
}

TEST(Gguf, LearnedPositionsFixTheContextLength) {
  TempFolder folder;
  save(folder / "run", config_of({"model.arch=gpt2", "model.max_positions=64"}));
  const Parsed all = exported(folder / "run", folder / "g.gguf");
  EXPECT_EQ(all.metadata.at("gpt2.context_length"), 10);
  EXPECT_EQ(all.tensors.at("position_embd.weight").sizes, (std::vector<uint64_t>{24, 10}));
}

TEST(Gguf, BlocksOfQ8HaveAScaleAndBytes) {
  std::vector<float> values(64);
  for (size_t i = 0; i < 64; ++i) values[i] = i < 32 ? std::sin(static_cast<float>(i)) * 3 : 0;
  std::vector<std::byte> bytes;
  EXPECT_EQ(gguf_convert(values, GgufType::q8_0, bytes), 64u);
  ASSERT_EQ(bytes.size(), 68u);
  uint16_t scale = 0;
  std::memcpy(&scale, bytes.data(), 2);
  const float largest = 3 * std::sin(11.0f);  // −2.99997, the largest magnitude
  EXPECT_NEAR(float_from_half(scale), -largest / 127, 1e-5);
  EXPECT_EQ(static_cast<int8_t>(bytes[2 + 11]), -127);
  for (size_t i = 0; i < 32; ++i)
    EXPECT_NEAR(static_cast<int8_t>(bytes[2 + i]) * float_from_half(scale), values[i], 0.51 * 3 / 127) << i;
  for (size_t i = 34; i < 68; ++i) EXPECT_EQ(bytes[i], std::byte{0});
  values[40] = 1e8f;
  EXPECT_EQ(gguf_convert(values, GgufType::q8_0, bytes), 40u);
}

TEST(Gguf, VectorsAndUnevenRowsStayInFp32) {
  TempFolder folder;
  save(folder / "run", config_of({"model.arch=llama", "model.d_model=32", "model.n_head=4"}));  // d_ff 40
  const Parsed q8 = exported(folder / "run", folder / "q8.gguf", GgufType::q8_0);
  EXPECT_EQ(q8.tensors.at("blk.0.attn_q.weight").type, 8u);
  EXPECT_EQ(q8.tensors.at("token_embd.weight").type, 8u);
  EXPECT_EQ(q8.tensors.at("blk.0.ffn_down.weight").type, 0u) << "rows of 40";
  EXPECT_EQ(q8.tensors.at("blk.0.ffn_norm.weight").type, 0u);
  EXPECT_EQ(q8.metadata.at("general.file_type"), 7);
  const Parsed bf16 = exported(folder / "run", folder / "bf16.gguf", GgufType::bf16);
  EXPECT_EQ(bf16.tensors.at("blk.0.ffn_down.weight").type, 30u);
  EXPECT_EQ(bf16.tensors.at("output_norm.weight").type, 0u);
  const std::string& bytes = bf16.tensors.at("blk.0.attn_v.weight").bytes;
  const float exact = value_of("blocks.0.attn.v.weight", 0);
  const uint32_t wide = static_cast<uint32_t>(static_cast<uint8_t>(bytes[0])) << 16 |
                        static_cast<uint32_t>(static_cast<uint8_t>(bytes[1])) << 24;
  float stored = 0;
  std::memcpy(&stored, &wide, 4);
  EXPECT_NEAR(stored, exact, std::abs(exact) * 0x1p-8);
}

TEST(Gguf, RejectsWhatLlamaCppCannotRun) {
  TempFolder folder;
  struct Case {
    std::vector<std::string> sets;
    std::vector<std::string> parts;
  };
  int index = 0;
  for (const auto& [sets, parts] : std::vector<Case>{
           {{"model.arch=qwen3", "model.attn_bias=all", "model.head_dim=4"}, {"model.attn_bias = \"all\"", "qwen3"}},
           {{"model.arch=qwen2", "model.rope_type=llama3", "model.rope_factor=2", "model.rope_original=64"},
            {"model.rope_type = \"llama3\"", "llama and mistral"}},
           {{"model.arch=qwen3", "model.rope_type=yarn", "model.rope_factor=2", "model.rope_original=64",
             "model.rope_truncate=false"},
            {"model.rope_truncate = false", "32 and 1"}},
           {{"model.arch=qwen2", "model.rope_type=yarn", "model.rope_factor=2", "model.rope_original=64",
             "model.rope_beta_fast=16"},
            {"model.rope_beta_fast = 16", "32 and 1"}},
           {{"model.arch=qwen3", "model.rope_type=yarn", "model.rope_factor=2", "model.rope_original=64",
             "model.rope_beta_slow=2"},
            {"model.rope_beta_slow = 2", "32 and 1"}},
           {{"model.arch=qwen2", "model.head_dim=6"}, {"model.head_dim = 6", "6 * 6", "24", "qwen3"}},
           {{"model.arch=mistral", "model.window=4"}, {"model.window = 4"}},
           {{"model.arch=olmoe", "model.norm_topk=true"}, {"model.norm_topk = true", "olmoe never normalizes"}},
           {{"model.arch=qwen3_moe", "model.norm_topk=false"}, {"model.norm_topk = false", "always normalizes"}},
           {{"model.arch=qwen3_moe", "model.moe_every=2"}, {"model.moe_every = 2", "experts in all layers"}},
           {{"model.arch=olmoe", "model.n_kv_head=3"}, {"model.n_kv_head = 3", "as many keys as queries"}},
           {{"model.arch=olmoe", "model.tie_embeddings=true"}, {"model.tie_embeddings = true", "a head of its own"}},
           {{"model.arch=gpt_neox", "model.attn_bias=none"}, {"model.attn_bias = \"none\"", "gptneox has biases"}},
           {{"model.arch=gpt_neox", "model.tie_embeddings=true"}, {"model.tie_embeddings = true", "a head of its own"}},
           {{"model.arch=olmo3", "model.head_dim=6"}, {"model.head_dim = 6", "olmo2 requires"}},
           {{"model.arch=olmo3", "model.attn_bias=all"}, {"model.attn_bias = \"all\"", "olmo2 has no biases"}},
           {{"model.arch=gemma3", "model.window_full_every=2"}, {"model.window_full_every = 2", "every 6th"}},
           {{"model.arch=gemma3", "model.attn_scalar=10"}, {"model.attn_scalar = 10", "square root of 4"}},
           {{"model.arch=gemma3", "model.logit_softcap=30"}, {"model.logit_softcap = 30"}},
           {{"model.arch=smollm3"}, {"model.arch = \"smollm3\"", "qwen3"}},
           {{"model.arch=olmo2"}, {"model.arch = \"olmo2\"", "qwen3"}},
           {{"model.arch=llama", "model.qk_norm=head"}, {"model.qk_norm = \"head\""}},
           {{"model.arch=gpt2", "model.n_kv_head=3"}, {"model.n_kv_head = 3"}}}) {
    const fs::path run = folder / std::to_string(index++);
    save(run, config_of(sets));
    expect_error(Code::checkpoint, parts, [&] { export_gguf(run, folder / "x.gguf"); });
    EXPECT_FALSE(fs::exists(folder / "x.gguf"));
  }
  save(folder / "run", llama());
  write(folder / "there", "");
  expect_error(Code::io, {(folder / "there").string(), "already exists"},
               [&] { export_gguf(folder / "run", folder / "there"); });
  for (const auto& each : fs::directory_iterator(folder.path()))
    EXPECT_FALSE(each.path().filename().string().starts_with(".writing")) << each.path();
}

}  // namespace
}  // namespace trainer::huggingface
