#pragma once
// The tensors of a GPT-2 or GPT-NeoX model, or of one of the families derived from Llama, in Hugging Face transformers,
// and the tensors of this program from which they are assembled.
//
// Weights of linears are [in, out] here and in GPT-2 (its Conv1D), otherwise [out, in] (torch's Linear). GPT-2 keeps
// the columns of q, k and v side by side in one matrix, GPT-NeoX those of each head. All but GPT-2 rotate halves
// (RoPE), as this program does. Each expert has tensors of its own there; here those of all experts of a layer are one
// tensor.
#include <cstdint>
#include <string>
#include <vector>

#include "base/shape.h"
#include "config/model.h"
#include "mesh/runs.h"

namespace trainer::huggingface {

struct MappedTensor {
  /// A tensor of this program; its columns are rows of a transposed tensor.
  struct Part {
    std::string name;
    int64_t width = 0;  // columns, or elements of a vector
  };
  std::string name = {};    // "transformer.h.0.attn.c_attn.weight"
  Shape shape;              // in Hugging Face's layout
  std::vector<Part> parts;  // side by side; empty: zeros
  bool transposed = false;  // stored transposed
  // Columns taken from each part in turn, which are equally wide then; 0: all columns of a part together.
  int64_t block = 0;
  bool in_first = false;           // a linear's weight, stored as [in, out]
  int64_t slices = 0, slice = -1;  // the only part is [slices, in, out], and this tensor is its matrix `slice`; else 0
  int64_t rotated_heads = 0;       // heads of queries or keys, which RoPE rotates, in the tensor's rows; 0: others
  std::string gguf = {};           // the name in GGUF files: "blk.0.attn_qkv.weight"

  /// Returns the shape of part `index` in this program.
  Shape part_shape(size_t index) const;
  /// Returns the position of the elements of part `index` in the memory of this tensor.
  std::vector<mesh::Run> runs(size_t index) const;
};

/// Returns all tensors of a model in the order of its layers; `vocab` is the vocabulary size without padding. A tied
/// head is not included. Biases that GPT-2 requires but the model does not have are zeros.
std::vector<MappedTensor> tensor_map(const config::Model& model, int64_t vocab);

/// Returns the prefix of the names of all tensors except the head's; files of models without a head omit it.
std::string name_prefix(const config::Model& model);

}  // namespace trainer::huggingface
