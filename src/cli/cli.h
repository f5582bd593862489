#pragma once
// The verbs of the command line. Each takes its parsed options, writes results to stdout and returns the exit status.
// It throws Error; main() turns that into a message and a status.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/agreement.h"
#include "config/config.h"

namespace trainer::cli {

struct ConfigOptions {
  std::string file;
  std::vector<std::string> sets;  // "section.key=value"; the last value of a key wins
  std::string resume;             // overrides checkpoint.resume when not empty
  comm::Facts requested;          // the verb and its options, compared across ranks
  bool any_ranks = false;         // the verb chooses the layout, so the number of ranks is not checked
};
/// Loads the file with the overrides, and resolves and checks the result for one rank. Without a file, returns the
/// defaults with the overrides, without checking the number of ranks. Throws Code::config with all errors.
config::Config load_configuration(const ConfigOptions& options);

struct TrainOptions {
  ConfigOptions config;
  int64_t max_steps = 0;
  std::string max_time;
  bool dry_run = false;
};
int train_command(const TrainOptions& options);

struct EvalOptions {
  ConfigOptions config{.any_ranks = true};
  std::string checkpoint;
  std::vector<std::string> data;
  std::string format = "auto";       // the format of `data`
  std::string packing;               // data.packing of all sets; empty: as in training
  std::vector<std::string> sets;     // names of validation sets; empty: all
  int64_t batches = 0;               // number of groups of global_batch windows; 0: all
  int64_t stride = 0;                // stride of sliding windows; 0: consecutive, non-overlapping windows
  std::vector<std::string> choices;  // files of questions; empty: evaluate the loss
  std::vector<std::string> task;     // files of a task; empty: none
  std::string metric = "acc_norm", delimiter = " ";
  int64_t shots = 0;
  int64_t questions = 0;  // 0: all
  bool json = false;
};
int eval_command(const EvalOptions& options);

struct GenerateOptions {
  ConfigOptions config;
  std::string checkpoint, prompt_file, prompts, output;
  std::vector<std::string> stop;
  std::optional<std::string> prompt, system;
  std::string chat_format = "auto";
  bool chat = false;
  int64_t tokens = 256, samples = 1, top_k = 0;
  int64_t batch_size = 0;  // 0: see texts_together() in generate_verb.cpp
  double temperature = 1, top_p = 1;
  uint64_t seed = 0;
  bool json = false;
};
int generate_command(const GenerateOptions& options);

struct TokenizeOptions {
  std::vector<std::string> input;
  std::string output, tokenizer, text_key = "text", document = "file", format = "auto", bos = "auto",
                                 chat_format = "auto";
  int64_t train_vocab = 0;
  bool strict = false, json = false;
};
int tokenize_command(const TokenizeOptions& options);

struct BenchOptions {
  std::string what;  // one of peak | gemm | attention | elementwise | optimizer | step | memory | collectives | all
  ConfigOptions config;
  int warmup = 2, repeats = 5;
  std::string write_profile;  // all, collectives: measure the machine and write its profile to this file
  std::string write_tuning;   // gemm: measure a configuration's GEMMs and write the table to this file
  std::vector<std::array<int64_t, 3>> shapes;  // gemm: m, k, n; empty: the configuration's shapes, or common shapes
  int64_t size = 0;                            // bytes of elementwise operands; 0: depends on the machine
  std::vector<std::string> data;               // step: files of tokens; empty: random tokens
  bool dry_run = false;                        // step: only count FLOPs and bytes
  bool json = false;
};
int bench_command(const BenchOptions& options);
/// Runs `bench collectives` over the ranks started by mpirun, or over threads if parallel.transport = "threads".
int bench_collectives_command(const BenchOptions& options);
/// Runs `bench all|collectives --write-profile FILE` on all ranks.
int bench_profile_command(const BenchOptions& options);

struct PlanOptions {
  ConfigOptions config;
  std::string cluster, profile;   // at most one is set; both empty: the configuration's hardware.profile
  std::vector<int64_t> devices;   // several: a scaling table; empty: the profile's ranks, or one node of the cluster
  int64_t top = 10, row = 1;      // row: the row of the table that --emit writes
  double imbalance = 1;           // plan::Cluster::imbalance
  std::vector<std::string> free;  // keys to search although the configuration sets them
  std::string emit, html;
  bool json = false, explain = false;
};
int plan_command(const PlanOptions& options);

struct VerifyOptions {
  ConfigOptions config;
  std::vector<std::string> only;  // checks; empty: all
  int64_t minutes = 0;            // repeat the checks of the machine for this long; 0: all checks once
  bool full = false, json = false;
};
int verify_command(const VerifyOptions& options);

struct CheckpointOptions {
  std::string what;  // inspect | verify | strip | merge | export | import
  ConfigOptions config;
  std::string checkpoint, output;       // output: for strip, merge, export, import
  std::vector<std::string> merged;      // merge
  double decay = 1;                     // merge
  std::string input, format;            // import; export, import
  std::string dtype = "fp32";           // export
  int64_t shard_bytes = 5'000'000'000;  // export
  int64_t seq_len = 0;                  // import; 0: the model's, but at most 4096
  bool allow_nonfinite = false;         // export
  bool json = false;
};
int checkpoint_command(const CheckpointOptions& options);

struct ConfigVerbOptions {
  std::string what;  // check | show | reference
  ConfigOptions config;
  int64_t ranks = 0;  // number of ranks to check for; 0: any
};
int config_command(const ConfigVerbOptions& options);

struct ReportOptions {
  std::vector<std::string> runs;  // folders
  std::string output;
  bool csv = false;
  int64_t step = 0;  // print the samples of this step; 0: no
};
int report_command(const ReportOptions& options);

/// Returns version, commit, compiler, libraries and the hardware of this machine: as text, or as one JSON document.
std::string version_text();
std::string version_json();
std::string version();
std::string commit();

}  // namespace trainer::cli
