#pragma once
// The linears of a block, written down once: the layers of the model, FLOPs, the planner, import and export follow.
#include <string>
#include <vector>

#include "config/model.h"
#include "sharding/sharding.h"

namespace trainer::config {

/// Columns of a linear with a parameter of their own.
struct LinearPart {
  std::string name;   // "attn.q": the parameters are name + ".weight" and name + ".bias"
  int64_t width = 0;  // columns
  /// The number of attention heads that the columns form. Each rank has whole heads; if there are more ranks than
  /// heads, several ranks hold the same head. 0: columns may be split anywhere.
  int64_t heads = 0;
};

/// y = x·W + b with W [in, out].
struct BlockLinear {
  sharding::Site site = sharding::Site::qkv;
  int64_t in = 0;
  std::vector<LinearPart> parts;  // side by side in W
  bool bias = false;
  double init_std = 0.02;  // standard deviation of initial weights
  int64_t out() const;
};

/// Returns the linears of a layer, counted from 0, of a resolved model, in the order in which they are computed. Today
/// all layers of a model have the same.
std::vector<BlockLinear> linears_of(const Model& model, int64_t layer);

}  // namespace trainer::config
