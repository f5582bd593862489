#include "config/families.h"

#include <algorithm>

#include "base/error.h"

namespace trainer::config {
namespace {

constexpr Family kFamilies[] = {
    {.arch = Arch::gpt2,
     .name = "gpt2",
     .about = "learned positions, LayerNorm, GELU",
     .facts =
         {.norm = NormKind::layer, .positions = Positions::learned, .mlp = MlpKind::plain, .bias = true, .tied = true},
     .hugging_face = {.model_type = "gpt2", .architecture = "GPT2LMHeadModel", .form = FileForm::gpt2},
     .gguf = {.architecture = "gpt2"}},
    {.arch = Arch::llama,
     .name = "llama",
     .about = "RoPE, RMSNorm, SwiGLU",
     .facts = {.norm = NormKind::rms, .positions = Positions::rope, .mlp = MlpKind::gated},
     .hugging_face = {.model_type = "llama",
                      .architecture = "LlamaForCausalLM",
                      .has_attention_bias = true,
                      .has_mlp_bias = true,
                      .heads_divide_width = true},
     .gguf = {.architecture = "llama", .turns_pairs = true}},
    {.arch = Arch::mistral,
     .name = "mistral",
     .about = "RoPE, RMSNorm, SwiGLU",
     .facts = {.norm = NormKind::rms, .positions = Positions::rope, .mlp = MlpKind::gated},
     .hugging_face = {.model_type = "mistral",
                      .architecture = "MistralForCausalLM",
                      .kv_heads = 8,
                      .windows = WindowFields::all_layers},
     .gguf = {.architecture = "llama", .turns_pairs = true}},
    {.arch = Arch::qwen2,
     .name = "qwen2",
     .about = "llama with biases in the query, key and value projections",
     .facts =
         {.norm = NormKind::rms, .positions = Positions::rope, .mlp = MlpKind::gated, .attn_bias = AttentionBias::qkv},
     .hugging_face = {.model_type = "qwen2",
                      .architecture = "Qwen2ForCausalLM",
                      .kv_heads = 32,
                      .windows = WindowFields::some_layers},
     .gguf = {.architecture = "qwen2", .fixed_heads = true}},
    {.arch = Arch::qwen3,
     .name = "qwen3",
     .about = "llama with RMS norms of queries and keys",
     .facts = {.norm = NormKind::rms, .positions = Positions::rope, .mlp = MlpKind::gated, .qk_norm = QkNorm::head},
     .hugging_face = {.model_type = "qwen3",
                      .architecture = "Qwen3ForCausalLM",
                      .kv_heads = 32,
                      .head_dim = 128,
                      .windows = WindowFields::some_layers,
                      .has_attention_bias = true},
     .gguf = {.architecture = "qwen3", .has_biases = false}},
    {.arch = Arch::smollm3,
     .name = "smollm3",
     .about = "llama without RoPE in every 4th block",
     .facts = {.norm = NormKind::rms, .positions = Positions::rope, .mlp = MlpKind::gated, .nope_every = 4},
     .hugging_face = {.model_type = "smollm3",
                      .architecture = "SmolLM3ForCausalLM",
                      .kv_heads = 4,
                      .windows = WindowFields::never,
                      .rope_theta = 2e6,
                      .tied = true,
                      .pad_token = 128004,
                      .has_attention_bias = true,
                      .has_mlp_bias = true}},
    {.arch = Arch::olmo2,
     .name = "olmo2",
     .about = "llama with RMS norms of queries and keys, and with norms after attention and MLP instead of before",
     .facts = {.norm = NormKind::rms,
               .positions = Positions::rope,
               .mlp = MlpKind::gated,
               .qk_norm = QkNorm::full,
               .norm_place = NormPlace::post},
     .hugging_face = {.model_type = "olmo2",
                      .architecture = "Olmo2ForCausalLM",
                      .norm_eps = 1e-5,
                      .pad_token = 1,
                      .has_attention_bias = true}},
    {.arch = Arch::mixtral,
     .name = "mixtral",
     .about = "llama with mixtures of experts as MLPs",
     .facts = {.norm = NormKind::rms,
               .positions = Positions::rope,
               .mlp = MlpKind::gated,
               .experts = true,
               .norm_topk = true},
     .hugging_face = {.model_type = "mixtral",
                      .architecture = "MixtralForCausalLM",
                      .kv_heads = 8,
                      .windows = WindowFields::all_layers,
                      .experts = ExpertFields::mixtral,
                      .rope_theta = 1e6,
                      .norm_eps = 1e-5},
     .gguf = {.architecture = "llama", .turns_pairs = true, .norm_topk = true}},
    {.arch = Arch::olmoe,
     .name = "olmoe",
     .about = "mixtral with RMS norms of queries and keys",
     .facts = {.norm = NormKind::rms,
               .positions = Positions::rope,
               .mlp = MlpKind::gated,
               .qk_norm = QkNorm::full,
               .experts = true},
     .hugging_face = {.model_type = "olmoe",
                      .architecture = "OlmoeForCausalLM",
                      .experts = ExpertFields::olmoe,
                      .norm_eps = 1e-5,
                      .pad_token = 1,
                      .has_attention_bias = true},
     .gguf = {.architecture = "olmoe", .has_biases = false, .fixed_heads = true, .ties = false}},
    {.arch = Arch::qwen2_moe,
     .name = "qwen2_moe",
     .about = "qwen2 with mixtures of experts as MLPs and, with d_shared, a shared expert",
     .facts = {.norm = NormKind::rms,
               .positions = Positions::rope,
               .mlp = MlpKind::gated,
               .attn_bias = AttentionBias::qkv,
               .experts = true,
               .shared_expert = true},
     .hugging_face = {.model_type = "qwen2_moe",
                      .architecture = "Qwen2MoeForCausalLM",
                      .kv_heads = 16,
                      .windows = WindowFields::never,
                      .experts = ExpertFields::qwen},
     .gguf = {.architecture = "qwen2moe", .fixed_heads = true, .ties = false}},
    {.arch = Arch::qwen3_moe,
     .name = "qwen3_moe",
     .about = "qwen3 with mixtures of experts as MLPs",
     .facts = {.norm = NormKind::rms,
               .positions = Positions::rope,
               .mlp = MlpKind::gated,
               .qk_norm = QkNorm::head,
               .experts = true,
               .norm_topk = true},
     .hugging_face = {.model_type = "qwen3_moe",
                      .architecture = "Qwen3MoeForCausalLM",
                      .kv_heads = 4,
                      .windows = WindowFields::never,
                      .experts = ExpertFields::qwen,
                      .has_attention_bias = true},
     .gguf = {.architecture = "qwen3moe", .has_biases = false, .norm_topk = true}},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family& family_of(const Model& model) {
  const auto index = static_cast<size_t>(model.arch);
  TRAINER_CHECK(index < std::size(kFamilies) && kFamilies[index].arch == model.arch, "family {} is not in its row",
                index);
  return kFamilies[index];
}

const Family* find_family(std::string_view name) {
  const auto* const found = std::ranges::find(kFamilies, name, &Family::name);
  return found == std::end(kFamilies) ? nullptr : found;
}

void set_family(Model& model, Arch arch) {
  model.arch = arch;
  model.family = family_of(model).facts;
}

}  // namespace trainer::config
