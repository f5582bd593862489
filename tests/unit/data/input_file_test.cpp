#include <gtest/gtest.h>
#include <sys/resource.h>

#include "data/dataset.h"
#include "data/positions.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

std::string text_at(const InputFile& file, int64_t offset, int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(InputFile, RefusesWhatATruncatedFileLacks) {
  TempFolder folder;
  const std::string path = write(folder / "x", std::string(100, 'a') + std::string(100, 'b'));
  const InputFile file(path);
  EXPECT_EQ(text_at(file, 99, 2), "ab");
  EXPECT_EQ(text_at(file, 200, 0), "");
  EXPECT_TRUE(file.is_whole());
  file.require_whole();
  fs::resize_file(path, 150);
  EXPECT_FALSE(file.is_whole());
  EXPECT_EQ(text_at(file, 149, 1), "b") << "it has these bytes still";
  const std::vector<std::string> parts = {path, "truncated while in use", "it had 200 bytes, there are 150 now"};
  expect_error(Code::data, parts, [&] { text_at(file, 149, 2); });
  expect_error(Code::data, parts, [&] { file.require_whole(); });
  fs::resize_file(path, 300);
  EXPECT_TRUE(file.is_whole());
}

TEST(InputFile, KeepsAFileThatIsReplacedOrRemoved) {
  TempFolder folder;
  const std::string path = write(folder / "x", std::string(8192, 'a'));
  const InputFile file(path);
  fs::rename(write(folder / "new", "short"), path);
  EXPECT_TRUE(file.is_whole());
  fs::remove(path);
  EXPECT_TRUE(file.is_whole());
  EXPECT_EQ(text_at(file, 8191, 1), "a");
}

TEST(InputFile, MayBeOpenMoreOftenThanTheSoftLimitSays) {
  TempFolder folder;
  const std::string path = write(folder / "x", "a");
  struct rlimit before {};
  getrlimit(RLIMIT_NOFILE, &before);
  if (before.rlim_max < 300) GTEST_SKIP() << "the hard limit is " << before.rlim_max;
  struct rlimit few = before;
  few.rlim_cur = 64;
  setrlimit(RLIMIT_NOFILE, &few);
  {
    std::vector<std::unique_ptr<InputFile>> files;
    for (int i = 0; i < 200; ++i) files.push_back(std::make_unique<InputFile>(path));
    EXPECT_EQ(text_at(*files.back(), 0, 1), "a");
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(TokenDataset, RefusesWindowsThatATruncatedFileLacks) {
  TempFolder folder;
  std::vector<int> ids(1000);
  for (int i = 0; i < 1000; ++i) ids[static_cast<size_t>(i)] = i;
  const std::string path = write(folder / "x.bin", packed<uint16_t>(ids));
  const TokenDataset dataset(std::make_shared<TokenStream>(std::vector{path}), 10, 1);
  fs::resize_file(path, 2 * 500 + 1);
  EXPECT_FALSE(dataset.stream().is_whole());
  TokenBatch batch;
  dataset.eval_batch(48, 1, batch);
  EXPECT_EQ(batch.targets.back(), 490);
  dataset.eval_batch(0, 49, batch);
  EXPECT_EQ(batch.ids.back(), 489);
  const std::vector<std::string> parts = {path, "it had 2000 bytes, there are 1001 now"};
  expect_error(Code::data, parts, [&] { dataset.eval_batch(49, 1, batch); });
  expect_error(Code::data, parts, [&] { dataset.train_batch(0, dataset.windows(), batch); });
  expect_error(Code::data, parts, [&] { dataset.stream().require_whole(); });
}

// Positions before and after a block of the index, in both directions.
TEST(TokenStream, FindsDocumentsInLargeIndexes) {
  TempFolder folder;
  Random random(1);
  std::vector<int64_t> ends = {0};
  while (ends.size() <= 3000) ends.push_back(ends.back() + pick(random, 8));
  const int64_t tokens = ends.back();
  const auto ids = packed<uint16_t>(std::vector<int>(static_cast<size_t>(tokens), 5));
  write(folder / "own.docs", positions_header(kDocuments, 3000) + packed<int64_t>(ends));
  const std::string own = write(folder / "own.bin", token_header({tokens, 300, 2, ""}) + ids);
  std::string index("MMIDIDX\0\0", 9);
  index += packed<uint64_t>(std::vector{1}) + '\x08' + packed<uint64_t>(std::vector{3000, 3001});
  for (size_t i = 0; i < 3000; ++i) index += packed<int32_t>(std::vector{ends[i + 1] - ends[i]});
  for (size_t i = 0; i < 3000; ++i) index += packed<int64_t>(std::vector{2 * ends[i]});
  for (int64_t i = 0; i <= 3000; ++i) index += packed<int64_t>(std::vector{i});
  write(folder / "m.idx", index);
  for (const std::string& file : {own, write(folder / "m.bin", ids)}) {
    const TokenStream stream({file});
    const std::vector<int32_t> window(40);
    for (int i = 0; i < 3000; ++i) {
      const int64_t begin = pick(random, tokens - 40);
      std::vector<int64_t> found, expected;
      stream.append_starts(begin, window, 0, found);
      for (int64_t at = begin; at < begin + 40; ++at)
        if (std::ranges::binary_search(ends, at)) expected.push_back(at - begin);
      ASSERT_EQ(found, expected) << file << " from " << begin;
    }
  }
}

}  // namespace
}  // namespace trainer::data
