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

/// The role of a linear in its layer. `dense`: it computes every token, as all linears of attention and of a dense MLP
/// do. All other roles are in a layer with experts: the router chooses the experts of a token, the shared expert
/// computes every token, and its gate [d_model, 1] weighs its output.
enum class Role : uint8_t { dense, router, experts, shared, shared_gate };

/// y = x·W + b with W [in, out]; of a layer's experts, E such linears, whose weights are one tensor [E, in, out].
struct BlockLinear {
  sharding::Site site = sharding::Site::qkv;
  int64_t in = 0;
  std::vector<LinearPart> parts;  // side by side in W
  bool bias = false;
  double init_std = 0.02;  // standard deviation of initial weights
  Role role = Role::dense;
  int64_t matrices = 1, active = 1;  // matrices, and those of them that compute a token
  bool whole_matrix = true;          // false: Muon leaves W, which is a list of vectors, to AdamW
  int64_t out() const;
  /// Returns the number of weights that compute a token.
  int64_t active_weights() const { return active * in * out(); }
};

/// Returns the linears of a layer, counted from 0, of a resolved model, in the order in which they are computed. A
/// site of a layer with experts has several; each has the sharding of its site.
std::vector<BlockLinear> linears_of(const Model& model, int64_t layer);

}  // namespace trainer::config
