#include "huggingface/tensor_map.h"

#include <algorithm>
#include <span>

#include "base/error.h"
#include "config/block_linears.h"
#include "config/families.h"

namespace trainer::huggingface {
namespace {

using config::FileForm;

/// The names of a tensor, without ".weight" and the like: ours, those of the forms of files, and GGUF's. Parts of a
/// linear that have the same name are one tensor, for which GGUF may have a name of its own.
struct Names {
  const char *ours, *theirs[3] /* by FileForm; null: none */, *gguf, *gguf_joined = nullptr;
};
constexpr Names kNames[] = {
    {"wte", {"wte", "embed_tokens", "embed_in"}, "token_embd"},
    {"wpe", {"wpe"}, "position_embd"},
    {"norm1", {"ln_1", "input_layernorm", "input_layernorm"}, "attn_norm"},
    {"attn.q", {"attn.c_attn", "self_attn.q_proj", "attention.query_key_value"}, "attn_q", "attn_qkv"},
    {"attn.k", {"attn.c_attn", "self_attn.k_proj", "attention.query_key_value"}, "attn_k"},
    {"attn.v", {"attn.c_attn", "self_attn.v_proj", "attention.query_key_value"}, "attn_v"},
    {"attn.o", {"attn.c_proj", "self_attn.o_proj", "attention.dense"}, "attn_output"},
    {"attn.q_norm", {nullptr, "self_attn.q_norm"}, "attn_q_norm"},
    {"attn.k_norm", {nullptr, "self_attn.k_norm"}, "attn_k_norm"},
    {"norm2", {"ln_2", "post_attention_layernorm", "post_attention_layernorm"}, "ffn_norm"},
    {"mlp.gate", {nullptr, "mlp.gate_proj"}, "ffn_gate"},
    {"mlp.up", {"mlp.c_fc", "mlp.up_proj", "mlp.dense_h_to_4h"}, "ffn_up"},
    {"mlp.down", {"mlp.c_proj", "mlp.down_proj", "mlp.dense_4h_to_h"}, "ffn_down"},
    {"norm_f", {"ln_f", "norm", "final_layer_norm"}, "output_norm"},
    {"head", {"lm_head", "lm_head", "embed_out"}, "output"}};
// Norms after a branch.
constexpr Names kAfter[] = {{"norm1", {nullptr, "post_attention_layernorm"}, "post_attention_norm"},
                            {"norm2", {nullptr, "post_feedforward_layernorm"}, "post_ffw_norm"}};
// Norms before and after a branch.
constexpr Names kBoth[] = {{"norm1", {nullptr, "input_layernorm"}, "attn_norm"},
                           {"norm1_post", {nullptr, "post_attention_layernorm"}, "post_attention_norm"},
                           {"norm2", {nullptr, "pre_feedforward_layernorm"}, "ffn_norm"},
                           {"norm2_post", {nullptr, "post_feedforward_layernorm"}, "post_ffw_norm"}};
// Experts, whose number replaces "{}", and what belongs to them; in Mixtral's files with other names.
constexpr Names kExperts[] = {{"mlp.router", {nullptr, "mlp.gate"}, "ffn_gate_inp"},
                              {"mlp.experts.gate", {nullptr, "mlp.experts.{}.gate_proj"}, "ffn_gate_exps"},
                              {"mlp.experts.up", {nullptr, "mlp.experts.{}.up_proj"}, "ffn_up_exps"},
                              {"mlp.experts.down", {nullptr, "mlp.experts.{}.down_proj"}, "ffn_down_exps"},
                              {"mlp.shared.gate", {nullptr, "mlp.shared_expert.gate_proj"}, "ffn_gate_shexp"},
                              {"mlp.shared.up", {nullptr, "mlp.shared_expert.up_proj"}, "ffn_up_shexp"},
                              {"mlp.shared.down", {nullptr, "mlp.shared_expert.down_proj"}, "ffn_down_shexp"},
                              {"mlp.shared_gate", {nullptr, "mlp.shared_expert_gate"}, "ffn_gate_inp_shexp"}};
constexpr Names kMixtral[] = {{"mlp.router", {nullptr, "block_sparse_moe.gate"}, "ffn_gate_inp"},
                              {"mlp.experts.gate", {nullptr, "block_sparse_moe.experts.{}.w1"}, "ffn_gate_exps"},
                              {"mlp.experts.up", {nullptr, "block_sparse_moe.experts.{}.w3"}, "ffn_up_exps"},
                              {"mlp.experts.down", {nullptr, "block_sparse_moe.experts.{}.w2"}, "ffn_down_exps"}};
constexpr const char *kPrefixes[] = {"transformer.", "model.", "gpt_neox."},  // by FileForm
    *kBlocks[] = {"h", "layers", "layers"};

FileForm form_of(const config::Model& model) { return config::family_of(model).hugging_face.form; }

/// Collects the tensors of one model. The weight of a linear has shape [in, out], however it is stored. A tensor that
/// files of this form do not have is left out, and export refuses the model.
class Collector {
 public:
  explicit Collector(const config::Model& model)
      : model_(model), form_(static_cast<size_t>(form_of(model))), gpt2_(form_of(model) == FileForm::gpt2) {}

  void table(const char* name, int64_t rows, const std::string& ours, bool has_prefix = true) {
    add(named(name), ".weight", {.shape = {rows, model_.d_model}, .parts = {{ours, model_.d_model}}}, has_prefix);
  }
  void norm(const char* ours, std::span<const Names> all = kNames) {
    const Names& names = named(ours, all);
    add(names, ".weight", {.shape = {model_.d_model}, .parts = {{prefix_ + ours + ".gain", model_.d_model}}});
    if (gpt2_ || model_.bias.value()) bias(names, {{ours, model_.d_model}}, model_.bias.value(), false);
  }
  void block(int64_t layer) {
    prefix_ = format("blocks.{}.", layer);
    in_block_ = format("{}.{}.", kBlocks[form_], layer);
    in_gguf_ = format("blk.{}.", layer);
    const bool both = place_of_norms(model_) == config::NormPlace::both;
    const std::vector<config::BlockLinear> linears = linears_of(model_, layer);
    const auto attends = [&](size_t i) {
      return linears[i].site == sharding::Site::qkv || linears[i].site == sharding::Site::out;
    };
    for (size_t i = 0; i < linears.size(); ++i) {
      const bool first = i == 0 || attends(i - 1) != attends(i),
                 last = i + 1 == linears.size() || attends(i + 1) != attends(i);
      if (first && has_norms_before(model_))
        norm(attends(i) ? "norm1" : "norm2", both ? std::span<const Names>(kBoth) : kNames);
      if (linears[i].role != config::Role::experts) {
        linear(linears[i]);
      } else if (reads_residual(linears[i].site)) {  // all matrices of an expert, then those of the next one
        for (int64_t expert = 0; expert < linears[i].matrices; ++expert)
          for (const size_t at : {i, i + 1}) experts(linears[at], expert);
      }
      if (linears[i].site == sharding::Site::out && query_key_norm(model_) != config::QkNorm::none) {
        head_norm("attn.q_norm", attention_width(model_));
        head_norm("attn.k_norm", key_width(model_));
      }
      if (last && both)
        norm(attends(i) ? "norm1_post" : "norm2_post", kBoth);
      else if (last && has_norms_after(model_))
        norm(attends(i) ? "norm1" : "norm2", kAfter);
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
    const int64_t length = full ? width : head_size(model_);
    add(named(ours), ".weight", {.shape = {length}, .parts = {{prefix_ + ours + ".gain", length}}});
  }
  const Names& names_of(const config::BlockLinear& linear, size_t part) const {
    if (linear.role == config::Role::dense) return named(linear.parts[part].name);
    const bool mixtral = config::family_of(model_).hugging_face.experts == config::ExpertFields::mixtral;
    return named(linear.parts[part].name, mixtral ? std::span<const Names>(kMixtral) : kExperts);
  }
  /// Adds the matrices of one expert.
  void experts(const config::BlockLinear& linear, int64_t expert) {
    for (size_t i = 0; i < linear.parts.size(); ++i) {
      const Names& names = names_of(linear, i);
      add(names, ".weight",
          {.shape = {linear.parts[i].width, linear.in},
           .parts = {{prefix_ + names.ours + ".weight", linear.parts[i].width}},
           .transposed = true,
           .slices = linear.matrices,
           .slice = expert});
    }
  }
  void linear(const config::BlockLinear& linear) {
    for (size_t i = 0, end = 0; i < linear.parts.size(); i = end) {
      const Names& names = names_of(linear, i);
      std::vector<MappedTensor::Part> ours, weights;
      int64_t out = 0;
      for (; end < linear.parts.size() && is_same_name(names, names_of(linear, end)); ++end) {
        const config::LinearPart& part = linear.parts[end];
        ours.push_back({part.name, part.width});
        weights.push_back({prefix_ + part.name + ".weight", part.width});
        out += part.width;
      }
      const bool joined = end > i + 1;
      const int64_t rotated = joined || ours[0].name == "attn.v" ? 0 : linear.parts[i].heads;
      add(names, ".weight",
          {.shape = gpt2_ ? Shape{linear.in, out} : Shape{out, linear.in},
           .parts = weights,
           .transposed = !gpt2_,
           .block = block_of(joined),
           .in_first = gpt2_,
           .rotated_heads = rotated},
          true, joined);
      // In Hugging Face's GPT-2 all linears have biases; those that the model does not have are zeros.
      if (gpt2_ || linear.bias) bias(names, ours, linear.bias, joined, rotated);
    }
  }
  /// GPT-NeoX's q, k and v alternate head by head.
  int64_t block_of(bool joined) const {
    return joined && form_of(model_) == FileForm::gpt_neox ? head_size(model_) : 0;
  }
  bool is_same_name(const Names& a, const Names& b) const {
    const char *const one = a.theirs[form_], *const other = b.theirs[form_];
    return &a == &b || (one != nullptr && other != nullptr && std::string_view(one) == other);
  }
  void bias(const Names& names, const std::vector<MappedTensor::Part>& ours, bool present, bool joined,
            int64_t rotated = 0) {
    std::vector<MappedTensor::Part> parts;
    int64_t width = 0;
    for (const MappedTensor::Part& each : ours) {
      if (present) parts.push_back({prefix_ + each.name + ".bias", each.width});
      width += each.width;
    }
    add(names, ".bias", {.shape = {width}, .parts = parts, .block = block_of(joined), .rotated_heads = rotated}, true,
        joined);
  }
  void add(const Names& names, const char* suffix, MappedTensor tensor, bool has_prefix = true, bool joined = false) {
    if (names.theirs[form_] == nullptr) return;
    std::string theirs = names.theirs[form_];
    if (const size_t place = theirs.find("{}"); place != std::string::npos)
      theirs.replace(place, 2, std::to_string(tensor.slice));
    tensor.name = format("{}{}{}{}", has_prefix ? kPrefixes[form_] : "", in_block_, theirs, suffix);
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

Shape MappedTensor::part_shape(size_t index) const {
  const int64_t width = parts.at(index).width;
  if (slices > 0) return {slices, shape[1], width};
  if (shape.dims() == 1) return {width};
  return {shape[transposed ? 1 : 0], width};
}

std::vector<mesh::Run> MappedTensor::runs(size_t index) const {
  const Shape part = part_shape(index);
  const int64_t width = part[-1], rows = part.dims() == 1 ? 1 : part[-2];
  int64_t before = 0, stretch = width, pitch = width;  // the part's columns in this tensor
  if (block > 0) {
    stretch = block, before = static_cast<int64_t>(index) * block, pitch = static_cast<int64_t>(parts.size()) * block;
  } else {
    for (size_t i = 0; i < index; ++i) before += parts[i].width;
  }
  if (!transposed && block == 0) return mesh::matrix_runs(rows, width, before, shape[-1]);
  // An element is `along` elements after its left neighbour in the part, and `across` after the one above it.
  const int64_t along = transposed ? rows : 1, across = transposed ? 1 : shape[-1];
  const int64_t first = std::max<int64_t>(0, slice) * rows;
  std::vector<mesh::Run> runs;
  runs.reserve(static_cast<size_t>(rows * (width / stretch)));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t k = 0; k < width / stretch; ++k)
      runs.push_back({.global = (first + i) * width + k * stretch,
                      .local = (before + k * pitch) * along + i * across,
                      .length = stretch,
                      .stride = along});
  return runs;
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
