#pragma once
// Rotary positions in config.json: rope_theta with rope_scaling (transformers 4), or rope_parameters (transformers 5).
#include "config/families.h"
#include "huggingface/json_fields.h"

namespace trainer::huggingface {

/// Reads either form; rope_scaling wins unless it is null. Rejects types of scaling that this program does not support,
/// and, unless the caller reads it, a partial_rotary_factor.
void read_rope(const Fields& fields, double default_theta, Keys& keys, bool partial = false);
/// Reads and writes the RoPE of a family whose layers with a window have a different one, which is not scaled:
/// rope_theta and rope_scaling, or an object for each type of layer in rope_parameters, which readers need for another
/// base. A family with a base of its own for them has it in rope_local_base_freq, and only linear scaling.
/// `has_windows`: some layers have a window. require_layer_rope() throws if the file cannot have the model's.
void read_layer_rope(const Fields& fields, const config::Family& family, bool has_windows, Keys& keys);
void require_layer_rope(const config::Model& model, const config::Family& family);
void add_layer_rope(const config::Model& model, const config::Family& family, ordered_json& out);
/// Reads the fields for the base and for the part of a head of `head` features that GPT-NeoX rotates, which have two
/// names each, and may be in rope_parameters, too.
void read_neox_rope(const Fields& fields, int64_t head, Keys& keys);
void add_neox_rope(const config::Model& model, ordered_json& out);
/// Writes the older form, which every version reads.
void add_rope(const config::Model& model, ordered_json& out);

}  // namespace trainer::huggingface
