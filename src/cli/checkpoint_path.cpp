#include "cli/checkpoint_path.h"

#include "base/error.h"
#include "config/load.h"
#include "run/run_folder.h"

namespace trainer::cli {

std::string checkpoint_path(const std::string& verb, const std::string& checkpoint, const ConfigOptions& config) {
  if (checkpoint.empty() == config.file.empty())
    throw Error(Code::usage,
                format("`{}` needs either --checkpoint PATH (a step folder, a checkpoints folder or a run folder) or "
                       "--config FILE (then the newest checkpoint of its run)",
                       verb));
  if (!checkpoint.empty()) return checkpoint;
  return run::checkpoint_folder(config::load(config.file, config.sets, {.files = false})).string();
}

}  // namespace trainer::cli
