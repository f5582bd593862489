#pragma once
// Fields of config.json about mixtures of experts.
#include "config/families.h"
#include "huggingface/json_fields.h"

namespace trainer::huggingface {

/// Throws if the family's models in Hugging Face's transformers cannot represent the model's experts.
void require_experts(const config::Model& model, const config::Family& family);
/// Adds the fields of experts, and of dense MLPs next to them: intermediate_size.
void add_experts(const config::Model& model, config::ExpertFields kind, ordered_json& out);
/// Reads them. Logs the coefficient of the balance loss, which is a setting of training, not of the model.
void read_experts(const Fields& fields, const config::Family& family, int64_t layers, Keys& keys);

}  // namespace trainer::huggingface
