#pragma once
// CheckpointStore: folders of global tensors by name, published atomically. A step folder holds data in shard files, a
// manifest that says which runs of which tensor lie where (with an XXH3 checksum per tensor), the run's config and
// tokenizer, and COMPLETE, written last; it can be moved as it is.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mesh/runs.h"
#include "tensor/tensor.h"

namespace trainer::checkpoint {

/// One tensor to write or fill: local memory and how it maps onto the global tensor.
struct TensorSlice {
  std::string name;  // "blocks.0.attn.q.weight", "…#m", "…#v"
  Shape shape;       // global
  Tensor local;      // flat storage that the runs' local offsets count in
  std::vector<mesh::Run> runs;
};

struct TrainState {
  int64_t step = 0;           // completed steps
  int64_t adam_step = 0;      // updates applied (skipped steps do not count)
  int64_t samples_seen = 0, tokens_seen = 0;
  double best_val_loss = 0;   // NaN: none yet
  int64_t best_step = -1;
};

struct Snapshot {
  TrainState state;
  std::string config_toml;       // values in force
  std::string tokenizer;         // serialized model, may be empty
  std::string tokenizer_hash, data_hash;
  std::map<std::string, std::string> model_keys;  // what must agree on resume: "n_layer" → "6"
  bool tied = false;
  std::string compute;           // "bf16" …
  std::vector<TensorSlice> tensors;
};

}  // namespace trainer::checkpoint
