#include "data/token_format.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>

#include "base/error.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;
static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr int32_t kMagic16 = 20240520, kMagic32 = 20240801;
constexpr int32_t kVersion16 = 1, kVersion32 = 7;
constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9}, kDocumentsMagic{"trndocs1", 8};
constexpr int64_t kDocumentsHeader = 16, kMegatronHeader = 9 + 8 + 1 + 8 + 8;
constexpr int32_t kGpt2EndOfText = 50256;

/// Reads numbers of a file through a block around the last one, so that a search in it takes few calls of the system.
class NumberReader {
 public:
  explicit NumberReader(const InputFile& file) : file_(file) {}

  template <typename T>
  T at(int64_t offset) const {
    const std::lock_guard lock(mutex_);
    constexpr auto bytes = static_cast<int64_t>(sizeof(T));
    if (offset < begin_ || offset + bytes > end_) {
      constexpr auto most = static_cast<int64_t>(sizeof block_);
      end_ = 0;  // nothing, should the file be damaged
      begin_ = std::max<int64_t>(0, offset - most / 2);
      const int64_t end = std::max(offset + bytes, std::min(begin_ + most, file_.size()));
      file_.read(begin_, std::span(block_).first(static_cast<size_t>(end - begin_)));
      end_ = end;
    }
    T value;
    std::memcpy(&value, block_.data() + (offset - begin_), sizeof value);
    return value;
  }

 private:
  const InputFile& file_;
  mutable std::mutex mutex_;  // guards the block
  mutable std::array<std::byte, 8192> block_;
  mutable int64_t begin_ = 0, end_ = 0;
};

[[noreturn]] void refuse(const InputFile& file, int64_t offset, const std::string& reason) {
  throw Error(Code::data, fmt::format("{}: offset {}: {}", file.path().string(), offset, reason));
}

bool starts_with(const InputFile& file, std::string_view magic) {
  std::string start(magic.size(), '\0');
  if (file.size() < static_cast<int64_t>(magic.size())) return false;
  file.read(0, std::as_writable_bytes(std::span(start)));
  return start == magic;
}

/// This program's index: n + 1 positions after the header.
class OwnIndex : public DocumentIndex {
 public:
  OwnIndex(const fs::path& path, int64_t tokens) : file_(path), tokens_(tokens) {
    if (!starts_with(file_, kDocumentsMagic) || file_.size() < kDocumentsHeader + 8) {
      refuse(file_, 0,
             "not a document index (expected it to start with \"trndocs1\"); delete it to train without an index");
    }
    documents_ = numbers_.at<int64_t>(8);
    const int64_t whole = (file_.size() - kDocumentsHeader) / 8 - 1;
    if (documents_ != whole || file_.size() % 8 != 0) {
      refuse(file_, file_.size(),
             fmt::format("truncated: the header states {} documents, but there is room for {}", documents_, whole));
    }
    if (position(documents_) != tokens) {
      refuse(file_, file_.size() - 8,
             fmt::format("the last document ends at token {}, the token file has {}", position(documents_), tokens));
    }
  }
  int64_t documents() const override { return documents_; }
  int64_t end_of(int64_t document) const override {
    const int64_t end = position(document + 1);
    if (end < 0 || end > tokens_) {
      refuse(file_, kDocumentsHeader + 8 * (document + 1),
             fmt::format("a document ends at token {} of {}", end, tokens_));
    }
    return end;
  }

 private:
  int64_t position(int64_t n) const { return numbers_.at<int64_t>(kDocumentsHeader + 8 * n); }
  const InputFile file_;
  const NumberReader numbers_{file_};
  const int64_t tokens_;
  int64_t documents_ = 0;
};

/// Megatron's .idx has a header, lengths (int32) and byte pointers (int64) of the sequences, and first sequences of the
/// documents. The latter are n + 1 int64 values: each document's first sequence, beginning with 0, then the end.
class MegatronIndex : public DocumentIndex {
 public:
  explicit MegatronIndex(const fs::path& path) : file_(path) {
    if (file_.size() < kMegatronHeader)
      refuse(file_, file_.size(), "truncated: the header of a Megatron index has 34 bytes");
    if (const auto version = numbers_.at<uint64_t>(9); version != 1) {
      refuse(file_, 9, fmt::format("version {} of a Megatron index, expected 1", version));
    }
    const int code = numbers_.at<uint8_t>(17);
    if (code != 3 && code != 4 && code != 8) {
      refuse(file_, 17,
             fmt::format("token type {} of a Megatron index, expected 3 (int16), 4 (int32) or 8 (uint16)", code));
    }
    width_ = code == 4 ? 4 : 2;
    sequences_ = numbers_.at<int64_t>(18);
    marks_ = numbers_.at<int64_t>(26);
    const int64_t most = file_.size() / 8;
    if (sequences_ <= 0 || marks_ <= 0 || sequences_ > most || marks_ > most || document_mark(marks_) > file_.size()) {
      refuse(file_, file_.size(),
             fmt::format("truncated or corrupt: the header states {} sequences and {} document indices", sequences_,
                         marks_));
    }
    tokens_ = start_of(sequences_ - 1) + numbers_.at<int32_t>(kMegatronHeader + 4 * (sequences_ - 1));
  }
  int width() const { return width_; }
  int64_t tokens() const { return tokens_; }
  int64_t documents() const override { return marks_ - 1; }
  int64_t end_of(int64_t document) const override {
    const auto sequence = numbers_.at<int64_t>(document_mark(document + 1));
    if (sequence < 0 || sequence > sequences_) {
      refuse(file_, document_mark(document + 1),
             fmt::format("document index {}, expected at most {}", sequence, sequences_));
    }
    const int64_t end = sequence == sequences_ ? tokens_ : start_of(sequence);
    if (end < 0 || end > tokens_)
      refuse(file_, document_mark(document + 1),
             fmt::format("a document ends at token {}, expected 0 to {}", end, tokens_));
    return end;
  }

 private:
  int64_t document_mark(int64_t n) const { return kMegatronHeader + 12 * sequences_ + 8 * n; }
  int64_t start_of(int64_t sequence) const {
    return starts_.at<int64_t>(kMegatronHeader + 4 * sequences_ + 8 * sequence) / width_;
  }
  const InputFile file_;
  const NumberReader numbers_{file_}, starts_{file_};
  int width_ = 2;
  int64_t sequences_ = 0, marks_ = 0, tokens_ = 0;
};

/// Returns the contents of [6]–[9]: the 32 hexadecimal digits as four words.
std::array<uint32_t, 4> hash_words(const std::string& hash) {
  std::array<uint32_t, 4> words{};
  for (size_t i = 0; i < 4 && hash.size() == 32; ++i) {
    words[i] = static_cast<uint32_t>(std::stoul(hash.substr(8 * i, 8), nullptr, 16));
  }
  return words;
}

void read_header(TokenFileLayout& layout) {
  const InputFile& file = *layout.file;
  if (file.size() < kTokenHeaderBytes) {
    refuse(file, file.size(), fmt::format("truncated: the header has {} bytes", kTokenHeaderBytes));
  }
  std::array<uint32_t, 11> words;
  file.read(0, std::as_writable_bytes(std::span(words)));
  const auto word = [&](size_t n) { return words[n]; };
  const bool wide = word(0) == static_cast<uint32_t>(kMagic32);
  const int32_t version = wide ? kVersion32 : kVersion16;
  if (word(1) != static_cast<uint32_t>(version)) {
    refuse(file, 4, fmt::format("version {} of an llm.c token file, expected {}", word(1), version));
  }
  layout.width = wide ? 4 : 2;
  layout.offset = kTokenHeaderBytes;
  TokenFileInfo& info = layout.info;
  info.tokens = static_cast<int64_t>(uint64_t{word(3)} << 32 | word(2));
  const bool gpt2 = !wide && word(4) == 0;
  info.vocab_size = gpt2 ? kGpt2Vocabulary : word(4);
  info.eos = gpt2 ? kGpt2EndOfText : static_cast<int32_t>(word(5) - 1);
  info.bos = static_cast<int32_t>(word(10) - 1);
  if ((word(6) | word(7) | word(8) | word(9)) != 0) {
    info.tokenizer_hash = fmt::format("{:08x}{:08x}{:08x}{:08x}", word(6), word(7), word(8), word(9));
  }
}

}  // namespace

int64_t DocumentIndex::first_ending_from(int64_t position) const {
  int64_t first = 0, last = documents();
  for (size_t step = 1; first < last;) {
    const int64_t middle = first + (last - first) / 2;
    std::atomic<int64_t>* const known = step < first_steps_.size() ? &first_steps_[step] : nullptr;
    int64_t end = known == nullptr ? 0 : known->load(std::memory_order_relaxed);
    if (end == 0) {
      end = end_of(middle);
      if (known != nullptr) known->store(end, std::memory_order_relaxed);
    }
    const bool right = end < position;
    step = 2 * step + right;
    if (right)
      first = middle + 1;
    else
      last = middle;
  }
  return first;
}

int token_width(int64_t vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

std::string token_header(const TokenFileInfo& info) {
  const bool wide = token_width(info.vocab_size) == 4;
  std::array<uint32_t, 256> words{};
  words[0] = static_cast<uint32_t>(wide ? kMagic32 : kMagic16);
  words[1] = static_cast<uint32_t>(wide ? kVersion32 : kVersion16);
  words[2] = static_cast<uint32_t>(info.tokens);
  words[3] = static_cast<uint32_t>(info.tokens >> 32);
  words[4] = static_cast<uint32_t>(info.vocab_size);
  words[5] = static_cast<uint32_t>(info.eos + 1);
  std::ranges::copy(hash_words(info.tokenizer_hash), words.begin() + 6);
  words[10] = static_cast<uint32_t>(info.bos + 1);
  std::string bytes(kTokenHeaderBytes, '\0');
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

std::string bos_text(int32_t bos) { return bos < 0 ? "no BOS token" : fmt::format("token {}", bos); }

std::string document_index_header(int64_t documents) {
  std::string bytes(kDocumentsMagic);
  bytes.append(reinterpret_cast<const char*>(&documents), sizeof documents);
  return bytes;
}

fs::path document_index_path(const fs::path& token_file) { return fs::path(token_file).replace_extension(".docs"); }

TokenFileLayout open_token_file(const std::string& path) {
  TokenFileLayout layout;
  layout.file = std::make_unique<InputFile>(path);
  const InputFile& file = *layout.file;
  if (file.size() == 0) refuse(file, 0, "the file is empty, expected tokens");
  const fs::path megatron = fs::path(path).replace_extension(".idx");
  const int32_t magic = file.size() >= 4 ? NumberReader(file).at<int32_t>(0) : 0;
  if (std::error_code none; fs::exists(megatron, none) && starts_with(InputFile(megatron), kMegatronMagic)) {
    auto index = std::make_unique<MegatronIndex>(megatron);
    layout.width = index->width();
    layout.info.tokens = index->tokens();
    layout.documents = std::move(index);
  } else if (magic == kMagic16 || magic == kMagic32) {
    read_header(layout);
  } else {
    layout.info.tokens = file.size() / 2;
    if (file.size() % 2 != 0) {
      refuse(file, file.size() - 1,
             fmt::format("truncated: {} bytes are not a whole number of 16-bit tokens (no header was recognised, so "
                         "the nanoGPT format is assumed)",
                         file.size()));
    }
  }
  const int64_t tokens = layout.info.tokens, room = (file.size() - layout.offset) / layout.width;
  if (tokens <= 0)
    refuse(file, layout.offset, fmt::format("the header states {} tokens; expected at least one", tokens));
  if (tokens > room) {
    refuse(file, file.size(),
           fmt::format("truncated: the header states {} tokens of {} bytes, but there is room for {}", tokens,
                       layout.width, room));
  }
  if (const int64_t end = layout.offset + tokens * layout.width; file.size() != end) {
    refuse(file, file.size(), fmt::format("too long: the header states {} tokens, which end at byte {}", tokens, end));
  }
  if (std::error_code none; !layout.documents && fs::exists(document_index_path(path), none)) {
    layout.documents = std::make_unique<OwnIndex>(document_index_path(path), layout.info.tokens);
  }
  return layout;
}

}  // namespace trainer::data
