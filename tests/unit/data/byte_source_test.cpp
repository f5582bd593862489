#include "data/byte_source.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <thread>

#include "data/input_key.h"
#include "data/text_sample.h"
#include "data/tokenize.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

/// Returns one frame with a checksum, as the program zstd writes it.
std::string zstd(const std::string& text) {
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress2(context, packed.data(), packed.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return packed;
}

struct Packer {
  const char* extension;
  std::string (*pack)(const std::string&);
};
constexpr Packer kPackers[] = {{".gz", gzip}, {".zst", zstd}};

/// Returns the text of an input, read in parts of this size.
std::string all_of(const std::string& file, size_t part) {
  const auto source = open_source(file, {});
  std::string text, block(part, '\0');
  while (const size_t got = source->read_at(static_cast<int64_t>(text.size()), block.data(), part))
    text.append(block, 0, got);
  return text;
}

/// Returns the contents of both output files of a finished tokenization.
std::string output_bytes(const fs::path& output) {
  return read_file(output) + read_file(fs::path(output).replace_extension(".docs"));
}

TEST(ByteSource, UnpacksMembersAndFramesAsOneText) {
  TempFolder folder;
  Random random(1);
  const std::string noise = random_bytes(random, 700'000), text = novel().substr(0, 600'000) + noise;
  for (const auto& [extension, pack] : kPackers) {
    const std::string one = write(folder / fmt::format("one.txt{}", extension), pack(text)),
                      many = write(folder / fmt::format("many.txt{}", extension), pack(text.substr(0, 1)) + pack("") +
                                                                                      pack(text.substr(1, 650'000)) +
                                                                                      pack(text.substr(650'001)));
    for (const std::string& file : {one, many}) {
      for (const size_t part : {size_t{999}, size_t{1} << 20, size_t{3} << 20})
        ASSERT_TRUE(all_of(file, part) == text) << file << " in parts of " << part;
      EXPECT_EQ(text_bytes(file, {}), static_cast<int64_t>(text.size()));
    }
  }
  // A skippable frame, such as pzstd writes first.
  const std::string skipped("\x50\x2A\x4D\x18\x04\0\0\0abcd", 12);
  EXPECT_EQ(all_of(write(folder / "p.zst", skipped + zstd("text")), 99), "text");
}

TEST(ByteSource, ReadsOnFromAPlaceAndKeepsItsWindow) {
  TempFolder folder;
  const std::string& text = novel();
  for (const auto& [extension, pack] : kPackers) {
    const auto source = open_source(write(folder / fmt::format("a{}", extension), pack(text)), {});
    std::string block(100'000, '\0');
    for (const size_t offset : {size_t{0}, size_t{10}, size_t{500'000}}) {
      for (const size_t bytes : {size_t{100}, size_t{100'000}, size_t{50}}) {  // longer and shorter reads at one offset
        ASSERT_EQ(source->read_at(static_cast<int64_t>(offset), block.data(), bytes), bytes);
        ASSERT_TRUE(block.compare(0, bytes, text, offset, bytes) == 0) << offset << " " << bytes;
      }
    }
    EXPECT_EQ(source->read_at(static_cast<int64_t>(text.size()) - 3, block.data(), 9), 3u);
    EXPECT_EQ(source->read_at(static_cast<int64_t>(text.size()) + 3, block.data(), 9), 0u);
  }
}

TEST(ByteSource, RejectsDamagedDataWithItsPlace) {
  TempFolder folder;
  const auto refused = [&](const std::string& file, const std::string& bytes, std::vector<std::string> parts) {
    parts.push_back(file);
    expect_error(Code::data, parts, [&] { all_of(write(folder / file, bytes), 1 << 16); });
  };
  const std::string text = novel().substr(0, 300'000);
  for (const auto& [extension, pack] : kPackers) {
    const std::string name = std::string("a.txt") + extension, packed = pack(text);
    for (const size_t kept : {size_t{3}, packed.size() / 2, packed.size() - 1})
      refused(name, packed.substr(0, kept), {fmt::format("after byte {} of", kept), "truncated"});
    refused(name, packed + packed.substr(0, 9), {"truncated"});
    std::string damaged = packed;
    damaged[packed.size() / 2] = static_cast<char>(damaged[packed.size() / 2] ^ 0x10);
    refused(name, damaged, {"corrupt"});
    damaged = packed;
    damaged[packed.size() - 3 - (extension[1] == 'g' ? 4 : 0)] ^= 1;  // in the checksum
    refused(name, damaged, {"corrupt"});
    refused(name, packed + "garbage after the end", {"corrupt"});
    refused(name, text, {"corrupt", "after byte"});
  }
  refused("a.gz", zstd(text), {"not gzip data"});
  refused("a.zst", gzip(text), {"not Zstandard data"});
  refused("a.zst", std::string("\x28\xB5\x2F\xFD\x00\x90\x01\x00\x00", 9), {"128 MiB", "--long=27"});  // window 256 MiB
  // A frame that declares 144 bytes but has one empty block. libzstd accepts it if the output buffer is smaller.
  const std::string wrong("\x28\xB5\x2F\xFD\x20\x90\x01\x00\x00", 9);
  for (const size_t part : {size_t{100}, size_t{1} << 20})
    expect_error(Code::data, {"corrupt"}, [&] { all_of(write(folder / "a.zst", zstd("text") + wrong), part); });
}

TEST(ByteSource, TokensOfCompressedFilesAreThoseOfTheirText) {
  TempFolder folder;
  Random random(7);
  const std::string text = "\xEF\xBB\xBF" + random_text(random, 200'000), other = random_text(random, 50'000);
  TokenizeOptions options{.text = {.document = config::Document::block}, .piece_bytes = 3000, .sync_bytes = 30'000};
  tokenize_files({write(folder / "a.txt", text), write(folder / "b.txt", other)}, small_tokenizer(),
                 folder / "plain.bin", options);
  const std::string expected = output_bytes(folder / "plain.bin");
  for (const auto& [extension, pack] : kPackers) {
    const std::string half = pack(text.substr(0, 99'999)) + pack(text.substr(99'999));
    const std::vector<std::string> files = {write(folder / fmt::format("a.txt{}", extension), half),
                                            write(folder / fmt::format("b.txt{}", extension), pack(other))};
    TokenizeProgress last;
    for (const int threads : {1, 2, 5}) {
      options.threads = threads;
      options.piece_bytes = 2000 + 777 * threads;
      options.stop = {};
      options.progress = [&](const TokenizeProgress& p) { last = p; };
      tokenize_files(files, small_tokenizer(), folder / "whole.bin", options);
      ASSERT_TRUE(output_bytes(folder / "whole.bin") == expected) << extension << ", " << threads << " threads";
      EXPECT_EQ(last.bytes, static_cast<int64_t>(fs::file_size(files[0]) + fs::file_size(files[1])));
      EXPECT_EQ(last.bytes, last.total_bytes);
      fs::remove(folder / "whole.json");
    }
    int interruptions = 0;
    for (bool finished = false; !finished; ++interruptions) {
      int64_t left = 1 + pick(random, 10);
      options.progress = [&](const TokenizeProgress&) { --left; };
      options.stop = [&] { return left <= 0; };
      finished = tokenize_files(files, small_tokenizer(), folder / "parts.bin", options).finished;
    }
    EXPECT_GE(interruptions, 2);
    ASSERT_TRUE(output_bytes(folder / "parts.bin") == expected) << extension << " after interruptions";
    fs::remove(folder / "parts.json");
  }
}

TEST(ByteSource, SamplesOfCompressedFilesAreThoseOfTheirText) {
  TempFolder folder;
  std::string text;
  for (int i = 0; i < 500'000; ++i) text += fmt::format("a{}\n", i);
  const std::string plain = write(folder / "a.txt", text), packed = write(folder / "a.txt.gz", gzip(text));
  for (const int64_t most : {int64_t{2} << 20, int64_t{9} << 20})
    EXPECT_TRUE(sample_lines({plain}, {}, most, 100) == sample_lines({packed}, {}, most, 100)) << most;
}

TEST(ByteSource, MistakesInCompressedTextHaveThePlaceInTheText) {
  TempFolder folder;
  const std::string lines = "{\"text\": \"a fine line\"}\n{\"text\": 1}\n";
  const std::string file = write(folder / "a.jsonl.gz", gzip(lines));
  expect_error(Code::data, {file, "offset 24 (line 2)", "is a number"},
               [&] { tokenize_files({file}, small_tokenizer(), folder / "o.bin", {}); });
  const std::string twice = write(folder / "b.txt.gz", gzip(gzip(lines)));
  expect_error(Code::data, {twice, "gzip"}, [&] { tokenize_files({twice}, small_tokenizer(), folder / "o.bin", {}); });
}

TEST(ByteSource, AFifoGivesTheTokensAndTheManifestOfAFile) {
  TempFolder folder;
  Random random(3);
  const std::string text = "\xEF\xBB\xBF" + random_text(random, 3'000'000), fifo = folder / "f.txt";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_TRUE(is_pipe(fifo));
  EXPECT_TRUE(is_pipe(kStandardInput));
  EXPECT_FALSE(is_pipe((folder / "none").string()));
  const TokenizeOptions options{.text = {.document = config::Document::line}, .threads = 2, .piece_bytes = 100'000};
  const auto through = [&] {
    std::jthread writer([&] { std::ofstream(fifo, std::ios::binary) << text; });
    return tokenize_files({fifo}, small_tokenizer(), folder / "piped.bin", options);
  };
  EXPECT_TRUE(through().finished);
  const std::string piped = output_bytes(folder / "piped.bin");
  EXPECT_FALSE(through().reused) << "what a pipe has is not known before it is read";

  const std::string plain = write(folder / "a.txt", text);
  EXPECT_TRUE(tokenize_files({plain}, small_tokenizer(), folder / "piped.bin", options).reused);
  tokenize_files({plain}, small_tokenizer(), folder / "plain.bin", options);
  EXPECT_TRUE(output_bytes(folder / "plain.bin") == piped);

  std::vector<std::string> gone;
  expect_error(Code::data, {fifo, "tokenize --input -"}, [&] { describe_inputs({fifo}, {}, nullptr, gone); });
}

TEST(ByteSource, StopsWhileAPipeIsSilent) {
  TempFolder folder;
  const std::string fifo = folder / "f.txt";
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  const int writer = ::open(fifo.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::write(writer, "a few words", 11), 11);
  int polls = 0;
  TokenizeOptions options{.threads = 2};
  options.stop = [&] { return ++polls > 1; };
  EXPECT_FALSE(tokenize_files({fifo}, small_tokenizer(), folder / "o.bin", options).finished);
  EXPECT_FALSE(fs::exists(folder / "o.work")) << "work that nothing can resume";
  ::close(writer);
}

TEST(Tokenize, OtherInputLeavesNoProgressBehind) {
  TempFolder folder;
  Random random(5);
  const std::string a = write(folder / "a.txt", random_text(random, 60'000)),
                    b = write(folder / "b.txt", random_text(random, 60'000));
  TokenizeOptions options{.piece_bytes = 1000};
  tokenize_files({a}, small_tokenizer(), folder / "whole.bin", options);
  int64_t left = 10;
  options.progress = [&](const TokenizeProgress&) { --left; };
  options.stop = [&] { return left <= 0; };
  ASSERT_FALSE(tokenize_files({a}, small_tokenizer(), folder / "o.bin", options).finished);
  options.stop = {};
  left = 30;
  options.progress = [&](const TokenizeProgress&) {
    if (--left == 0) throw std::runtime_error("crash");
  };
  EXPECT_THROW(tokenize_files({b}, small_tokenizer(), folder / "o.bin", options), std::runtime_error);
  options.progress = {};
  tokenize_files({a}, small_tokenizer(), folder / "o.bin", options);
  EXPECT_TRUE(output_bytes(folder / "o.bin") == output_bytes(folder / "whole.bin"));
}

}  // namespace
}  // namespace trainer::data
