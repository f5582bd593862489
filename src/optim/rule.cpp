#include "optim/rule.h"

namespace trainer::optim {

void Updater::update(Exec&, const Update&, int, comm::Chunk) {
  TRAINER_CHECK(false, "the rule updates each element on its own");
}

void Rule::update(Exec&, const Update&, bool, const UpdateRange&) const {
  TRAINER_CHECK(false, "the rule updates each element on its own");
}

int64_t state_bytes(const Rule& rule) {
  int64_t bytes = 0;
  for (const params::StateSpec& state : rule.states()) bytes += size_of(state.type);
  return bytes;
}

}  // namespace trainer::optim
