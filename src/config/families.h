#pragma once
// The table of model families. A row says what is special about a family, here and in the files of other programs; all
// other code is the same for all families. A family whose facts exist needs an Arch, its row, and, unless they are
// those of another family, the names of its tensors and the fields of its config.json (huggingface/).
#include <span>
#include <string_view>

#include "config/model.h"

namespace trainer::config {

/// The forms of a family's files: GPT-2's (config.json with n_embd, Conv1D [in, out] with q, k and v in one tensor),
/// those that Llama began, or GPT-NeoX's (q, k and v in one tensor, head by head).
enum class FileForm { gpt2, llama, gpt_neox };

/// The fields that a family's config.json has for sliding windows. `listed`: sliding_window and layer_types, with a
/// RoPE for each type. `never`: it has them, but windows are not supported.
enum class WindowFields { none, all_layers, some_layers, listed, never };

/// The fields that a family's config.json has for experts: their number (num_local_experts, else num_experts), width
/// (moe_intermediate_size in `qwen`, else intermediate_size), and, except in `mixtral`, norm_topk_prob.
enum class ExpertFields { none, mixtral, olmoe, qwen };

/// A family in Hugging Face's transformers.
struct HuggingFaceFamily {
  const char *model_type, *architecture;
  FileForm form = FileForm::llama;
  const char* multimodal = nullptr;  // model_type of folders whose text_config is such a model; null: none
  bool is_gemma = false;             // names of fields for activation, scale of scores and soft caps
  // Fields of config.json, and the values of those that it omits:
  int64_t kv_heads = 0;  // 0: as many as query heads
  int64_t head_dim = 0;  // 0: hidden_size / num_attention_heads
  WindowFields windows = WindowFields::none;
  ExpertFields experts = ExpertFields::none;
  double rope_theta = 1e4, norm_eps = 1e-6;
  bool tied = false;
  int64_t pad_token = -1;                                 // -1: none
  bool has_attention_bias = false, has_mlp_bias = false;  // true if config.json has these fields
  bool heads_divide_width = false;                        // n_head must divide d_model
};

/// A family in llama.cpp.
struct GgufFamily {
  const char* architecture = nullptr;  // null: export as GGUF is not supported
  bool turns_pairs = false;            // rotates adjacent pairs of features, not halves: heads are stored in that order
  bool has_biases = true;              // false: none in attention
  bool needs_biases = false;           // true: in all linears of attention
  bool fixed_heads = false;            // n_head · head_dim must be d_model
  bool ties = true;                    // false: the head is never the embedding
  bool windows = false;
  int64_t full_every = 0;  // the only interval of layers without a window; 0: any
  bool norm_topk = false;  // with experts: their weights are normalized
};

struct Family {
  Arch arch;
  const char* name;   // in model.arch
  const char* about;  // for the help of model.arch; families with the same text follow one another
  FamilyFacts facts;
  HuggingFaceFamily hugging_face;
  GgufFamily gguf = {};
};

/// Returns all families, in the order of Arch.
std::span<const Family> families();
const Family& family_of(const Model& model);
/// Returns null for another name.
const Family* find_family(std::string_view name);
/// Makes `model` one of this family: sets arch and the facts, but no key that has a default by family.
void set_family(Model& model, Arch arch);

}  // namespace trainer::config
