#include "optim/rule.h"

namespace trainer::optim {

int64_t state_bytes(const Rule& rule) {
  int64_t bytes = 0;
  for (const params::StateSpec& state : rule.states()) bytes += size_of(state.type);
  return bytes;
}

}  // namespace trainer::optim
