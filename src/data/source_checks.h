#pragma once
// Checks of opened data: tokens must match the tokenizer, the vocabulary and each other, and each split needs a window.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/forward.h"
#include "data/file_parts.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace trainer::data {

inline constexpr int64_t kScannedAtStart = int64_t{1} << 30;  // tokens; longer streams are checked while they are read

/// Throws Code::data if the documents of a stream do not begin with the run's token `bos` (-1: none).
void require_bos(const TokenStream& stream, int32_t bos);
/// Rejects tokens made with a different tokenizer, and tokens outside the vocabulary. Streams of at most `most` tokens
/// are checked immediately, longer ones later in copy().
void require_vocabulary(TokenStream& stream, const Tokenizer* tokenizer, int64_t vocab, int threads,
                        int64_t most = kScannedAtStart);
/// Rejects sources whose tokens were made with different tokenizers.
void require_one_tokenizer(const std::vector<FilePart>& parts,
                           const std::vector<std::shared_ptr<TokenStream>>& streams);
/// Returns data.vocab_size, else the vocabulary size implied by `name`, a tokenizer or token files (0: none). Models
/// may have more rows than the tokenizer has tokens, but not fewer. Throws Code::config.
int64_t vocabulary_of(int64_t implied, const std::string& name, const config::Config& config);
/// Checks that val_fraction leaves at least one window each for validation and training.
void require_windows(const TokenStream& train, int64_t train_end, const config::Config& config);

}  // namespace trainer::data
