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
#include "config/file_kind.h"
#include "config/mistakes.h"
#include "config/resolve.h"
#include "data/file_list.h"
#include "data/input_key.h"
#include "data/statistics.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kScannedAtStart = int64_t{1} << 30;  // tokens; longer streams are checked while they are read

using config::FileKind;

bool all_token_files(const std::vector<std::string>& files, config::DataFormat stated) {
  return std::ranges::all_of(files, [&](const auto& file) { return file_kind(file, stated) == FileKind::tokens; });
}

TextOptions text_options(const config::Data& data) {
  return {.text_key = data.text_key.empty() ? "text" : data.text_key,
          .document = data.document,
          .strict = data.strict,
          .format = data.format};
}

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
    if (failed) throw Error(Code::io, fmt::format("TMPDIR, or /tmp, is not a folder: {}", failed.message()));
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

/// Returns the tokenizer trained on these files, from the cache if files and settings are the same.
Tokenizer trained_tokenizer(const config::Data& data, const std::vector<std::string>& files, const fs::path& cache) {
  const fs::path model = cache / "tokenizer.model", manifest = cache / "tokenizer.json";
  const json known = read_json_or_null(manifest);
  std::vector<std::string> gone;
  const json inputs = describe_inputs(files, text_options(data), inputs_in(known), gone);
  const std::string key = input_key(inputs, text_options(data), fmt::format("tokenizer-1 {}", data.vocab_size));
  if (text_in(known, "key") == key && fs::exists(model)) {
    const std::string before = text_in(known, "hash");
    if (before.empty() || before == hash_file(model)) return Tokenizer::load(model.string());
    log::warning("{}: its checksum differs from that in {}: the file is damaged or was edited", model.string(),
                 manifest.string());
  }
  if (!gone.empty())
    throw Error(Code::data, fmt::format("{} not found, and {} has no tokenizer trained on it; restore the text",
                                        gone.front(), cache.string()));
  const double start = now_seconds();
  Tokenizer tokenizer = Tokenizer::train(files, data.vocab_size, text_options(data));
  log::info("tokenizer: trained {} tokens in {:.1f} s", tokenizer.vocab_size(), now_seconds() - start);
  std::error_code failed;
  fs::create_directories(cache, failed);
  if (failed) throw Error(Code::io, fmt::format("{}: cannot create the folder: {}", cache.string(), failed.message()));
  replace_file(model, tokenizer.bytes());
  replace_file(manifest, json{{"key", key}, {"inputs", inputs}, {"hash", tokenizer.hash()}}.dump(2) + "\n");
  return tokenizer;
}

/// Opens token files as one stream. Files with a manifest next to them must match it.
std::shared_ptr<TokenStream> open_tokens(const std::vector<std::string>& files) {
  for (const std::string& file : files)
    if (const std::string damage = damage_of_tokens(file); !damage.empty())
      throw Error(Code::data, damage + "; recreate it with `trainer tokenize`");
  return std::make_shared<TokenStream>(files);
}

/// Opens the files as one stream. Tokens of text are read from `output` if they are complete there; otherwise they are
/// made at `place()`. Returns null when stopped.
std::shared_ptr<TokenStream> open_stream(const std::vector<std::string>& files, const config::Data& data,
                                         const Tokenizer* tokenizer, const fs::path& output,
                                         const std::function<fs::path()>& place, const OpenOptions& options) {
  if (all_token_files(files, data.format)) return open_tokens(files);
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
  TokenizeOptions how{
      .text = text_options(data), .threads = options.threads, .stop = options.stop, .progress = options.progress};
  const double start = now_seconds();
  std::optional<TokenizeResult> found = find_tokens(files, *tokenizer, output, how.text);
  if (!found && fs::exists(output))
    for (const std::string& file : files)
      if (!fs::exists(file))
        throw Error(Code::data, fmt::format("{} not found, and {} does not have all of its tokens; restore the text",
                                            file, output.string()));
  how.anew = true;
  const TokenizeResult result = found ? *found : tokenize_files(files, *tokenizer, place(), how);
  if (!result.finished) return nullptr;
  if (!result.reused) {
    log::info("{}: {} tokens in {} documents, {:.2f} bytes per token, {:.1f} s", result.tokens_file.string(),
              result.tokens, result.documents,
              static_cast<double>(result.text_bytes) / static_cast<double>(result.tokens), now_seconds() - start);
  }
  if (result.replaced > 0) {
    log::warning("{} bytes of the text are not valid UTF-8 and were replaced by U+FFFD, the first at {}",
                 result.replaced, result.first_replaced);
  }
  return std::make_shared<TokenStream>(std::vector{result.tokens_file.string()});
}

/// Rejects tokens of a different tokenizer, and tokens outside the vocabulary. Short streams are checked immediately,
/// long ones later in copy().
void require_vocabulary(TokenStream& stream, const Tokenizer* tokenizer, int64_t vocab, int threads) {
  const TokenFileInfo& info = stream.info();
  if (tokenizer != nullptr && !info.tokenizer_hash.empty() && info.tokenizer_hash != tokenizer->hash()) {
    throw Error(Code::data, fmt::format("{}: offset 24: these tokens were made with tokenizer {}, but data.tokenizer "
                                        "is {}; set data.tokenizer to theirs, or tokenize the text again",
                                        stream.name(), info.tokenizer_hash, tokenizer->hash()));
  }
  stream.limit_vocabulary(vocab);
  if (stream.tokens() <= kScannedAtStart) stream.check_vocabulary(vocab, threads);
}

/// Returns the vocabulary size implied by `name`, a tokenizer or token files (0: none). data.vocab_size must not
/// contradict it.
int64_t vocabulary_of(int64_t implied, const std::string& name, const config::Config& config) {
  const int64_t asked = config.data.vocab_size;
  if (implied == 0 && asked == 0) {
    throw Error(Code::config,
                fmt::format("data.vocab_size: {} does not contain the size of its vocabulary; set data.vocab_size "
                            "(50257 for GPT-2's tokens)",
                            name));
  }
  if (implied > 0 && asked > 0 && asked != implied) {
    throw Error(Code::config, fmt::format("{}: {}, but {} has a vocabulary of {}: leave data.vocab_size out or set it "
                                          "to that (a model's padding is model.vocab_multiple)",
                                          config::place(config, "data.vocab_size"), asked, name, implied));
  }
  return implied > 0 ? implied : asked;
}

std::string validation_hash(const std::vector<NamedDataset>& sets) {
  std::string facts;
  for (const auto& [name, set] : sets) {
    const std::string hash = to_string(checksum_of(fmt::format("{} {}", set.stream().fingerprint(), set.begin())));
    if (name.empty()) return hash;
    facts += fmt::format("{} {}\n", name, hash);
  }
  return sets.empty() ? "" : to_string(checksum_of(facts));
}

/// A list of data files, as data.train, with its settings, its name, and that of its tokens in the cache.
struct FilePart {
  std::string name;
  config::Data data;
  std::string tokens;
};

/// Returns the validation sets that have files of their own.
std::vector<FilePart> validation_parts(const config::Data& data) {
  std::vector<FilePart> parts;
  if (!data.val.empty()) parts.push_back({"", config::data_of(data, {.files = data.val}), "val.bin"});
  for (const config::FileSet& set : data.validation)
    parts.push_back({set.name, config::data_of(data, set), set.name + ".val.bin"});
  return parts;
}

/// Returns act() with the name of the set in its errors.
template <typename F>
auto naming(const char* key, const std::string& name, F&& act) {
  try {
    return act();
  } catch (Error& error) {
    if (!name.empty()) error.add_context(fmt::format("{} \"{}\"", key, name));
    throw;
  }
}

/// Checks that val_fraction leaves at least one window each for validation and training.
void require_windows(const TokenStream& train, int64_t train_end, const config::Config& config) {
  const int64_t window = config.model.seq_len + 1, all = train.tokens(), val = all - train_end;
  if (val >= window && train_end >= window) return;
  const double share = static_cast<double>(window) / static_cast<double>(all);
  const std::string remedy =
      share < 0.5 ? fmt::format("a value between {:.2g} and {:.2g} leaves enough for both; 0 means no validation",
                                1.1 * share, 1 - 1.1 * share)
                  : "add data or choose a smaller model.seq_len";
  throw Error(Code::data,
              fmt::format("{}: {}: of the {} tokens of {} this leaves {} for {}, fewer than one window of "
                          "seq_len + 1 = {}; {}",
                          config::place(config, "data.val_fraction"), config.data.val_fraction, all, train.name(),
                          val < window ? val : train_end, val < window ? "validation" : "training", window, remedy));
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

int64_t validation_begin(const TokenStream& stream, double fraction) {
  const auto wanted = static_cast<int64_t>(std::llround(fraction * static_cast<double>(stream.tokens())));
  const int64_t cut = stream.tokens() - wanted;
  return stream.document_end_near(cut, wanted / 2).value_or(cut);
}

Datasets open_data(const config::Config& config, const OpenOptions& options) {
  const config::Data& data = config.data;
  const fs::path cache = cache_folder(config, options);
  const std::vector<std::string> files = present_or_known(data.train, cache / "train.bin", data.format);
  if (files.empty()) throw Error(Code::config, "data.train: no training files");
  Datasets result;
  const auto open = [&](const std::vector<std::string>& list, const config::Data& settings, const std::string& name) {
    const auto place = [&] {
      if (!options.stage || !fs::exists(cache / name)) return cache / name;
      result.staged = true;
      return cache / kStaged / name;
    };
    return open_stream(list, settings, result.tokenizer ? &*result.tokenizer : nullptr, cache / name, place, options);
  };
  if (data.tokenizer == "train" && all_token_files(files, data.format))
    throw Error(Code::config, fmt::format("data.tokenizer: \"train\" finds no text ({} holds tokens)", files.front()));
  if (!options.tokenizer.empty()) {
    result.tokenizer = Tokenizer::from_bytes(options.tokenizer, "the tokenizer");
  } else if (data.tokenizer == "train") {
    result.tokenizer = trained_tokenizer(data, files, cache);
  } else if (!data.tokenizer.empty()) {
    result.tokenizer = Tokenizer::load(data.tokenizer);
    vocabulary_of(result.tokenizer->vocab_size(), data.tokenizer, config);
  }
  const Tokenizer* tokenizer = result.tokenizer ? &*result.tokenizer : nullptr;
  const auto train = open(files, data, "train.bin");
  if (!train) return result;
  result.vocab =
      tokenizer != nullptr ? tokenizer->vocab_size() : vocabulary_of(train->info().vocab_size, train->name(), config);
  require_vocabulary(*train, tokenizer, result.vocab, options.threads);

  const int64_t seq_len = config.model.seq_len;
  const auto seed = static_cast<uint64_t>(config.run.seed);
  int64_t train_end = train->tokens();
  for (const FilePart& part : validation_parts(data)) {
    const bool finished = naming("data.validation", part.name, [&] {
      const auto val =
          open(present_or_known(part.data.train, cache / part.tokens, part.data.format), part.data, part.tokens);
      if (!val) return false;
      require_vocabulary(*val, tokenizer, result.vocab, options.threads);
      result.val.push_back({part.name, TokenDataset(val, seq_len, seed)});
      return true;
    });
    if (!finished) return result;
  }
  if (data.val_fraction > 0) {
    train_end = validation_begin(*train, data.val_fraction);
    require_windows(*train, train_end, config);
    result.val.push_back({"", TokenDataset(train, seq_len, seed, train_end)});
  }
  result.train.emplace(train, seq_len, seed, 0, train_end);
  result.data_hash = to_string(checksum_of(fmt::format("{} {}", train->fingerprint(), train_end)));
  result.val_hash = validation_hash(result.val);
  result.followed = config::followed_set(config);
  if (!result.val.empty())
    result.unigram_entropy =
        unigram_entropy(*result.train, result.val[result.followed].dataset, result.vocab, options.threads);
  return result;
}

EvalData open_eval_data(const config::Config& config, const std::vector<std::string>& files, const Tokenizer* tokenizer,
                        int64_t vocab, const OpenOptions& options) {
  const config::Data& data = config.data;
  std::vector<FilePart> parts;
  if (files.empty()) parts = validation_parts(data);
  const bool tail = files.empty() && parts.empty();
  if (tail && data.val_fraction <= 0) {
    throw Error(Code::config, "the model was trained without validation data; give the files to evaluate on");
  }
  if (tail) parts.push_back({"", data, "train.bin"});
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
        throw Error(Code::data, fmt::format("{} not found, where the checkpoint's data was; give its current path with "
                                            "--data, or a --config with that path",
                                            file));
    const auto stream = open_stream(list, part.data, tokenizer, output, place, options);
    if (!stream) return {};
    require_vocabulary(*stream, tokenizer, vocab, options.threads);
    result.sets.push_back({part.name, TokenDataset(stream, config.model.seq_len, static_cast<uint64_t>(config.run.seed),
                                                   tail ? validation_begin(*stream, data.val_fraction) : 0)});
    if (result.name.empty())
      result.name = list.size() == 1 ? list.front() : fmt::format("{} and {} more", list.front(), list.size() - 1);
  }
  if (files.empty()) result.hash = validation_hash(result.sets);
  return result;
}

int64_t planned_vocab(const config::Config& config) {
  const config::Data& data = config.data;
  if (data.tokenizer == "train") return data.vocab_size;
  if (!data.tokenizer.empty())
    return vocabulary_of(Tokenizer::load(data.tokenizer).vocab_size(), data.tokenizer, config);
  const TokenStream stream(expand_files(data.train, data.format));
  return vocabulary_of(stream.info().vocab_size, stream.name(), config);
}

}  // namespace trainer::data
