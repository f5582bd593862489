#include "ops/cpu/peak.h"

namespace trainer::ops {

const PeakTable& peak_loops(device::Isa isa) { return TRAINER_KERNELS(isa, peak_table); }

}  // namespace trainer::ops
