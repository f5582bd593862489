#include "run/run_data.h"

#include "base/log.h"
#include "base/units.h"
#include "comm/agreement.h"
#include "data/overlap.h"
#include "run/run_folder.h"
#include "run/run_state.h"
#include "run/signals.h"

namespace trainer::run {
namespace {

namespace fs = std::filesystem;

data::OpenOptions open_options(const setup::Machine& machine, const Deadline& deadline) {
  data::OpenOptions options;
  options.threads = machine.threads;
  options.stop = [deadline] { return stop_requested() || deadline.has_passed(); };
  options.progress = [last = now_seconds()](const data::TokenizeProgress& done) mutable {
    if (now_seconds() - last < 2) return;
    last = now_seconds();
    log::info("tokenizing: {} of {}, {} tokens", format_bytes(done.bytes), format_bytes(done.total_bytes),
              format_count(done.tokens));
  };
  return options;
}

data::Datasets open_first(const config::Config& config, const setup::Machine& machine, const Deadline& deadline) {
  data::OpenOptions options = open_options(machine, deadline);
  const std::optional<StoredHeader> stored = header_to_resume(config.checkpoint, checkpoint_folder(config));
  if (!stored) return data::open_data(config, options);
  const bool allow = config.checkpoint.allow_other_data;
  checkpoint::require_compatible(stored->header, model_header(config, data::planned_vocab(config)), stored->folder,
                                 allow);
  if (config.data.tokenizer == "train") options.tokenizer = stored->header.tokenizer;
  options.stage = true;
  data::Datasets datasets = data::open_data(config, options);
  if (!datasets.train) return datasets;
  const fs::path cache = data::token_cache(config);
  try {
    if (!allow)
      checkpoint::require_compatible(stored->header, snapshot_header(config, datasets, machine.compute), stored->folder,
                                     allow);
  } catch (const Error&) {
    data::drop_staged(cache);
    throw;
  }
  if (!datasets.staged) return datasets;
  data::adopt_staged(cache);
  return data::open_data(config, options);
}

void warn_of_overlap(const data::Datasets& datasets) {
  if (!datasets.train) return;
  for (const auto& [name, val] : datasets.val) {
    if (&datasets.train->stream() == &val.stream()) continue;
    if (const std::string overlap = data::overlap_of(*datasets.train, val); !overlap.empty())
      log::warning("{}: {}", name.empty() ? "data.val" : format("data.validation \"{}\"", name), overlap);
  }
}

}  // namespace

data::Datasets open_run_data(comm::World& world, const config::Config& config, const setup::Machine& machine,
                             const Deadline& deadline) {
  data::Datasets datasets;
  std::string tokenizer;
  world.control().run_on_all_ranks([&] {
    if (!world.first()) return;
    datasets = open_first(config, machine, deadline);
    warn_of_overlap(datasets);
    if (datasets.tokenizer) tokenizer = datasets.tokenizer->bytes();
  });
  double ready[] = {datasets.train ? 1.0 : 0.0};
  world.control().sum(ready);
  if (ready[0] == 0) return {};
  world.control().broadcast(tokenizer);
  world.control().run_on_all_ranks([&] {
    if (!world.first()) datasets = data::open_data(config, {.threads = machine.threads, .tokenizer = tokenizer});
  });
  int64_t val_tokens = 0;
  for (const data::NamedDataset& set : datasets.val) val_tokens += set.dataset.tokens();
  comm::require_same(world,
                     {{"the vocabulary", format("{}", datasets.vocab)},
                      {"the number of training tokens", format("{}", datasets.train->tokens())},
                      {"the number of validation tokens", format("{}", val_tokens)},
                      {"the hash of the training data", datasets.data_hash},
                      {"the hash of the validation data", datasets.val_hash}},
                     Code::data,
                     "all ranks must find the same training and validation files: start them in one folder, or copy "
                     "the files again");
  return datasets;
}

}  // namespace trainer::run
