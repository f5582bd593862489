#pragma once
// A sharding's requirements on the model and the batch: every split must produce equal parts.
#include <optional>

#include "sharding/sharding.h"

namespace trainer::sharding {

/// The extents of a model and its micro-batch.
struct Extents {
  int64_t n_layer = 0, n_head = 0, n_kv_head = 0;
  int64_t head_dim = 0;  // 0: d_model / n_head
  int64_t d_model = 0, d_ff = 0;
  int64_t vocab_multiple = 0;  // 0: the vocabulary is padded as the sharding requires
  int64_t micro_batch = 0, seq_len = 0;
  bool tied = false;  // one table for embedding and head
  // Layers moe_every, 2·moe_every, … have n_expert experts of width d_expert, and a shared one of width d_shared.
  int64_t n_expert = 0, d_expert = 0, d_shared = 0, moe_every = 1;
};
enum class Extent : uint8_t {
  n_layer,
  n_head,
  n_kv_head,
  query_width,
  key_width,
  d_model,
  d_ff,
  vocab_multiple,
  micro_batch,
  token_rows,
  tied,
  d_expert,
  d_shared,
  n_expert,
  seq_len
};

/// A violated rule, as plain data, so that a search over many shardings formats no text.
struct Violation {
  enum class Rule : uint8_t {
    divides,
    layers,
    shares_heads,
    flat_table,
    one_table,
    nested_table,
    ring,
    disjoint,
    whole_rows,
    one_split,
    no_ring,
    rows_of_experts,
    no_experts,
    segments,
    rows_of_context,
    one_order
  };
  Rule rule = Rule::divides;
  Extent extent = Extent::d_model;
  int64_t value = 0;                  // the extent's value
  AxisSet axes = 0, others = 0;       // the axes that the rule concerns
  const char *what = "", *site = "";  // "split columns of ", "up"
  int64_t layer = -1;                 // the first layer that violates the rule; -1: the violation is outside the layers

  /// Returns the message text without a remedy.
  std::string text(const ModelSharding& sharding) const;
  /// Returns values of the extent that satisfy the rule: "d_ff = 70 or 75 fits"; empty if it cannot suggest any.
  std::string remedy(const ModelSharding& sharding) const;
};

/// Returns the first violation. Allocates nothing.
std::optional<Violation> first_violation(const ModelSharding& sharding, const Extents& extents);
/// Returns all violations, but only the first for each rule, extent and set of axes.
std::vector<Violation> violations(const ModelSharding& sharding, const Extents& extents);

}  // namespace trainer::sharding
