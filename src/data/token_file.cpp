#include "data/token_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "base/checksum.h"
#include "base/error.h"
#include "base/limits.h"
#include "data/token_format.h"

namespace trainer::data {
namespace {

constexpr int64_t kScanBlock = int64_t{1} << 20;  // tokens
constexpr int64_t kReadBytes = int64_t{1} << 16;

/// A plain loop over a local maximum, which the compiler vectorizes.
template <typename T>
T largest(std::span<const T> tokens) {
  T most = 0;
  for (const T token : tokens) most = std::max(most, token);
  return most;
}

}  // namespace

struct TokenStream::Segment {
  std::string path;
  TokenFileLayout layout;
  int64_t begin = 0;  // position of its first token in the stream

  int64_t count() const { return layout.info.tokens; }
  int64_t end() const { return begin + count(); }
  int64_t byte_of(int64_t position) const { return layout.offset + (position - begin) * layout.width; }

  /// Reads [from, stop) in blocks: calls fn(position, tokens) with spans of their stored type.
  template <typename F>
  void read(int64_t from, int64_t stop, F&& fn) const {
    alignas(uint32_t) std::array<std::byte, kReadBytes> block;
    while (from < stop) {
      const auto count = static_cast<size_t>(std::min(stop - from, kReadBytes / layout.width));
      layout.file->read(byte_of(from), std::span(block).first(count * static_cast<size_t>(layout.width)));
      if (layout.width == 2) {
        fn(from, std::span(reinterpret_cast<const uint16_t*>(block.data()), count));
      } else {
        fn(from, std::span(reinterpret_cast<const uint32_t*>(block.data()), count));
      }
      from += static_cast<int64_t>(count);
    }
  }

  /// Throws for the first token of the span (which begins at `position`) that is not below `limit`.
  template <typename T>
  void check(std::span<const T> tokens, int64_t position, int64_t limit) const {
    if (static_cast<int64_t>(largest(tokens)) < limit) return;
    const auto bad = std::ranges::find_if(tokens, [&](T token) { return static_cast<int64_t>(token) >= limit; });
    const int64_t index = position - begin + (bad - tokens.begin());
    throw Error(Code::data,
                fmt::format("{}: offset {}: token {} (number {} of the file) is outside the vocabulary of {}; "
                            "these tokens are from a different tokenizer, or the file is damaged",
                            path, layout.offset + index * layout.width, *bad, index, limit));
  }
};

TokenStream::TokenStream(const std::vector<std::string>& files) {
  TRAINER_CHECK(!files.empty(), "a token stream needs at least one file");
  for (const std::string& path : files) {
    auto segment = std::make_unique<Segment>();
    segment->path = path;
    segment->layout = open_token_file(path);
    segment->begin = tokens_;
    tokens_ += segment->count();
    TokenFileInfo found = segment->layout.info;
    found.tokens = 0;
    if (segments_.empty()) info_ = found;
    if (found.vocab_size != info_.vocab_size || found.tokenizer_hash != info_.tokenizer_hash) {
      throw Error(Code::data, fmt::format("{}: offset 16: its vocabulary ({}) or tokenizer ({}) differs from that of "
                                          "{} ({}, {}); combine only files made with the same tokenizer",
                                          path, found.vocab_size, found.tokenizer_hash, files.front(), info_.vocab_size,
                                          info_.tokenizer_hash));
    }
    if (found.bos != info_.bos)
      throw Error(Code::data, fmt::format("{}: offset 40: its documents begin with {}, those of {} with {}; tokenize "
                                          "both with the same data.bos",
                                          path, bos_text(found.bos), files.front(), bos_text(info_.bos)));
    if (found.spans != info_.spans)
      throw Error(Code::data, fmt::format("{}: offset 44: it has {}loss spans, unlike {}; use different sources for "
                                          "conversations and text",
                                          path, found.spans ? "" : "no ", files.front()));
    segments_.push_back(std::move(segment));
  }
  info_.tokens = tokens_;
}

TokenStream::~TokenStream() = default;

std::string TokenStream::name() const {
  const std::string& first = segments_.front()->path;
  return segments_.size() == 1 ? first : fmt::format("{} and {} more", first, segments_.size() - 1);
}

const TokenStream::Segment& TokenStream::segment_at(int64_t position) const {
  const auto after =
      std::ranges::upper_bound(segments_, position, {}, [](const auto& segment) { return segment->begin; });
  return **std::prev(after);
}

/// Calls fn(segment, begin, end) for the parts of [begin, end) that are in one file each.
template <typename F>
void TokenStream::for_each_span(int64_t begin, int64_t end, F&& fn) const {
  TRAINER_CHECK(0 <= begin && end <= tokens_, "tokens [{}, {}) of {}", begin, end, tokens_);
  while (begin < end) {
    const Segment& segment = segment_at(begin);
    const int64_t stop = std::min(end, segment.end());
    fn(segment, begin, stop);
    begin = stop;
  }
}

/// Reads [begin, end): calls fn(segment, position, tokens).
template <typename F>
void TokenStream::for_each_block(int64_t begin, int64_t end, F&& fn) const {
  for_each_span(begin, end, [&](const Segment& segment, int64_t from, int64_t stop) {
    segment.read(from, stop, [&](int64_t position, auto tokens) { fn(segment, position, tokens); });
  });
}

bool TokenStream::is_whole() const {
  return std::ranges::all_of(segments_, [](const auto& segment) {
    const TokenFileLayout& layout = segment->layout;
    return layout.file->is_whole() && (!layout.spans || layout.spans->file().is_whole());
  });
}

void TokenStream::require_whole() const {
  for (const auto& segment : segments_) {
    segment->layout.file->require_whole();
    if (segment->layout.spans) segment->layout.spans->file().require_whole();
  }
}

void TokenStream::copy(int64_t begin, std::span<int32_t> out) const {
  int32_t* to = out.data();
  for_each_block(begin, begin + static_cast<int64_t>(out.size()),
                 [&](const Segment& segment, int64_t position, auto tokens) {
                   if (vocab_limit_ > 0) segment.check(tokens, position, vocab_limit_);
                   to = std::ranges::transform(tokens, to, [](auto token) { return static_cast<int32_t>(token); }).out;
                 });
}

void TokenStream::check_vocabulary(int64_t vocab_size, int threads) const {
  const int64_t blocks = (tokens_ + kScanBlock - 1) / kScanBlock;
  std::atomic<int64_t> next{0}, first_bad{blocks};
  const auto scan = [&](int64_t block) {
    const int64_t begin = block * kScanBlock;
    for_each_block(
        begin, std::min(begin + kScanBlock, tokens_),
        [&](const Segment& segment, int64_t position, auto tokens) { segment.check(tokens, position, vocab_size); });
  };
  const auto work = [&] {
    for (int64_t block = next++; block < first_bad.load(); block = next++) {
      try {
        scan(block);
      } catch (const Error&) {
        for (int64_t known = first_bad; block < known && !first_bad.compare_exchange_weak(known, block);) {
        }
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (int i = 1; i < threads; ++i) helpers.push_back(start_thread(format("thread {} of {}", i + 1, threads), work));
    work();
  }
  if (first_bad < blocks) scan(first_bad);  // throws at the first invalid token, whichever thread found one
}

void TokenStream::count(int64_t begin, int64_t end, std::span<int64_t> counts) const {
  const auto limit = static_cast<int64_t>(counts.size());
  for_each_block(begin, end, [&](const Segment& segment, int64_t position, auto tokens) {
    segment.check(tokens, position, limit);
    for (const auto token : tokens) ++counts[token];
  });
}

void TokenStream::prefetch(int64_t begin, int64_t end) const {
  for_each_span(begin, end, [](const Segment& segment, int64_t from, int64_t stop) {
    segment.layout.file->will_need(segment.byte_of(from), (stop - from) * segment.layout.width);
  });
}

std::optional<int64_t> TokenStream::document_end_near(int64_t position, int64_t distance) const {
  const int64_t low = std::max<int64_t>(position - distance, 1), high = std::min(position + distance, tokens_ - 1);
  std::optional<int64_t> best;
  const auto offer = [&](int64_t end) {
    const auto away = [&](int64_t p) { return p < position ? position - p : p - position; };
    if (end >= low && end <= high && (!best || away(end) < away(*best))) best = end;
  };
  for (const auto& owner : segments_) {
    const Segment& segment = *owner;
    if (segment.end() < low || segment.begin > high) continue;
    offer(segment.end());
    if (const DocumentIndex* index = segment.layout.documents.get()) {
      const int64_t first = index->first_ending_from(position - segment.begin);
      if (first < index->documents()) offer(segment.begin + index->end_of(first));
      if (first > 0) offer(segment.begin + index->end_of(first - 1));
    } else if (info_.eos >= 0) {
      const int64_t from = std::max(low - 1, segment.begin), stop = std::min(high, segment.end());
      segment.read(from, stop, [&](int64_t at, auto tokens) {
        for (size_t i = 0; i < tokens.size(); ++i) {
          if (static_cast<int64_t>(tokens[i]) == info_.eos) offer(at + static_cast<int64_t>(i) + 1);
        }
      });
    }
  }
  return best;
}

bool TokenStream::has_documents() const {
  return info_.eos >= 0 || separator_ >= 0 ||
         std::ranges::all_of(segments_, [](const auto& segment) { return segment->layout.documents != nullptr; });
}

void TokenStream::append_starts(int64_t begin, std::span<const int32_t> ids, int64_t row,
                                std::vector<int64_t>& starts) const {
  const int32_t separator = this->separator();
  for_each_span(begin, begin + static_cast<int64_t>(ids.size()),
                [&](const Segment& segment, int64_t from, int64_t stop) {
                  const auto start_at = [&](int64_t position) { starts.push_back(row + position - begin); };
                  if (from == segment.begin) start_at(from++);
                  if (const DocumentIndex* index = segment.layout.documents.get()) {
                    int64_t last = from - 1;  // empty documents end where the previous one does
                    for (int64_t document = index->first_ending_from(from - segment.begin);
                         document < index->documents(); ++document) {
                      const int64_t end = segment.begin + index->end_of(document);
                      if (end >= stop) break;
                      if (end > last) start_at(last = end);
                    }
                  } else if (separator >= 0 && from < stop) {
                    const auto after_eos = [&](auto token) { return static_cast<int64_t>(token) == separator; };
                    if (from == begin) {  // the token before it is not in `ids`
                      segment.read(from - 1, from, [&](int64_t, auto before) {
                        if (after_eos(before[0])) start_at(from);
                      });
                      ++from;
                    }
                    const auto first = ids.begin(), end = first + (stop - begin) - 1;
                    for (auto eos = first + (from - begin) - 1; (eos = std::find(eos, end, separator)) != end; ++eos)
                      start_at(begin + (eos - first) + 1);
                  }
                });
}

void TokenStream::for_each_document(int64_t begin, int64_t end,
                                    const std::function<void(int64_t, int64_t)>& use) const {
  for_each_span(begin, end, [&](const Segment& segment, int64_t from, int64_t stop) {
    const auto end_at = [&](int64_t position) {
      if (position > from) use(from, position);
      from = std::max(from, position);
    };
    if (const DocumentIndex* index = segment.layout.documents.get()) {
      for (int64_t n = index->first_ending_from(from - segment.begin + 1); n < index->documents() && from < stop; ++n)
        end_at(std::min(segment.begin + index->end_of(n), stop));
    } else {
      segment.read(from, stop, [&](int64_t position, auto tokens) {
        for (size_t i = 0; i < tokens.size(); ++i)
          if (static_cast<int64_t>(tokens[i]) == separator()) end_at(position + static_cast<int64_t>(i) + 1);
      });
    }
    end_at(stop);
  });
}

/// Calls fn(from, stop) for the runs of counted tokens in [begin, end).
template <typename F>
void TokenStream::for_each_counted(int64_t begin, int64_t end, F&& fn) const {
  for_each_span(begin, end, [&](const Segment& segment, int64_t from, int64_t stop) {
    const int64_t start = segment.begin;
    if (segment.layout.spans == nullptr) return fn(from, stop);
    segment.layout.spans->for_each(from - start, stop - start, [&](int64_t a, int64_t b) { fn(start + a, start + b); });
  });
}

void TokenStream::append_spans(int64_t begin, int64_t end, std::vector<TokenRange>& spans) const {
  for_each_counted(begin, end, [&](int64_t from, int64_t stop) { spans.push_back({from, stop}); });
}

int64_t TokenStream::counted(int64_t begin, int64_t end) const {
  int64_t tokens = 0;
  for_each_counted(begin, end, [&](int64_t from, int64_t stop) { tokens += stop - from; });
  return tokens;
}

std::vector<FileSpan> TokenStream::files_of(int64_t begin, int64_t end) const {
  std::vector<FileSpan> spans;
  for_each_span(begin, end, [&](const Segment& segment, int64_t from, int64_t stop) {
    FileSpan& span = spans.emplace_back(FileSpan{segment.path, from - segment.begin, stop - segment.begin});
    if (const DocumentIndex* index = segment.layout.documents.get()) {
      span.first_document = index->first_ending_from(span.begin + 1);
      span.last_document = index->first_ending_from(span.end);
    }
  });
  return spans;
}

std::string TokenStream::fingerprint(bool with_documents) const {
  constexpr int64_t kBlocks = 256, kBlockBytes = 4096;
  std::array<std::byte, kBlockBytes> block;
  std::string facts = fmt::format("{} {} {};", info_.vocab_size, info_.eos, info_.tokenizer_hash);
  const auto add_blocks = [&](const InputFile& file, int64_t begin) {
    const int64_t bytes = file.size() - begin;
    const int64_t last = std::max<int64_t>(bytes - kBlockBytes, 0);  // start of the last block
    for (int64_t i = 0; i < kBlocks; ++i) {
      const int64_t start = last / (kBlocks - 1) * i + last % (kBlocks - 1) * i / (kBlocks - 1);
      const std::span data = std::span(block).first(static_cast<size_t>(std::min(kBlockBytes, bytes - start)));
      file.read(begin + start, data);
      facts += fmt::format("{:016x}", hash64(data));
      if (start == last && last == 0) break;
    }
  };
  for (const auto& segment : segments_) {
    const TokenFileLayout& layout = segment->layout;
    facts += fmt::format("{} {} ", segment->count(), layout.width);
    add_blocks(*layout.file, layout.offset);
    if (layout.spans) add_blocks(layout.spans->file(), 0);
    if (!with_documents) continue;
    if (layout.documents)
      add_blocks(layout.documents->file(), 0);
    else
      facts += fmt::format(" {} ", separator());
  }
  return to_string(checksum_of(facts));
}

}  // namespace trainer::data
