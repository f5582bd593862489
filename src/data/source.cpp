#include "data/source.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/units.h"
#include "config/config.h"
#include "config/file_kind.h"
#include "config/resolve.h"
#include "data/chat.h"
#include "data/file_list.h"
#include "data/file_parts.h"
#include "data/sets.h"
#include "data/source_checks.h"
#include "data/statistics.h"
#include "data/stream_of_files.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;

using config::FileKind;

constexpr const char* kStaged = "next";  // folder in a cache

fs::path cache_folder(const config::Config& config, const OpenOptions& options) {
  return options.cache.empty() ? token_cache(config) : options.cache;
}

/// A temporary folder, removed by the destructor. Files mapped from it stay readable.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code failed;
    const fs::path around = fs::temp_directory_path(failed);
    if (failed)
      throw Error(Code::io,
                  fmt::format("the temporary folder (TMPDIR, default /tmp) cannot be used: {}", failed.message()));
    std::string name = (around / "trainer-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr)
      throw Error(Code::io, fmt::format("{}: cannot create a temporary folder: {}; set TMPDIR to a different folder",
                                        name, system_reason(errno)));
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

/// Decides which tokens begin and end documents. Where neither a checkpoint nor data.bos does, token files made with
/// the same tokenizer decide, if there are any: the settings of the tokenizer's files may be missing here.
void choose_ends(const config::Data& data, const std::vector<FilePart>& parts, const OpenOptions& options,
                 Tokenizer& tokenizer) {
  const bool applies = options.bos_of.empty() || options.bos_of == tokenizer.hash();
  const bool known_bos = options.bos && applies, known_eos = !options.special.empty() && applies;
  if (known_bos)
    tokenizer.use_bos(*options.bos);
  else
    tokenizer.use_bos(data.bos, data.tokenizer == "train" ? "the trained tokenizer" : data.tokenizer);
  for (const FilePart& part : parts) {
    if (!all_token_files(part.files, part.data.format)) continue;
    const TokenFileInfo info = TokenStream({part.files.front()}).info();
    if (info.tokenizer_hash != tokenizer.hash()) continue;
    if (!known_bos && data.bos == config::Bos::automatic) tokenizer.use_bos(info.bos);
    if (!known_eos && info.eos >= 0) tokenizer.use_eos(info.eos);
    return;
  }
}

}  // namespace

fs::path token_cache(const config::Config& config) { return fs::path(config.run.dir) / "tokens"; }

void adopt_staged(const fs::path& cache) {
  std::error_code none;
  std::vector<std::string> names;
  std::vector<fs::path> indexes;  // each names the tokens to which it belongs
  for (const fs::directory_entry& entry : fs::directory_iterator(cache / kStaged, none)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
    if (entry.path().extension() == ".pack") indexes.push_back(entry.path());
  }
  for (const std::string& name : names)
    for (const char* part : {"docs", "spans", "bin", "json"}) {  // the manifest last: it marks the others as complete
      const std::string file = fmt::format("{}.{}", name, part);
      if (fs::exists(cache / kStaged / file, none)) publish(cache / kStaged / file, cache / file);
    }
  for (const fs::path& index : indexes) publish(index, cache / index.filename());
  drop_staged(cache);
}

void drop_staged(const fs::path& cache) {
  std::error_code ignored;
  fs::remove_all(cache / kStaged, ignored);
}

std::vector<WeightChange> weight_changes(const config::Config& config, const TrainingData& train) {
  const config::Data& data = config.data;
  WeightsByName weights;
  for (const auto& [name, source, hash] : train.sources()) weights[name] = static_cast<double>(source.windows());
  for (const config::FileSet& set : data.source)
    if (set.weight) weights[set.name] = *set.weight;
  std::vector<WeightChange> changes = {{0, weights}};
  for (const config::DataPhase& phase : data.phase) {
    const int64_t sample = (phase.from_tokens - 1) / config.model.seq_len + 1;
    if (changes.back().first_sample == sample) changes.pop_back();
    changes.push_back({sample, phase.weights});
  }
  return changes;
}

namespace {

/// Opens the data of a run: the tokenizer, then the training files, then those for validation. Each step uses the
/// results of the ones before it.
class Opening {
 public:
  Opening(const config::Config& config, const OpenOptions& options)
      : config_(config),
        data_(config.data),
        options_(options),
        cache_(cache_folder(config, options)),
        parts_(training_parts(data_)) {}

  Datasets open() && {
    result_.stopped = "tokenizing";
    find_training_files();
    open_tokenizer();
    if (!open_training_files()) return std::move(result_);
    if (!open_validation_files()) return std::move(result_);
    split_sources();
    result_.val_hash = hash_validation(result_.val);
    result_.followed = config::followed_set(config_);
    if (!result_.val.empty())
      result_.unigram_entropy =
          unigram_entropy(*result_.train, result_.val[result_.followed].dataset, result_.vocab, options_.threads);
    return std::move(result_);
  }

 private:
  const Tokenizer* tokenizer() const { return result_.tokenizer ? &*result_.tokenizer : nullptr; }
  IndexPlace index(const FilePart& part, bool tail = false) {
    IndexPlace place = index_in(cache_, part, tail, {options_.stop, options_.busy});
    if (options_.stage && fs::exists(place.known))
      place.make = [this, name = place.known.filename()] {
        result_.staged = true;
        return cache_ / kStaged / name;
      };
    return place;
  }
  /// Opens files whose tokens have the given name in the cache; null: stopped.
  std::shared_ptr<TokenStream> stream(const std::vector<std::string>& files, const config::Data& settings,
                                      const std::string& name) {
    const auto place = [&] {
      if (!options_.stage || !fs::exists(cache_ / name)) return cache_ / name;
      result_.staged = true;
      return cache_ / kStaged / name;
    };
    return open_stream(files, settings, tokenizer(), cache_ / name, place, options_);
  }

  void find_training_files() {
    for (FilePart& part : parts_)
      naming("data.source", part.name,
             [&] { part.files = present_or_known(part.data.train, cache_ / part.tokens, part.data.format); });
    if (parts_.front().files.empty()) throw Error(Code::config, "data.train: no training files");
    const auto only_tokens = [](const FilePart& part) { return all_token_files(part.files, part.data.format); };
    if (data_.tokenizer == "train" && std::ranges::all_of(parts_, only_tokens))
      throw Error(Code::config, fmt::format("data.tokenizer: \"train\" requires text, but {} contains tokens",
                                            parts_.front().files.front()));
  }

  void open_tokenizer() {
    if (!options_.tokenizer.empty()) {
      result_.tokenizer = Tokenizer::from_bytes(options_.tokenizer, "the tokenizer", options_.special);
    } else if (data_.tokenizer == "train") {
      result_.tokenizer = trained_tokenizer(data_, parts_, cache_, {options_.stop, options_.busy});
    } else if (!data_.tokenizer.empty()) {
      result_.tokenizer = Tokenizer::load(data_.tokenizer);
      vocabulary_of(result_.tokenizer->vocab_size(), data_.tokenizer, config_);
    }
    result_.special = options_.special;
    if (!result_.tokenizer) return;
    if (!options_.special.empty() && (options_.bos_of.empty() || options_.bos_of == result_.tokenizer->hash()))
      result_.tokenizer->use_special(options_.special);
    choose_ends(data_, parts_, options_, *result_.tokenizer);
    result_.special = result_.tokenizer->special();
  }

  /// Returns false if stopped, as the next one does.
  bool open_training_files() {
    for (const FilePart& part : parts_) {
      streams_.push_back(naming("data.source", part.name, [&] { return stream(part.files, part.data, part.tokens); }));
      if (!streams_.back()) return false;
    }
    adopt_chat_format();
    const TokenStream& tokens = *streams_.front();
    result_.vocab = tokenizer() != nullptr ? vocabulary_of(tokenizer()->vocab_size(), data_.tokenizer, config_)
                                           : vocabulary_of(tokens.info().vocab_size, tokens.name(), config_);
    const int64_t most = kScannedAtStart / static_cast<int64_t>(parts_.size());
    for (size_t i = 0; i < parts_.size(); ++i)
      naming("data.source", parts_[i].name,
             [&] { require_vocabulary(*streams_[i], tokenizer(), result_.vocab, options_.threads, most); });
    require_one_tokenizer(parts_, streams_);
    result_.bos = tokenizer() != nullptr ? tokenizer()->bos() : tokens.info().bos;
    if (tokenizer() == nullptr && data_.bos != config::Bos::automatic &&
        (data_.bos == config::Bos::on) != (result_.bos >= 0))
      throw Error(
          Code::config,
          fmt::format("data.bos: \"{}\", but the documents of {} begin with {}; use \"auto\", or tokenize the text "
                      "again",
                      data_.bos == config::Bos::on ? "on" : "off", tokens.name(), bos_text(result_.bos)));
    return true;
  }

  /// Returns the format in which a part's token files were written; empty: it is not recorded, or they are text.
  std::string recorded_chat_format(const FilePart& part) const {
    return all_token_files(part.files, part.data.format) ? chat_format_of(part.files.front()) : "";
  }

  /// Returns the configured chat format; "auto" with only tokens of conversations: the one in which they were written.
  std::string configured_chat_format() const {
    if (data_.chat_format != "auto" || config::has_conversations(data_)) return data_.chat_format;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (!streams_[i]->has_spans()) continue;
      if (std::string name = recorded_chat_format(parts_[i]); !name.empty()) return name;
      if (tokenizer()->special().chat_format.empty())
        throw Error(Code::config, fmt::format("data.chat_format: {} consists of conversations, whose format is not "
                                              "recorded next to it; name the format",
                                              parts_[i].files.front()));
    }
    return data_.chat_format;
  }

  /// With conversations among the training files: makes generated text end with the assistant's turn.
  void adopt_chat_format() {
    if (tokenizer() == nullptr ||
        std::ranges::none_of(streams_, [](const auto& stream) { return stream->has_spans(); }))
      return;
    const std::string configured = configured_chat_format();
    const ChatFormat& format = choose_chat_format(configured, *tokenizer());
    for (const FilePart& part : parts_)
      if (const std::string name = recorded_chat_format(part); !name.empty() && name != format.name)
        throw Error(Code::config,
                    fmt::format("data.chat_format: the run's is {}, but {} consists of conversations in {}; use one "
                                "format, or tokenize again",
                                format.name, part.files.front(), name));
    SpecialTokens special = tokenizer()->special();
    log::info("data: chat format {}{}", format.name,
              configured != "auto"           ? ""
              : !special.chat_format.empty() ? " (of the checkpoint)"
              : !chat_template(special).empty()
                  ? fmt::format(" (recognised by the chat template of {})", data_.tokenizer)
                  : "");
    special.chat_format = format.name;
    if (const int32_t bos = tokenizer()->bos_token(); bos >= 0) special.bos = bos;  // the format may begin with it
    std::vector<int32_t>& ends = special.eos;
    if (ends.empty()) ends.push_back(tokenizer()->eos());
    if (const int32_t end = ChatEncoder(format, *tokenizer()).end(); std::ranges::find(ends, end) == ends.end())
      ends.insert(ends.begin(), end);
    result_.tokenizer->use_special(std::move(special));
    result_.special = tokenizer()->special();
  }

  bool open_validation_files() {
    for (const FilePart& part : validation_parts(data_)) {
      const bool finished = naming("data.validation", part.name, [&] {
        const auto val =
            stream(present_or_known(part.data.train, cache_ / part.tokens, part.data.format), part.data, part.tokens);
        if (!val) return false;
        require_vocabulary(*val, tokenizer(), result_.vocab, options_.threads);
        if (tokenizer() == nullptr) require_bos(*val, result_.bos);
        result_.val.push_back(validation_set(config_, part, val, 0, index(part)));
        return true;
      });
      if (!finished) return false;
    }
    return true;
  }

  /// Splits the training streams into training and validation, and makes the mixture.
  void split_sources() {
    std::vector<NamedDataset> sources;
    for (size_t i = 0; i < parts_.size(); ++i) {
      const std::string& name = parts_[i].name;
      naming("data.source", name, [&] {
        sources.push_back(training_set(config_, parts_[i], streams_[i], index(parts_[i])));
        const int64_t end = sources.back().dataset.end();
        if (has_tails(data_))
          result_.val.push_back(validation_set(config_, parts_[i], streams_[i], end, index(parts_[i], /*tail=*/true)));
        result_.source_hashes[name] = to_string(checksum_of(facts_of_windows(sources.back().dataset, end)));
      });
    }
    std::ranges::sort(sources, {}, &NamedDataset::name);
    result_.train.emplace(std::move(sources));
    result_.data_hash = result_.source_hashes.begin()->second;
    if (!result_.train->is_mixed()) return result_.source_hashes.clear();
    std::string facts;
    for (const auto& [name, hash] : result_.source_hashes) facts += fmt::format("{} {}\n", name, hash);
    result_.data_hash = to_string(checksum_of(facts));
    result_.train->set_mixture({{}, 0, weight_changes(config_, *result_.train)});
  }

  const config::Config& config_;
  const config::Data& data_;
  const OpenOptions& options_;
  fs::path cache_;
  std::vector<FilePart> parts_;
  std::vector<std::shared_ptr<TokenStream>> streams_;  // one for each part
  Datasets result_;
};

}  // namespace

Datasets open_data(const config::Config& config, const OpenOptions& options) try {
  return Opening(config, options).open();
} catch (const Interrupted& interrupted) {
  Datasets none;
  none.stopped = interrupted.what();
  return none;
}

TrainingData open_trained_data(const config::Config& config, const fs::path& cache) {
  std::vector<NamedDataset> sources;
  std::optional<TemporaryFolder> temporary;  // for an index that is missing
  for (const FilePart& part : training_parts(config.data))
    naming("data.source", part.name, [&] {
      const fs::path tokens = cache / part.tokens;
      const std::vector<std::string> files = present_or_known(part.data.train, tokens, part.data.format);
      const bool text = !all_token_files(files, part.data.format);
      if (text && !fs::exists(tokens))
        throw Error(Code::data, fmt::format("{} not found: the run's tokens of {} were removed; resume the run, which "
                                            "tokenizes the text again",
                                            tokens.string(), files.front()));
      const auto stream = std::make_shared<TokenStream>(text ? std::vector{tokens.string()} : files);
      if (config::is_packed(part.data) && !stream->has_documents() && !config.data.tokenizer.empty())
        stream->end_documents_with(Tokenizer::load(config.data.tokenizer).eos());
      IndexPlace place = index_in(cache, part, /*tail=*/false, {});
      place.make = [&] { return temporary.emplace().path() / "tokens.pack"; };
      sources.push_back(training_set(config, part, stream, place));
    });
  std::ranges::sort(sources, {}, &NamedDataset::name);
  return TrainingData(std::move(sources));
}

EvalData open_eval_data(const config::Config& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
                        int64_t vocab, const OpenOptions& options) try {
  const config::Data& data = config.data;
  std::vector<FilePart> parts;
  if (files.empty()) parts = validation_parts(data);
  const bool tail = files.empty() && parts.empty();
  if (tail && data.val_fraction <= 0) {
    throw Error(Code::config,
                "the model was trained without validation data; name the files to evaluate on with --data");
  }
  if (tail) parts = training_parts(data);
  if (!files.empty()) parts.push_back({"", config::data_of(data, {.files = files}), "val.bin"});
  EvalData result;
  for (const FilePart& part : parts) {
    const fs::path output = cache_folder(config, options) / part.tokens;
    std::optional<TemporaryFolder> temporary;  // for text whose tokens the run does not have
    const auto place = [&] { return temporary.emplace().path() / "tokens.bin"; };
    const auto list = files.empty() ? present_or_known(part.data.train, output, part.data.format)
                                    : expand_files(files, part.data.format, "--format");
    for (const std::string& file : list)
      if (files.empty() && file_kind(file, part.data.format) == FileKind::tokens && !fs::exists(file))
        throw Error(
            Code::data,
            fmt::format("{} not found, but the checkpoint's configuration refers to it; give its current path with "
                        "--data, or a --config with that path",
                        file));
    const auto stream = open_stream(list, part.data, tokenizer, output, place, options);
    if (!stream) return {};
    require_vocabulary(*stream, tokenizer, vocab, options.threads);
    const std::string name =
        list.size() == 1 ? list.front() : fmt::format("{} and {} more", list.front(), list.size() - 1);
    if (!files.empty() && stream->tokens() <= config.model.seq_len && !config::is_packed(part.data))
      throw Error(Code::data, fmt::format("{}: {}, fewer than one window of the model's seq_len + 1 = {}; evaluate on "
                                          "more text",
                                          name, counted(stream->tokens(), "token"), config.model.seq_len + 1));
    IndexPlace index = index_in(cache_folder(config, options), part, tail, {options.stop, options.busy});
    index.make = [&] { return (temporary ? *temporary : temporary.emplace()).path() / "tokens.pack"; };
    const int64_t begin = tail ? validation_begin(*stream, data.val_fraction) : 0;
    result.sets.push_back(validation_set(config, part, stream, begin, index));
    if (result.name.empty()) result.name = name;
  }
  result.own_hash = hash_validation(result.sets);
  if (files.empty()) result.hash = result.own_hash;
  return result;
} catch (const Interrupted&) {
  return {};
}

int64_t planned_vocab(const config::Config& config) {
  const config::Data& data = config.data;
  if (data.tokenizer == "train") return data.vocab_size;
  if (!data.tokenizer.empty())
    return vocabulary_of(Tokenizer::load(data.tokenizer).vocab_size(), data.tokenizer, config);
  const config::Data first = training_parts(data).front().data;  // all sources have the same tokenizer
  const TokenStream stream(expand_files(first.train, first.format));
  return vocabulary_of(stream.info().vocab_size, stream.name(), config);
}

}  // namespace trainer::data
