#include "data/piece_pipeline.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/limits.h"

namespace trainer::data {

PiecePipeline::PiecePipeline(const std::vector<std::string>& files, const Tokenizer& tokenizer,
                             const TextOptions& options, int64_t piece_bytes, TextPosition start, int threads)
    : files_(files),
      tokenizer_(tokenizer),
      options_(options),
      reader_(files, options, piece_bytes, start, tokenizer.cuts(), tokenizer.split_check()),
      most_in_flight_(4 * int64_t{std::max(threads, 1)}) {
  try {
    for (int i = 0; i < std::max(threads, 1); ++i)
      workers_.push_back(start_thread(format("tokenizer thread {} of {}", i + 1, threads), [this] { work(); }));
  } catch (const Error&) {
    close();
    throw;
  }
}

PiecePipeline::~PiecePipeline() { close(); }

void PiecePipeline::close() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  reader_.cancel();
  room_.notify_all();
}

PiecePipeline::State PiecePipeline::next(EncodedPiece& piece) {
  std::unique_lock lock(mutex_);
  const auto here = [&] { return done_.contains(delivered_) || (all_read_ && delivered_ == claimed_); };
  if (!ready_.wait_for(lock, std::chrono::milliseconds(100), here)) return State::waiting;
  auto found = done_.find(delivered_);
  if (found == done_.end()) return State::finished;
  if (found->second.error) std::rethrow_exception(found->second.error);
  piece = std::move(found->second.piece);
  done_.erase(found);
  ++delivered_;
  lock.unlock();
  room_.notify_one();
  return State::piece;
}

std::optional<PiecePipeline::Claim> PiecePipeline::claim() {
  const std::lock_guard reading(reading_);
  std::unique_lock lock(mutex_);
  room_.wait(lock, [&] { return closing_ || all_read_ || claimed_ - delivered_ < most_in_flight_; });
  if (closing_ || all_read_) return std::nullopt;
  lock.unlock();
  std::optional<TextPiece> raw;
  std::exception_ptr error;
  try {
    raw = reader_.next();
  } catch (...) {  // the error is delivered instead of the piece, and no piece follows
    error = std::current_exception();
  }
  lock.lock();
  if (raw) return Claim{claimed_++, std::move(*raw), reader_.position()};
  if (error) done_.emplace(claimed_++, Outcome{{}, error});
  all_read_ = true;
  lock.unlock();
  ready_.notify_one();
  room_.notify_all();
  return std::nullopt;
}

void PiecePipeline::work() {
  std::optional<Encoder> encoder;
  std::optional<ChatEncoder> chat;
  while (auto mine = claim()) {
    Outcome outcome;
    try {
      // Construction throws for models whose encoding is not supported.
      if (options_.chat != nullptr) {
        if (!chat) chat.emplace(*options_.chat, tokenizer_);
        outcome.piece = encode(std::move(mine->raw), *chat);
      } else {
        if (!encoder) encoder.emplace(tokenizer_);
        outcome.piece = encode(std::move(mine->raw), *encoder);
      }
      outcome.piece.next = mine->next;
    } catch (...) {
      outcome.error = std::current_exception();
    }
    {
      const std::lock_guard lock(mutex_);
      done_.emplace(mine->number, std::move(outcome));
    }
    ready_.notify_one();
  }
}

/// Returns a piece without tokens.
static EncodedPiece begun(const TextPiece& raw) {
  return {.at = raw.at,
          .raw_bytes = static_cast<int64_t>(raw.text.size()),
          .file_bytes = raw.file_bytes,
          .pipe_hash = raw.pipe_hash};
}

EncodedPiece PiecePipeline::encode(TextPiece&& raw, Encoder& encoder) const {
  EncodedPiece piece = begun(raw);
  const std::string& file = files_[static_cast<size_t>(raw.at.file)];
  piece.flaws = split_documents(file, std::move(raw), options_, [&](std::string_view text, bool starts, bool ends) {
    if (starts && tokenizer_.bos() >= 0) piece.ids.push_back(tokenizer_.bos());
    encoder.append(text, piece.ids, starts);
    piece.text_bytes += static_cast<int64_t>(text.size());
    if (!ends) return;
    piece.ids.push_back(tokenizer_.eos());
    piece.document_ends.push_back(static_cast<int64_t>(piece.ids.size()));
  });
  return piece;
}

EncodedPiece PiecePipeline::encode(TextPiece&& raw, ChatEncoder& encoder) const {
  EncodedPiece piece = begun(raw);
  const std::string& file = files_[static_cast<size_t>(raw.at.file)];
  piece.flaws = split_conversations(file, std::move(raw), options_, [&](const Conversation& conversation) {
    encoder.append(conversation, piece.ids, piece.spans);
    for (const ChatMessage& message : conversation) piece.text_bytes += std::ssize(message.content);
    piece.document_ends.push_back(std::ssize(piece.ids));
  });
  return piece;
}

}  // namespace trainer::data
