#include "data/parquet.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include "base/error.h"
#include "data/text.h"
#include "data/tokenize.h"
#include "rigs/files.h"
#include "rigs/messages.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using tests::expect_error;
using tests::TempFolder;
using tests::write;

/// Files of a writer of the tests' own, with the rows that pyarrow reads. `crc`: of the file.
struct Golden {
  const char* name;
  Columns columns;
  size_t bytes;
  uint32_t crc;
  std::string rows;
};

const std::vector<Golden>& golden() {
  static const std::string texts =
      R"({"text":"one"}
{"text":null}
{"text":""}
{"text":"two two two two"}
{"text":"héé\t\"x\"\\\n"}
{"text":"one"}
{"text":"one"}
{"text":"zzzzzzzzzzzzzzzz"}
{"text":"nine"}
{"text":"ten"}
)";
  static const std::vector<Golden> files = {
      {"plain", {"text"}, 217, 0x72b0423d, texts},
      {"pages_groups", {"text"}, 363, 0xa8fde8e4, texts},
      {"dictionary_then_plain", {"text"}, 262, 0xd8b58c80, texts},
      {"v2_delta_lengths", {"text"}, 203, 0x6a3426f6, texts},
      {"v2_uncompressed", {"text"}, 266, 0x347032d1, texts},
      {"nested",
       {"text", "none", "messages"},
       1225,
       0x19e15893,
       R"({"text":"one","messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":"Hello"}]}
{"text":null,"messages":null}
{"text":"","messages":[]}
{"text":"two two two two","messages":[{"role":"system","content":null},{"role":"user","content":"a\nb"},{"role":"assistant","content":""}]}
)"}};
  return files;
}

std::string bytes_of(const Golden& file) {
  return tests::content_of(std::filesystem::path(TRAINER_SOURCE_DIR "/tests/fuzz/corpus/parquet") / file.name);
}

/// Returns the rows, or an empty text if the file is rejected as data.
std::string rows_or_refused(const std::string& file, const Columns& columns) {
  try {
    return whole_text(file, columns);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::data) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with(file)) << error.what();
    return {};
  }
}

TEST(Parquet, RowsAreJsonLines) {
  TempFolder folder;
  for (const Golden& each : golden()) {
    const std::string bytes = bytes_of(each);
    ASSERT_EQ(bytes.size(), each.bytes) << each.name;
    ASSERT_EQ(::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())), each.crc);
    const std::string file = write(folder / "a.parquet", bytes);
    EXPECT_EQ(whole_text(file, each.columns), each.rows) << each.name;
    EXPECT_EQ(text_bytes(file, each.columns), static_cast<int64_t>(each.rows.size()));
    const auto source = open_source(file, each.columns);
    std::string part(7, '\0');
    ASSERT_EQ(source->read_at(20, part.data(), part.size()), part.size());
    EXPECT_EQ(part, each.rows.substr(20, 7));
    EXPECT_LT(source->file_bytes(27), static_cast<int64_t>(each.bytes) + 1);
  }
}

TEST(Parquet, EveryCutIsRejected) {
  TempFolder folder;
  for (const Golden& each : golden()) {
    const std::string bytes = bytes_of(each);
    for (size_t size = 0; size < bytes.size(); ++size)
      EXPECT_EQ(rows_or_refused(write(folder / "a.parquet", bytes.substr(0, size)), each.columns), "")
          << each.name << " " << size;
  }
}

TEST(Parquet, FlippedBytesGiveAnErrorOrRows) {
  TempFolder folder;
  for (const Golden& each : golden()) {
    const std::string bytes = bytes_of(each);
    size_t refused = 0;
    for (size_t at = 0; at < std::min<size_t>(bytes.size(), 1024); ++at) {
      for (const int flip : {0x01, 0x80, 0xFF}) {
        std::string changed = bytes;
        changed[at] = static_cast<char>(changed[at] ^ flip);
        refused += rows_or_refused(write(folder / "a.parquet", changed), each.columns).empty();
      }
    }
    EXPECT_GT(refused, bytes.size()) << each.name;
  }
}

TEST(Parquet, ErrorsNameThePlaceAndTheRemedy) {
  TempFolder folder;
  const auto refused = [&](std::string bytes, std::vector<std::string> parts, const Columns& columns = {"text"}) {
    const std::string file = write(folder / "a.parquet", bytes);
    parts.push_back(file + ": ");
    expect_error(Code::data, parts, [&] { whole_text(file, columns); });
  };
  const std::string dictionary = bytes_of(golden()[2]), nested = bytes_of(golden()[5]);
  refused(nested, {"no column \"body\"; it has id (string), messages (list), text (string): set data.text_key"},
          {"body"});
  refused(dictionary.substr(0, 200), {"does not end with PAR1; it is truncated or not a Parquet file (200 bytes)"});
  refused("PARE" + dictionary.substr(4), {"encryption is not supported"});
  refused("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n", {"Git LFS"});
  std::string damaged = bytes_of(golden()[1]);
  damaged[damaged.find("\x1f\x8b") + 12] ^= 0x40;
  refused(damaged, {"column \"text\", row group 0, page at byte 4: corrupt gzip data; the file is damaged"});
  damaged = bytes_of(golden()[0]);
  damaged[damaged.find("one") - 1] = 0x7f;
  refused(damaged,
          {"column \"text\", row group 0, page at byte 4: ", "bytes of values, of which", "the file is damaged"});
}

TEST(Parquet, NullAndEmptyTextsAreSkippedAndCounted) {
  TempFolder folder;
  const std::string file = write(folder / "a.parquet", bytes_of(golden()[0]));
  PieceReader reader({file}, {});
  std::vector<std::string> texts;
  const TextFlaws flaws =
      split_documents(file, *reader.next(), {}, [&](std::string_view text, bool, bool) { texts.emplace_back(text); });
  EXPECT_EQ(flaws.without_text, 1);
  EXPECT_EQ(texts, (std::vector<std::string>{"one", "two two two two", "héé\t\"x\"\\\n", "one", "one",
                                             "zzzzzzzzzzzzzzzz", "nine", "ten"}));
}

TEST(Parquet, TokensAreThoseOfTheLinesAlsoAfterStops) {
  TempFolder folder;
  std::vector<std::string> lines, tables;
  for (size_t i = 0; i < golden().size(); ++i) {
    lines.push_back(write(folder / fmt::format("{}.jsonl", i), golden()[i].rows));
    tables.push_back(write(folder / fmt::format("{}.parquet", i), bytes_of(golden()[i])));
  }
  const auto output_bytes = [&](const std::string& name) {
    return tests::content_of(folder / (name + ".bin")) + tests::content_of(folder / (name + ".docs"));
  };
  TokenizeOptions options{.piece_bytes = 40, .sync_bytes = 100};
  const Tokenizer& tokenizer = testing::small_tokenizer();
  const TokenizeResult plain = tokenize_files(lines, tokenizer, folder / "lines.bin", options);
  EXPECT_EQ(plain.documents, 5 * 8 + 2);
  EXPECT_EQ(plain.without_text, 6);
  for (const int threads : {1, 4}) {
    options.threads = threads;
    const TokenizeResult table = tokenize_files(tables, tokenizer, folder / "whole.bin", options);
    EXPECT_EQ(table.without_text, plain.without_text);
    ASSERT_TRUE(output_bytes("whole") == output_bytes("lines")) << threads << " threads";
    std::filesystem::remove(folder / "whole.json");
  }
  int stops = 0;
  for (bool finished = false; !finished; ++stops) {
    int left = 5;
    options.progress = [&](const TokenizeProgress&) { --left; };
    options.stop = [&] { return left <= 0; };
    finished = tokenize_files(tables, tokenizer, folder / "parts.bin", options).finished;
  }
  EXPECT_GE(stops, 2);
  ASSERT_TRUE(output_bytes("parts") == output_bytes("lines")) << "after stops";
}

}  // namespace
}  // namespace trainer::data
