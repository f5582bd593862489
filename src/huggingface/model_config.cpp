#include "huggingface/model_config.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "config/families.h"
#include "config/load.h"
#include "data/python_json.h"
#include "huggingface/expert_fields.h"
#include "huggingface/json_fields.h"
#include "huggingface/layer_fields.h"
#include "huggingface/rope_fields.h"

namespace trainer::huggingface {

using config::Family;
using config::HuggingFaceFamily;

namespace {

constexpr const char *kConfigJson = "config.json", *kGenerationConfigJson = "generation_config.json";

// Families that need more than this program has.
constexpr std::pair<const char*, const char*> kUnsupported[] = {
    {"deepseek_v3", "it has latent attention (MLA), interleaved RoPE, and a router with sigmoid scores and groups"},
    {"gemma2", "it has a soft cap of attention scores"},
    {"gemma3n", "it has embeddings in each layer and shared caches"},
    {"gpt_oss", "it has attention sinks, and experts with biases and clamped activations"}};

[[noreturn]] void cannot_represent(const std::string& key, const std::string& value, const std::string& reason) {
  throw Error(Code::checkpoint, format("model.{} = {} cannot be exported: {}", key, value, reason));
}

/// Throws if the model has windows, layers without RoPE, bounded logits or norms that the family lacks.
void require_same_features(const config::Model& m, const Family& family) {
  const std::string type =
      family.hugging_face.form == config::FileForm::gpt2 ? "GPT-2" : family.hugging_face.model_type;
  const WindowFields windows = family.hugging_face.windows;
  const config::QkNorm qk_norm = family.facts.qk_norm;
  const bool listed = windows == WindowFields::listed;
  if (m.logit_softcap > 0 && !family.hugging_face.is_gemma)
    cannot_represent("logit_softcap", format("{}", m.logit_softcap),
                     format("Hugging Face's {} has no logit soft cap", type));
  if (m.window_rope_theta > 0 && !listed)
    cannot_represent("window_rope_theta", format("{}", m.window_rope_theta),
                     format("Hugging Face's {} has the same RoPE in all layers; arch = \"olmo3\" need not", type));
  if (m.window > 0 && windows != WindowFields::all_layers && windows != WindowFields::some_layers && !listed)
    cannot_represent(
        "window", format("{}", m.window),
        format("Hugging Face's {} has no windows; arch = \"mistral\", \"qwen2\" and \"qwen3\" have them", type));
  if (m.window_full_every > 0 && windows != WindowFields::some_layers && !listed)
    cannot_represent("window_full_every", format("{}", m.window_full_every),
                     format("Hugging Face's {} has the same window in all layers; arch = \"qwen2\" and \"qwen3\" may "
                            "have it in some",
                            type));
  if (rotary_size(m) != head_size(m) && family.facts.rotary_part == 1)
    cannot_represent("rotary_dim", format("{}", rotary_size(m)),
                     format("Hugging Face's {} rotates all features of a head ({}); arch = \"gpt_neox\" need not", type,
                            head_size(m)));
  if (has_parallel_residual(m) && !family.facts.parallel_residual)
    cannot_represent("parallel_residual", "true",
                     format("Hugging Face's {} has attention and MLP one after the other; arch = \"gpt_neox\" may have "
                            "them in parallel",
                            type));
  if (nope_interval(m) > 0 && family.facts.nope_every == 0)
    cannot_represent("nope_every", format("{}", nope_interval(m)),
                     format("Hugging Face's {} has RoPE in all layers; arch = \"smollm3\" leaves some out", type));
  if (query_key_norm(m) != qk_norm)
    cannot_represent("qk_norm", format("\"{}\"", config::kQkNormNames[static_cast<size_t>(query_key_norm(m))]),
                     format("attention in Hugging Face's {} {}; arch = \"qwen3\" has \"head\", \"olmo2\" has \"full\", "
                            "others such as \"llama\" have \"none\"",
                            type,
                            qk_norm == config::QkNorm::none   ? "does not normalize queries and keys"
                            : qk_norm == config::QkNorm::head ? "always normalizes queries and keys per head"
                                                              : "always normalizes queries and keys over all heads"));
  if (const config::NormPlace place = place_of_norms(m); place != family.facts.norm_place) {
    constexpr const char *kPlaces[] = {"before", "after", "before and after"},
                         *kFamilies[] = {"llama", "olmo2", "gemma3"};
    const auto mine = static_cast<size_t>(place), theirs = static_cast<size_t>(family.facts.norm_place);
    cannot_represent("norm_place", format("\"{}\"", config::kNormPlaceNames[mine]),
                     format("Hugging Face's {} has its norms {} attention and MLP; arch = \"{}\" has them {}", type,
                            kPlaces[theirs], kFamilies[mine], kPlaces[mine]));
  }
  if (score_scalar(m) != static_cast<double>(head_size(m)) && !family.hugging_face.is_gemma)
    cannot_represent("attn_scalar", format("{}", score_scalar(m)),
                     format("Hugging Face's {} divides scores by the square root of head_dim = {}; arch = \"gemma3\" "
                            "need not",
                            type, head_size(m)));
}

/// Names of the two forms of GELU in config.json; the file's default, and export, have the first one of a form.
constexpr const char *kExactGelu = "gelu", *kTanhGelus[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};

void add_gelu(const config::Model& m, const char* field, ordered_json& out) {
  out[field] = activation_of(m) == config::Activation::gelu_erf ? kExactGelu : kTanhGelus[0];
}
void read_gelu(const Fields& fields, const char* field, const char* otherwise, Keys& keys) {
  fields.demand_one_of(field, {kExactGelu, kTanhGelus[0], kTanhGelus[1], kTanhGelus[2]});
  const bool exact = (fields.find(field) != nullptr ? *fields.find(field) : json(otherwise)) == kExactGelu;
  keys.add("activation", std::string(exact ? "gelu_erf" : "gelu"));
}

/// Throws if Hugging Face's GPT-2 cannot represent the model.
void require_gpt2(const config::Model& m, const Family& family) {
  require_same_features(m, family);
  if (m.n_kv_head != m.n_head)
    cannot_represent("n_kv_head", format("{}", m.n_kv_head),
                     format("Hugging Face's GPT-2 has as many key and value heads as query heads ({})", m.n_head));
  if (attention_width(m) != m.d_model)
    cannot_represent("head_dim", format("{}", m.head_dim),
                     format("Hugging Face's GPT-2 has heads of d_model / n_head = {} / {}", m.d_model, m.n_head));
}

void add_gpt2(const config::Model& m, const Family& family, ordered_json& out) {
  require_gpt2(m, family);
  out["n_positions"] = m.seq_len;
  out["n_embd"] = m.d_model;
  out["n_layer"] = m.n_layer;
  out["n_head"] = m.n_head;
  out["n_inner"] = m.d_ff;
  add_gelu(m, "activation_function", out);
  out["layer_norm_epsilon"] = m.norm_eps;
  for (const char* place : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) out[place] = m.dropout;
  out["scale_attn_weights"] = true;
  out["scale_attn_by_inverse_layer_idx"] = false;
  out["reorder_and_upcast_attn"] = false;
}

/// Throws if Hugging Face's models of a family derived from Llama cannot represent the model.
void require_llama(const config::Model& m, const Family& family) {
  using config::AttentionBias;
  const auto quoted = [](const char* name) { return format("\"{}\"", name); };
  const HuggingFaceFamily& theirs = family.hugging_face;
  const std::string type = theirs.model_type;
  if (m.bias.value())
    cannot_represent("bias", "true",
                     format("the norms of Hugging Face's {} have no biases; train with model.bias = false", type));
  const AttentionBias bias = attention_bias(m);
  const bool qkv = family.facts.attn_bias == AttentionBias::qkv;
  if (qkv ? bias != AttentionBias::qkv
          : bias == AttentionBias::qkv || (bias == AttentionBias::all && !theirs.has_attention_bias))
    cannot_represent("attn_bias", quoted(config::kAttentionBiasNames[static_cast<size_t>(bias)]),
                     format("Hugging Face's {} has biases in {}; arch = \"qwen2\" has \"qkv\", \"llama\" and "
                            "\"qwen3\" have \"none\" and \"all\", \"mistral\" has \"none\"",
                            type,
                            qkv                         ? "the query, key and value projections"
                            : theirs.has_attention_bias ? "all linear layers of attention or none of them"
                                                        : "no linear layer"));
  if (has_mlp_bias(m) && !theirs.has_mlp_bias)
    cannot_represent("mlp_bias", "true",
                     format("Hugging Face's {} has no MLP biases; arch = \"llama\" has them", type));
  require_same_features(m, family);
  if (activation_of(m) != activation_of(family.facts))
    cannot_represent("activation", quoted(config::kActivationNames[static_cast<size_t>(activation_of(m))]),
                     format("the MLPs of Hugging Face's {} have \"{}\"", type,
                            config::kActivationNames[static_cast<size_t>(activation_of(family.facts))]));
  require_experts(m, family);
  if (theirs.windows == WindowFields::listed) require_layer_rope(m, family);
  if (theirs.heads_divide_width && m.d_model % m.n_head != 0)
    cannot_represent("n_head", format("{}", m.n_head),
                     format("Hugging Face's {} needs n_head to divide d_model = {}", type, m.d_model));
}

constexpr const char *kScalar = "query_pre_attn_scalar", *kLogitCap = "final_logit_softcapping",
                     *kScoreCap = "attn_logit_softcapping";

/// Writes and reads what only Gemma's files have.
void add_gemma(const config::Model& m, ordered_json& out) {
  const double scalar = score_scalar(m);
  out["hidden_activation"] = kTanhGelus[1];
  out[kScalar] = scalar == std::floor(scalar) ? ordered_json(static_cast<int64_t>(scalar)) : ordered_json(scalar);
  out[kLogitCap] = m.logit_softcap > 0 ? ordered_json(m.logit_softcap) : ordered_json();
  out[kScoreCap] = nullptr;
}
void read_gemma(const Fields& fields, Keys& keys) {
  fields.demand("hidden_activation", kTanhGelus[1]);
  fields.demand("use_bidirectional_attention", false);  // attention is causal here
  if (const json* cap = fields.find(kScoreCap))
    fields.refuse(kScoreCap, format("{} is not supported; expected null", json_text(*cap)));
  keys.add("attn_scalar", fields.number(kScalar, 256));
  keys.add("logit_softcap", fields.number(kLogitCap, 0));
}

void add_llama(const config::Model& m, const Family& family, ordered_json& out) {
  require_llama(m, family);
  const HuggingFaceFamily& theirs = family.hugging_face;
  if (m.dropout > 0)
    log::info(
        "model.dropout = {} is not exported, since Hugging Face's {} has no dropout; evaluation and generation do not "
        "use it",
        m.dropout, theirs.model_type);
  out["max_position_embeddings"] = m.max_positions > 0 ? m.max_positions : m.seq_len;
  out["hidden_size"] = m.d_model;
  add_experts(m, theirs.experts, out);
  out["num_hidden_layers"] = m.n_layer;
  out["num_attention_heads"] = m.n_head;
  out["num_key_value_heads"] = m.n_kv_head;
  out["head_dim"] = head_size(m);
  if (theirs.is_gemma)
    add_gemma(m, out);
  else
    out["hidden_act"] = "silu";
  out["rms_norm_eps"] = m.norm_eps;
  if (theirs.windows == WindowFields::listed)
    add_layer_rope(m, family, out);
  else
    add_rope(m, out);
  if (theirs.has_attention_bias) out["attention_bias"] = attention_bias(m) == config::AttentionBias::all;
  if (theirs.has_mlp_bias) out["mlp_bias"] = has_mlp_bias(m);
  add_windows(m, theirs.windows, out);
  if (family.facts.nope_every > 0) add_nope(m, out);
  out["attention_dropout"] = 0.0;
}

/// Returns the ids of special tokens for one of the files: as the imported model's file had them, if there was one.
ordered_json token_ids(const data::SpecialTokens& special, const char* file) {
  const ordered_json eos = special.eos.size() > 1    ? ordered_json(special.eos)
                           : special.eos.size() == 1 ? ordered_json(special.eos.front())
                                                     : ordered_json();
  if (const auto found = special.fields.find(file); found != special.fields.end()) {
    auto ids = parse_json<ordered_json>(found->second);
    if (!special.chat_format.empty()) ids["eos_token_id"] = eos;  // has the end of a turn
    return ids;
  }
  ordered_json ids;
  ids["bos_token_id"] = special.bos ? ordered_json(*special.bos) : ordered_json();
  ids["eos_token_id"] = eos;
  if (special.pad) ids["pad_token_id"] = *special.pad;
  return ids;
}

void read_gpt2(const Fields& fields, const Family&, int64_t seq_len, Keys& keys) {
  const int64_t width = fields.size("n_embd"), heads = fields.size("n_head");
  if (width % heads != 0) fields.refuse("n_head", format("{} does not divide n_embd = {}", heads, width));
  keys.add("n_layer", fields.size("n_layer"));
  keys.add("n_head", heads);
  keys.add("d_model", width);
  keys.add("d_ff", fields.size("n_inner", 4 * width));
  const int64_t positions = fields.size("n_positions");
  if (seq_len > 0 && seq_len != positions)
    fields.refuse(
        "n_positions",
        format("{}, but a length of {} was requested; GPT-2's learned positions fix the length", positions, seq_len));
  keys.add("seq_len", positions);
  keys.add("norm_eps", fields.number("layer_norm_epsilon", 1e-5));
  read_gelu(fields, "activation_function", "gelu_new", keys);
  fields.demand("scale_attn_weights", true);
  fields.demand("scale_attn_by_inverse_layer_idx", false);
  fields.demand("add_cross_attention", false);
  constexpr double kDefaultDropout = 0.1;
  const double dropout = fields.number("resid_pdrop", kDefaultDropout);
  for (const char* place : {"embd_pdrop", "attn_pdrop"})
    if (fields.number(place, kDefaultDropout) != dropout)
      fields.refuse(place, format("{}, but resid_pdrop is {}: this program supports only one dropout rate; make them "
                                  "equal in the file (results do not depend on it)",
                                  fields.number(place, kDefaultDropout), dropout));
  keys.add("dropout", dropout);
  keys.add("tie_embeddings", fields.flag("tie_word_embeddings", true));
}

/// Published models have longer contexts than a run usually trains on and than a KV cache should hold by default.
void read_length(const Fields& fields, int64_t requested, Keys& keys) {
  constexpr int64_t kLongest = 4096;
  const int64_t declared = fields.size("max_position_embeddings"),
                length = requested > 0 ? requested : std::min(declared, kLongest);
  if (length < declared) {
    if (requested == 0)
      log::info(
          "max_position_embeddings = {}: model.seq_len is {} unless it is set; raise it to train on longer sequences",
          declared, length);
    keys.add("max_positions", declared);
  }
  keys.add("seq_len", length);
}

void read_llama(const Fields& fields, const Family& family, int64_t seq_len, Keys& keys) {
  const HuggingFaceFamily& theirs = family.hugging_face;
  const int64_t width = fields.size("hidden_size"), heads = fields.size("num_attention_heads");
  if (width % heads != 0 && theirs.heads_divide_width)
    fields.refuse("num_attention_heads", format("{} does not divide {}", heads, width));
  const bool given = fields.find("head_dim") != nullptr;
  if (!given && theirs.head_dim == 0 && width % heads != 0)
    fields.refuse("num_attention_heads", format("{} does not divide {}, and head_dim is missing", heads, width));
  const int64_t head = given ? fields.size("head_dim") : theirs.head_dim > 0 ? theirs.head_dim : width / heads;
  if (head * heads != width) keys.add("head_dim", head);
  if (head % 2 != 0) fields.refuse("head_dim", format("{} is odd: RoPE rotates pairs of features", head));
  const bool all_heads = theirs.kv_heads == 0 || fields.has_null("num_key_value_heads");
  const int64_t kv_heads = fields.size("num_key_value_heads", all_heads ? heads : theirs.kv_heads);
  if (heads % kv_heads != 0)
    fields.refuse("num_key_value_heads", format("{} does not divide num_attention_heads = {}", kv_heads, heads));
  const int64_t layers = fields.size("num_hidden_layers");
  keys.add("n_layer", layers);
  keys.add("n_head", heads);
  keys.add("n_kv_head", kv_heads);
  keys.add("d_model", width);
  read_experts(fields, family, layers, keys);
  read_length(fields, seq_len, keys);
  const int64_t window = read_windows(fields, family, layers, keys);
  if (family.facts.nope_every > 0) read_nope(fields, layers, keys);
  keys.add("norm_eps", fields.number("rms_norm_eps", theirs.norm_eps));
  if (theirs.windows == WindowFields::listed)
    read_layer_rope(fields, family, window > 0, keys);
  else
    read_rope(fields, theirs.rope_theta, keys);
  if (theirs.is_gemma)
    read_gemma(fields, keys);
  else
    fields.demand_one_of("hidden_act", {"silu", "swish"});
  if (theirs.has_attention_bias && fields.flag("attention_bias", false)) keys.add("attn_bias", std::string("all"));
  if (theirs.has_mlp_bias && fields.flag("mlp_bias", false)) keys.add("mlp_bias", true);
  fields.demand("partial_rotary_factor", 1.0);
  if (const double dropout = fields.number("attention_dropout", 0); dropout != 0)
    fields.refuse("attention_dropout",
                  format("{}: this program would apply dropout elsewhere too; set it to 0 in the file (results do not "
                         "depend on it) and train with model.dropout",
                         dropout));
  keys.add("tie_embeddings", fields.flag("tie_word_embeddings", theirs.tied));
}

/// Throws if Hugging Face's GPT-NeoX cannot represent the model.
void require_neox(const config::Model& m, const Family& family) {
  using config::AttentionBias;
  require_same_features(m, family);
  require_experts(m, family);
  const char* const all = "the norms and MLPs of Hugging Face's gpt_neox have biases; train with true";
  if (!m.bias.value()) cannot_represent("bias", "false", all);
  if (!has_mlp_bias(m)) cannot_represent("mlp_bias", "false", all);
  if (attention_bias(m) == AttentionBias::qkv)
    cannot_represent("attn_bias", "\"qkv\"",
                     "Hugging Face's gpt_neox has biases in all linears of attention or in none");
  if (m.n_kv_head != m.n_head)
    cannot_represent("n_kv_head", format("{}", m.n_kv_head),
                     format("Hugging Face's gpt_neox has as many key and value heads as query heads ({})", m.n_head));
  if (attention_width(m) != m.d_model)
    cannot_represent("head_dim", format("{}", m.head_dim),
                     format("Hugging Face's gpt_neox has heads of d_model / n_head = {} / {}", m.d_model, m.n_head));
}

void add_neox(const config::Model& m, const Family& family, ordered_json& out) {
  require_neox(m, family);
  out["max_position_embeddings"] = m.max_positions > 0 ? m.max_positions : m.seq_len;
  out["hidden_size"] = m.d_model;
  out["intermediate_size"] = m.d_ff;
  out["num_hidden_layers"] = m.n_layer;
  out["num_attention_heads"] = m.n_head;
  add_gelu(m, "hidden_act", out);
  out["layer_norm_eps"] = m.norm_eps;
  add_neox_rope(m, out);
  out["use_parallel_residual"] = has_parallel_residual(m);
  out["attention_bias"] = attention_bias(m) == config::AttentionBias::all;
  for (const char* place : {"hidden_dropout", "attention_dropout"}) out[place] = m.dropout;
}

void read_neox(const Fields& fields, const Family& family, int64_t seq_len, Keys& keys) {
  const int64_t width = fields.size("hidden_size"), heads = fields.size("num_attention_heads");
  if (width % heads != 0) fields.refuse("num_attention_heads", format("{} does not divide {}", heads, width));
  if (fields.size("num_key_value_heads", heads) != heads)
    fields.refuse("num_key_value_heads", format("{}, but gpt_neox has as many key and value heads as query heads ({})",
                                                fields.size("num_key_value_heads"), heads));
  keys.add("n_layer", fields.size("num_hidden_layers"));
  keys.add("n_head", heads);
  keys.add("d_model", width);
  keys.add("d_ff", fields.size("intermediate_size"));
  read_length(fields, seq_len, keys);
  fields.demand_absent("sliding_window");
  keys.add("norm_eps", fields.number("layer_norm_eps", family.hugging_face.norm_eps));
  read_neox_rope(fields, width / heads, keys);
  read_gelu(fields, "hidden_act", kExactGelu, keys);
  keys.add("parallel_residual", fields.flag("use_parallel_residual", true));
  if (!fields.flag("attention_bias", true)) keys.add("attn_bias", std::string("none"));
  const double dropout = fields.number("hidden_dropout", 0);
  if (const double other = fields.number("attention_dropout", 0); other != dropout)
    fields.refuse("attention_dropout", format("{}, but hidden_dropout is {}: this program supports only one dropout "
                                              "rate; make them equal in the file (results do not depend on it)",
                                              other, dropout));
  keys.add("dropout", dropout);
  keys.add("tie_embeddings", fields.flag("tie_word_embeddings", false));
}

/// The functions for a form of config.json.
struct Form {
  /// Throws if models of the family cannot represent the model.
  void (*require)(const config::Model&, const Family&);
  void (*add)(const config::Model&, const Family&, ordered_json&);
  void (*read)(const Fields&, const Family&, int64_t seq_len, Keys&);
};
constexpr Form kForms[] = {{require_gpt2, add_gpt2, read_gpt2},  // by FileForm
                           {require_llama, add_llama, read_llama},
                           {require_neox, add_neox, read_neox}};
const Form& form_of(const Family& family) { return kForms[static_cast<size_t>(family.hugging_face.form)]; }

}  // namespace

std::string to_config_json(const config::Model& model, int64_t vocab, const std::optional<data::SpecialTokens>& special,
                           FloatType type) {
  const Family& family = config::family_of(model);
  ordered_json out;
  out["architectures"] = {family.hugging_face.architecture};
  out["model_type"] = family.hugging_face.model_type;
  out["vocab_size"] = vocab;
  form_of(family).add(model, family, out);
  out["initializer_range"] = model.init_std;
  out["tie_word_embeddings"] = model.tie_embeddings.value();
  out.update(token_ids(special.value_or(data::SpecialTokens()), kConfigJson));
  // A missing field is the family's default there, which an imported model may have meant if the vocabulary has it.
  const int64_t default_pad = family.hugging_face.pad_token;
  const bool imported = special && special->fields.contains(kConfigJson);
  if (default_pad >= (imported ? vocab : 0) && !out.contains("pad_token_id")) out["pad_token_id"] = nullptr;
  out["use_cache"] = true;
  out["torch_dtype"] = torch_name(type);
  return out.dump(2) + "\n";
}

std::string export_obstacle(const config::Model& model) {
  const Family& family = config::family_of(model);
  try {
    form_of(family).require(model, family);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string to_generation_config_json(const data::SpecialTokens& special) {
  const bool has_own = special.fields.contains(kGenerationConfigJson);
  return token_ids(special, has_own ? kGenerationConfigJson : kConfigJson).dump(2) + "\n";
}

namespace {

/// Returns the object of the text model: of a multimodal one its text_config, whose missing sizes are those of the
/// class.
json text_model_of(json document, const std::string& origin) {
  const Fields whole(document, origin);
  const json* const type = whole.find("model_type");
  for (const Family& family : config::families()) {
    const char* const multimodal = family.hugging_face.multimodal;
    if (multimodal == nullptr || type == nullptr || *type != multimodal) continue;
    if (whole.find("text_config") == nullptr) whole.refuse("text_config", "missing: not a language model");
    whole.demand_absent("quantization_config");
    json model = json::parse(R"({"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
        "max_position_embeddings": 131072})");
    whole.object("text_config");  // throws for another value
    for (const auto& [field, value] : whole.find("text_config")->items())
      if (!value.is_null() || !model.contains(field)) model[field] = value;
    model["model_type"] = family.hugging_face.model_type;
    log::info("{}: imports the text model; vision tensors are left out", origin);
    return model;
  }
  return document;
}

}  // namespace

ModelConfig parse_config_json(std::string_view text, const std::string& origin, int64_t seq_len) {
  json document = data::parse_python_json(text);
  if (!document.is_object()) throw Error(Code::checkpoint, format("{}: {}", origin, data::why_no_object(document)));
  document = text_model_of(std::move(document), origin);
  const Fields fields(document, origin);
  const json* type = fields.find("model_type");
  std::vector<std::string> known;
  for (const Family& each : config::families()) known.emplace_back(each.hugging_face.model_type);
  const std::string expected = format("expected one of {}", fmt::join(known, ", "));
  if (type == nullptr) fields.refuse("model_type", "missing; " + expected);
  const auto found = std::ranges::find_if(known, [&](const std::string& name) { return *type == name; });
  for (const auto& [name, missing] : kUnsupported)
    if (*type == name) fields.refuse("model_type", format("\"{}\" is not supported: {}; {}", name, missing, expected));
  if (found == known.end()) fields.refuse("model_type", format("{} is not supported; {}", json_text(*type), expected));
  const Family& family = config::families()[static_cast<size_t>(found - known.begin())];
  fields.demand_absent("quantization_config");
  Keys keys;
  keys.add("arch", std::string(family.name));
  form_of(family).read(fields, family, seq_len, keys);
  if (const double deviation = fields.number("initializer_range", 0.02); deviation != 0)
    keys.add("init_std", deviation);  // which must not be 0; imported weights are not initialized
  ModelConfig model;
  model.vocab = fields.size("vocab_size");
  model.settings = keys.sets();
  std::vector<std::string> sets = model.settings;
  sets.push_back(format("data.vocab_size={}", model.vocab));
  sets.push_back("data.val_fraction=0");
  try {
    model.config = config::load_text("", origin, sets, {.files = false});
  } catch (const Error& error) {  // a limit that this program imposes, but Hugging Face does not
    throw Error(Code::checkpoint, format("{}: this model cannot be imported: {}", origin, error.what()));
  }
  return model;
}

}  // namespace trainer::huggingface
