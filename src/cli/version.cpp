#include "base/dtype.h"
#include "cli/cli.h"
#include "comm/world.h"
#include "device/device.h"
#include "ops/gemm.h"

namespace trainer::cli {

std::string version() { return TRAINER_VERSION; }
std::string commit() { return TRAINER_COMMIT; }

std::string version_text() {
  device::DryDevice here(device::default_threads());
  return format(
      "trainer {} (commit {})\nbackends: cpu, {} (no CUDA in this build)\nISA found: {}; in use: {}\n"
      "products: fp32 by {}, bf16 by {}\ndevices: cpu, {} threads",
      version(), commit().empty() ? "unknown" : commit(), comm::mpi_version().value_or("no MPI"), device::isa_summary(),
      device::name_of(here.isa()), ops::product_path(here, DType::f32), ops::product_path(here, DType::bf16),
      here.threads());
}

}  // namespace trainer::cli
