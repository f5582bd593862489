#pragma once
// Worker threads that read and encode pieces and deliver them in order. At most a few pieces per thread are in flight.
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/chat.h"
#include "data/text.h"
#include "data/tokenizer.h"

namespace trainer::data {

struct EncodedPiece {
  TextPosition at, next;  // start of this piece and of the next one
  std::vector<int32_t> ids;
  std::vector<int64_t> document_ends;  // in tokens from the start of the piece
  std::vector<int64_t> spans;          // begin and end of each run of counted tokens of conversations, likewise
  int64_t raw_bytes = 0, text_bytes = 0;
  int64_t file_bytes = 0;  // as in TextPiece
  std::string pipe_hash;
  TextFlaws flaws;
};

class PiecePipeline {
 public:
  PiecePipeline(const std::vector<std::string>& files, const Tokenizer& tokenizer, const TextOptions& options,
                int64_t piece_bytes, TextPosition start, int threads);
  ~PiecePipeline();
  PiecePipeline(const PiecePipeline&) = delete;
  PiecePipeline& operator=(const PiecePipeline&) = delete;

  enum class State { piece, waiting, finished };
  /// Returns the next piece in order; `waiting` if it is not ready within a tenth of a second. Rethrows the error of
  /// that piece.
  State next(EncodedPiece& piece);

 private:
  struct Outcome {
    EncodedPiece piece;
    std::exception_ptr error;
  };
  struct Claim {
    int64_t number;
    TextPiece raw;
    TextPosition next;
  };
  std::optional<Claim> claim();
  void work();
  void close();
  EncodedPiece encode(TextPiece&& raw, Encoder& encoder) const;
  EncodedPiece encode(TextPiece&& raw, ChatEncoder& encoder) const;

  const std::vector<std::string>& files_;
  const Tokenizer& tokenizer_;
  const TextOptions& options_;
  PieceReader reader_;  // guarded by reading_
  std::mutex reading_;  // held while a piece is read, which may wait for a pipe's writer; taken before mutex_
  std::mutex mutex_;
  std::condition_variable ready_, room_;
  std::map<int64_t, Outcome> done_;
  int64_t claimed_ = 0, delivered_ = 0, most_in_flight_;
  bool all_read_ = false, closing_ = false;
  std::vector<std::jthread> workers_;
};

}  // namespace trainer::data
