#include "huggingface/tensor_map.h"

#include "base/error.h"
#include "config/families.h"

namespace trainer::huggingface {
namespace {

bool has_gpt2_form(const config::Model& model) {
  return config::family_of(model).hugging_face.form == config::FileForm::gpt2;
}

/// Collects the tensors of one model. The weight of a linear has shape [in, out], however it is stored.
class Collector {
 public:
  explicit Collector(const config::Model& model) : model_(model), gpt2_(has_gpt2_form(model)) {}

  void table(const std::string& name, int64_t rows, const std::string& ours) {
    tensors_.push_back({name, {rows, model_.d_model}, {ours}});
  }
  void norm(const std::string& name, const std::string& ours) {
    tensors_.push_back({name + ".weight", {model_.d_model}, {ours + ".gain"}});
    if (gpt2_) bias(name, model_.d_model, {ours}, model_.bias.value());
  }
  void head_norm(const std::string& name, const std::string& ours, int64_t width) {
    const bool full = query_key_norm(model_) == config::QkNorm::full;
    tensors_.push_back({name + ".weight", {full ? width : head_size(model_)}, {ours + ".gain"}});
  }
  /// In Hugging Face's GPT-2 all linears have biases; those that the model does not have are zeros.
  void linear(const std::string& name, int64_t in, int64_t out, const std::vector<std::string>& ours, bool has_bias) {
    std::vector<std::string> weights;
    for (const std::string& each : ours) weights.push_back(each + ".weight");
    tensors_.push_back({name + ".weight", gpt2_ ? Shape{in, out} : Shape{out, in}, weights, !gpt2_});
    if (gpt2_ || has_bias) bias(name, out, ours, has_bias);
  }
  std::vector<MappedTensor> take() { return std::move(tensors_); }

 private:
  void bias(const std::string& name, int64_t width, const std::vector<std::string>& ours, bool present) {
    std::vector<std::string> parts;
    if (present)
      for (const std::string& each : ours) parts.push_back(each + ".bias");
    tensors_.push_back({name + ".bias", {width}, parts});
  }

  const config::Model& model_;
  const bool gpt2_;
  std::vector<MappedTensor> tensors_;
};

void add_gpt2_block(const config::Model& m, const std::string& name, const std::string& ours, Collector& all) {
  const bool qkv = attention_bias(m) != config::AttentionBias::none,
             o = attention_bias(m) == config::AttentionBias::all, mlp = has_mlp_bias(m);
  all.norm(name + "ln_1", ours + "norm1");
  all.linear(name + "attn.c_attn", m.d_model, 3 * m.d_model, {ours + "attn.q", ours + "attn.k", ours + "attn.v"}, qkv);
  all.linear(name + "attn.c_proj", m.d_model, m.d_model, {ours + "attn.o"}, o);
  all.norm(name + "ln_2", ours + "norm2");
  all.linear(name + "mlp.c_fc", m.d_model, m.d_ff, {ours + "mlp.up"}, mlp);
  all.linear(name + "mlp.c_proj", m.d_ff, m.d_model, {ours + "mlp.down"}, mlp);
}

void add_llama_block(const config::Model& m, const std::string& name, const std::string& ours, Collector& all) {
  const bool qkv = attention_bias(m) != config::AttentionBias::none,
             o = attention_bias(m) == config::AttentionBias::all, mlp = has_mlp_bias(m);
  const int64_t queries = attention_width(m), kv = key_width(m);
  const bool post = has_post_norms(m);
  if (!post) all.norm(name + "input_layernorm", ours + "norm1");
  all.linear(name + "self_attn.q_proj", m.d_model, queries, {ours + "attn.q"}, qkv);
  all.linear(name + "self_attn.k_proj", m.d_model, kv, {ours + "attn.k"}, qkv);
  all.linear(name + "self_attn.v_proj", m.d_model, kv, {ours + "attn.v"}, qkv);
  all.linear(name + "self_attn.o_proj", queries, m.d_model, {ours + "attn.o"}, o);
  if (query_key_norm(m) != config::QkNorm::none) {
    all.head_norm(name + "self_attn.q_norm", ours + "attn.q_norm", queries);
    all.head_norm(name + "self_attn.k_norm", ours + "attn.k_norm", kv);
  }
  // In most families this norm precedes the MLP; in OLMo 2 it follows attention.
  all.norm(name + "post_attention_layernorm", ours + (post ? "norm1" : "norm2"));
  all.linear(name + "mlp.gate_proj", m.d_model, m.d_ff, {ours + "mlp.gate"}, mlp);
  all.linear(name + "mlp.up_proj", m.d_model, m.d_ff, {ours + "mlp.up"}, mlp);
  all.linear(name + "mlp.down_proj", m.d_ff, m.d_model, {ours + "mlp.down"}, mlp);
  if (post) all.norm(name + "post_feedforward_layernorm", ours + "norm2");
}

}  // namespace

Shape MappedTensor::part_shape() const {
  TRAINER_CHECK(!parts.empty() && (parts.size() == 1 || !transposed), "{}: {} parts", name, parts.size());
  if (transposed) return {shape[1], shape[0]};
  const int64_t width = shape[-1] / static_cast<int64_t>(parts.size());
  return shape.dims() == 1 ? Shape{width} : Shape{shape[0], width};
}

std::vector<mesh::Run> MappedTensor::runs(size_t index) const {
  const Shape part = part_shape();
  if (transposed) {  // row i of the part is column i of this tensor
    std::vector<mesh::Run> runs;
    runs.reserve(static_cast<size_t>(part[0]));
    for (int64_t i = 0; i < part[0]; ++i)
      runs.push_back({.global = i * part[1], .local = i, .length = part[1], .stride = part[0]});
    return runs;
  }
  const int64_t rows = part.dims() == 1 ? 1 : part[0];
  return mesh::matrix_runs(rows, part[-1], static_cast<int64_t>(index) * part[-1], shape[-1]);
}

std::string name_prefix(const config::Model& model) { return has_gpt2_form(model) ? "transformer." : "model."; }

std::vector<MappedTensor> tensor_map(const config::Model& model, int64_t vocab) {
  const bool gpt2 = has_gpt2_form(model);
  const std::string prefix = name_prefix(model);
  Collector all(model);
  all.table(prefix + (gpt2 ? "wte.weight" : "embed_tokens.weight"), vocab, "wte");
  if (gpt2) all.table(prefix + "wpe.weight", model.seq_len, "wpe");
  for (int64_t layer = 0; layer < model.n_layer; ++layer) {
    const std::string ours = format("blocks.{}.", layer);
    if (gpt2) {
      add_gpt2_block(model, format("{}h.{}.", prefix, layer), ours, all);
    } else {
      add_llama_block(model, format("{}layers.{}.", prefix, layer), ours, all);
    }
  }
  all.norm(prefix + (gpt2 ? "ln_f" : "norm"), "norm_f");
  if (!model.tie_embeddings.value()) all.table("lm_head.weight", vocab, "head.weight");
  return all.take();
}

}  // namespace trainer::huggingface
