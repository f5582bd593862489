#pragma once
// Rotary positions in config.json: rope_theta with rope_scaling (transformers 4), or rope_parameters (transformers 5).
#include "config/model.h"
#include "huggingface/json_fields.h"

namespace trainer::huggingface {

/// Reads either form; rope_scaling wins unless it is null. Rejects types of scaling that this program does not support.
void read_rope(const Fields& fields, double default_theta, Keys& keys);
/// Writes the older form, which every version reads.
void add_rope(const config::Model& model, ordered_json& out);

}  // namespace trainer::huggingface
