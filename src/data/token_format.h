#pragma once
// The formats of token files: the positions of tokens and document ends in a file.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "base/error.h"
#include "data/files.h"
#include "data/positions.h"
#include "data/token_file.h"

namespace trainer::data {

/// Ends of documents in one token file, in tokens from its start, ascending; read from an index file.
class DocumentIndex {
 public:
  virtual ~DocumentIndex() = default;
  virtual int64_t documents() const = 0;
  virtual int64_t end_of(int64_t document) const = 0;
  virtual const InputFile& file() const = 0;
  /// Returns the first document that ends at or after `position`; documents() if none does. Thread-safe.
  int64_t first_ending_from(int64_t position) const {
    return search_.first_from(position, documents(), [&](int64_t document) { return end_of(document); });
  }

 private:
  PositionSearch search_;
};

/// Runs of counted tokens in one token file.
class LossSpans {
 public:
  LossSpans(const std::filesystem::path& path, int64_t tokens) : bounds_(path, kSpans, tokens) {}
  const InputFile& file() const { return bounds_.file(); }
  /// Calls use(from, stop) for the part of each run in [begin, end), in order. Thread-safe.
  template <typename Use>
  void for_each(int64_t begin, int64_t end, Use&& use) const {
    const auto stop_of = [&](int64_t run) { return bounds_.at(2 * run + 1); };
    for (int64_t run = search_.first_from(begin + 1, bounds_.units(), stop_of); run < bounds_.units(); ++run) {
      const int64_t from = bounds_.at(2 * run), stop = stop_of(run);
      if (from > stop) bounds_.refuse(2 * run, fmt::format("a span of tokens [{}, {}); tokenize again", from, stop));
      if (from >= end) break;
      use(std::max(from, begin), std::min(stop, end));
    }
  }

 private:
  const PositionsFile bounds_;
  PositionSearch search_;
};

struct TokenFileLayout {
  std::unique_ptr<InputFile> file;
  int64_t offset = 0;  // bytes before the first token
  int width = 2;       // bytes of one token
  TokenFileInfo info;
  std::unique_ptr<DocumentIndex> documents;  // null: none
  std::unique_ptr<LossSpans> spans;          // null: all tokens are counted
};

/// Opens the file and detects its format. Throws Code::data naming file and offset.
TokenFileLayout open_token_file(const std::string& path);

}  // namespace trainer::data
