// The keys of [model].
#include <algorithm>

#include "base/format.h"
#include "base/join.h"
#include "config/declare.h"
#include "config/families.h"

namespace trainer::config {
namespace {

/// Describes a value that depends on the family, the most frequent one last: "gpt2: true; else false".
template <typename F>
std::string by_family(const F& value_of) {
  std::vector<std::pair<std::string, StringList>> values;  // with the names of their families
  for (const Family& family : families()) {
    const std::string value = value_of(family.facts);
    auto found = std::ranges::find(values, value, [](const auto& each) { return each.first; });
    if (found == values.end()) found = values.insert(found, {value, {}});
    found->second.push_back(family.name);
  }
  const auto usual = std::ranges::max_element(values, {}, [](const auto& each) { return each.second.size(); });
  std::string text;
  for (auto each = values.begin(); each != values.end(); ++each)
    if (each != usual) text += format("{}: {}; ", fmt::join(each->second, ", "), each->first);
  return text.empty() ? usual->first : text + "else " + usual->first;
}

/// Describes the families: "gpt2: …. llama and mistral: …."
std::string about_families() {
  std::string text;
  for (const Family& family : families()) {
    const bool same = text.ends_with(format(": {}.", family.about));
    if (same)
      text.insert(text.rfind(':'), format(" and {}", family.name));
    else
      text += format(" {}: {}.", family.name, family.about);
  }
  return text;
}

}  // namespace

void declare_model(std::vector<Key>& keys) {
  Declare<Model> model(keys, "model", &Config::model);
  StringList names;
  for (const Family& family : families()) names.push_back(family.name);
  model.choice("arch", &Model::arch, Arch::gpt2, names, "Architecture." + about_families());
  model.integer("n_layer", &Model::n_layer, 12, {.range = between(1, 10'000), .unit = "blocks"},
                "Number of transformer blocks.");
  model.integer("n_head", &Model::n_head, 12, {.range = between(1, 65'536), .unit = "heads"},
                "Number of query heads; must divide d_model unless head_dim is set.");
  model.integer("n_kv_head", &Model::n_kv_head, 0, {.range = between(1, 65'536), .unit = "heads", .derived = "n_head"},
                "Number of key and value heads; must divide n_head. Set it below n_head for grouped-query attention.");
  model.integer("d_model", &Model::d_model, 768, {.range = between(1, 1'048'576), .unit = "features"},
                "Width of the residual stream.");
  model.integer("head_dim", &Model::head_dim, 0,
                {.range = between(1, 65'536), .unit = "features", .derived = "d_model / n_head"},
                "Size of a head; queries have n_head x head_dim features. Must be even with RoPE.");
  model.integer("d_ff", &Model::d_ff, 0,
                {.range = between(1, 16'777'216),
                 .unit = "features",
                 .derived = by_family([](const FamilyFacts& f) {
                   return f.mlp == MlpKind::plain ? "4 d_model" : "8/3 d_model, rounded up to a multiple of 64";
                 })},
                "Width of the feed-forward layer. With experts it is that of the blocks without experts, which "
                "moe_every above 1 leaves, and has no default.");
  model.integer("seq_len", &Model::seq_len, 1024, {.range = between(2, 16'777'216), .unit = "tokens"},
                "Length of training sequences and of the context window.");
  model.integer("max_positions", &Model::max_positions, 0,
                {.range = between(2, 1e9), .unit = "tokens", .derived = "seq_len"},
                "Context length that `checkpoint export` declares; training does not use it.");
  model.boolean("tie_embeddings", &Model::tie_embeddings,
                by_family([](const FamilyFacts& f) { return f.tied ? "true" : "false"; }),
                "The output head shares the token embedding's weights.");
  model.boolean("bias", &Model::bias, by_family([](const FamilyFacts& f) { return f.bias ? "true" : "false"; }),
                "Linear layers and norms have biases.");
  model.choice("activation", &Model::activation, {std::begin(kActivationNames), std::end(kActivationNames)},
               by_family([](const FamilyFacts& f) { return kActivationNames[static_cast<size_t>(activation_of(f))]; }),
               "Activation in the feed-forward block. gelu: GELU in its tanh form; gelu_erf: exact GELU; silu: SiLU, "
               "in gated blocks only.");
  model.choice("attn_bias", &Model::attn_bias, {std::begin(kAttentionBiasNames), std::end(kAttentionBiasNames)},
               "all with bias; " + by_family([](const FamilyFacts& f) {
                 return kAttentionBiasNames[static_cast<size_t>(f.attn_bias)];
               }),
               "Biases in attention. none: no linear has one; qkv: the query, key and value projections; all: every "
               "linear.");
  model.boolean("mlp_bias", &Model::mlp_bias, "bias", "Biases in the linear layers of the feed-forward block.");
  model.choice(
      "qk_norm", &Model::qk_norm, {std::begin(kQkNormNames), std::end(kQkNormNames)},
      by_family([](const FamilyFacts& f) { return kQkNormNames[static_cast<size_t>(f.qk_norm)]; }),
      "RMS norms of queries and keys before RoPE. none: no norms; head: one per head, with a gain that all heads "
      "share (Qwen3); full: one over all heads together (OLMo 2). They bound the attention scores, which prevents loss "
      "spikes.");
  model.choice(
      "norm_place", &Model::norm_place, {std::begin(kNormPlaceNames), std::end(kNormPlaceNames)},
      by_family([](const FamilyFacts& f) { return kNormPlaceNames[static_cast<size_t>(f.norm_place)]; }),
      "Place of the norms in attention and MLP. pre: before the first linear; post: after the last linear, before "
      "the result is added to the residual stream (OLMo 2); both: a norm in each place (Gemma).");
  model.boolean("parallel_residual", &Model::parallel_residual,
                by_family([](const FamilyFacts& f) { return f.parallel_residual ? "true" : "false"; }),
                "Attention and MLP read the same input, and both are added to it (GPT-NeoX).");
  model.number("norm_eps", &Model::norm_eps, 0,
               {.range = above(0), .derived = by_family([](const FamilyFacts& f) { return to_toml(f.norm_eps); })},
               "Added to the variance in norms.");
  model.number("rope_theta", &Model::rope_theta, 0,
               {.range = at_least(1), .derived = by_family([](const FamilyFacts& f) { return to_toml(f.rope_theta); })},
               "Base of the RoPE frequencies (all but gpt2).");
  model.integer("rotary_dim", &Model::rotary_dim, 0,
                {.range = between(2, 65'536), .unit = "features", .derived = by_family([](const FamilyFacts& f) {
                                                                    return f.rotary_part == 1
                                                                               ? std::string("head_dim")
                                                                               : format("head_dim / {}", f.rotary_part);
                                                                  })},
                "Features of a head, its first ones, that RoPE rotates; even.");
  model.choice(
      "rope_type", &Model::rope_type, RopeType::plain, {std::begin(kRopeNames), std::end(kRopeNames)},
      "Scaling of the RoPE frequencies, for contexts longer than rope_original. default: no scaling; linear: "
      "divide all frequencies by rope_factor; llama3 (Llama 3.1) and yarn (Qwen): divide only low frequencies.");
  model.number("rope_factor", &Model::rope_factor, 0,
               {.range = at_least(1), .derived = "required with linear, llama3 and yarn"},
               "Factor by which RoPE scaling extends the context.");
  model.integer("rope_original", &Model::rope_original, 0,
                {.range = between(1, 16'777'216), .unit = "tokens", .derived = "required with llama3 and yarn"},
                "Context length before scaling.");
  model.number("rope_low_freq", &Model::rope_low_freq, 1, {.range = above(0)},
               "llama3: frequencies with fewer rotations than this within rope_original are divided by rope_factor.");
  model.number("rope_high_freq", &Model::rope_high_freq, 4, {.range = above(0)},
               "llama3: frequencies with more rotations than this within rope_original are not scaled.");
  model.number("rope_beta_fast", &Model::rope_beta_fast, 32, {.range = above(0)},
               "yarn: frequencies with more rotations than this within rope_original are not scaled.");
  model.number("rope_beta_slow", &Model::rope_beta_slow, 1, {.range = above(0)},
               "yarn: frequencies with fewer rotations than this within rope_original are divided by rope_factor.");
  model.number("rope_attention", &Model::rope_attention, 0, {.range = above(0), .derived = "0.1 ln(rope_factor) + 1"},
               "yarn: factor by which cos and sin are multiplied.");
  model.boolean("rope_truncate", &Model::rope_truncate, true,
                "yarn: round the bounds of the transition between the two betas outwards to whole feature pairs.");
  model.integer("window", &Model::window, -1,
                {.range = between(0, 16'777'216), .unit = "tokens", .derived = by_family([](const FamilyFacts& f) {
                                                                      return std::to_string(f.window);
                                                                    })},
                "Sliding-window attention (Mistral): each token sees this many tokens, itself included; 0: all earlier "
                "tokens of the sequence.");
  model.integer("window_full_every", &Model::window_full_every, -1,
                {.range = between(0, 10'000), .unit = "blocks", .derived = by_family([](const FamilyFacts& f) {
                                                                  return std::to_string(f.window_full_every);
                                                                })},
                "Blocks whose number, counted from 1, is a multiple of this have no window; 0: all blocks have one.");
  model.number("attn_scalar", &Model::attn_scalar, 0, {.range = above(0), .derived = "head_dim"},
               "Attention scores are divided by the square root of this number.");
  model.number("window_rope_theta", &Model::window_rope_theta, -1,
               {.range = at_least(0), .derived = by_family([](const FamilyFacts& f) {
                                        return f.window_rope_theta == kUnscaledBase
                                                   ? std::string("rope_theta if rope_type is set")
                                                   : to_toml(f.window_rope_theta);
                                      })},
               "Base of the RoPE of blocks with a window, whose frequencies are not scaled (OLMo 3); 0: they have the "
               "same RoPE as the other blocks.");
  model.integer("nope_every", &Model::nope_every, between(0, 10'000),
                by_family([](const FamilyFacts& f) { return std::to_string(f.nope_every); }),
                "Blocks whose number, counted from 1, is a multiple of this have no RoPE; 0: all blocks have it.");
  model.integer("n_expert", &Model::n_expert, 0, {.range = between(0, 1024), .unit = "experts"},
                "Number of experts of each block whose MLP is a mixture of experts (MoE); required by mixtral, olmoe, "
                "qwen2_moe and qwen3_moe, and for other families 0: a router chooses the experts that compute a token, "
                "and tokens are never dropped.");
  model.integer("experts_per_token", &Model::experts_per_token, 2, {.range = between(1, 32), .unit = "experts"},
                "Number of experts that compute each token. More take more time, but no memory for weights.");
  model.integer("d_expert", &Model::d_expert, 0,
                {.range = between(1, 16'777'216), .unit = "features", .derived = "required with n_expert"},
                "Width of an expert.");
  model.integer("d_shared", &Model::d_shared, 0, {.range = between(0, 16'777'216), .unit = "features"},
                "Width of the shared expert, which computes every token in addition to the chosen ones (qwen2_moe); 0: "
                "there is none.");
  model.integer("moe_every", &Model::moe_every, 1, {.range = between(1, 10'000), .unit = "blocks"},
                "Blocks whose number, counted from 1, is a multiple of this have experts; all other blocks have an MLP "
                "of width d_ff.");
  model.boolean("norm_topk", &Model::norm_topk,
                by_family([](const FamilyFacts& f) { return f.norm_topk ? "true" : "false"; }),
                "Scale the weights of the experts that compute a token so that they sum to 1.");
  model.number("logit_softcap", &Model::logit_softcap, 0, {.range = at_least(0)},
               "Soft cap of the logits, cap x tanh(logit / cap), with this cap (Gemma); 0: none.");
  model.number("dropout", &Model::dropout, 0, {.range = fraction()},
               "Dropout probability after the embedding, in attention and at the end of each residual branch.");
  model.number(
      "init_std", &Model::init_std, 0.02, {.range = above(0)},
      "Standard deviation of initial weights; projections into the residual stream use it divided by sqrt(2 n_layer), "
      "unless a norm follows them.");
  model.integer("vocab_multiple", &Model::vocab_multiple, 0,
                {.range = between(1, 65'536), .derived = "128 for each part into which the vocabulary is split"},
                "The vocabulary is padded in memory to a multiple of this number; padding has probability 0 and is not "
                "stored in checkpoints.");
  model.string(
      "init_from", &Model::init_from, "", {},
      "Initial weights of a new run: a checkpoint (a step, checkpoints or run folder), or a folder of Hugging Face "
      "files, whose config.json then also determines the keys of [model] that are not set. Empty: random weights. "
      "Experts may "
      "begin as copies of the MLPs of a dense model with d_ff = d_expert (upcycling), which saves compute in short "
      "runs.");
}

}  // namespace trainer::config
