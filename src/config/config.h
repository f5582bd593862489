#pragma once
// The run's configuration as typed structs. Every key is declared once, in config/keys*.cpp (default, range, unit,
// help); parsing, --set, validation, `config reference|show|check` and --help are driven by those declarations.
//
// A source that needs only some sections includes their headers: a change of a different section does not rebuild it.
#include <cstdint>
#include <map>
#include <string>

#include "config/data.h"
#include "config/model.h"
#include "config/offload.h"
#include "config/optim.h"
#include "config/parallel.h"
#include "config/run.h"
#include "config/train.h"

namespace trainer::config {

/// The place where a value was set: a position in a file, or the command line. In the latter case `set` is
/// "--set section.key=value", or a different option with its value, and the other members are empty.
struct Origin {
  std::string file;
  int64_t line = 0, column = 0;
  std::string set;
};

struct Config {
  Run run;
  Model model;
  Data data;
  Train train;
  Optim optim;
  Muon muon;
  Sgd sgd;
  Precision precision;
  Parallel parallel;
  Offload offload;
  Checkpoint checkpoint;
  Log log;
  Hardware hardware;
  Debug debug;

  std::string path;                       // the file it was loaded from, empty when built in memory
  std::map<std::string, Origin> origins;  // by "section.key", for every value that was set; all others are defaults
};

/// Returns the base model's width relative to this one's in muP; 1 without muP.
inline double width_ratio(const Config& config) {
  const int64_t base = config.optim.mup_base_width;
  return base == 0 ? 1 : static_cast<double>(base) / static_cast<double>(config.model.d_model);
}

/// Returns the number of layers, counted from the first, whose whole forward pass is recomputed.
inline int64_t recomputed_layers(const Config& config) {
  if (config.train.recompute == Recompute::full) return config.model.n_layer;
  return config.train.recompute_layers;
}

/// Returns the number of optimizer steps of the whole run: train.steps, or enough for train.tokens, rounded up.
int64_t total_steps(const Config& config);

/// Returns the same for a run that has made `step` steps over `tokens_seen` tokens, possibly with a different batch
/// size.
int64_t total_steps(const Config& config, int64_t step, int64_t tokens_seen);

}  // namespace trainer::config
