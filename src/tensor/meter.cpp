#include "tensor/meter.h"

namespace trainer {

std::string_view name_of(OpKind kind) {
  static constexpr std::string_view names[kOpKinds] = {"gemm",      "attention", "norm",         "activation", "rope",
                                                       "embedding", "loss",      "elementwise",  "column_sum", "pack",
                                                       "grad_norm", "optimizer", "orthogonalize"};
  return names[static_cast<size_t>(kind)];
}

std::string_view name_of(CommOp op) {
  static constexpr std::string_view names[kCommOps] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                                       "reduce",     "all_to_all",     "send",       "shift"};
  return names[static_cast<size_t>(op)];
}

}  // namespace trainer
