#include "tensor/meter.h"

namespace trainer {

std::string_view name_of(OpKind kind) {
  static constexpr std::string_view names[kOpKinds] = {"gemm",        "attention", "norm",       "activation",
                                                       "rope",        "embedding", "loss",       "elementwise",
                                                       "column_sum",  "pack",      "grad_norm",  "optimizer"};
  return names[static_cast<size_t>(kind)];
}

}  // namespace trainer
