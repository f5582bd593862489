#pragma once
// The sections [run], [checkpoint], [log], [hardware] and [debug].
#include <cstdint>
#include <string>
#include <vector>

namespace trainer::config {

enum class DeviceChoice { automatic, cpu, cuda };
enum class AttentionKernels { automatic, own, cudnn };
enum class ProgressMode { automatic, on, off };
enum class ReplayAction { stop, warn };

struct Run {
  std::string name;
  std::string dir;  // "{name}" is replaced, as in all paths
  int64_t seed = 0;
  DeviceChoice device = DeviceChoice::automatic;
  int64_t threads = 0;  // 0: decided from the affinity mask
};

struct Checkpoint {
  std::string dir;  // empty: RUN_DIR/checkpoints
  int64_t interval = 0, keep = 0, keep_every = 0;
  bool keep_best = false, async = false;
  std::string best;               // validation set or task that keep_best follows; empty: the first set
  std::string resume;             // auto | must | verified | never | PATH
  bool allow_other_data = false;  // resume even if tokenizer or data hashes differ
};

struct Log {
  int64_t interval = 0, ranks_every = 0;
  bool jsonl = true, report = true, tensorboard = false;
  std::vector<int64_t> trace;  // empty, or the first and the last step to trace
  ProgressMode progress = ProgressMode::automatic;
};

struct Hardware {
  double peak_tflops = 0;   // 0: measured
  double memory_limit = 0;  // GiB, 0: the machine's memory
  std::string gemm_tuning;  // path; empty: the library chooses
  std::string profile;      // path of a machine's profile, for predictions of time; empty: none
  AttentionKernels attention = AttentionKernels::automatic;
};

struct Debug {
  bool overlap = true;
  int64_t check_replicas_every = 0, replay_every = 0;
  ReplayAction replay_action = ReplayAction::stop;
  std::vector<std::string> inject;
  bool balanced_routing = false;  // choice j of row r of a micro-batch is expert (r·k + j) mod E, not the router's
  std::string emulate_device;     // rates in the syntax of emulated_rates(); empty: no emulation
};

}  // namespace trainer::config
