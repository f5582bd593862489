#pragma once
// Contents of a checkpoint: the state of a run and its tensors, by name and by runs of the global tensors.
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/mixture.h"
#include "data/special_tokens.h"
#include "device/device.h"
#include "mesh/runs.h"
#include "tensor/tensor.h"

namespace trainer::checkpoint {

/// One tensor to write or fill: local memory and its mapping to the global tensor.
struct TensorSlice {
  std::string name;  // "blocks.0.attn.q.weight", "…#m", "…#v"
  Shape shape;       // global
  Tensor local;      // flat storage; the runs' local offsets are relative to it
  std::vector<mesh::Run> runs;
  device::Device* device = nullptr;  // the device whose memory contains `local`; null: the host
};

struct TrainState {
  int64_t step = 0;       // completed steps
  int64_t adam_step = 0;  // updates applied (skipped steps do not count)
  int64_t samples_seen = 0, tokens_seen = 0;
  double best_val_loss = std::numeric_limits<double>::quiet_NaN();  // NaN: none yet
  int64_t best_step = -1;
  std::string best_set;      // the validation set of best_val_loss; empty: the only set, which has no name
  std::string best_data;     // run::evaluated_data() of best_val_loss; empty: none yet
  int64_t proven_step = -1;  // the last checkpoint that was followed by a normal step (run/divergence.h); -1: none yet
  int64_t verified_step = -1;  // the last step before which replicas agreed (debug.replay_every); -1: none yet
  double loss = std::numeric_limits<double>::quiet_NaN();      // training loss of the last update; NaN: unknown
  double val_loss = std::numeric_limits<double>::quiet_NaN();  // at this step; NaN: not evaluated, or not finite
  /// The sequence number (manifest.h) of the checkpoint from which the run was last resumed by path, to branch from a
  /// different run or to go back to an earlier step. 0: none.
  int64_t origin = 0;
  /// Number of consecutive steps up to this one that were skipped because the loss or gradient was not finite or a
  /// spike.
  int64_t skipped_in_row = 0;
  /// Finite losses and gradient norms of the last train.skip_window steps, oldest first; empty without
  /// train.skip_sigma.
  std::vector<double> losses, norms;
  bool finite_weights = true;
  /// True if the weights, and the loss and gradient of the last step, are finite. Only such checkpoints count for
  /// Retention::keep (checkpoint/store.h).
  bool is_sound() const { return skipped_in_row == 0 && finite_weights; }
};

/// The mixture of the training data; empty if the data are a single source without a name.
struct MixtureState {
  struct Source {
    int64_t windows = 0;
    std::string hash;
  };
  std::vector<data::MixturePhase> phases;  // in ascending order
  std::map<std::string, Source> sources;
};

/// A checkpoint whose weights were merged into this one.
struct MergedSource {
  std::string folder;
  int64_t step = 0, sequence = 0;
  bool operator==(const MergedSource&) const = default;
};

struct Snapshot {
  TrainState state;
  std::vector<MergedSource> merged_from;  // the oldest first; empty: not merged
  MixtureState mixture;
  std::string config_toml;      // the effective configuration
  std::string tokenizer;        // serialized, may be empty
  int32_t bos = -1;             // token that begins each document and prompt; −1: none
  data::SpecialTokens special;  // special tokens of an imported model; if bos >= 0, special.bos is ignored
  std::string tokenizer_hash, data_hash;
  std::string val_hash;                           // hash of the validation data; empty: none
  std::string gemm_tuning_hash;                   // hash of the GEMM tuning table; empty: no table
  std::map<std::string, std::string> model_keys;  // must be equal on resume: "n_layer" → "6"
  bool tied = false;
  std::string compute;              // "bf16" …
  std::string optimizer = "adamw";  // its states are those of the tensors
  std::vector<TensorSlice> tensors;
};

}  // namespace trainer::checkpoint
