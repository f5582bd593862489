#include "setup/gemm_tuning.h"

#include <algorithm>
#include <optional>

#include "base/checksum.h"
#include "base/files.h"
#include "base/log.h"
#include "config/config.h"
#include "ops/gemm_tuning.h"

namespace trainer::setup {

std::string use_gemm_tuning(const config::Config& config, comm::World& world, const device::Device& device) {
  const std::string& path = config.hardware.gemm_tuning;
  if (path.empty()) return {};
  std::string text;
  world.control().run_on_all_ranks([&] {
    if (!world.first()) return;
    text =
        read_text_file(path, "the table of hardware.gemm_tuning; create one with `trainer bench gemm --write-tuning`");
  });
  world.control().broadcast(text);
  std::optional<ops::GemmTuning> tuning;
  std::string misfit;
  world.control().run_on_all_ranks([&] {
    try {
      tuning = ops::parse_gemm_tuning(text);
    } catch (const Error& error) {
      throw Error(error.code(),
                  format("hardware.gemm_tuning = \"{}\": {}; create one with `trainer bench gemm --write-tuning`", path,
                         error.what()));
    }
    misfit = ops::gemm_tuning_misfit(device, *tuning).value_or("");
  });
  // All ranks use the table or none does: a run never mixes tuned and default algorithms.
  const std::vector<std::string> misfits = world.control().gather(misfit);
  const auto first = std::find_if(misfits.begin(), misfits.end(), [](const std::string& why) { return !why.empty(); });
  if (first == misfits.end()) {
    ops::use_gemm_tuning(device, *tuning);
    return to_string(checksum_of(text));
  }
  if (world.first())
    log::warning("hardware.gemm_tuning: {} is ignored: {}{}", path,
                 first == misfits.begin() ? "" : format("rank {}: ", first - misfits.begin()), *first);
  return {};
}

}  // namespace trainer::setup
