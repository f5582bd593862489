#pragma once
// Fields of config.json about single layers: which layers have a sliding window, and which have RoPE.
#include "config/families.h"
#include "huggingface/json_fields.h"

namespace trainer::huggingface {

using config::WindowFields;

/// Reads sliding windows, and returns their length, 0: none. `layer_types`, if present, lists the layers that have
/// them; if not, they are those of the family.
int64_t read_windows(const Fields& fields, const config::Family& family, int64_t layers, Keys& keys);
void add_windows(const config::Model& model, WindowFields kind, ordered_json& out);

/// Reads which layers of SmolLM3 have no RoPE: 0 in a list with an element for each layer.
void read_nope(const Fields& fields, int64_t layers, Keys& keys);
void add_nope(const config::Model& model, ordered_json& out);

}  // namespace trainer::huggingface
