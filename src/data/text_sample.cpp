#include "data/text_sample.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/utf8.h"
#include "data/byte_source.h"
#include "data/text_start.h"

namespace trainer::data {
namespace {

constexpr int64_t kMostInPart = int64_t{64} << 10;

/// A part [begin, end) of a file's bytes.
struct Part {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

/// Returns parts of the files, evenly spaced over the bytes of all of them as if they were one.
std::vector<std::vector<Part>> even_parts(const std::vector<int64_t>& sizes, int64_t total, int64_t max_bytes) {
  constexpr int64_t kFewestParts = 64;
  const int64_t length = std::clamp<int64_t>(max_bytes / kFewestParts, 1, kMostInPart);
  const int64_t count = std::max<int64_t>(max_bytes / length, 1);
  std::vector<std::vector<Part>> parts(sizes.size());
  size_t file = 0;
  int64_t before = 0;  // bytes of the files before this one
  for (int64_t k = 0; k < count; ++k) {
    auto begin = static_cast<int64_t>(static_cast<double>(total) / static_cast<double>(count) * static_cast<double>(k));
    for (const int64_t end = std::min(begin + length, total); begin < end;) {
      while (begin >= before + sizes[file]) before += sizes[file++];
      const int64_t last = std::min(end, before + sizes[file]);
      parts[file].push_back({begin - before, last - before});
      begin = last;
    }
  }
  return parts;
}

/// Returns the text without the incomplete words at its ends: from the first space or after the first line end, to the
/// last one. Of text without spaces, only incomplete characters are left out.
std::string_view whole_words(std::string_view text, bool cut_before, bool cut_after) {
  if (cut_before) {
    size_t begin = text.find_first_of(" \n");
    if (begin == text.npos)
      for (begin = 0; begin < text.size() && (text[begin] & 0xC0) == 0x80;) ++begin;
    else if (text[begin] == '\n')
      ++begin;
    text.remove_prefix(begin);
  }
  if (cut_after) {
    const size_t end = text.find_last_of(" \n");
    text = text.substr(0, end == text.npos || end == 0 ? text.size() - utf8_unfinished(text) : end);
  }
  return text;
}

using TextSink = std::function<void(std::string_view)>;

void sample_plain_text(const std::string& file, int64_t size, const std::vector<Part>& parts,
                       const TextOptions& options, const TextSink& take) {
  const auto source = open_source(file, columns_of(options));
  for (const Part& part : parts) {
    std::string bytes(static_cast<size_t>(part.size()), '\0');
    bytes.resize(source->read_at(part.begin, bytes.data(), bytes.size()));
    if (part.begin == 0) {
      const std::string_view whole(bytes.data(), bytes.size() - utf8_unfinished(bytes));
      require_text(file, whole, options.format != config::DataFormat::automatic);
      bytes.erase(0, byte_order_mark(bytes));
    }
    TextPiece piece;
    piece.at.offset = part.begin;
    piece.text = whole_words(bytes, part.begin > 0, part.end < size);
    split_documents(file, std::move(piece), options, [&](std::string_view text, bool, bool) { take(text); });
  }
}

/// Returns the texts of the piece's lines, each followed by a line end.
std::string texts_of(const std::string& file, TextPiece&& piece, const TextOptions& options) {
  std::string texts;
  split_documents(file, std::move(piece), options,
                  [&](std::string_view text, bool, bool) { texts.append(text).append(1, '\n'); });
  return texts;
}

/// Takes `count` evenly spaced parts of `texts`, of `bytes` together.
void take_evenly(std::string_view texts, size_t bytes, size_t count, const TextSink& take) {
  if (texts.size() <= bytes) return take(texts);
  for (size_t i = 0; i < count; ++i) {
    const size_t begin = texts.size() / count * i, length = std::max<size_t>(bytes / count, 1);
    take(whole_words(texts.substr(begin, length), begin > 0, begin + length < texts.size()));
  }
}

/// Takes a share of each line for all parts that begin in it. A line after a long one is read from its start.
void sample_json_lines(const std::string& file, int64_t size, const std::vector<Part>& parts,
                       const TextOptions& options, const TextSink& take) {
  constexpr int64_t kSmall = 4 * kMostInPart;  // such files are read whole
  std::optional<PieceReader> reader;
  const auto open = [&] { reader.emplace(std::vector{file}, options, size <= kSmall ? kSmall : kMostInPart); };
  open();
  int64_t end = 0, length = 0;  // the last piece's
  for (size_t next = 0; next < parts.size() && end < size;) {
    const bool after_long_line = length > kMostInPart && parts[next].begin <= end + length;
    const bool inside_line = size > kSmall && parts[next].begin > 0 && !after_long_line;
    if (inside_line) reader->skip_to(parts[next].begin);
    auto piece = reader->next();
    if (inside_line) {
      const size_t dropped = std::min(piece->text.find('\n'), piece->text.size() - 1) + 1;
      piece->text.erase(0, dropped);
      piece->at.offset += static_cast<int64_t>(dropped);
      if (piece->text.empty()) piece = reader->next();
    }
    if (!piece && end == 0) {  // the first part begins in the last line
      open();
      piece = reader->next();
    }
    if (!piece) return;
    length = static_cast<int64_t>(piece->text.size());
    end = piece->at.offset + length;
    const std::string texts = texts_of(file, std::move(*piece), options);
    size_t count = 0;
    int64_t bytes = 0;
    for (; next < parts.size() && (count == 0 || parts[next].begin < end); ++next, ++count) bytes += parts[next].size();
    const double share = std::min(1.0, static_cast<double>(bytes) / static_cast<double>(length));
    take_evenly(texts, static_cast<size_t>(share * static_cast<double>(texts.size())), count, take);
  }
}

}  // namespace

std::vector<std::string> sample_lines(const std::vector<std::string>& files, const TextOptions& options,
                                      int64_t max_bytes, size_t max_line) {
  std::vector<std::string> lines;
  const auto take_line = [&](std::string_view line) {
    while (line.size() > max_line) {
      const size_t space = line.substr(0, max_line).rfind(' ');
      const std::string_view part = line.substr(
          0, space != line.npos && space > 0 ? space : max_line - utf8_unfinished(line.substr(0, max_line)));
      lines.emplace_back(part);
      line.remove_prefix(part.size());
    }
    if (!line.empty()) lines.emplace_back(line);
  };
  const auto take = [&](std::string_view text) {
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      take_line(text.substr(begin, end - begin));
      begin = end + 1;
    }
  };
  std::vector<int64_t> sizes;
  int64_t total = 0;
  for (const std::string& file : files) total += sizes.emplace_back(text_bytes(file, columns_of(options)));
  if (total <= max_bytes) {
    PieceReader reader(files, options);
    while (auto piece = reader.next()) {
      const std::string& file = files[static_cast<size_t>(piece->at.file)];
      split_documents(file, std::move(*piece), options, [&](std::string_view text, bool, bool) { take(text); });
    }
    return lines;
  }
  const std::vector<std::vector<Part>> parts = even_parts(sizes, total, max_bytes);
  for (size_t i = 0; i < files.size(); ++i) {
    if (parts[i].empty()) continue;
    const auto sample = is_json_lines(files[i], options) ? sample_json_lines : sample_plain_text;
    sample(files[i], sizes[i], parts[i], options, take);
  }
  return lines;
}

}  // namespace trainer::data
