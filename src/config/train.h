#pragma once
// The sections [train] and [precision].
#include <cstdint>
#include <string>

namespace trainer::config {

enum class Recompute { none, selective, full };
enum class Balance { batch, sequence };
enum class Compute { automatic, bf16, fp32, fp64 };

struct Train {
  int64_t steps = 0, tokens = 0;  // only one is set; total_steps() converts either to steps
  int64_t global_batch = 0, micro_batch = 0;
  Recompute recompute = Recompute::none;
  int64_t recompute_layers = 0;  // the first layers, which are recomputed fully whatever `recompute` is
  int64_t eval_interval = 0, eval_batches = 0, sample_interval = 0;
  int64_t task_interval = -1;  // resolve() turns a negative number into eval_interval
  std::string sample_prompt;
  int64_t sample_tokens = 0;
  int64_t max_skipped_steps = 0;
  double skip_sigma = 0;  // 0: no spikes are skipped
  int64_t skip_window = 0;
  double z_loss = 0;                 // coefficient; 0: none
  double balance_loss = -1;          // coefficient of the experts' balance loss, 0: none; -1: not resolved yet
  Balance balance = Balance::batch;  // rows over which loads are balanced: those of a micro-step or of each sequence
  double router_z_loss = 0;          // coefficient; 0: none
  bool cuda_graph = false;
};
/// The names of Recompute, in order.
inline constexpr const char* kRecomputeNames[] = {"none", "selective", "full"};
/// The names of Balance, in order.
inline constexpr const char* kBalanceNames[] = {"batch", "sequence"};
/// Returns what is recomputed of a layer, counted from 0.
inline Recompute recompute_of(const Train& train, int64_t layer) {
  return layer < train.recompute_layers ? Recompute::full : train.recompute;
}

struct Precision {
  Compute compute = Compute::automatic;
  bool deterministic = true;
};

}  // namespace trainer::config
