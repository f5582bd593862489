#pragma once
// Layouts that the program chooses itself, without the planner: for evaluation and generation, by the memory that is
// available, by the bytes that are sent.
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "config/config.h"

namespace trainer::config {

/// Returns layouts in which `world` ranks can evaluate the model of a resolved configuration, in order of preference:
///   - one replica per rank;
///   - for models that do not fit on one rank, the configuration's own layout, without stages;
///   - replicas shared by as few ranks as possible.
std::vector<Parallel> replica_layouts(const Config& trained, int world);
/// Returns layouts for generating one sequence token by token, in order of preference: tensor parallelism over as many
/// ranks as possible, then the configuration's own layout, for models that do not fit otherwise.
std::vector<Parallel> generation_layouts(const Config& config, int world);

/// The keys whose "auto" the available memory decides.
struct MemoryChoice {
  const char* name;  // in [parallel]
  Panels Parallel::*key;
};
inline constexpr MemoryChoice kMemoryChoices[] = {{"panels", &Parallel::panels}, {"context_kv", &Parallel::context_kv}};
/// Returns the values of such a key from which the available memory chooses, in order of preference; empty if the key
/// is set or has no effect.
std::vector<Panels> values_by_memory(const Config& config, const MemoryChoice& choice);
/// Returns the settings of [parallel] among which the available memory decides, in order of preference: the first that
/// fits is to be used. Usually the configuration's own; with "auto" in kMemoryChoices, "gather" and "ring".
std::vector<Parallel> choices_by_memory(const Config& config);

/// True if parallel.vocab_axes = "auto" leaves a choice: AxoNN-4D with an axis y of several ranks.
bool chooses_vocab_axes(const Config& config);
/// Makes that choice: with it a rank sends fewer bytes, of features and their gradients or of logits of `vocab` tokens.
void choose_vocab_axes(Config& config, int64_t vocab, DType compute);

/// Returns `config`, whose strategy is "auto", with the layout of a run that was configured by `trained`: its
/// micro-batch, its strategy and those of the strategy's keys that the planner chooses and on which rounding depends.
/// They count as set by the user, and so do its stages; other values that the user set take precedence, and then the
/// keys of stages that follow are left to the planner. Returns an empty result if this is not a layout for `ranks`
/// ranks.
std::optional<Config> with_layout_of(const Config& trained, Config config, int64_t ranks);
/// Returns the keys of the layout that differ and on which rounding depends: "parallel.grid".
std::vector<std::string> layout_changes(const Config& trained, const Config& config);

}  // namespace trainer::config
