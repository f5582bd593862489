#pragma once
// The formats of token files: the positions of tokens and document ends in a file.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "data/files.h"
#include "data/token_file.h"

namespace trainer::data {

/// Ends of documents in one token file, in tokens from its start, ascending; read from an index file.
class DocumentIndex {
 public:
  virtual ~DocumentIndex() = default;
  virtual int64_t documents() const = 0;
  virtual int64_t end_of(int64_t document) const = 0;
  /// Returns the first document that ends at or after `position`; documents() if none does. Thread-safe.
  int64_t first_ending_from(int64_t position) const;

 private:
  // Ends that the first steps of a search compare with, numbered as in a heap; 0: not known. Later steps read one
  // block.
  mutable std::array<std::atomic<int64_t>, 1024> first_steps_{};
};

struct TokenFileLayout {
  std::unique_ptr<InputFile> file;
  int64_t offset = 0;  // bytes before the first token
  int width = 2;       // bytes of one token
  TokenFileInfo info;
  std::unique_ptr<DocumentIndex> documents;  // null: none
};

/// Opens the file and detects its format. Throws Code::data naming file and offset.
TokenFileLayout open_token_file(const std::string& path);

}  // namespace trainer::data
