#include "huggingface/model_config.h"

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "config/load.h"
#include "huggingface/json_fields.h"
#include "huggingface/rope_fields.h"

namespace trainer::huggingface {

namespace {

[[noreturn]] void cannot_represent(const std::string& key, const std::string& value, const std::string& reason) {
  throw Error(Code::checkpoint, format("model.{} = {} cannot be exported: {}", key, value, reason));
}

void add_gpt2(const config::Model& m, ordered_json& out) {
  if (m.n_kv_head != m.n_head)
    cannot_represent("n_kv_head", format("{}", m.n_kv_head),
                     format("Hugging Face's GPT-2 has as many key and value heads as query heads ({})", m.n_head));
  if (attention_width(m) != m.d_model)
    cannot_represent("head_dim", format("{}", m.head_dim),
                     format("Hugging Face's GPT-2 has heads of d_model / n_head = {} / {}", m.d_model, m.n_head));
  out["n_positions"] = m.seq_len;
  out["n_embd"] = m.d_model;
  out["n_layer"] = m.n_layer;
  out["n_head"] = m.n_head;
  out["n_inner"] = m.d_ff;
  out["activation_function"] = "gelu_new";
  out["layer_norm_epsilon"] = m.norm_eps;
  for (const char* place : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) out[place] = m.dropout;
  out["scale_attn_weights"] = true;
  out["scale_attn_by_inverse_layer_idx"] = false;
  out["reorder_and_upcast_attn"] = false;
}

void add_llama(const config::Model& m, ordered_json& out) {
  if (m.bias.value())
    cannot_represent("bias", "true", "the norms of Hugging Face's Llama have no biases; train with model.bias = false");
  if (m.dropout > 0)
    log::info("model.dropout = {} is left out: Hugging Face's Llama has none; results do not depend on it", m.dropout);
  if (attention_bias(m) == config::AttentionBias::qkv)
    cannot_represent("attn_bias", "\"qkv\"", "Hugging Face's Llama has biases in all linears of attention or in none");
  if (m.d_model % m.n_head != 0)
    cannot_represent("n_head", format("{}", m.n_head),
                     format("Hugging Face's Llama needs n_head to divide d_model = {}", m.d_model));
  out["max_position_embeddings"] = m.seq_len;
  out["hidden_size"] = m.d_model;
  out["intermediate_size"] = m.d_ff;
  out["num_hidden_layers"] = m.n_layer;
  out["num_attention_heads"] = m.n_head;
  out["num_key_value_heads"] = m.n_kv_head;
  out["head_dim"] = head_size(m);
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = m.norm_eps;
  add_rope(m, out);
  out["attention_bias"] = attention_bias(m) == config::AttentionBias::all;
  out["mlp_bias"] = has_mlp_bias(m);
  out["attention_dropout"] = 0.0;
}

ordered_json token_ids(std::optional<int32_t> eos, std::optional<int32_t> bos) {
  const auto id = [](std::optional<int32_t> token) { return token ? ordered_json(*token) : ordered_json(); };
  return {{"bos_token_id", id(bos)}, {"eos_token_id", id(eos)}};
}

void read_gpt2(const Fields& fields, Keys& keys) {
  const int64_t width = fields.size("n_embd"), heads = fields.size("n_head");
  if (width % heads != 0) fields.refuse("n_head", format("{} does not divide n_embd = {}", heads, width));
  keys.add("n_layer", fields.size("n_layer"));
  keys.add("n_head", heads);
  keys.add("d_model", width);
  keys.add("d_ff", fields.size("n_inner", 4 * width));
  keys.add("seq_len", fields.size("n_positions"));
  keys.add("norm_eps", fields.number("layer_norm_epsilon", 1e-5));
  fields.demand_one_of("activation_function", {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"});
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

void read_llama(const Fields& fields, Keys& keys) {
  const int64_t width = fields.size("hidden_size"), heads = fields.size("num_attention_heads");
  if (width % heads != 0) fields.refuse("num_attention_heads", format("{} does not divide {}", heads, width));
  const int64_t head = fields.size("head_dim", width / heads);
  if (head * heads != width) keys.add("head_dim", head);
  if (head % 2 != 0) fields.refuse("head_dim", format("{} is odd: RoPE rotates pairs of features", head));
  const int64_t kv_heads = fields.size("num_key_value_heads", heads);
  if (heads % kv_heads != 0)
    fields.refuse("num_key_value_heads", format("{} does not divide num_attention_heads = {}", kv_heads, heads));
  keys.add("n_layer", fields.size("num_hidden_layers"));
  keys.add("n_head", heads);
  keys.add("n_kv_head", kv_heads);
  keys.add("d_model", width);
  keys.add("d_ff", fields.size("intermediate_size"));
  keys.add("seq_len", fields.size("max_position_embeddings"));
  keys.add("norm_eps", fields.number("rms_norm_eps", 1e-6));
  read_rope(fields, 1e4, keys);
  fields.demand_one_of("hidden_act", {"silu", "swish"});
  if (fields.flag("attention_bias", false)) keys.add("attn_bias", std::string("all"));
  if (fields.flag("mlp_bias", false)) keys.add("mlp_bias", true);
  fields.demand("partial_rotary_factor", 1.0);
  fields.demand_absent("sliding_window");
  if (const double dropout = fields.number("attention_dropout", 0); dropout != 0)
    fields.refuse("attention_dropout",
                  format("{}: this program would apply dropout elsewhere too; set it to 0 in the file (results do not "
                         "depend on it) and train with model.dropout",
                         dropout));
  keys.add("tie_embeddings", fields.flag("tie_word_embeddings", false));
}

}  // namespace

std::string to_config_json(const config::Model& model, int64_t vocab, std::optional<int32_t> eos, FloatType type,
                           std::optional<int32_t> bos) {
  const bool gpt2 = model.arch == config::Arch::gpt2;
  ordered_json out;
  out["architectures"] = {gpt2 ? "GPT2LMHeadModel" : "LlamaForCausalLM"};
  out["model_type"] = gpt2 ? "gpt2" : "llama";
  out["vocab_size"] = vocab;
  gpt2 ? add_gpt2(model, out) : add_llama(model, out);
  out["initializer_range"] = model.init_std;
  out["tie_word_embeddings"] = model.tie_embeddings.value();
  out.update(token_ids(eos, bos));
  out["use_cache"] = true;
  out["torch_dtype"] = torch_name(type);
  return out.dump(2) + "\n";
}

std::string to_generation_config_json(std::optional<int32_t> eos, std::optional<int32_t> bos) {
  return token_ids(eos, bos).dump(2) + "\n";
}

ModelConfig parse_config_json(std::string_view text, const std::string& origin) {
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object()) throw Error(Code::checkpoint, format("{}: not a JSON object", origin));
  const Fields fields(document, origin);
  const json* type = fields.find("model_type");
  if (type == nullptr) fields.refuse("model_type", "missing; expected \"gpt2\" or \"llama\"");
  if (*type != "gpt2" && *type != "llama")
    fields.refuse("model_type",
                  format("{} is not supported, this program supports gpt2 and llama", Fields::text_of(*type)));
  fields.demand_absent("quantization_config");
  Keys keys;
  keys.add("arch", type->get<std::string>());
  *type == "gpt2" ? read_gpt2(fields, keys) : read_llama(fields, keys);
  keys.add("init_std", fields.number("initializer_range", 0.02));
  ModelConfig model;
  model.vocab = fields.size("vocab_size");
  std::vector<std::string> sets = keys.sets();
  sets.push_back(format("data.vocab_size={}", model.vocab));
  sets.push_back("data.val_fraction=0");
  try {
    model.config = config::load_text("", origin, sets, {.files = false});
  } catch (const Error& error) {  // a range that this program has, but Hugging Face does not
    throw Error(Code::checkpoint, format("{}: this model cannot be imported: {}", origin, error.what()));
  }
  return model;
}

}  // namespace trainer::huggingface
