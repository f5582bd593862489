#include "data/packing.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/units.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPackMagic = "trnpack1";
constexpr int64_t kPackVersion = 1;  // must be incremented when the same documents yield other windows

struct StoredExcerpt {
  int64_t begin;
  uint32_t length, flags;
};
static_assert(sizeof(StoredExcerpt) == 16);
using Entry = std::array<int64_t, 2>;  // a window's first excerpt, and the counted targets before the window

constexpr int64_t kPackHeader = 12 * sizeof(int64_t);
constexpr uint32_t kContinues = 1;

int64_t word_of(std::string_view eight) {
  int64_t word = 0;
  std::memcpy(&word, eight.data(), sizeof word);
  return word;
}

/// Returns a fingerprint's 32 hexadecimal digits as two words.
std::array<int64_t, 2> words_of(const std::string& fingerprint) {
  const auto half = [&](size_t from) {
    return static_cast<int64_t>(std::stoull(fingerprint.substr(from, 16), nullptr, 16));
  };
  return {half(0), half(16)};
}

/// Open windows in the order in which they are filled: by room, the least first; among equals, by when they got it.
class OpenWindows {
 public:
  explicit OpenWindows(int64_t capacity)
      : first_(static_cast<size_t>(capacity), kNone), last_(first_), some_((first_.size() + 63) / 64) {}

  void add(size_t room, uint32_t window) {
    if (window >= next_.size()) next_.resize(window + 1);
    next_[window] = kNone;
    (first_[room] == kNone ? first_[room] : next_[last_[room]]) = window;
    last_[room] = window;
    some_[room / 64] |= uint64_t{1} << room % 64;
  }

  /// Takes the window with the least room of at least `size`; the room is set. Empty: there is none.
  std::optional<uint32_t> take(size_t size, size_t& room) {
    for (size_t at = size / 64; at < some_.size(); ++at) {
      const uint64_t found = some_[at] & (at == size / 64 ? ~uint64_t{0} << size % 64 : ~uint64_t{0});
      if (found == 0) continue;
      room = at * 64 + static_cast<size_t>(std::countr_zero(found));
      const uint32_t window = first_[room];
      first_[room] = next_[window];
      if (first_[room] == kNone) some_[at] &= ~(uint64_t{1} << room % 64);
      return window;
    }
    return std::nullopt;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> first_, last_, next_;  // lists of windows by room; the next of a window
  std::vector<uint64_t> some_;                 // a bit for each room that some window has
};

/// Makes the tables of an index.
struct Packer {
  const TokenStream& stream;
  const int64_t seq_len;
  const size_t most;  // excerpts in a block
  std::vector<StoredExcerpt> excerpts = {};
  std::vector<Entry> entries = {{}};
  int64_t tokens = 0, cut = 0, left_out = 0;
  std::vector<StoredExcerpt> block = {};

  void add_document(int64_t begin, int64_t end) {
    const int64_t capacity = seq_len + 1;
    const auto add = [&](int64_t from, bool continues) {
      const auto length = static_cast<uint32_t>(std::min(capacity, end - from));
      block.push_back({from, length, continues ? kContinues : 0});
      if (block.size() == most) pack();
    };
    if (!stream.has_spans()) {
      for (int64_t from = begin; from + 1 < end; from += seq_len) add(from, from > begin);
    } else if (stream.counted(begin + 1, std::max(begin + 1, std::min(begin + capacity, end))) == 0) {
      ++left_out;
    } else {
      cut += end - begin > capacity;
      add(begin, false);
    }
  }

  void pack() {
    std::vector<uint32_t> lengths;
    for (const StoredExcerpt& excerpt : block) lengths.push_back(excerpt.length);
    const std::vector<uint32_t> windows = best_fit(lengths, seq_len + 1);
    const size_t count = windows.empty() ? 0 : std::ranges::max(windows) + size_t{1}, before = excerpts.size();
    std::vector<size_t> places(count + 1);  // a window's next excerpt goes here
    for (const uint32_t window : windows) ++places[window + 1];
    std::partial_sum(places.begin(), places.end(), places.begin());
    const std::vector<size_t> firsts = places;
    excerpts.resize(before + block.size());
    for (size_t i = 0; i < block.size(); ++i) excerpts[before + places[windows[i]]++] = block[i];
    for (size_t window = 0; window < count; ++window) {
      int64_t counted = entries.back()[1];
      for (size_t i = before + firsts[window]; i < before + firsts[window + 1]; ++i) {
        const StoredExcerpt& excerpt = excerpts[i];
        const bool skips = i == before + firsts[window] || excerpt.flags == kContinues;
        counted += stream.counted(excerpt.begin + skips, excerpt.begin + excerpt.length);
        tokens += excerpt.length;
      }
      entries.push_back({static_cast<int64_t>(before + firsts[window + 1]), counted});
    }
    block.clear();
  }
};

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw Error(Code::data, format("{}: {}; the index is damaged: delete it, it is made again", path.string(), what));
}

template <typename T>
std::span<const std::byte> bytes_of(const T& values) {
  return std::as_bytes(std::span(values));
}

}  // namespace

std::vector<uint32_t> best_fit(const std::vector<uint32_t>& lengths, int64_t capacity) {
  const auto most = static_cast<size_t>(capacity);
  std::vector<size_t> places(most + 1);  // a length's next excerpt gets this place; the longest come first
  for (const uint32_t length : lengths) ++places[most - length];
  std::exclusive_scan(places.begin(), places.end(), places.begin(), size_t{0});
  std::vector<uint32_t> order(lengths.size()), windows(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) order[places[most - lengths[i]]++] = static_cast<uint32_t>(i);
  OpenWindows open(capacity);
  uint32_t count = 0;
  for (const uint32_t i : order) {
    size_t room = most;
    const std::optional<uint32_t> window = open.take(lengths[i], room);
    windows[i] = window ? *window : count++;
    if (room > lengths[i]) open.add(room - lengths[i], windows[i]);
  }
  std::vector<uint32_t> numbers(count, UINT32_MAX);
  count = 0;
  for (uint32_t& window : windows) {
    if (numbers[window] == UINT32_MAX) numbers[window] = count++;
    window = numbers[window];
  }
  return windows;
}

PackingIndex::PackingIndex(const fs::path& path) : file_(path) {
  if (file_.size() < kPackHeader) refuse(path, "truncated: an index of packed windows has a header of 96 bytes");
  file_.read(0, std::as_writable_bytes(std::span(header_)));
  if (word(0) != word_of(kPackMagic))
    refuse(path, "offset 0: not an index of packed windows (it does not start with trnpack1)");
  const int64_t room = (file_.size() - kPackHeader) / 16;
  if (windows() < 0 || word(3) < 0 || windows() > room || word(3) > room ||
      kPackHeader + 16 * (windows() + 1 + word(3)) != file_.size())
    refuse(path, format("offset 16: states {} windows of {} excerpts, which {} bytes do not hold", windows(), word(3),
                        file_.size()));
}

std::array<int64_t, 2> PackingIndex::entry(int64_t window) const {
  Entry entry;
  file_.read(kPackHeader + 16 * window, std::as_writable_bytes(std::span(entry)));
  return entry;
}

std::vector<Excerpt> PackingIndex::excerpts(int64_t window) const {
  TRAINER_CHECK(0 <= window && window < windows(), "window {} of {}", window, windows());
  std::array<Entry, 2> bounds;
  file_.read(kPackHeader + 16 * window, std::as_writable_bytes(std::span(bounds)));
  const int64_t first = bounds[0][0], last = bounds[1][0];
  if (first < 0 || first >= last || last > word(3) || last - first > word(4) + 1)
    refuse(file_.path(), format("window {}: excerpts {} to {} of {}", window, first, last, word(3)));
  std::vector<StoredExcerpt> stored(static_cast<size_t>(last - first));
  file_.read(kPackHeader + 16 * (windows() + 1 + first), std::as_writable_bytes(std::span(stored)));
  std::vector<Excerpt> result;
  int64_t length = 0;
  for (const StoredExcerpt& excerpt : stored) {
    result.push_back({excerpt.begin, excerpt.length, (excerpt.flags & kContinues) != 0});
    length += excerpt.length;
    if (excerpt.begin < word(5) || result.back().end() > word(6) || length > word(4) + 1)
      refuse(file_.path(), format("window {}: tokens {} to {}", window, excerpt.begin, result.back().end()));
  }
  return result;
}

int64_t PackingIndex::counted(int64_t first, int64_t last) const {
  const int64_t counted = entry(last)[1] - entry(first)[1];
  if (counted < last - first || counted > (last - first) * word(4))
    refuse(file_.path(), format("windows {} to {}: {} counted targets", first, last - 1, counted));
  return counted;
}

bool PackingIndex::is_of(const std::string& fingerprint, int64_t seq_len, int64_t begin, int64_t end) const {
  const auto [high, low] = words_of(fingerprint);
  return word(1) == kPackVersion && word(4) == seq_len && word(5) == begin && word(6) == end && word(7) == high &&
         word(8) == low;
}

std::shared_ptr<const PackingIndex> packing_index(const std::shared_ptr<const TokenStream>& stream, int64_t seq_len,
                                                  int64_t begin, int64_t end, const fs::path& known,
                                                  const std::function<fs::path()>& place, const Watch& watch,
                                                  int64_t block) {
  if (!stream->has_documents())
    throw Error(Code::data,
                format("{}: packing = \"best-fit\" needs documents, but there is no document index, and the "
                       "end-of-text token is not known; name the tokenizer with data.tokenizer",
                       stream->name()));
  const std::string fingerprint = stream->fingerprint(/*with_documents=*/true);
  std::error_code none;
  if (fs::exists(known, none)) {
    auto index = std::make_shared<const PackingIndex>(known);
    if (index->is_of(fingerprint, seq_len, begin, end)) return index;
  }
  const auto made = interruptible("packing documents", watch, [=] {
    auto packer = std::make_shared<Packer>(Packer{*stream, seq_len, static_cast<size_t>(block)});
    stream->for_each_document(begin, end, [&](int64_t from, int64_t stop) { packer->add_document(from, stop); });
    packer->pack();
    return packer;
  });
  if (made->entries.back()[1] == 0)
    throw Error(Code::data,
                format("{}: no token of tokens {} to {} would be trained{}; add data{}{}", stream->name(), begin, end,
                       made->left_out == 0 ? ""
                                           : format(": {} without a trained token in the first {}",
                                                    counted(made->left_out, "conversation"), seq_len + 1),
                       made->left_out == 0 ? "" : ", increase model.seq_len",
                       begin > 0 || end < stream->tokens() ? " or change data.val_fraction" : ""));
  const auto [high, low] = words_of(fingerprint);
  const std::array<int64_t, 12> header = {word_of(kPackMagic),
                                          kPackVersion,
                                          std::ssize(made->entries) - 1,
                                          std::ssize(made->excerpts),
                                          seq_len,
                                          begin,
                                          end,
                                          high,
                                          low,
                                          made->tokens,
                                          made->cut,
                                          made->left_out};
  const fs::path path = place(), partial = format("{}.{}.part", path.string(), ::getpid());
  std::error_code failed;
  fs::create_directories(path.parent_path(), failed);
  try {
    File file = File::overwrite(partial, path);
    for (const auto bytes : {bytes_of(header), bytes_of(made->entries), bytes_of(made->excerpts)}) file.write(bytes);
    file.sync();
    file.close();
    publish(partial, path);
  } catch (const Error&) {
    fs::remove(partial, failed);
    throw;
  }
  return std::make_shared<const PackingIndex>(path);
}

}  // namespace trainer::data
