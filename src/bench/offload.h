#pragma once
// The ladder of optimizer offload: what an update would take, from blocking to interleaved, at measured or given rates.
#include <string>
#include <vector>

#include "offload/clock.h"

namespace trainer::bench {

struct OffloadRung {
  std::string name;
  config::Fraction share;  // streamed
  double played_s = 0;     // until all weights are new, on the virtual clock
  double predicted_s = 0;  // by the closed form; 0: it has none for blocking
};

/// All on the host and waited for piece by piece, gradients included; all on the host, gradients flushed before; a
/// quarter, half and all of the subgroups streamed; and the best share. `parameters` of one rank in equal subgroups.
std::vector<OffloadRung> offload_ladder(int64_t parameters, int64_t subgroup, int slots, const offload::Rates& rates,
                                        const offload::Sizes& sizes);

}  // namespace trainer::bench
