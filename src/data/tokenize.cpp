#include "data/tokenize.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/join.h"
#include "base/json.h"
#include "base/log.h"
#include "base/name_lock.h"
#include "base/units.h"
#include "data/chat.h"
#include "data/input_key.h"
#include "data/piece_pipeline.h"
#include "data/positions.h"
#include "data/text_start.h"
#include "data/token_file.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
constexpr int64_t kHashedBytes = int64_t{4} << 30;  // longer files are compared through samples, for fast resuming
// Part of the key; must be incremented when the output for the same input changes.
constexpr const char* kFormat = "tokens-3";

/// The progress of tokenizing, stored so that an interrupted call can be resumed.
struct Progress {
  TextPosition position;
  int64_t raw_bytes = 0, tokens = 0, documents = 0, text_bytes = 0, replaced = 0, without_text = 0, empty_files = 0;
  std::string first_replaced, first_without, first_empty;
  int64_t spans = 0, counted = 0;  // runs of counted tokens, and their tokens
  std::array<int64_t, kChatFlaws> skipped{};
  std::string first_skipped;
};

json to_json(const Progress& p) {
  json j = {{"file", p.position.file},
            {"offset", p.position.offset},
            {"inside_document", p.position.inside_document},
            {"raw_bytes", p.raw_bytes},
            {"tokens", p.tokens},
            {"documents", p.documents},
            {"text_bytes", p.text_bytes},
            {"replaced", p.replaced},
            {"first_replaced", p.first_replaced},
            {"without_text", p.without_text},
            {"first_without", p.first_without},
            {"empty_files", p.empty_files},
            {"first_empty", p.first_empty}};
  // Only of conversations: the manifests of text are as they were.
  if (p.spans > 0 || !p.first_skipped.empty())
    j["chat"] = {{"spans", p.spans}, {"counted", p.counted}, {"skipped", p.skipped}, {"first", p.first_skipped}};
  return j;
}

Progress progress_from(const json& j) {
  Progress p;
  p.position = {j.at("file"), j.at("offset"), j.at("inside_document")};
  p.raw_bytes = j.at("raw_bytes");
  p.tokens = j.at("tokens");
  p.documents = j.at("documents");
  p.text_bytes = j.at("text_bytes");
  p.replaced = j.at("replaced");
  p.first_replaced = j.at("first_replaced");
  p.without_text = j.at("without_text");
  p.first_without = j.at("first_without");
  p.empty_files = j.at("empty_files");
  p.first_empty = j.at("first_empty");
  if (const auto chat = j.find("chat"); chat != j.end()) {
    p.spans = chat->at("spans");
    p.counted = chat->at("counted");
    p.skipped = chat->at("skipped");
    p.first_skipped = chat->at("first");
  }
  return p;
}

/// The folder of unfinished work. It contains tokens, document index and loss spans with blank headers, and the
/// progress at the last sync.
class WorkFolder {
 public:
  WorkFolder(const fs::path& folder, std::string key, int width, bool spans)
      : folder_(folder),
        key_(std::move(key)),
        width_(width),
        lock_(lock(folder)),
        tokens_(File::open_to_write(folder / "tokens")),
        documents_(folder / "documents", kDocuments) {
    if (spans) spans_.emplace(folder / "spans", kSpans);
    try {
      const json saved = read_json_or_null(folder_ / "progress.json");
      if (saved.is_object() && saved.at("key") == key_) done_ = progress_from(saved.at("done"));
    } catch (const json::exception&) {
      done_ = {};
    }
    if (tokens_.size() < token_bytes() || !documents_.has(done_.documents) || (spans_ && !spans_->has(done_.spans)))
      done_ = {};
    if (done_.raw_bytes == 0) fs::remove(folder_ / "progress.json");  // its tokens are about to be overwritten
    tokens_.truncate(token_bytes());
    documents_.resume_at(done_.documents);
    if (spans_) spans_->resume_at(done_.spans);
  }
  /// Removes the folder, also after an error, unless it has progress from which a later call can resume.
  ~WorkFolder() {
    std::error_code failed, ignored;
    if (fs::exists(folder_ / "progress.json", failed) || failed) return;
    for (fs::directory_iterator each(folder_, failed), end; !failed && each != end; each.increment(failed))
      if (each->path() != lock_->path()) fs::remove(each->path(), ignored);
    lock_.reset();                 // last: then a different process may begin here
    fs::remove(folder_, ignored);  // fails if it did
  }

  const Progress& done() const { return done_; }

  void append(const EncodedPiece& piece, const std::string& file) {
    std::string bytes(piece.ids.size() * static_cast<size_t>(width_), '\0');
    if (width_ == 2) {
      std::ranges::transform(piece.ids, reinterpret_cast<uint16_t*>(bytes.data()),
                             [](int32_t id) { return static_cast<uint16_t>(id); });
    } else {
      std::ranges::transform(piece.ids, reinterpret_cast<uint32_t*>(bytes.data()),
                             [](int32_t id) { return static_cast<uint32_t>(id); });
    }
    tokens_.write_at(token_bytes(), bytes);
    documents_.append(piece.document_ends, done_.tokens);
    if (spans_) spans_->append(piece.spans, done_.tokens);
    for (size_t i = 0; i < piece.spans.size(); i += 2) done_.counted += piece.spans[i + 1] - piece.spans[i];
    done_.spans += std::ssize(piece.spans) / 2;
    const TextFlaws& flaws = piece.flaws;
    if (flaws.replaced > 0 && done_.replaced == 0)
      done_.first_replaced = fmt::format("{}: offset {}", file, flaws.first_offset);
    if (flaws.without_text > 0 && done_.without_text == 0)
      done_.first_without = fmt::format("{}: offset {}", file, flaws.first_without);
    if (flaws.empty_file && done_.empty_files == 0) done_.first_empty = file;
    if (flaws.first_skipped >= 0 && done_.first_skipped.empty())
      done_.first_skipped = fmt::format("{}: offset {}", file, flaws.first_skipped);
    for (size_t i = 0; i < kChatFlaws; ++i) done_.skipped[i] += flaws.skipped[i];
    done_.position = piece.next;
    done_.raw_bytes += piece.raw_bytes;
    done_.text_bytes += piece.text_bytes;
    done_.tokens += static_cast<int64_t>(piece.ids.size());
    done_.documents += std::ssize(piece.document_ends);
    done_.replaced += flaws.replaced;
    done_.without_text += flaws.without_text;
    done_.empty_files += flaws.empty_file;
  }

  void save() {
    tokens_.sync();
    documents_.sync();
    if (spans_) spans_->sync();
    replace_file(folder_ / "progress.json", json_text(json{{"key", key_}, {"done", to_json(done_)}}));
  }

  /// Completes the files and moves them to their final places.
  void finish(TokenFileInfo info, const fs::path& output) {
    info.spans = spans_.has_value();
    tokens_.write_at(0, token_header(info));
    tokens_.sync();
    documents_.finish();
    if (spans_) spans_->finish();
    publish(folder_ / "documents", positions_path(output, kDocuments));
    if (spans_) publish(folder_ / "spans", positions_path(output, kSpans));
    publish(folder_ / "tokens", output);
  }
  /// The destructor then removes the folder.
  void forget() { fs::remove(folder_ / "progress.json"); }

 private:
  /// Creates the folder and takes its lock.
  static NameLock lock(const fs::path& folder) {
    for (int tries = 1;; ++tries) {
      std::error_code failed;
      fs::create_directories(folder, failed);
      if (failed)
        throw Error(Code::io, fmt::format("{}: cannot create the folder: {}", folder.string(), failed.message()));
      try {
        std::optional<NameLock> lock = NameLock::take(folder / "lock");
        if (lock) return std::move(*lock);
        break;
      } catch (const Error&) {
        if (tries == 10) throw;  // earlier, the previous holder may have removed the folder
      }
    }
    throw Error(Code::io,
                fmt::format("{}: another process is tokenizing here; wait for it or choose a different folder",
                            folder.string()));
  }
  int64_t token_bytes() const { return kTokenHeaderBytes + done_.tokens * width_; }

  fs::path folder_;
  std::string key_;
  int width_;
  std::optional<NameLock> lock_;
  File tokens_;  // opened by the holder of the lock only, as the next ones
  PositionsWriter documents_;
  std::optional<PositionsWriter> spans_;  // only for conversations
  Progress done_;
};

fs::path with_extension(const fs::path& output, const char* extension) {
  return fs::path(output).replace_extension(extension);
}

/// Returns checksums of a token file, its document index and its loss spans. The manifest stores them for later readers
/// to compare.
json checksums_of(const fs::path& output) {
  json sums = {{"documents", hash_file(positions_path(output, kDocuments))}};
  if (TokenStream({output.string()}).has_spans()) sums["spans"] = hash_file(positions_path(output, kSpans));
  const bool short_enough = File::open_input(output).size() <= kHashedBytes;
  sums[short_enough ? "tokens" : "fingerprint"] =
      short_enough ? hash_file(output) : TokenStream({output.string()}).fingerprint();
  return sums;
}

/// Returns how the files differ from the manifest. Empty if they do not, or if it is not that of a token file.
std::string damage_by(const json& manifest, const fs::path& output) try {
  if (!manifest.is_object() || !manifest.contains("checksums")) return {};
  const json& known = manifest["checksums"];
  const auto differs = [&](const char* key, const std::string& found) {
    const std::string before = text_in(known, key);
    return !before.empty() && before != found;
  };
  const auto damaged = [&](const fs::path& file) {
    return fmt::format("{}: its checksum differs from that in {}: the file is damaged or was edited", file.string(),
                       with_extension(output, ".json").string());
  };
  const fs::path documents = positions_path(output, kDocuments), spans = positions_path(output, kSpans);
  if (differs("documents", hash_file(documents))) return damaged(documents);
  if (known.contains("spans") && differs("spans", hash_file(spans))) return damaged(spans);
  const bool tokens_differ = text_in(known, "tokens").empty()
                                 ? differs("fingerprint", TokenStream({output.string()}).fingerprint())
                                 : differs("tokens", hash_file(output));
  return tokens_differ ? damaged(output) : "";
} catch (const Error& error) {  // one of them cannot be read
  return error.what();
}

TokenizeResult result_of(const fs::path& output, bool finished, bool reused, const Progress& done) {
  return {output,
          finished,
          reused,
          done.tokens,
          done.documents,
          done.text_bytes,
          done.replaced,
          done.first_replaced,
          done.without_text,
          done.first_without,
          done.empty_files,
          done.first_empty,
          done.skipped,
          done.first_skipped,
          done.counted};
}

/// Throws the error for files that contain no text.
[[noreturn]] void refuse_no_text(const std::vector<std::string>& files, const TextOptions& text, const Progress& done) {
  if (done.empty_files == 1 && files.size() == 1) refuse_empty(files.front());
  const std::string why =
      done.empty_files == std::ssize(files) ? fmt::format(": all {} files are empty", files.size())
      : !done.first_skipped.empty()
          ? ": no conversation can be trained on: " + skipped_text(result_of({}, true, false, done)) + " skipped"
      : done.without_text > 0
          ? fmt::format(": \"{}\" is null or missing in {}; set data.text_key to the member with the text",
                        text.text_key, counted(done.without_text, "line"))
          : "";
  throw Error(Code::data, fmt::format("{}: no text found{}", files.front(), why));
}

/// The inputs and key that find_tokens() and tokenize_files() look for.
struct Request {
  json inputs;
  std::vector<std::string> gone;
  std::string key;
};
std::string key_of(const json& inputs, const Tokenizer& tokenizer, const TextOptions& text) {
  const std::string bos = tokenizer.bos() < 0 ? "" : fmt::format(" bos {}", tokenizer.bos());
  const std::optional<int32_t> end = tokenizer.special().text_end;
  const std::string chat = text.chat == nullptr ? "" : chat_key(*text.chat, tokenizer);
  return input_key(inputs, text, kFormat + tokenizer.hash() + bos + (end ? fmt::format(" eos {}", *end) : "") + chat);
}
Request request_of(const std::vector<std::string>& files, const Tokenizer& tokenizer, const json& manifest,
                   const TextOptions& text, const Watch& watch) {
  Request request = interruptible("reading the text", watch, [files, manifest, text] {
    Request found;
    found.inputs = describe_inputs(files, text, inputs_in(manifest), found.gone);
    return found;
  });
  request.key = key_of(request.inputs, tokenizer, text);
  return request;
}

std::optional<TokenizeResult> finished_before(const fs::path& output, const json& manifest, const Request& request,
                                              const Watch& watch) {
  if (text_in(manifest, "key") != request.key) return std::nullopt;
  try {
    const Progress done = progress_from(manifest.at("done"));
    const std::string damage =
        interruptible("checking the tokens", watch, [manifest, output] { return damage_by(manifest, output); });
    if (!damage.empty()) {
      log::warning("{}", damage);
      return std::nullopt;
    }
    const TokenStream stream({output.string()});
    if (stream.tokens() != done.tokens) return std::nullopt;
    if (!request.gone.empty())
      log::warning("{} not found; its tokens in {} are complete and are used instead", request.gone.front(),
                   output.string());
    return result_of(output, true, true, done);
  } catch (const json::exception&) {
    return std::nullopt;
  } catch (const Error&) {  // lost or corrupted since then: tokenize again
    return std::nullopt;
  }
}

}  // namespace

std::optional<TokenizeResult> find_tokens(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                                          const fs::path& output, const TextOptions& text, const Watch& watch) {
  const json manifest = read_json_or_null(with_extension(output, ".json"));
  return finished_before(output, manifest, request_of(files, tokenizer, manifest, text, watch), watch);
}

std::string skipped_text(const TokenizeResult& result) {
  std::vector<std::string> reasons;
  int64_t all = 0;
  for (size_t i = 0; i < kChatFlaws; ++i) {
    if (result.skipped[i] == 0) continue;
    all += result.skipped[i];
    reasons.push_back(fmt::format("{} {}", result.skipped[i], name_of(static_cast<ChatFlaw>(i))));
  }
  return all == 0 ? "" : fmt::format("{} ({})", all, fmt::join(reasons, ", "));
}

void warn_of_flaws(const TokenizeResult& result, const TextOptions& text) {
  if (const std::string skipped = skipped_text(result); !skipped.empty())
    log::warning("conversations that cannot be trained on were skipped: {}, the first at {}", skipped,
                 result.first_skipped);
  if (result.replaced > 0)
    log::warning("{} bytes of the text are not valid UTF-8 and were replaced by U+FFFD, the first at {}",
                 result.replaced, result.first_replaced);
  if (result.without_text > 0)
    log::warning("{} skipped, in which \"{}\" is null or missing, the first at {}",
                 result.without_text == 1 ? "1 line was" : fmt::format("{} lines were", result.without_text),
                 text.text_key, result.first_without);
  if (result.empty_files > 0)
    log::warning("{} skipped, the first: {}",
                 result.empty_files == 1 ? "1 file is empty and was"
                                         : fmt::format("{} files are empty and were", result.empty_files),
                 result.first_empty);
}

std::string damage_of_tokens(const fs::path& token_file) {
  return damage_by(read_json_or_null(with_extension(token_file, ".json")), token_file);
}

std::string chat_format_of(const fs::path& token_file) {
  return text_in(read_json_or_null(with_extension(token_file, ".json")), "chat_format");
}

std::string text_of_document(const fs::path& token_file, int64_t document, const TextOptions& text) {
  const json manifest = read_json_or_null(with_extension(token_file, ".json")), inputs = inputs_in(manifest);
  if (!inputs.is_array() || inputs.empty() || document < 0) return {};
  if (inputs.size() == 1) return text_in(inputs.front(), "path");
  const json done = manifest.value("done", json());
  const bool by_file = text.document == config::Document::file && document < static_cast<int64_t>(inputs.size()) &&
                       done.is_object() && done.value("documents", json()) == inputs.size() &&
                       std::ranges::all_of(inputs, [](const json& input) {
                         return input.is_object() && input.value("json_lines", json()) == false;
                       });
  return by_file ? text_in(inputs[static_cast<size_t>(document)], "path") : "";
}

TokenizeResult tokenize_files(const std::vector<std::string>& files, const Tokenizer& tokenizer, const fs::path& output,
                              const TokenizeOptions& options) try {
  TRAINER_CHECK(output.extension() == ".bin", "token files end in .bin, got {}", output.string());
  const fs::path manifest_path = with_extension(output, ".json");
  const json manifest = read_json_or_null(manifest_path);
  const bool piped = is_pipe(files.front());
  TRAINER_CHECK(!piped || files.size() == 1, "a pipe must be the only input");
  const Watch watch{options.stop, options.busy};
  if (options.text.document == config::Document::chat)
    for (const std::string& file : files) require_conversations(file, options.text.format);
  auto [inputs, gone, key] = piped ? Request{} : request_of(files, tokenizer, manifest, options.text, watch);
  const bool reuses = !options.from_scratch && !piped;
  const Request request{inputs, gone, key};
  if (auto result = reuses ? finished_before(output, manifest, request, watch) : std::nullopt) return *result;
  if (!gone.empty())
    throw Error(Code::data, fmt::format("{0} not found, and {1} does not contain all of its tokens; restore {0}",
                                        gone.front(), output.string()));

  std::vector<int64_t> sizes(1);  // total size before each file, and of all files
  for (const json& input : inputs) sizes.push_back(sizes.back() + input["size"].get<int64_t>());
  WorkFolder work(with_extension(output, ".work"), key, token_width(tokenizer.vocab_size()),
                  options.text.chat != nullptr);
  // A different process may have finished before this one took the lock.
  if (auto result = reuses ? finished_before(output, read_json_or_null(manifest_path), request, watch) : std::nullopt)
    return *result;
  if (options.begin) options.begin();
  const auto result = [&](bool finished) { return result_of(output, finished, false, work.done()); };
  {
    PiecePipeline pipeline(files, tokenizer, options.text, options.piece_bytes, work.done().position, options.threads);
    EncodedPiece piece;
    int64_t saved_at = work.done().raw_bytes;
    for (;;) {
      if (options.stop && options.stop()) {
        if (!piped) work.save();
        return result(false);
      }
      const auto state = pipeline.next(piece);
      if (state == PiecePipeline::State::finished) break;
      if (state == PiecePipeline::State::waiting) continue;
      work.append(piece, files[static_cast<size_t>(piece.at.file)]);
      if (!piped && work.done().raw_bytes - saved_at >= options.sync_bytes) {
        work.save();
        saved_at = work.done().raw_bytes;
      }
      const int64_t read = sizes[static_cast<size_t>(piece.at.file)] + piece.file_bytes;
      if (options.progress) options.progress({read, sizes.back(), work.done().tokens});
      if (piece.pipe_hash.empty()) continue;
      inputs = json::array();
      inputs.push_back({{"path", files.front() == kStandardInput ? "stdin" : files.front()},
                        {"size", piece.file_bytes},
                        {"hash", piece.pipe_hash},
                        {"json_lines", is_json_lines(files.front(), options.text)}});
      key = key_of(inputs, tokenizer, options.text);
    }
  }
  if (work.done().tokens == 0) refuse_no_text(files, options.text, work.done());
  const TokenFileInfo info{work.done().tokens, tokenizer.vocab_size(), tokenizer.eos(), tokenizer.hash(),
                           tokenizer.bos()};
  work.finish(info, output);
  json written = {{"key", key},
                  {"inputs", inputs},
                  {"tokenizer", tokenizer.hash()},
                  {"checksums", checksums_of(output)},
                  {"done", to_json(work.done())}};
  if (options.text.chat != nullptr) written["chat_format"] = std::string(options.text.chat->name);
  replace_file(manifest_path, json_text(written, 2) + "\n");
  work.forget();
  return result(true);
} catch (const Interrupted&) {
  return {.tokens_file = output, .finished = false};
}

}  // namespace trainer::data
