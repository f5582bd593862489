#include "huggingface/model_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/join.h"
#include "base/log.h"
#include "config/load.h"
#include "config/text.h"

namespace trainer::huggingface {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

[[noreturn]] void cannot_represent(const std::string& key, const std::string& value, const std::string& reason) {
  throw Error(Code::checkpoint, format("model.{} = {} cannot be exported: {}", key, value, reason));
}

void add_gpt2(const config::Model& m, ordered_json& out) {
  if (m.n_kv_head != m.n_head)
    cannot_represent("n_kv_head", format("{}", m.n_kv_head),
                     format("Hugging Face's GPT-2 has as many key and value heads as query heads ({})", m.n_head));
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
  out["max_position_embeddings"] = m.seq_len;
  out["hidden_size"] = m.d_model;
  out["intermediate_size"] = m.d_ff;
  out["num_hidden_layers"] = m.n_layer;
  out["num_attention_heads"] = m.n_head;
  out["num_key_value_heads"] = m.n_kv_head;
  out["head_dim"] = head_size(m);
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = m.norm_eps;
  out["rope_theta"] = m.rope_theta;
  out["rope_scaling"] = nullptr;
  out["attention_bias"] = false;
  out["mlp_bias"] = false;
  out["attention_dropout"] = 0.0;
}

ordered_json token_ids(std::optional<int32_t> eos, std::optional<int32_t> bos) {
  const auto id = [](std::optional<int32_t> token) { return token ? ordered_json(*token) : ordered_json(); };
  return {{"bos_token_id", id(bos)}, {"eos_token_id", id(eos)}};
}

/// The fields of config.json. Null fields count as missing.
class Fields {
 public:
  Fields(const json& object, const std::string& origin) : object_(object), origin_(origin) {}

  [[noreturn]] void refuse(const std::string& field, const std::string& reason) const {
    throw Error(Code::checkpoint, format("{}: {}: {}", origin_, field, reason));
  }
  const json* find(const char* field) const {
    const auto found = object_.find(field);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  static std::string text_of(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }
  int64_t size(const char* field, std::optional<int64_t> otherwise = {}) const {
    constexpr int64_t kMost = int64_t{1} << 31;
    const json* value = find(field);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr) refuse(field, "missing");
    if (!value->is_number_unsigned() || value->get<uint64_t>() < 1 || value->get<uint64_t>() > kMost)
      refuse(field, format("{}, expected a whole number of at least 1", text_of(*value)));
    return value->get<int64_t>();
  }
  double number(const char* field, double otherwise) const {
    const json* value = find(field);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) refuse(field, format("{}, expected a number", text_of(*value)));
    return value->get<double>();
  }
  bool flag(const char* field, bool otherwise) const {
    const json* value = find(field);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(field, format("{}, expected true or false", text_of(*value)));
    return value->get<bool>();
  }
  /// Rejects every value except `only`, which is also the default.
  void demand(const char* field, const json& only) const {
    const json* value = find(field);
    if (value != nullptr && *value != only)
      refuse(field, format("{} is not supported, this program supports only {}", text_of(*value), text_of(only)));
  }
  void demand_one_of(const char* field, const std::vector<std::string>& known) const {
    const json* value = find(field);
    if (value != nullptr && std::ranges::none_of(known, [&](const auto& each) { return *value == each; }))
      refuse(field, format("{} is not supported, this program supports {}", text_of(*value), fmt::join(known, ", ")));
  }
  void demand_absent(const char* field) const {
    if (const json* value = find(field)) refuse(field, format("{} is not supported", text_of(*value)));
  }
  Fields object(const char* field) const {
    const json* value = find(field);
    if (!value->is_object()) refuse(field, format("{}, expected an object", text_of(*value)));
    return {*value, origin_};
  }

 private:
  const json& object_;
  const std::string& origin_;
};

/// Keys of the configuration with their values, in the form of --set.
class Keys {
 public:
  void add(const std::string& key, const config::Value& value) {
    sets_.push_back(format("model.{}={}", key, config::to_toml(value)));
  }
  const std::vector<std::string>& sets() const { return sets_; }

 private:
  std::vector<std::string> sets_;
};

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

void read_rope(const Fields& fields, Keys& keys) {
  double theta = fields.number("rope_theta", 1e4);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (fields.find(name) == nullptr) continue;
    const Fields rope = fields.object(name);
    for (const char* kind : {"rope_type", "type"})
      if (const json* value = rope.find(kind); value != nullptr && *value != "default")
        fields.refuse(name,
                      format("{} is not supported, this program supports only \"default\"", Fields::text_of(*value)));
    rope.demand("partial_rotary_factor", 1.0);
    theta = rope.number("rope_theta", theta);
  }
  keys.add("rope_theta", theta);
}

void read_llama(const Fields& fields, Keys& keys) {
  const int64_t width = fields.size("hidden_size"), heads = fields.size("num_attention_heads");
  if (width % heads != 0) fields.refuse("num_attention_heads", format("{} does not divide {}", heads, width));
  const int64_t head = fields.size("head_dim", width / heads);
  if (head != width / heads)
    fields.refuse("head_dim", format("{}, but hidden_size / num_attention_heads is {} / {}", head, width, heads));
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
  read_rope(fields, keys);
  fields.demand_one_of("hidden_act", {"silu", "swish"});
  fields.demand("attention_bias", false);
  fields.demand("mlp_bias", false);
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
