#pragma once
// One list of data files as a stream of tokens, from token files or from text.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "data/source.h"
#include "data/token_file.h"

namespace trainer::data {

/// Opens the files as one stream. Tokens of text are read from `output` if they are complete there; otherwise the text
/// is tokenized to `place()`. Returns null when stopped. Throws Code::data for files that are damaged, missing or of
/// different kinds, and Code::config for text without a tokenizer.
std::shared_ptr<TokenStream> open_stream(const std::vector<std::string>& files, const config::Data& data,
                                         const Tokenizer* tokenizer, const std::filesystem::path& output,
                                         const std::function<std::filesystem::path()>& place,
                                         const OpenOptions& options);

}  // namespace trainer::data
