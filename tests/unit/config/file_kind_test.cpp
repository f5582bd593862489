#include "config/file_kind.h"

#include "rigs/messages.h"

namespace trainer::config {
namespace {

TEST(FileKind, FollowsFromTheExtensionWhateverItsCase) {
  const auto kind = [](const char* path) { return file_kind(path, DataFormat::automatic); };
  for (const char* path : {"a.txt", "A.TXT", "d.x/b.Text", "c.md", "a.jsonl.txt", "data/*.txt"})
    EXPECT_EQ(kind(path), FileKind::text) << path;
  for (const char* path : {"a.jsonl", "a.JSONL", "a.ndjson"}) EXPECT_EQ(kind(path), FileKind::json_lines) << path;
  for (const char* path : {"a.bin", "a.BIN"}) EXPECT_EQ(kind(path), FileKind::tokens) << path;
  for (const char* path : {"a.txt.gz", "A.TXT.GZ", "a.md.zst"}) EXPECT_EQ(kind(path), FileKind::text) << path;
  for (const char* path : {"a.jsonl.zst", "a.ndjson.gz"}) EXPECT_EQ(kind(path), FileKind::json_lines) << path;
  for (const char* path :
       {"a", "a.gz", "a.bin.gz", "a.tar.gz", ".txt.gz", "a.json", "a.csv", "d.txt/a", ".txt", "a.idx", "a."})
    EXPECT_EQ(kind(path), std::nullopt) << path;
}

TEST(FileKind, IsWhatTheUserInsistsOn) {
  EXPECT_EQ(file_kind("a.csv", DataFormat::text), FileKind::text);
  EXPECT_EQ(file_kind("a.txt", DataFormat::jsonl), FileKind::json_lines);
  EXPECT_EQ(file_kind("a", DataFormat::tokens), FileKind::tokens);
}

TEST(FileKind, CompressionFollowsFromTheEndOfTheName) {
  for (const char* path : {"a.gz", "a.txt.GZ", "d/a.b.gz"}) EXPECT_EQ(packing_of(path), Packing::gzip) << path;
  EXPECT_EQ(packing_of("a.jsonl.zst"), Packing::zstd);
  for (const char* path : {"a", "gz", ".gz", "a.gz.txt", "a.tgz"}) EXPECT_EQ(packing_of(path), Packing::none) << path;
  EXPECT_EQ(file_kind("a.gz", DataFormat::jsonl), FileKind::json_lines);
  EXPECT_EQ(packing_of("d/a.Parquet"), Packing::parquet);
  for (const DataFormat stated : {DataFormat::automatic, DataFormat::text, DataFormat::tokens})
    EXPECT_EQ(file_kind("a.parquet", stated), FileKind::json_lines);
}

TEST(FileKind, ReportsTheRemedyForOtherKinds) {
  tests::expect_parts(unknown_kind("d/a.CSV", "--format"),
                      {"d/a.CSV", ".csv", ".txt, .text, .md", ".jsonl, .ndjson", ".bin", "to .jsonl", "--format text"});
  tests::expect_parts(unknown_kind("a.bin.gz"), {".bin.gz files", "unpack it first"});
  tests::expect_parts(unknown_kind("a.csv.gz"), {".csv.gz files", "to .jsonl"});
  tests::expect_parts(unknown_kind("enwik8"), {"enwik8", "without an extension"});
}

}  // namespace
}  // namespace trainer::config
