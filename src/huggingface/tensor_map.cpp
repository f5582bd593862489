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
    const std::vector<config::BlockLinear> linears = linears_of(model_, layer);
    const auto attends = [&](size_t i) {
      return linears[i].site == sharding::Site::qkv || linears[i].site == sharding::Site::out;
    };
    for (size_t i = 0; i < linears.size(); ++i) {
      const bool first = i == 0 || attends(i - 1) != attends(i),
                 last = i + 1 == linears.size() || attends(i + 1) != attends(i);
      if (first && !post) norm(attends(i) ? "norm1" : "norm2");
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
      if (last && post) norm(attends(i) ? "norm1" : "norm2", /*after=*/true);
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
           .parts = {prefix_ + names.ours + ".weight"},
           .transposed = true,
           .slices = linear.matrices,
           .slice = expert});
    }
  }
  void linear(const config::BlockLinear& linear) {
    for (size_t i = 0, end = 0; i < linear.parts.size(); i = end) {
      const Names& names = names_of(linear, i);
      std::vector<std::string> ours, weights;
      int64_t out = 0;
      for (; end < linear.parts.size() && is_same_name(names, names_of(linear, end)); ++end) {
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

Shape MappedTensor::part_shape() const {
  TRAINER_CHECK(!parts.empty() && (parts.size() == 1 || !transposed), "{}: {} parts", name, parts.size());
  if (slices > 0) return {slices, shape[1], shape[0]};
  if (transposed) return {shape[1], shape[0]};
  const int64_t width = shape[-1] / static_cast<int64_t>(parts.size());
  return shape.dims() == 1 ? Shape{width} : Shape{shape[0], width};
}

std::vector<mesh::Run> MappedTensor::runs(size_t index) const {
  const Shape part = part_shape();
  if (transposed) {  // row i of the part, or of its matrix `slice`, is column i of this tensor
    const int64_t rows = part[-2], width = part[-1], first = std::max<int64_t>(0, slice) * rows;
    std::vector<mesh::Run> runs;
    runs.reserve(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i)
      runs.push_back({.global = (first + i) * width, .local = i, .length = width, .stride = rows});
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
