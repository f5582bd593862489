#include "train/generate.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>

#include "base/log.h"
#include "tensor/host_copy.h"

namespace trainer::train {
namespace {

const std::vector<bool> kAll;           // for TokenSampler
constexpr uint64_t kPrefillRows = 256;  // enough for GEMMs at their full rate

std::vector<bool> tokens_with_a_space_in_front(const data::Tokenizer& tokenizer) {
  std::vector<bool> found(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < found.size(); ++id) found[id] = tokenizer.piece(static_cast<int32_t>(id)).starts_with(' ');
  return found;
}

}  // namespace

/// A request in progress.
struct Generator::Sequence {
  TokenRequest request;
  model::Transformer::Cache& cache;  // contains the first tokens of the text
  TokenSampler sampler;
  std::vector<int32_t> text = {};
  int64_t emitted = 0;
  int64_t chosen = 0;  // -1: the logits are not finite
  int64_t left() const { return static_cast<int64_t>(text.size()) - cache.used; }
};

Generator::Generator(ModelRunner& runner, int64_t sequences)
    : runner_(runner),
      most_rows_(static_cast<int64_t>(
          std::bit_floor(std::min(kPrefillRows, static_cast<uint64_t>(runner.model().seq_len()))))),
      links_(runner.make_links(std::max(most_rows_, sequences))) {
  TRAINER_CHECK(sequences > 0, "{} sequences", sequences);
  for (int64_t i = 0; i < sequences; ++i) caches_.emplace_back(runner.device(), runner.model());
  ids_ = Buffer(runner.device(), "data", {std::max(most_rows_, sequences)}, DType::i32);
  std::vector<model::Transformer::Cache*> caches = {&caches_.front()};
  // Passes without logits, recorded when they occur, need no more memory.
  for (int64_t rows = 1; rows <= most_rows_; rows *= 2) record({caches, rows});
  for (size_t i = 1; i < caches_.size(); ++i) caches.push_back(&caches_[i]);
  record({caches, 1});
}

std::string Generator::program_of(const Pass& pass, size_t chunk) const {
  return format("{} x {} rows of generation{}{}", pass.caches.size(), pass.rows,
                pass.with_logits ? "" : ", without logits", chunk == 0 ? "" : format(", chunk {}", chunk));
}

void Generator::record(const Pass& pass) {
  if (runner_.arena().is_recorded(program_of(pass, 0))) return;
  Meter uncounted;
  std::vector<int64_t> used;
  for (const model::Transformer::Cache* cache : pass.caches) used.push_back(cache->used);
  links_.set_rows(std::ssize(pass.caches) * pass.rows);
  for (size_t chunk = 0; chunk < runner_.forward_passes().size(); ++chunk) {
    const auto extend = [&](Exec& ex) {
      // Scratch memory depends on the cache's capacity, not on how much of the cache is filled.
      for (model::Transformer::Cache* cache : pass.caches) cache->used = 0;
      run_chunk(ex, pass, chunk);
    };
    runner_.record(program_of(pass, chunk), extend, uncounted);
  }
  for (size_t i = 0; i < pass.caches.size(); ++i) pass.caches[i]->used = used[i];
  runner_.arena().seal();
}

Scratch Generator::run_chunk(Exec& ex, const Pass& pass, size_t chunk) {
  const sharding::Action& action = runner_.forward_passes()[chunk];
  const parallel::Batch rows = batch(pass.caches.size(), pass.rows);
  Scratch y = runner_.model().extend(ex, rows, pass.caches, pass.with_logits, {chunk, links_.take(ex, action)});
  if (runner_.model().chunks()[chunk].head) return y;
  links_.send(ex, action, std::move(y));
  return {};
}

parallel::Batch Generator::batch(size_t sequences, int64_t rows) const {
  const auto count = static_cast<int64_t>(sequences);
  return {.ids = ids_.tensor().range(0, count * rows), .sequences = count, .seq_len = rows};
}

void Generator::feed(std::span<Sequence* const> sequences, int64_t rows) {
  std::vector<int32_t> ids;
  std::vector<model::Transformer::Cache*> caches;
  for (Sequence* sequence : sequences) {
    const auto first = sequence->text.begin() + sequence->cache.used;
    ids.insert(ids.end(), first, first + rows);
    caches.push_back(&sequence->cache);
  }
  const bool chooses = sequences.front()->left() == rows;
  const Pass pass{caches, rows, chooses};
  record(pass);  // may occur for the first time
  Exec ex = runner_.exec();
  runner_.device().copy_to_device(ids_.tensor().data, ids.data(),
                                  static_cast<int64_t>(ids.size()) * size_of(DType::i32));
  links_.set_rows(std::ssize(caches) * rows);
  links_.begin_list(runner_.forward_passes());
  for (size_t chunk = 0; chunk < runner_.forward_passes().size(); ++chunk) {
    links_.begin(ex, chunk);
    runner_.begin(ex, program_of(pass, chunk));
    if (const Scratch logits = run_chunk(ex, pass, chunk)) {
      const HostCopy scores(ex.device, logits);
      const auto choose = [&](int64_t i) {
        Sequence& sequence = *sequences[static_cast<size_t>(i)];
        const std::vector<bool>* allowed = sequence.emitted == 0 ? sequence.request.first : sequence.request.later;
        sequence.chosen = sequence.sampler.choose(scores.tensor().row_range(i, 1), sequence.emitted,
                                                  allowed == nullptr ? kAll : *allowed);
      };
      const auto count = static_cast<int64_t>(sequences.size());
      if (ex.device.kind() == device::DeviceKind::cpu)
        device::pool_of(ex.device).parallel_for(count, choose);
      else
        for (int64_t i = 0; i < count; ++i) choose(i);
    }
    runner_.end();
  }
  links_.end_list(ex);
}

bool Generator::emit(std::vector<std::optional<Sequence>>& slots, bool (*stop)()) {
  std::vector<int64_t> chosen, proceeds;
  for (const auto& sequence : slots)
    if (sequence) chosen.push_back(sequence->chosen);
  runner_.scalars().broadcast_in_replica(chosen);
  if (std::ranges::min(chosen) < 0)
    throw Error(
        Code::nonfinite,
        "the logits are not finite: some weights are not finite, or so large that they overflow; use an earlier "
        "checkpoint, or import the model from intact files")
        .on(Scope::all_ranks);
  for (auto& sequence : slots) {
    if (!sequence) continue;
    const auto id = static_cast<int32_t>(chosen[proceeds.size()]);
    const TokenRequest& request = sequence->request;
    proceeds.push_back(std::ranges::find(request.stops, id) == request.stops.end() && request.emit(id) ? 1 : 0);
    sequence->text.push_back(id);
  }
  proceeds.push_back(stop == nullptr || !stop() ? 1 : 0);
  runner_.scalars().broadcast_in_replica(proceeds);
  const bool stopped = proceeds.back() == 0;
  size_t at = 0;
  for (auto& slot : slots) {
    if (!slot) continue;
    const bool complete = proceeds[at++] == 0 || ++slot->emitted == slot->request.tokens;
    if (complete || stopped) end(slot, !complete);
  }
  return !stopped;
}

bool Generator::stops(bool (*stop)()) {
  return stop != nullptr && runner_.scalars().broadcast_in_replica(stop() ? 1 : 0) != 0;
}

void Generator::end(std::optional<Sequence>& slot, bool stopped) {
  if (slot->request.ended) slot->request.ended(stopped);
  slot.reset();
}

bool Generator::start(std::optional<Sequence>& slot, model::Transformer::Cache& cache, const TokenRequests& next) {
  std::optional<TokenRequest> request = next();
  if (!request) return false;
  std::vector<int32_t> text = request->prompt;
  if (text.empty()) text.push_back(request->stops.empty() ? 0 : request->stops.front());
  for (const int32_t id : text)
    if (id < 0 || id >= runner_.vocab())
      throw Error(Code::data,
                  format("token {} of the prompt is not in the model's vocabulary of {} tokens", id, runner_.vocab()));
  TokenSampler sampler(request->sampling, runner_.vocab());
  cache.used = 0;
  slot.emplace(std::move(*request), cache, std::move(sampler), std::move(text));
  return true;
}

bool Generator::run(const TokenRequests& next, bool (*stop)()) {
  std::vector<std::optional<Sequence>> slots(caches_.size());
  for (bool more = true;;) {
    std::vector<Sequence*> decoding;
    for (size_t i = 0; i < slots.size(); ++i) {
      if (!slots[i] && more) {
        if (stops(stop)) {
          for (auto& slot : slots)
            if (slot) end(slot, true);
          return false;
        }
        more = start(slots[i], caches_[i], next);
      }
      if (!slots[i]) continue;
      Sequence* const sequence = &*slots[i];
      keep_within_context(*sequence);
      while (sequence->left() > 1) {
        const auto rows = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(sequence->left())));
        feed({&sequence, 1}, std::min(most_rows_, rows));
      }
      if (sequence->left() == 1) decoding.push_back(sequence);
    }
    if (!decoding.empty()) feed(decoding, 1);
    if (std::ranges::none_of(slots, [](const auto& slot) { return slot.has_value(); })) return true;
    if (!emit(slots, stop)) return false;
  }
}

void Generator::keep_within_context(Sequence& sequence) {
  const int64_t capacity = sequence.cache.capacity;
  if (static_cast<int64_t>(sequence.text.size()) <= capacity) return;
  if (!std::exchange(noticed_, true))
    log::info("context window of {} tokens exceeded: keeping the last half", capacity);
  sequence.text.erase(sequence.text.begin(), sequence.text.end() - std::max<int64_t>(1, capacity / 2));
  sequence.cache.used = 0;
}

bool Generator::write(const data::Tokenizer& tokenizer, const TextRequests& next, bool (*stop)()) {
  const std::vector<bool> spaced_tokens = tokens_with_a_space_in_front(tokenizer);
  const bool has_spaced = std::ranges::find(spaced_tokens, true) != spaced_tokens.end();
  std::vector<bool> known;
  if (tokenizer.vocab_size() < runner_.vocab()) known.assign(static_cast<size_t>(tokenizer.vocab_size()), true);
  struct Text {
    TextRequest request;
    data::StreamDecoder decoder;
    bool spaced = false;
    size_t known = 0;  // bytes at the end of the prompt that the decoder holds back
    int64_t written = 0;
    std::string after_prompt(std::string piece) {
      if (!piece.empty()) piece.erase(0, std::exchange(known, 0));
      return piece;
    }
  };
  const auto tokens_of = [&]() -> std::optional<TokenRequest> {
    std::optional<TextRequest> request = next();
    if (!request) return std::nullopt;
    const auto text = std::make_shared<Text>(Text{std::move(*request), data::StreamDecoder(tokenizer)});
    std::vector<int32_t> ids;
    if (const auto* const prompt = std::get_if<std::string>(&text->request.prompt)) {
      text->spaced = has_spaced && prompt->ends_with(' ');
      if (tokenizer.bos() >= 0) ids.push_back(tokenizer.bos());
      const std::vector<int32_t> encoded =
          tokenizer.encode(std::string_view(*prompt).substr(0, prompt->size() - (text->spaced ? 1 : 0)));
      ids.insert(ids.end(), encoded.begin(), encoded.end());
    } else {
      ids = std::get<std::vector<int32_t>>(text->request.prompt);
    }
    for (const int32_t id : ids) text->decoder.push(id);
    text->known = text->decoder.held_back();
    const auto emit = [text](int32_t id) {
      std::string piece = text->after_prompt(text->decoder.push(id));
      if (text->written++ == 0 && text->spaced && piece.starts_with(' ')) piece.erase(0, 1);  // the prompt has it
      return text->request.emit(piece);
    };
    const auto ended = [text](bool stopped) {
      if (const std::string rest = text->after_prompt(text->decoder.finish()); !rest.empty()) text->request.emit(rest);
      if (text->request.ended) text->request.ended(text->written, stopped);
    };
    return TokenRequest{std::move(ids),
                        text->request.tokens,
                        text->request.sampling,
                        tokenizer.stops(),
                        emit,
                        ended,
                        text->spaced ? &spaced_tokens : &known,
                        &known};
  };
  return run(tokens_of, stop);
}

std::string Generator::complete(const data::Tokenizer& tokenizer, const Prompt& prompt, int64_t tokens,
                                const Sampling& sampling, bool (*stop)()) {
  std::string text;
  const auto emit = [&](const std::string& piece) {
    text += piece;
    return stop == nullptr || !stop();
  };
  std::optional<TextRequest> request{{prompt, tokens, sampling, emit, {}}};
  write(tokenizer, [&] { return std::exchange(request, std::nullopt); });
  return text;
}

}  // namespace trainer::train
