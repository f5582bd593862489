#pragma once
// The formats of token files: the positions of tokens and document ends in a file.
#include <cstdint>
#include <memory>
#include <string>

#include "data/files.h"
#include "data/token_file.h"

namespace trainer::data {

/// Ends of documents in one token file, in tokens from its start, ascending; read from a mapped index.
class DocumentIndex {
 public:
  virtual ~DocumentIndex() = default;
  virtual int64_t documents() const = 0;
  virtual int64_t end_of(int64_t document) const = 0;
};

struct TokenFileLayout {
  std::unique_ptr<MappedFile> file;
  int64_t offset = 0;  // bytes before the first token
  int width = 2;       // bytes of one token
  TokenFileInfo info;
  std::unique_ptr<DocumentIndex> documents;  // null: none
};

/// Maps the file and detects its format. Throws Code::data naming file and offset.
TokenFileLayout open_token_file(const std::string& path);

}  // namespace trainer::data
