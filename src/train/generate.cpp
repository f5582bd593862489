#include "train/generate.h"

#include <algorithm>
#include <bit>

#include "base/log.h"
#include "tensor/host_copy.h"

namespace trainer::train {
namespace {

constexpr uint64_t kPrefillRows = 256;  // enough for GEMMs at their full rate

std::vector<bool> tokens_with_a_space_in_front(const data::Tokenizer& tokenizer) {
  std::vector<bool> found(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < found.size(); ++id) found[id] = tokenizer.piece(static_cast<int32_t>(id)).starts_with(' ');
  return found;
}

}  // namespace

Generator::Generator(Trainer& trainer)
    : trainer_(trainer),
      cache_(trainer.device(), trainer.model()),
      programs_(std::bit_width(std::min(kPrefillRows, static_cast<uint64_t>(trainer.model().seq_len())))) {
  ids_ = Buffer(trainer.device(), "data", {int64_t{1} << (programs_.size() - 1)}, DType::i32);
  Meter uncounted;
  // Scratch memory depends on the cache's capacity, not on how much of the cache is filled.
  for (size_t i = 0; i < programs_.size(); ++i) {
    programs_[i] = format("{} rows", 1 << i);
    const auto extend = [&](Exec& ex) {
      cache_.used = 0;
      trainer_.model().extend(ex, batch(int64_t{1} << i), cache_);
    };
    trainer.record(programs_[i], extend, uncounted);
  }
  cache_.used = 0;
  trainer.seal();
}

parallel::Batch Generator::batch(int64_t rows) const {
  const Tensor ids{ids_.tensor().data, {rows}, DType::i32, 0};
  return {.ids = ids, .sequences = 1, .seq_len = rows, .first_position = cache_.used};
}

int32_t Generator::feed(const std::vector<int32_t>& ids, TokenSampler& sampler, int64_t position,
                        const std::vector<bool>& allowed) {
  Exec ex = trainer_.exec();
  int32_t chosen = 0;
  for (size_t at = 0; at < ids.size();) {
    const size_t left = ids.size() - at, program = std::min<size_t>(std::bit_width(left), programs_.size()) - 1;
    const int64_t rows = int64_t{1} << program;
    trainer_.device().copy_to_device(ids_.tensor().data, ids.data() + at, rows * size_of(DType::i32));
    trainer_.begin(ex, programs_[program]);
    {
      const Scratch logits = trainer_.model().extend(ex, batch(rows), cache_);
      if (static_cast<size_t>(rows) == left) {
        const HostCopy scores(ex.device, logits);
        chosen = static_cast<int32_t>(
            trainer_.scalars().broadcast_from_first_rank(sampler.choose(scores.tensor(), position, allowed)));
      }
    }
    trainer_.end();
    at += static_cast<size_t>(rows);
  }
  if (chosen < 0) throw Error(Code::nonfinite, "the logits are not finite: the weights diverged").on(Scope::all_ranks);
  return chosen;
}

void Generator::run(const std::vector<int32_t>& prompt, int64_t tokens, const Sampling& sampling,
                    const std::vector<int32_t>& stops, const std::function<bool(int32_t)>& emit,
                    const std::vector<bool>& first, const std::vector<bool>& later) {
  TokenSampler sampler(sampling, trainer_.vocab());
  std::vector<int32_t> text = prompt;
  if (text.empty()) text.push_back(stops.empty() ? 0 : stops.front());
  for (const int32_t id : text)
    if (id < 0 || id >= trainer_.vocab())
      throw Error(Code::data,
                  format("token {} of the prompt is not in the model's vocabulary of {} tokens", id, trainer_.vocab()));
  const int64_t capacity = cache_.capacity;
  bool noticed = false;
  const auto keep_last_half = [&] {
    if (!noticed) log::info("context window of {} tokens exceeded: keeping the last half", capacity);
    noticed = true;
    text.erase(text.begin(), text.end() - std::max<int64_t>(1, capacity / 2));
  };
  if (static_cast<int64_t>(text.size()) > capacity) keep_last_half();
  cache_.used = 0;
  std::vector<int32_t> next = text;
  for (int64_t i = 0; i < tokens; ++i) {
    const int32_t id = feed(next, sampler, i, i == 0 ? first : later);
    const bool proceeds = std::ranges::find(stops, id) == stops.end() && emit(id);
    if (trainer_.scalars().broadcast_from_first_rank(proceeds) == 0) return;
    text.push_back(id);
    next.assign(1, id);
    if (cache_.used == capacity) {
      keep_last_half();
      cache_.used = 0;
      next = text;
    }
  }
}

int64_t Generator::write(const data::Tokenizer& tokenizer, std::string_view prompt, int64_t tokens,
                         const Sampling& sampling, const std::function<bool(const std::string&)>& emit) {
  std::vector<bool> first, known;
  if (prompt.ends_with(' ')) first = tokens_with_a_space_in_front(tokenizer);
  if (std::ranges::find(first, true) == first.end()) first.clear();
  const bool spaced = !first.empty();
  if (spaced) prompt.remove_suffix(1);
  if (tokenizer.vocab_size() < trainer_.vocab()) known.assign(static_cast<size_t>(tokenizer.vocab_size()), true);
  if (!spaced) first = known;
  std::vector<int32_t> ids = tokenizer.encode(prompt);
  data::StreamDecoder decoder(tokenizer);
  for (const int32_t id : ids) decoder.push(id);
  if (tokenizer.bos() >= 0) ids.insert(ids.begin(), tokenizer.bos());
  int64_t written = 0;
  run(
      ids, tokens, sampling, tokenizer.stops(),
      [&](int32_t id) {
        std::string text = decoder.push(id);
        if (written++ == 0 && spaced && text.starts_with(' ')) text.erase(0, 1);  // the prompt has that space
        return emit(text);
      },
      first, known);
  if (const std::string rest = decoder.finish(); !rest.empty()) emit(rest);
  return written;
}

std::string Generator::complete(const data::Tokenizer& tokenizer, std::string_view prompt, int64_t tokens,
                                const Sampling& sampling, bool (*stop)()) {
  std::string text;
  write(tokenizer, prompt, tokens, sampling, [&](const std::string& piece) {
    text += piece;
    return stop == nullptr || !stop();
  });
  return text;
}

}  // namespace trainer::train
