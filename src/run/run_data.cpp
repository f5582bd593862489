#include "run/run_data.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/join.h"
#include "base/log.h"
#include "base/units.h"
#include "comm/agreement.h"
#include "config/resolve.h"
#include "config/validate.h"
#include "data/chat.h"
#include "data/file_parts.h"
#include "data/overlap.h"
#include "huggingface/import.h"
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
  options.busy = [next = 1.0](const std::string& doing, double seconds) mutable {
    if (seconds < 1) next = 1;  // new work
    if (seconds < next) return;
    next += 10;
    log::info("{}: {:.0f} s so far", doing, seconds);
  };
  return options;
}

data::Datasets open_first(const config::Config& config, const setup::Machine& machine, const Deadline& deadline) {
  data::OpenOptions options = open_options(machine, deadline);
  const std::optional<StoredHeader> stored = header_to_resume(config.checkpoint, checkpoint_folder(config));
  const checkpoint::TrainState state = stored ? stored->header.state : checkpoint::TrainState();
  config::require_schedule(config, config::total_steps(config, state.step, state.tokens_seen));
  const auto as_in = [&](const checkpoint::Snapshot& header) {
    if (config.data.bos == config::Bos::automatic) options.bos = header.bos;
    options.bos_of = header.tokenizer_hash;
    options.special = header.special;
  };
  if (!stored) {
    const std::string& source = config.model.init_from;
    if (!source.empty() && !huggingface::is_model_folder(source)) {  // else the tokenizer's own files decide
      const checkpoint::Reader reader(source);
      if (reader.header().bos >= 0 || !reader.header().special.empty()) as_in(reader.header());
      // A different model is rejected before text is tokenized, which may take hours.
      checkpoint::require_same_use(reader.header(), model_header(config, data::planned_vocab(config)), reader.folder(),
                                   [&](const std::string& key) { return config.origins.contains("model." + key); });
    }
    if (config.data.tokenizer.empty() && huggingface::is_model_folder(source))
      options.special = data::read_special_tokens(source, [](const std::string&) { return std::nullopt; });
    return data::open_data(config, options);
  }
  as_in(stored->header);
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

/// Warns about validation sets whose text is also in the training data. Sets that are tails of the training data are
/// not compared.
void warn_of_overlap(const config::Config& config, const data::Datasets& datasets) {
  if (!datasets.train || config.data.val_fraction > 0) return;
  const std::vector<data::NamedDataset>& sources = datasets.train->sources();
  const auto pairs = static_cast<int64_t>(std::max<size_t>(1, sources.size() * datasets.val.size()));
  for (const auto& [name, val, hash] : datasets.val)
    for (const auto& [source, train, unused] : sources) {
      const int64_t most = source.empty() ? data::kMostSearched : data::kMostSearched / pairs;
      const std::string overlap = data::overlap_of(train, val, most);
      if (overlap.empty()) continue;
      log::warning("{}{}: {}", name.empty() ? "data.val" : format("data.validation \"{}\"", name),
                   source.empty() ? "" : format(" and data.source \"{}\"", source), overlap);
    }
}

const data::TokenDataset& dataset_of(const data::TrainingData& train, const std::string& name) {
  return std::ranges::find(train.sources(), name, &data::NamedDataset::name)->dataset;
}

std::string slots_text(const data::TrainingData& train) {
  std::string text;
  if (train.mixture() != nullptr)
    for (const auto& phase : train.mixture()->phases())
      for (const auto& [name, slots] : phase.slots) text += format("{} {} {} ", phase.first_sample, name, slots);
  return text;
}

/// Logs which windows the packed sets have.
void log_windows(const config::Config& config, const data::Datasets& datasets) {
  const auto log_set = [&](const data::NamedDataset& set, const char* key) {
    const data::PackingIndex* index = set.dataset.packing();
    if (index == nullptr) return;
    const double all = static_cast<double>(index->windows() * (config.model.seq_len + 1));
    const std::string name = set.name.empty() ? key : format("{} \"{}\"", key, set.name);
    std::string text =
        format("{}: best-fit: {} of {} tokens, {:.2f} % padding", name, counted(index->windows(), "window"),
               config.model.seq_len, 100 - 100 * static_cast<double>(index->tokens()) / all);
    if (set.dataset.stream().has_spans())
      text +=
          format(", {:.0f} % of the tokens trained",
                 100 * static_cast<double>(index->counted(0, index->windows())) / static_cast<double>(index->tokens()));
    if (index->cut() > 0)
      text += format("; {} cut at {} tokens", counted(index->cut(), "conversation"), config.model.seq_len + 1);
    if (index->left_out() > 0)
      text += format("; {} left out, without a trained token", counted(index->left_out(), "conversation"));
    log::info("{}", text);
  };
  for (const data::NamedDataset& set : datasets.train->sources())
    log_set(set, set.name.empty() ? "data.train" : "data.source");
  for (const data::NamedDataset& set : datasets.val) log_set(set, set.name.empty() ? "data.val" : "data.validation");
  const int64_t batch = config.train.global_batch, windows = datasets.train->windows();
  const auto packs = [](const data::NamedDataset& set) { return set.dataset.packing() != nullptr; };
  if (!datasets.train->is_mixed() && packs(datasets.train->sources().front()))
    log::info("data.train: one epoch is {}", counted((windows + batch - 1) / batch, "step"));
  if (!config.data.separates() && std::ranges::any_of(datasets.train->sources(), [](const data::NamedDataset& set) {
        return set.dataset.stream().has_spans();
      }))
    log::warning("data.separate_documents = false: conversations in a window see those before them");
}

/// Returns the format of the conversations in any set, as rank 0 chose it; empty: there are none.
std::string chosen_chat_format(const config::Config& config, const data::Datasets& datasets) {
  const auto chat = [](const data::FilePart& part) { return part.data.document == config::Document::chat; };
  const bool some = std::ranges::any_of(data::training_parts(config.data), chat) ||
                    std::ranges::any_of(data::validation_parts(config.data), chat);
  if (!some || !datasets.tokenizer) return datasets.special.chat_format;
  return std::string(data::choose_chat_format(config.data.chat_format, *datasets.tokenizer).name);
}

/// Returns the windows and the targets that count of all packed sets.
std::string packing_text(const data::Datasets& datasets) {
  std::string text;
  for (const std::vector<data::NamedDataset>& sets : {datasets.train->sources(), datasets.val})
    for (const data::NamedDataset& set : sets)
      if (const data::PackingIndex* index = set.dataset.packing())
        text += format("{} {} ", index->windows(), index->counted(0, index->windows()));
  return text;
}

}  // namespace

data::Datasets open_run_data(comm::World& world, const config::Config& config, const setup::Machine& machine,
                             const Deadline& deadline) {
  data::Datasets datasets;
  std::string tokenizer, chat_format;
  double ids[] = {0, 0, 0};  // BOS, EOS, and the BOS token that a chat format may use
  world.control().run_on_all_ranks([&] {
    if (!world.first()) return;
    datasets = open_first(config, machine, deadline);
    warn_of_overlap(config, datasets);
    if (datasets.tokenizer) tokenizer = datasets.tokenizer->bytes();
    ids[0] = datasets.bos;
    ids[1] = datasets.tokenizer ? datasets.tokenizer->eos() : -1;
    ids[2] = datasets.tokenizer ? datasets.tokenizer->bos_token() : -1;
    chat_format = chosen_chat_format(config, datasets);
  });
  double ready[] = {datasets.train ? 1.0 : 0.0};
  world.control().sum(ready);
  if (ready[0] == 0) return datasets;
  world.control().broadcast(tokenizer);
  world.control().broadcast(chat_format);
  world.control().sum(ids);
  world.control().run_on_all_ranks([&] {
    if (world.first()) return;
    config::Config same = config;  // rank 0 may have recognised the format by files that other ranks do not read
    if (!chat_format.empty()) same.data.chat_format = chat_format;
    datasets = data::open_data(
        same, {.threads = machine.threads,
               .tokenizer = tokenizer,
               .bos = static_cast<int32_t>(ids[0]),
               .special = {.bos = ids[2] < 0 ? std::nullopt : std::optional(static_cast<int32_t>(ids[2])),
                           .text_end = static_cast<int32_t>(ids[1])}});
  });
  std::string packing;
  world.control().run_on_all_ranks([&] {  // an index may be damaged
    if (world.first()) log_windows(config, datasets);
    packing = packing_text(datasets);
  });
  std::set<std::string> joined;
  if (world.first() && config.data.separates())
    for (const std::vector<data::NamedDataset>& sets : {datasets.train->sources(), datasets.val})
      for (const data::NamedDataset& set : sets)
        if (!set.dataset.stream().has_documents()) joined.insert(set.dataset.stream().name());
  if (!joined.empty())
    log::warning(
        "data.separate_documents has no effect on {}: no document index, and the end-of-text token is not "
        "known; name the tokenizer with data.tokenizer",
        fmt::join(joined, ", "));
  int64_t val_tokens = 0;
  for (const data::NamedDataset& set : datasets.val) val_tokens += set.dataset.tokens();
  comm::require_same(world,
                     {{"the vocabulary", format("{}", datasets.vocab)},
                      {"the number of training tokens", format("{}", datasets.train->tokens())},
                      {"the number of validation tokens", format("{}", val_tokens)},
                      {"the hash of the training data", datasets.data_hash},
                      {"the slots of the sources", slots_text(*datasets.train)},
                      {"the windows and counted targets of packed sets", packing},
                      {"the hash of the validation data", datasets.val_hash}},
                     Code::data,
                     "all ranks must find the same training and validation files: start them in the same folder, or "
                     "copy the files again");
  return datasets;
}

std::string continue_mixture(comm::World& world, const config::Config& config, data::TrainingData& train,
                             std::vector<data::MixturePhase> past, int64_t from, int64_t samples) {
  if (!train.is_mixed()) return {};
  const std::vector<data::WeightChange> changes = data::weight_changes(config, train);
  train.set_mixture({std::move(past), from, changes});
  const data::Mixture& mixture = *train.mixture();
  const data::SlotsByName taken = mixture.samples_before(samples);
  for (const config::FileSet& source : config.data.source) {
    const int64_t windows = dataset_of(train, source.name).windows(), most = source.max_epochs;
    const auto count = static_cast<double>(taken.at(source.name)), all = static_cast<double>(samples);
    if (most == 0 || taken.at(source.name) <= most * windows) continue;
    std::string remedy = "lower its weights, or shorten the run";
    const double share = static_cast<double>(most * windows - 1) / all;  // a count may exceed its share by one sample
    double others = 0;
    for (const auto& [name, weight] : changes.front().weights)
      if (name != source.name) others += weight;
    if (mixture.phases().size() == 1 && share > 0 && share < 1 && others > 0) {
      const double weight = others * share / (1 - share), digit = std::pow(10, std::floor(std::log10(weight)) - 1);
      remedy = format("set its weight to {:.2g} or less", std::floor(weight / digit) * digit);
    }
    throw Error(
        Code::data,
        format("data.source \"{}\": this run would train for {:.3g} epochs on the source, but max_epochs = {}; {}",
               source.name, count / static_cast<double>(windows), most, remedy))
        .on(Scope::all_ranks);
  }
  if (world.first())
    for (const data::MixturePhase& phase : mixture.phases())
      if (phase.first_sample >= samples)
        log::warning("data.phase: the phase that starts at token {} has no effect: the run ends at token {}",
                     phase.first_sample * config.model.seq_len, samples * config.model.seq_len);
  return mixture_table(config, train, samples);
}

std::string mixture_table(const config::Config& config, const data::TrainingData& train, int64_t samples) {
  if (!train.is_mixed()) return {};
  const data::Mixture& mixture = *train.mixture();
  const data::SlotsByName taken = mixture.samples_before(samples);
  const data::SlotsByName& slots = mixture.phases().back().slots;
  const data::WeightsByName weights = data::weight_changes(config, train).back().weights;
  double total = 0;
  for (const auto& [name, weight] : weights) total += weight;
  std::string table =
      format("{:<16} {:>8} {:>9} {:>7} {:>10} {:>7}", "source", "tokens", "share", "slots", "samples", "epochs");
  for (const auto& [name, dataset, hash] : train.sources()) {
    const auto weight = weights.find(name);
    const auto count = slots.find(name);
    table +=
        format("\n{:<16} {:>8} {:>9} {:>7} {:>10} {:>7.2f}", name, format_count(static_cast<double>(dataset.tokens())),
               format_percent(weight == weights.end() ? 0.0 : weight->second / total),
               count == slots.end() ? 0 : count->second, taken.at(name),
               static_cast<double>(taken.at(name)) / static_cast<double>(dataset.windows()));
  }
  return table;
}

}  // namespace trainer::run
