#include "huggingface/layer_fields.h"

#include <functional>

namespace trainer::huggingface {
namespace {

/// Returns n if exactly the layers n, 2n, …, counted from 1, are marked in a list with an element for each layer; 0 if
/// none is. `what` describes what this program has.
int64_t interval_of(const Fields& fields, const char* field, int64_t layers, const char* what,
                    const std::function<std::optional<bool>(const json&)>& is_marked) {
  const json& list = *fields.find(field);
  if (!list.is_array()) fields.refuse(field, format("{}, expected a list", json_text(list)));
  if (static_cast<int64_t>(list.size()) != layers)
    fields.refuse(field, format("{} elements for {} layers", list.size(), layers));
  int64_t every = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const json& element = list[static_cast<size_t>(layer)];
    const std::optional<bool> marked = is_marked(element);
    if (marked == true && every == 0) every = layer + 1;
    if (!marked || *marked != (every > 0 && (layer + 1) % every == 0))
      fields.refuse(field, format("layer {} is {}; {}", layer, json_text(element), what));
  }
  return every;
}

}  // namespace

int64_t read_windows(const Fields& fields, const config::Family& family, int64_t layers, Keys& keys) {
  constexpr int64_t kDefaultWindow = 4096, kDefaultMaxWindowLayers = 28;
  const WindowFields kind = family.hugging_face.windows;
  const bool listed = kind == WindowFields::listed;
  if (kind == WindowFields::none) fields.demand_absent("sliding_window");
  if (kind == WindowFields::never) fields.demand("use_sliding_window", false);
  const bool windows = kind == WindowFields::all_layers || listed ||
                       (kind == WindowFields::some_layers && fields.flag("use_sliding_window", false));
  int64_t window = 0, full_every = listed ? family.facts.window_full_every : 0;
  const bool no_window = fields.has_null("sliding_window") ||
                         (listed && fields.find("sliding_window") != nullptr && *fields.find("sliding_window") == 0);
  if (listed)  // older and newer name
    for (const char* field : {"sliding_window_pattern", "_sliding_window_pattern"})
      full_every = fields.size(field, full_every);
  if (windows && !no_window) window = fields.size("sliding_window", kDefaultWindow);
  if (window > 0 && kind == WindowFields::some_layers && fields.find("layer_types") == nullptr) {
    const double first = fields.number("max_window_layers", kDefaultMaxWindowLayers), all = static_cast<double>(layers);
    if (first >= all) window = 0;
    if (first > 0 && first < all)
      fields.refuse(
          "max_window_layers",
          format("{}, but the model has {} layers; this program supports windows in all layers, in none, or in "
                 "all but every n-th (layer_types)",
                 first, layers));
  }
  if (fields.find("layer_types") != nullptr) {
    const auto is_full = [&](const json& type) -> std::optional<bool> {
      if (type == "full_attention") return true;
      return type == "sliding_attention" && window > 0 ? std::optional(false) : std::nullopt;
    };
    full_every = interval_of(fields, "layer_types", layers,
                             windows ? "this program supports windows in all layers or in all but every n-th"
                                     : "this program supports only \"full_attention\" in this model",
                             is_full);
    if (full_every == 1) window = full_every = 0;
  }
  // An absent key would have the value of the family.
  if (window > 0 || listed) keys.add("window", window);
  if (window > 0 && (full_every > 0 || listed)) keys.add("window_full_every", full_every);
  return window;
}

void add_windows(const config::Model& m, WindowFields kind, ordered_json& out) {
  if (kind == WindowFields::none) return;
  out["sliding_window"] = m.window > 0 ? ordered_json(m.window) : ordered_json(nullptr);
  if (kind == WindowFields::all_layers) return;
  if (kind != WindowFields::listed) {
    out["use_sliding_window"] = m.window > 0;
    if (m.window == 0) return;
    out["max_window_layers"] = 0;
  }
  ordered_json& types = out["layer_types"] = ordered_json::array();
  for (int64_t layer = 0; layer < m.n_layer; ++layer)
    types.push_back(has_window(m, layer) ? "sliding_attention" : "full_attention");
}

void read_nope(const Fields& fields, int64_t layers, Keys& keys) {
  constexpr const char* kList = "no_rope_layers";
  int64_t every = fields.size("no_rope_layer_interval", 4);
  if (fields.find(kList) != nullptr)
    every = interval_of(fields, kList, layers, "this program supports RoPE in all layers or in all but every n-th",
                        [](const json& rotated) -> std::optional<bool> {
                          if (rotated != 0 && rotated != 1) return std::nullopt;
                          return rotated == 0;
                        });
  keys.add("nope_every", every);
}

void add_nope(const config::Model& m, ordered_json& out) {
  ordered_json& rotated = out["no_rope_layers"] = ordered_json::array();  // 1: with RoPE
  for (int64_t layer = 0; layer < m.n_layer; ++layer) rotated.push_back(has_rope(m, layer) ? 1 : 0);
  if (nope_interval(m) > 0) out["no_rope_layer_interval"] = nope_interval(m);
}

}  // namespace trainer::huggingface
