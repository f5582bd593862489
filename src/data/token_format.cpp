#include "data/token_format.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"

namespace trainer::data {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kMagic16 = 20240520, kMagic32 = 20240801;
constexpr int32_t kVersion16 = 1, kVersion32 = 7;
constexpr std::string_view kMegatronMagic{"MMIDIDX\0\0", 9};
constexpr int64_t kMegatronHeader = 9 + 8 + 1 + 8 + 8;
constexpr int32_t kGpt2EndOfText = 50256;

[[noreturn]] void refuse(const InputFile& file, int64_t offset, const std::string& reason) {
  throw Error(Code::data, fmt::format("{}: offset {}: {}", file.path().string(), offset, reason));
}

bool starts_with(const InputFile& file, std::string_view magic) {
  std::string start(magic.size(), '\0');
  if (file.size() < static_cast<int64_t>(magic.size())) return false;
  file.read(0, std::as_writable_bytes(std::span(start)));
  return start == magic;
}

/// This program's index.
class OwnIndex : public DocumentIndex {
 public:
  OwnIndex(const fs::path& path, int64_t tokens) : ends_(path, kDocuments, tokens) {
    if (const int64_t end = ends_.at(documents()); end != tokens)
      ends_.refuse(documents(), fmt::format("the last document ends at token {}, the token file has {}", end, tokens));
  }
  const InputFile& file() const override { return ends_.file(); }
  int64_t documents() const override { return ends_.units(); }
  int64_t end_of(int64_t document) const override { return ends_.at(document + 1); }

 private:
  const PositionsFile ends_;
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
  const InputFile& file() const override { return file_; }
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
  std::array<uint32_t, 12> words;
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
  info.spans = word(11) != 0;
  if ((word(6) | word(7) | word(8) | word(9)) != 0) {
    info.tokenizer_hash = fmt::format("{:08x}{:08x}{:08x}{:08x}", word(6), word(7), word(8), word(9));
  }
}

}  // namespace

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
  words[11] = info.spans ? 1 : 0;
  std::string bytes(kTokenHeaderBytes, '\0');
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

std::string bos_text(int32_t bos) { return bos < 0 ? "no BOS token" : fmt::format("token {}", bos); }

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
  if (std::error_code none; !layout.documents && fs::exists(positions_path(path, kDocuments), none))
    layout.documents = std::make_unique<OwnIndex>(positions_path(path, kDocuments), tokens);
  if (layout.info.spans) {
    const fs::path spans = positions_path(path, kSpans), documents = positions_path(path, kDocuments);
    std::error_code none;
    for (const fs::path& file : {documents, spans})  // without the documents, conversations would be cut anywhere
      if (!fs::exists(file, none))
        throw Error(Code::data,
                    fmt::format("{}: its header has loss spans, {} is missing; tokenize again", path, file.string()));
    layout.spans = std::make_unique<LossSpans>(spans, tokens);
  }
  return layout;
}

}  // namespace trainer::data
