#include "huggingface/tensor_map.h"

#include <algorithm>
#include <span>

#include "base/error.h"
#include "config/block_linears.h"
#include "config/families.h"

namespace trainer::huggingface {
namespace {

using config::FileForm;

/// The names of a tensor, without ".weight" and the like: ours, those of the two forms of files, and GGUF's. Parts of a
/// linear that have the same name are one tensor, for which GGUF may have a name of its own.
struct Names {
  const char *ours, *theirs[2] /* by FileForm; null: none */, *gguf, *gguf_joined = nullptr;
};
constexpr Names kNames[] = {{"wte", {"wte", "embed_tokens"}, "token_embd"},
                            {"wpe", {"wpe", nullptr}, "position_embd"},
                            {"norm1", {"ln_1", "input_layernorm"}, "attn_norm"},
                            {"attn.q", {"attn.c_attn", "self_attn.q_proj"}, "attn_q", "attn_qkv"},
                            {"attn.k", {"attn.c_attn", "self_attn.k_proj"}, "attn_k"},
                            {"attn.v", {"attn.c_attn", "self_attn.v_proj"}, "attn_v"},
                            {"attn.o", {"attn.c_proj", "self_attn.o_proj"}, "attn_output"},
                            {"attn.q_norm", {nullptr, "self_attn.q_norm"}, "attn_q_norm"},
                            {"attn.k_norm", {nullptr, "self_attn.k_norm"}, "attn_k_norm"},
                            {"norm2", {"ln_2", "post_attention_layernorm"}, "ffn_norm"},
                            {"mlp.gate", {nullptr, "mlp.gate_proj"}, "ffn_gate"},
                            {"mlp.up", {"mlp.c_fc", "mlp.up_proj"}, "ffn_up"},
                            {"mlp.down", {"mlp.c_proj", "mlp.down_proj"}, "ffn_down"},
                            {"norm_f", {"ln_f", "norm"}, "output_norm"},
                            {"head", {"lm_head", "lm_head"}, "output"}};
// Norms after a branch.
constexpr Names kAfter[] = {{"norm1", {nullptr, "post_attention_layernorm"}, "post_attention_norm"},
                            {"norm2", {nullptr, "post_feedforward_layernorm"}, "post_ffw_norm"}};
constexpr const char *kPrefixes[] = {"transformer.", "model."}, *kBlocks[] = {"h", "layers"};  // by FileForm

FileForm form_of(const config::Model& model) { return config::family_of(model).hugging_face.form; }

/// Collects the tensors of one model. The weight of a linear has shape [in, out], however it is stored. A tensor that
/// files of this form do not have is left out, and export refuses the model.
class Collector {
 public:
  explicit Collector(const config::Model& model)
      : model_(model), form_(static_cast<size_t>(form_of(model))), gpt2_(form_of(model) == FileForm::gpt2) {}

  void table(const char* name, int64_t rows, const std::string& ours, bool has_prefix = true) {
    add(named(name), ".weight", {.shape = {rows, model_.d_model}, .parts = {ours}}, has_prefix);
  }
  void norm(const char* ours, bool after = false) {
    const Names& names = after ? named(ours, kAfter) : named(ours);
    add(names, ".weight", {.shape = {model_.d_model}, .parts = {prefix_ + ours + ".gain"}});
    if (gpt2_ || model_.bias.value()) bias(names, model_.d_model, {ours}, model_.bias.value(), false);
  }
  void block(int64_t layer) {
    prefix_ = format("blocks.{}.", layer);
    in_block_ = format("{}.{}.", kBlocks[form_], layer);
    in_gguf_ = format("blk.{}.", layer);
    const bool post = has_post_norms(model_);
    for (const config::BlockLinear& linear : linears_of(model_, layer)) {
      const bool reads = reads_residual(linear.site),
                 attends = linear.site == sharding::Site::qkv || linear.site == sharding::Site::out;
      if (reads && !post) norm(attends ? "norm1" : "norm2");
      this->linear(linear);
      if (attends && !reads && query_key_norm(model_) != config::QkNorm::none) {
        head_norm("attn.q_norm", attention_width(model_));
        head_norm("attn.k_norm", key_width(model_));
      }
      if (!reads && post) norm(attends ? "norm1" : "norm2", /*after=*/true);
    }
    prefix_.clear();
    in_block_.clear();
    in_gguf_.clear();
  }
  std::vector<MappedTensor> take() { return std::move(tensors_); }

 private:
  static const Names& named(std::string_view ours, std::span<const Names> all = kNames) {
    const auto found = std::ranges::find(all, ours, [](const Names& names) { return std::string_view(names.ours); });
    TRAINER_CHECK(found != all.end(), "{} has no names", ours);
    return *found;
  }
  void head_norm(const char* ours, int64_t width) {
    const bool full = query_key_norm(model_) == config::QkNorm::full;
    add(named(ours), ".weight", {.shape = {full ? width : head_size(model_)}, .parts = {prefix_ + ours + ".gain"}});
  }
  void linear(const config::BlockLinear& linear) {
    for (size_t i = 0, end = 0; i < linear.parts.size(); i = end) {
      const Names& names = named(linear.parts[i].name);
      std::vector<std::string> ours, weights;
      int64_t out = 0;
      for (; end < linear.parts.size() && is_same_name(names, named(linear.parts[end].name)); ++end) {
        ours.push_back(linear.parts[end].name);
        weights.push_back(prefix_ + ours.back() + ".weight");
        out += linear.parts[end].width;
      }
      const bool joined = end > i + 1;
      const int64_t rotated = joined || ours[0] == "attn.v" ? 0 : linear.parts[i].heads;
      add(names, ".weight",
          {.shape = gpt2_ ? Shape{linear.in, out} : Shape{out, linear.in},
           .parts = weights,
           .transposed = !gpt2_,
           .in_first = gpt2_,
           .rotated_heads = rotated},
          true, joined);
      // In Hugging Face's GPT-2 all linears have biases; those that the model does not have are zeros.
      if (gpt2_ || linear.bias) bias(names, out, ours, linear.bias, joined, rotated);
    }
  }
  bool is_same_name(const Names& a, const Names& b) const {
    const char *const one = a.theirs[form_], *const other = b.theirs[form_];
    return &a == &b || (one != nullptr && other != nullptr && std::string_view(one) == other);
  }
  void bias(const Names& names, int64_t width, const std::vector<std::string>& ours, bool present, bool joined,
            int64_t rotated = 0) {
    std::vector<std::string> parts;
    if (present)
      for (const std::string& each : ours) parts.push_back(prefix_ + each + ".bias");
    add(names, ".bias", {.shape = {width}, .parts = parts, .rotated_heads = rotated}, true, joined);
  }
  void add(const Names& names, const char* suffix, MappedTensor tensor, bool has_prefix = true, bool joined = false) {
    if (names.theirs[form_] == nullptr) return;
    tensor.name = format("{}{}{}{}", has_prefix ? kPrefixes[form_] : "", in_block_, names.theirs[form_], suffix);
    tensor.gguf = in_gguf_ + (joined ? names.gguf_joined : names.gguf) + suffix;
    tensors_.push_back(std::move(tensor));
  }

  const config::Model& model_;
  const size_t form_;
  const bool gpt2_;
  std::string prefix_, in_block_, in_gguf_;  // prefixes of names in the block
  std::vector<MappedTensor> tensors_;
};

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

std::string name_prefix(const config::Model& model) { return kPrefixes[static_cast<size_t>(form_of(model))]; }

std::vector<MappedTensor> tensor_map(const config::Model& model, int64_t vocab) {
  Collector all(model);
  all.table("wte", vocab, "wte");
  if (!has_rope_positions(model)) all.table("wpe", model.seq_len, "wpe");
  for (int64_t layer = 0; layer < model.n_layer; ++layer) all.block(layer);
  all.norm("norm_f");
  if (!model.tie_embeddings.value()) all.table("head", vocab, "head.weight", /*has_prefix=*/false);
  return all.take();
}

}  // namespace trainer::huggingface
