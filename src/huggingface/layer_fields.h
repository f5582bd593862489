#pragma once
// Fields of config.json about single layers: which layers have a sliding window, and which have RoPE.
#include "config/config.h"
#include "huggingface/json_fields.h"

namespace trainer::huggingface {

/// The fields that a family has for sliding windows. `never`: it has them, but windows are not supported.
enum class Windows { none, all_layers, some_layers, never };

/// Reads sliding windows. `layer_types`, if present, lists the layers that have them.
void read_windows(const Fields& fields, Windows kind, int64_t layers, Keys& keys);
void add_windows(const config::Model& model, Windows kind, ordered_json& out);

/// Reads which layers of SmolLM3 have no RoPE: 0 in a list with an element for each layer.
void read_nope(const Fields& fields, int64_t layers, Keys& keys);
void add_nope(const config::Model& model, ordered_json& out);

}  // namespace trainer::huggingface
