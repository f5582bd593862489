// Decompression with zlib, libzstd and libsnappy. Consecutive members or frames form one text.
#include "data/unpack.h"

#include <snappy-c.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <algorithm>

#include "data/byte_stream.h"

namespace trainer::data {
namespace {

constexpr const char* kCutShort = "the file is truncated; download or copy it again";

class GzipFile final : public ByteStream {
 public:
  GzipFile(const std::string& file, const std::atomic<bool>* cancelled) : ByteStream(cancelled), file_(file) {
    TRAINER_CHECK(inflateInit2(&stream_, 16 + MAX_WBITS) == Z_OK, "zlib can be initialised");  // 16: gzip only
  }
  ~GzipFile() override { inflateEnd(&stream_); }
  int64_t file_bytes(int64_t) const override { return file_.bytes_read() - stream_.avail_in; }

 private:
  size_t pull(char* out, size_t bytes) override {
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = static_cast<uInt>(bytes);
    while (stream_.avail_out > 0) {
      if (stream_.avail_in == 0) {
        block_ = file_.next();
        stream_.next_in = reinterpret_cast<Bytef*>(block_.data());
        stream_.avail_in = static_cast<uInt>(block_.size());
      }
      if (between_ && stream_.avail_in == 0) break;
      // Like gzip(1), ignores the zeros with which tools for tapes pad a file. total_in is 0 before the first member.
      if (between_ && stream_.total_in > 0 && *stream_.next_in == 0) {
        ++stream_.next_in;
        --stream_.avail_in;
        continue;
      }
      if (between_) inflateReset(&stream_);
      const int status = inflate(&stream_, Z_NO_FLUSH);
      between_ = status == Z_STREAM_END;
      if (status == Z_BUF_ERROR) file_.refuse(0, kCutShort);
      if (status != Z_OK && !between_)
        file_.refuse(stream_.avail_in, format("not gzip data, or corrupt ({}); download or copy it again",
                                              stream_.msg != nullptr ? stream_.msg : zError(status)));
    }
    return bytes - stream_.avail_out;
  }

  PackedFile file_;
  std::string block_;
  z_stream stream_{};
  bool between_ = true;  // the next byte, if any, begins a member
};

class ZstdFile final : public ByteStream {
 public:
  ZstdFile(const std::string& file, const std::atomic<bool>* cancelled)
      : ByteStream(cancelled), file_(file), context_(ZSTD_createDCtx(), ZSTD_freeDCtx) {
    TRAINER_CHECK(context_, "zstd can be initialised");
  }
  int64_t file_bytes(int64_t) const override {
    return file_.bytes_read() - static_cast<int64_t>(input_.size - input_.pos);
  }

 private:
  size_t pull(char* out, size_t bytes) override {
    ZSTD_outBuffer output{out, bytes, 0};
    while (output.pos < bytes) {
      if (input_.pos == input_.size) {
        block_ = file_.next();
        input_ = {block_.data(), block_.size(), 0};
      }
      if (between_ && input_.size == 0) break;
      if (between_) begin_frame();
      const size_t before = output.pos;
      const size_t left = ZSTD_decompressStream(context_.get(), &output, &input_);
      if (ZSTD_isError(left)) refuse(left);
      between_ = left == 0;
      unpacked_ += output.pos - before;
      if (!between_ && input_.size == 0 && output.pos == before) file_.refuse(0, kCutShort);
      // The library compares these only if the output has room for the whole frame.
      if (between_ && announced_ < ZSTD_CONTENTSIZE_ERROR && unpacked_ != announced_)
        file_.refuse(
            input_.size - input_.pos,
            format("corrupt: a frame has {} bytes of text, but its header states {}; download or copy it again",
                   unpacked_, announced_));
    }
    return output.pos;
  }

  void begin_frame() {
    constexpr size_t kLongestHeader = 18;
    if (input_.size - input_.pos < kLongestHeader) {
      block_ = block_.substr(input_.pos) + file_.next();
      input_ = {block_.data(), block_.size(), 0};
    }
    announced_ = ZSTD_getFrameContentSize(block_.data() + input_.pos, input_.size - input_.pos);
    unpacked_ = 0;
  }

  [[noreturn]] void refuse(size_t status) const {
    const size_t unread = input_.size - input_.pos;
    if (ZSTD_getErrorCode(status) == ZSTD_error_frameParameter_windowTooLarge)
      file_.refuse(unread, "its window is larger than 128 MiB; compress it again with at most `zstd --long=27`");
    file_.refuse(unread,
                 format("not Zstandard data, or corrupt ({}); download or copy it again", ZSTD_getErrorName(status)));
  }

  PackedFile file_;
  std::string block_;
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> context_;
  ZSTD_inBuffer input_{};
  uint64_t announced_ = 0, unpacked_ = 0;  // bytes of the present frame's text
  bool between_ = true;                    // the next byte, if any, begins a frame
};

}  // namespace

std::unique_ptr<ByteSource> open_gzip(const std::string& file, const std::atomic<bool>* cancelled) {
  return std::make_unique<GzipFile>(file, cancelled);
}
std::unique_ptr<ByteSource> open_zstd(const std::string& file, const std::atomic<bool>* cancelled) {
  return std::make_unique<ZstdFile>(file, cancelled);
}

namespace {

std::string unpack_gzip_block(std::string_view packed, std::span<char> out) {
  z_stream stream{};
  TRAINER_CHECK(inflateInit2(&stream, 32 + MAX_WBITS) == Z_OK, "zlib can be initialised");  // 32: gzip or zlib
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  int status = inflate(&stream, Z_FINISH);
  while (status == Z_STREAM_END && stream.avail_in > 0 && inflateReset(&stream) == Z_OK)  // another member
    status = inflate(&stream, Z_FINISH);
  const bool whole = status == Z_STREAM_END && stream.avail_out == 0;
  inflateEnd(&stream);
  return whole ? "" : "corrupt gzip data";
}

}  // namespace

std::string unpack_block(Codec codec, std::string_view packed, std::span<char> out) {
  switch (codec) {
    case Codec::none:
      if (packed.size() != out.size()) return format("{} bytes, expected {}", packed.size(), out.size());
      std::ranges::copy(packed, out.begin());
      return "";
    case Codec::snappy: {
      size_t bytes = 0;
      if (snappy_uncompressed_length(packed.data(), packed.size(), &bytes) != SNAPPY_OK || bytes != out.size())
        return "corrupt snappy data";
      return snappy_uncompress(packed.data(), packed.size(), out.data(), &bytes) == SNAPPY_OK ? ""
                                                                                              : "corrupt snappy data";
    }
    case Codec::gzip:
      return unpack_gzip_block(packed, out);
    case Codec::zstd:
      return ZSTD_decompress(out.data(), out.size(), packed.data(), packed.size()) == out.size()
                 ? ""
                 : "corrupt Zstandard data";
  }
  return "unknown compression";
}

}  // namespace trainer::data
