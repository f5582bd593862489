#include "huggingface/rope_fields.h"

#include <cmath>
#include <set>

#include "base/json.h"
#include "base/log.h"

namespace trainer::huggingface {
namespace {

constexpr const char *kScaling = "rope_scaling", *kParameters = "rope_parameters",
                     *kOriginal = "original_max_position_embeddings", *kFull = "full_attention",
                     *kLocal = "rope_local_base_freq", *kWindowed = "sliding_attention";

/// The JSON object of a RoPE scaling, and those of its fields that were used.
class Scaling {
 public:
  Scaling(const Fields& fields, const char* name) : fields_(fields), name_(name) {
    for (const auto& [field, value] : fields.members())
      if (field == "mrope_section")
        refuse(field, "rotation by position in an image is not supported; import a model of text only");
      else if (value.is_object())
        refuse(field, format("{} is not supported; this program uses one RoPE table for all layers", json_text(value)));
  }

  [[noreturn]] void refuse(const std::string& field, const std::string& reason) const {
    fields_.refuse(field.empty() ? std::string(name_) : format("{}.{}", name_, field), reason);
  }
  const json* find(const char* field) {
    used_.insert(field);
    return fields_.find(field);
  }
  /// Returns a number above 0; null and 0 mean the default.
  std::optional<double> number(const char* field) {
    const json* value = find(field);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || value->get<double>() < 0)
      refuse(field, format("{}, expected a number above 0", json_text(*value)));
    const double number = value->get<double>();
    return number == 0 ? std::nullopt : std::optional(number);
  }
  void warn_of_unused() const {
    for (const auto& [field, value] : fields_.members())
      if (!used_.contains(field) && !value.is_null())
        log::warning("{}.{}: ignored, since this type of scaling does not use it", name_, field);
  }

 private:
  const Fields& fields_;
  const char* name_;
  std::set<std::string> used_{"rope_theta", "rope_type", "type", "partial_rotary_factor"};
};

config::RopeType type_of(const Fields& rope, const Scaling& scaling) {
  const json* type = rope.find("rope_type");
  if (type == nullptr) type = rope.find("type");
  if (type == nullptr) return config::RopeType::plain;
  const auto* const found = std::ranges::find_if(config::kRopeNames, [&](const char* name) { return *type == name; });
  if (found == std::end(config::kRopeNames))
    scaling.refuse(
        "", format("{} is not supported; expected one of {}", json_text(*type), fmt::join(config::kRopeNames, ", ")));
  return static_cast<config::RopeType>(found - std::begin(config::kRopeNames));
}

/// The factor of cos and sin of YaRN, where the file does not leave it to the default.
std::optional<double> attention_factor(Scaling& scaling, double factor) {
  const std::optional<double> given = scaling.number("attention_factor"), scale = scaling.number("mscale"),
                              all = scaling.number("mscale_all_dim");
  if (given || !scale || !all) return given;
  const auto grown = [&](double by) { return factor > 1 ? 0.1 * by * std::log(factor) + 1 : 1; };
  return grown(*scale) / grown(*all);
}

void read_scaling(const Fields& fields, const Fields& rope, const char* name, Keys& keys) {
  using config::RopeType;
  Scaling scaling(rope, name);
  const RopeType type = type_of(rope, scaling);
  if (type != RopeType::plain) {
    keys.add("rope_type", std::string(config::kRopeNames[static_cast<size_t>(type)]));
    const std::optional<double> factor = scaling.number("factor");
    if (!factor) scaling.refuse("factor", "missing");
    if (*factor < 1) scaling.refuse("factor", format("{}, expected at least 1", *factor));
    keys.add("rope_factor", *factor);
    if (type != RopeType::linear) {
      scaling.find(kOriginal);
      keys.add("rope_original", fields.find(kOriginal) ? fields.size(kOriginal)  // as transformers does
                                : rope.find(kOriginal) ? rope.size(kOriginal)
                                                       : fields.size("max_position_embeddings"));
    }
    const auto take = [&](const char* field, const char* key) {
      if (const std::optional<double> value = scaling.number(field)) keys.add(key, *value);
    };
    if (type == RopeType::llama3) {
      take("low_freq_factor", "rope_low_freq");
      take("high_freq_factor", "rope_high_freq");
    }
    if (type == RopeType::yarn) {
      take("beta_fast", "rope_beta_fast");
      take("beta_slow", "rope_beta_slow");
      if (const std::optional<double> factor_of_cos = attention_factor(scaling, *factor))
        keys.add("rope_attention", *factor_of_cos);
      scaling.find("truncate");
      keys.add("rope_truncate", rope.flag("truncate", true));
    }
  }
  scaling.warn_of_unused();
}

}  // namespace

void read_rope(const Fields& fields, double default_theta, Keys& keys, bool partial) {
  const double outside = fields.number("rope_theta", default_theta);
  double theta = outside;
  const char* source = nullptr;
  for (const char* name : {kParameters, kScaling}) {  // the last one that is not empty wins
    if (fields.find(name) == nullptr || fields.find(name)->empty()) continue;
    const Fields rope = fields.object(name);
    if (!partial) rope.demand("partial_rotary_factor", 1.0);
    theta = rope.number("rope_theta", outside);
    source = name;
  }
  keys.add("rope_theta", theta);
  if (source != nullptr) read_scaling(fields, fields.object(source), source, keys);
}

namespace {

/// Returns the object of a RoPE that is scaled.
ordered_json scaling_of(const config::Model& m) {
  using config::RopeType;
  ordered_json scaling;
  scaling["rope_type"] = config::kRopeNames[static_cast<size_t>(m.rope_type)];
  scaling["factor"] = m.rope_factor;
  if (m.rope_type != RopeType::linear) scaling[kOriginal] = m.rope_original;
  if (m.rope_type == RopeType::llama3) {
    scaling["low_freq_factor"] = m.rope_low_freq;
    scaling["high_freq_factor"] = m.rope_high_freq;
  }
  if (m.rope_type == RopeType::yarn) {
    scaling["beta_fast"] = m.rope_beta_fast;
    scaling["beta_slow"] = m.rope_beta_slow;
    if (m.rope_attention > 0) scaling["attention_factor"] = m.rope_attention;
    scaling["truncate"] = m.rope_truncate;
  }
  return scaling;
}

bool has_local_base(const config::Family& family) { return family.facts.window_rope_theta > 0; }

/// Returns the number that all these fields have, which may be in the objects of RoPE, too; throws if they differ.
double same_number(const Fields& fields, std::initializer_list<const char*> names, double otherwise) {
  std::optional<std::pair<std::string, double>> first;
  const auto take = [&](const Fields& from, const std::string& place) {
    for (const char* name : names) {
      if (from.find(name) == nullptr) continue;
      const double value = from.number(name, 0);
      if (!first) first = {place + name, value};
      if (value != first->second)
        fields.refuse(place + name, format("{}, but {} is {}; make them equal", value, first->first, first->second));
    }
  };
  take(fields, "");
  for (const char* object : {kParameters, kScaling})
    if (fields.find(object) != nullptr) take(fields.object(object), format("{}.", object));
  return first ? first->second : otherwise;
}

}  // namespace

void read_neox_rope(const Fields& fields, int64_t head, Keys& keys) {
  constexpr const char* kPart = "rotary_pct";
  read_rope(fields, same_number(fields, {"rotary_emb_base", "rope_theta"}, 1e4), keys, /*partial=*/true);
  const double part = same_number(fields, {kPart, "partial_rotary_factor"}, 0.25);
  const double rotated = part * static_cast<double>(head);
  if (!(part > 0 && part <= 1)) fields.refuse(kPart, format("{}, expected a number above 0, at most 1", part));
  const auto features = static_cast<int64_t>(rotated);
  if (features % 2 != 0 || features == 0)
    fields.refuse(kPart, format("{} of a head of {} features is {}, of which transformers rotates {}; this program "
                                "needs an even number of at least 2",
                                part, head, rotated, features + features % 2));
  keys.add("rotary_dim", features);
}

void add_neox_rope(const config::Model& m, ordered_json& out) {
  const int64_t head = head_size(m), rotary = rotary_size(m);
  double part = static_cast<double>(rotary) / static_cast<double>(head);
  if (static_cast<int64_t>(part * static_cast<double>(head)) < rotary) part = std::nextafter(part, 1.0);
  out["rotary_pct"] = part;
  out["rotary_emb_base"] = m.rope_theta;
  add_rope(m, out);
}

void add_rope(const config::Model& m, ordered_json& out) {
  out["rope_theta"] = m.rope_theta;
  out[kScaling] = m.rope_type == config::RopeType::plain ? ordered_json() : scaling_of(m);
}

void read_layer_rope(const Fields& fields, const config::Family& family, bool has_windows, Keys& keys) {
  const bool local = has_local_base(family);
  const double default_theta = family.hugging_face.rope_theta,
               default_windowed = local ? family.facts.window_rope_theta : default_theta;
  const json* const nested = fields.find(kParameters);
  const auto base = [&](const Fields& from) { return from.number("rope_theta", default_theta); };
  double theta = default_theta, windowed = default_windowed;
  if (nested != nullptr && !nested->empty()) {
    const Fields types = fields.object(kParameters);
    if (types.find(kFull) == nullptr || !types.find(kFull)->is_object())
      fields.refuse(kParameters, format("transformers ignores it without an object for each type of layer; expected {} "
                                        "and {}, or rope_theta and rope_scaling instead",
                                        kFull, kWindowed));
    const Fields full = types.object(kFull);
    full.demand("partial_rotary_factor", 1.0);
    theta = base(full);
    Keys scaled;
    read_scaling(fields, full, "rope_parameters.full_attention", scaled);
    if (types.find(kWindowed) != nullptr) {
      const Fields window = types.object(kWindowed);
      window.demand("partial_rotary_factor", 1.0);
      windowed = window.number("rope_theta", default_windowed);
      if (type_of(window, Scaling(window, "rope_parameters.sliding_attention")) != config::RopeType::plain)
        fields.refuse("rope_parameters.sliding_attention", "only layers without a window may have a scaled RoPE here");
    }
    if (fields.number("rope_theta", theta) != theta)
      fields.refuse("rope_theta", format("{}, but rope_parameters.full_attention has {}; make them equal",
                                         fields.number("rope_theta", theta), theta));
    if (fields.find(kScaling) != nullptr || fields.has_null(kScaling)) {
      Keys other;  // null: none, which is a scaling of its own
      if (fields.find(kScaling) != nullptr) read_scaling(fields, fields.object(kScaling), kScaling, other);
      if (other.sets() != scaled.sets())
        fields.refuse(kScaling, "differs from rope_parameters.full_attention; make them equal");
    }
    keys.add(scaled);
  } else if (local) {
    theta = base(fields);
    windowed = fields.number(kLocal, default_windowed);
    if (fields.find(kScaling) != nullptr) read_scaling(fields, fields.object(kScaling), kScaling, keys);
  } else {
    const char* const remedy = "add rope_parameters with the objects full_attention and sliding_attention";
    if (fields.find("rope_theta") == nullptr)
      fields.refuse("rope_theta", format("missing, and versions of transformers have different defaults; {}", remedy));
    if (base(fields) != default_theta)
      fields.refuse("rope_theta", format("{}, which transformers 5 ignores for layers with a window ({}); {}",
                                         base(fields), default_theta, remedy));
    if (fields.find(kScaling) != nullptr) read_scaling(fields, fields.object(kScaling), kScaling, keys);
  }
  keys.add("rope_theta", theta);
  const auto type =
      std::ranges::find_if(keys.sets(), [](const std::string& set) { return set.starts_with("model.rope_type="); });
  const bool scales = type != keys.sets().end();
  if (local && scales && type->find("linear") == std::string::npos)
    fields.refuse(kScaling,
                  format("{} is not supported; expected default or linear", type->substr(type->find('=') + 1)));
  if (has_windows) keys.add("window_rope_theta", scales || theta != windowed ? windowed : 0.0);
}

void require_layer_rope(const config::Model& m, const config::Family& family) {
  const bool scales = m.rope_type != config::RopeType::plain, local = has_local_base(family);
  if (local && scales && m.rope_type != config::RopeType::linear)
    throw Error(Code::checkpoint,
                format("model.rope_type = \"{}\" cannot be exported: Hugging Face's {} has \"default\" "
                       "and \"linear\"",
                       config::kRopeNames[static_cast<size_t>(m.rope_type)], family.hugging_face.model_type));
  if (m.window == 0 || m.window_rope_theta == m.rope_theta || (!scales && m.window_rope_theta == 0)) return;
  if (local && m.window_rope_theta > 0) return;
  throw Error(Code::checkpoint,
              format("model.window_rope_theta = {} cannot be exported: readers of {}'s files use rope_theta = {} in "
                     "layers with a window, without scaling",
                     m.window_rope_theta, family.name, m.rope_theta));
}

void add_layer_rope(const config::Model& m, const config::Family& family, ordered_json& out) {
  add_rope(m, out);
  if (has_local_base(family)) {
    const double same = m.window > 0 ? m.rope_theta : family.facts.window_rope_theta;
    out[kLocal] = m.window_rope_theta > 0 ? m.window_rope_theta : same;
    return;
  }
  if (m.rope_theta == family.hugging_face.rope_theta) return;
  ordered_json full = m.rope_type == config::RopeType::plain ? ordered_json{{"rope_type", "default"}} : scaling_of(m);
  full["rope_theta"] = m.rope_theta;
  out[kParameters] = {{kFull, full}, {kWindowed, {{"rope_type", "default"}, {"rope_theta", m.rope_theta}}}};
}

}  // namespace trainer::huggingface
