#include "data/source.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/units.h"
#include "config/file_kind.h"
#include "config/resolve.h"
#include "data/file_list.h"
#include "data/file_parts.h"
#include "data/source_checks.h"
#include "data/statistics.h"

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

/// Opens token files as one stream. Files with a manifest next to them must match it.
std::shared_ptr<TokenStream> open_tokens(const std::vector<std::string>& files) {
  for (const std::string& file : files)
    if (const std::string damage = damage_of_tokens(file); !damage.empty())
      throw Error(Code::data, damage + "; recreate it with `trainer tokenize`");
  return std::make_shared<TokenStream>(files);
}

/// Opens the files as one stream. Tokens of text are read from `output` if they are complete there; otherwise the
/// text is tokenized to `place()`. Returns null when stopped.
std::shared_ptr<TokenStream> open_stream(const std::vector<std::string>& files, const config::Data& data,
                                         const Tokenizer* tokenizer, const fs::path& output,
                                         const std::function<fs::path()>& place, const OpenOptions& options) {
  if (all_token_files(files, data.format)) {
    const std::shared_ptr<TokenStream> stream = open_tokens(files);
    if (data.separate_documents && tokenizer != nullptr) stream->end_documents_with(tokenizer->eos());
    return stream;
  }
  const auto tokens_file = [&](const auto& file) { return file_kind(file, data.format) == FileKind::tokens; };
  if (const auto tokens = std::ranges::find_if(files, tokens_file); tokens != files.end()) {
    throw Error(Code::data,
                fmt::format("{}: token files and text cannot be mixed in one list ({}); turn the text into tokens "
                            "first with `trainer tokenize`",
                            *tokens, *std::ranges::find_if_not(files, tokens_file)));
  }
  if (tokenizer == nullptr) {
    throw Error(Code::config,
                fmt::format("data.tokenizer: {} is text and needs a tokenizer: \"train\", or the file or folder of one",
                            files.front()));
  }
  TokenizeOptions how{.text = text_options(data),
                      .threads = options.threads,
                      .stop = options.stop,
                      .progress = options.progress,
                      .busy = options.busy};
  const double start = now_seconds();
  std::optional<TokenizeResult> found = find_tokens(files, *tokenizer, output, how.text, {options.stop, options.busy});
  if (!found && fs::exists(output))
    for (const std::string& file : files)
      if (!fs::exists(file))
        throw Error(Code::data, fmt::format("{0} not found, and {1} does not contain all of its tokens; restore {0}",
                                            file, output.string()));
  how.from_scratch = true;
  const TokenizeResult result = found ? *found : tokenize_files(files, *tokenizer, place(), how);
  if (!result.finished) return nullptr;
  if (!result.reused) {
    log::info("{}: {} tokens in {}, {:.2f} bytes per token, {:.1f} s", result.tokens_file.string(), result.tokens,
              counted(result.documents, "document"),
              static_cast<double>(result.text_bytes) / static_cast<double>(result.tokens), now_seconds() - start);
  }
  warn_of_flaws(result, how.text);
  return std::make_shared<TokenStream>(std::vector{result.tokens_file.string()});
}

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

/// Sets the hash of each validation set, and returns that of all sets.
std::string hash_validation(std::vector<NamedDataset>& sets) {
  std::string facts;
  for (auto& [name, set, hash] : sets) {
    hash = to_string(checksum_of(fmt::format("{} {}", set.stream().fingerprint(), set.begin())));
    if (name.empty()) return hash;
    facts += fmt::format("{} {}\n", name, hash);
  }
  return sets.empty() ? "" : to_string(checksum_of(facts));
}

/// True if validation uses the end of each training stream.
bool has_tails(const config::Data& data) { return data.val_fraction > 0 && validation_parts(data).empty(); }

/// Returns the position where training ends and validation begins: the document end nearest to (1 − fraction)·tokens,
/// or that position itself if the document end would change the validation share by more than half of it.
int64_t validation_begin(const TokenStream& stream, double fraction) {
  const auto target = static_cast<int64_t>(std::llround(fraction * static_cast<double>(stream.tokens())));
  const int64_t cut = stream.tokens() - target;
  return stream.document_end_near(cut, target / 2).value_or(cut);
}

/// Returns the part of a stream that is for training.
NamedDataset training_source(const config::Config& config, const std::string& name,
                             std::shared_ptr<const TokenStream> stream) {
  int64_t end = stream->tokens();
  if (has_tails(config.data)) {
    end = validation_begin(*stream, config.data.val_fraction);
    require_windows(*stream, end, config);
  }
  const std::string permutation = name.empty() ? "data.permutation" : "data.permutation/" + name;
  const auto seed = static_cast<uint64_t>(config.run.seed);
  return {name, TokenDataset(std::move(stream), config.model.seq_len, seed, 0, end, permutation)};
}

}  // namespace

fs::path token_cache(const config::Config& config) { return fs::path(config.run.dir) / "tokens"; }

void adopt_staged(const fs::path& cache) {
  std::error_code none;
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(cache / kStaged, none))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  for (const std::string& name : names)
    for (const char* part : {"docs", "bin", "json"})  // the manifest last, since it marks the other files as complete
      publish(cache / kStaged / fmt::format("{}.{}", name, part), cache / fmt::format("{}.{}", name, part));
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

Datasets open_data(const config::Config& config, const OpenOptions& options) try {
  const config::Data& data = config.data;
  const fs::path cache = cache_folder(config, options);
  std::vector<FilePart> parts = training_parts(data);
  for (FilePart& part : parts)
    naming("data.source", part.name,
           [&] { part.files = present_or_known(part.data.train, cache / part.tokens, part.data.format); });
  const std::vector<std::string>& files = parts.front().files;
  if (files.empty()) throw Error(Code::config, "data.train: no training files");
  Datasets result;
  result.stopped = "tokenizing";
  const auto open = [&](const std::vector<std::string>& list, const config::Data& settings, const std::string& name) {
    const auto place = [&] {
      if (!options.stage || !fs::exists(cache / name)) return cache / name;
      result.staged = true;
      return cache / kStaged / name;
    };
    return open_stream(list, settings, result.tokenizer ? &*result.tokenizer : nullptr, cache / name, place, options);
  };
  const auto only_tokens = [](const FilePart& part) { return all_token_files(part.files, part.data.format); };
  if (data.tokenizer == "train" && std::ranges::all_of(parts, only_tokens))
    throw Error(Code::config,
                fmt::format("data.tokenizer: \"train\" requires text, but {} contains tokens", files.front()));
  if (!options.tokenizer.empty()) {
    result.tokenizer = Tokenizer::from_bytes(options.tokenizer, "the tokenizer", options.special);
  } else if (data.tokenizer == "train") {
    result.tokenizer = trained_tokenizer(data, parts, cache, {options.stop, options.busy});
  } else if (!data.tokenizer.empty()) {
    result.tokenizer = Tokenizer::load(data.tokenizer);
    vocabulary_of(result.tokenizer->vocab_size(), data.tokenizer, config);
  }
  result.special = options.special;
  if (result.tokenizer) {
    if (!options.special.empty() && (options.bos_of.empty() || options.bos_of == result.tokenizer->hash()))
      result.tokenizer->use_special(options.special);
    choose_ends(data, parts, options, *result.tokenizer);
    result.special = result.tokenizer->special();
  }
  const Tokenizer* tokenizer = result.tokenizer ? &*result.tokenizer : nullptr;
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const FilePart& part : parts) {
    streams.push_back(naming("data.source", part.name, [&] { return open(part.files, part.data, part.tokens); }));
    if (!streams.back()) return result;
  }
  const TokenStream& tokens = *streams.front();
  result.vocab = tokenizer != nullptr ? vocabulary_of(tokenizer->vocab_size(), data.tokenizer, config)
                                      : vocabulary_of(tokens.info().vocab_size, tokens.name(), config);
  const int64_t most = kScannedAtStart / static_cast<int64_t>(parts.size());
  for (size_t i = 0; i < parts.size(); ++i)
    naming("data.source", parts[i].name,
           [&] { require_vocabulary(*streams[i], tokenizer, result.vocab, options.threads, most); });
  require_one_tokenizer(parts, streams);
  result.bos = tokenizer != nullptr ? tokenizer->bos() : streams.front()->info().bos;
  if (tokenizer == nullptr && data.bos != config::Bos::automatic && (data.bos == config::Bos::on) != (result.bos >= 0))
    throw Error(
        Code::config,
        fmt::format("data.bos: \"{}\", but the documents of {} begin with {}; use \"auto\", or tokenize the text "
                    "again",
                    data.bos == config::Bos::on ? "on" : "off", streams.front()->name(), bos_text(result.bos)));

  const int64_t seq_len = config.model.seq_len;
  const auto seed = static_cast<uint64_t>(config.run.seed);
  for (const FilePart& part : validation_parts(data)) {
    const bool finished = naming("data.validation", part.name, [&] {
      const auto val =
          open(present_or_known(part.data.train, cache / part.tokens, part.data.format), part.data, part.tokens);
      if (!val) return false;
      require_vocabulary(*val, tokenizer, result.vocab, options.threads);
      if (tokenizer == nullptr) require_bos(*val, result.bos);
      result.val.push_back({part.name, TokenDataset(val, seq_len, seed)});
      return true;
    });
    if (!finished) return result;
  }
  std::vector<NamedDataset> sources;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string& name = parts[i].name;
    const std::shared_ptr<TokenStream>& stream = streams[i];
    naming("data.source", name, [&] {
      sources.push_back(training_source(config, name, stream));
      const int64_t end = sources.back().dataset.end();
      if (has_tails(data)) result.val.push_back({name, TokenDataset(stream, seq_len, seed, end)});
      result.source_hashes[name] = to_string(checksum_of(fmt::format("{} {}", stream->fingerprint(), end)));
    });
  }
  std::ranges::sort(sources, {}, &NamedDataset::name);
  result.train.emplace(std::move(sources));
  result.data_hash = result.source_hashes.begin()->second;
  if (result.train->is_mixed()) {
    std::string facts;
    for (const auto& [name, hash] : result.source_hashes) facts += fmt::format("{} {}\n", name, hash);
    result.data_hash = to_string(checksum_of(facts));
    result.train->set_mixture({{}, 0, weight_changes(config, *result.train)});
  } else {
    result.source_hashes.clear();
  }
  result.val_hash = hash_validation(result.val);
  result.followed = config::followed_set(config);
  if (!result.val.empty())
    result.unigram_entropy =
        unigram_entropy(*result.train, result.val[result.followed].dataset, result.vocab, options.threads);
  return result;
} catch (const Interrupted& interrupted) {
  Datasets none;
  none.stopped = interrupted.what();
  return none;
}

TrainingData open_trained_data(const config::Config& config, const fs::path& cache) {
  std::vector<NamedDataset> sources;
  for (const FilePart& part : training_parts(config.data))
    naming("data.source", part.name, [&] {
      const fs::path tokens = cache / part.tokens;
      const std::vector<std::string> files = present_or_known(part.data.train, tokens, part.data.format);
      const bool text = !all_token_files(files, part.data.format);
      if (text && !fs::exists(tokens))
        throw Error(Code::data, fmt::format("{} not found: the run's tokens of {} were removed; resume the run, which "
                                            "tokenizes the text again",
                                            tokens.string(), files.front()));
      const auto stream = std::make_shared<const TokenStream>(text ? std::vector{tokens.string()} : files);
      sources.push_back(training_source(config, part.name, stream));
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
    if (!files.empty() && stream->tokens() <= config.model.seq_len)
      throw Error(Code::data, fmt::format("{}: {}, fewer than one window of the model's seq_len + 1 = {}; evaluate on "
                                          "more text",
                                          name, counted(stream->tokens(), "token"), config.model.seq_len + 1));
    result.sets.push_back({part.name, TokenDataset(stream, config.model.seq_len, static_cast<uint64_t>(config.run.seed),
                                                   tail ? validation_begin(*stream, data.val_fraction) : 0)});
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
