#include "data/text_sample.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

TEST(Text, SamplesAreSpreadOverAllFiles) {
  TempFolder folder;
  std::string a, b;
  for (int i = 0; i < 500'000; ++i) a += fmt::format("a{}\n", i);
  for (int i = 0; i < 500'000; ++i) b += fmt::format("b{}\n", i);
  const std::vector<std::string> files = {write(folder / "a.txt", a), write(folder / "b.txt", b)};
  const auto lines = sample_lines(files, {}, int64_t{4} << 20, 100);
  int64_t from_a = 0, bytes = 0, late = 0;
  for (const std::string& line : lines) {
    from_a += line[0] == 'a';
    bytes += static_cast<int64_t>(line.size()) + 1;
    late += std::stoi(line.substr(1)) > 250'000;
  }
  EXPECT_NEAR(static_cast<double>(bytes), 4 << 20, 1.1 * (1 << 20));
  EXPECT_NEAR(static_cast<double>(from_a) / static_cast<double>(lines.size()), 0.5, 0.1);
  EXPECT_GT(late, static_cast<int64_t>(lines.size()) / 4);
  EXPECT_EQ(lines, sample_lines(files, {}, int64_t{4} << 20, 100));
  for (const std::string& line : sample_lines({files[0]}, {}, int64_t{64} << 20, 3)) ASSERT_LE(line.size(), 3u);
}

/// Returns words "w0", "w1", … of which each names its place, separated as given.
std::string numbered_words(int64_t bytes, const std::string& separator, int64_t first = 0) {
  std::string text;
  for (int64_t i = first; static_cast<int64_t>(text.size()) < bytes; ++i) text += fmt::format("w{:07}", i) + separator;
  return text;
}

/// Expects a sample of about `most` bytes of these words, with the same number from each tenth of them.
void expect_even(const std::vector<std::string>& lines, int64_t most, int64_t words, double tolerance) {
  std::vector<int64_t> counts(10);
  int64_t bytes = 0, broken = 0;
  for (const std::string& line : lines) {
    bytes += static_cast<int64_t>(line.size()) + 1;
    for (size_t at = 0; at < line.size();) {
      const size_t begin = line.find_first_not_of(' ', at), end = std::min(line.find(' ', begin), line.size());
      if (begin == std::string::npos) break;
      const std::string word = line.substr(begin, end - begin);
      if (word.size() == 8)
        ++counts[static_cast<size_t>(std::min<int64_t>(std::stoll(word.substr(1)) * 10 / words, 9))];
      else
        ++broken;
      at = end;
    }
  }
  const double share = static_cast<double>(most) / 9 / 10;
  EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(most), 0.06 * static_cast<double>(most));
  for (const int64_t count : counts) EXPECT_NEAR(static_cast<double>(count), share, tolerance * share);
  EXPECT_EQ(broken, 0);
}

TEST(Text, SamplesAreDrawnEvenlyFromOneLineAndFromLines) {
  TempFolder folder;
  constexpr int64_t kSize = 9 * 300'000, kMost = 500'000;
  const auto as_json = [](const std::string& text) { return nlohmann::json{{"text", text}, {"n", 1}}.dump() + "\n"; };
  const std::string line = numbered_words(kSize, " "), lines = numbered_words(kSize, "\n");
  std::string longer, objects;  // lines of 180 kB, and of one to three words
  for (int64_t first = 0; first < 300'000; first += 20'000) longer += as_json(numbered_words(180'000, " ", first));
  for (int64_t first = 0; first < 300'000; first += 3) objects += as_json(numbered_words(27, " ", first));
  for (const auto& [name, text] : {std::pair("line.txt", line),
                                   {"lines.txt", lines},
                                   {"line.jsonl", as_json(line)},
                                   {"longer.jsonl", longer},
                                   {"objects.jsonl", objects}}) {
    SCOPED_TRACE(name);
    const std::string file = write(folder / name, text);
    const double text_share = static_cast<double>(kSize) / static_cast<double>(text.size());
    const auto sample = sample_lines({file}, {}, static_cast<int64_t>(kMost / text_share), 4000);
    // A line of 180 kB gives 4 or 5 parts of the sample.
    expect_even(sample, kMost, 300'000, name == std::string("longer.jsonl") ? 0.25 : 0.12);
    EXPECT_EQ(sample, sample_lines({file}, {}, static_cast<int64_t>(kMost / text_share), 4000));
    for (const std::string& each : sample) ASSERT_LE(each.size(), 4000u);
  }
}

TEST(Text, SamplesOfManyFilesAreNoLargerThanRequested) {
  TempFolder folder;
  for (const char* extension : {"txt", "jsonl"}) {
    SCOPED_TRACE(extension);
    std::vector<std::string> files;
    for (int i = 0; i < 10'000; ++i) {
      const std::string text = numbered_words(270, " ", i * 30);
      files.push_back(write(folder / fmt::format("{}.{}", i, extension),
                            extension == std::string("txt") ? text : nlohmann::json{{"text", text}}.dump()));
    }
    int64_t bytes = 0, last = 0;
    for (const std::string& line : sample_lines(files, {}, 300'000, 4000)) {
      bytes += static_cast<int64_t>(line.size()) + 1;
      last = std::max<int64_t>(last, std::stoll(line.substr(line.find('w') + 1, 7)));
    }
    EXPECT_GT(bytes, 250'000);
    EXPECT_LT(bytes, 310'000);
    EXPECT_GT(last, 290'000);
  }
}

TEST(Text, SamplesOfManyLongLinesAreEven) {
  TempFolder folder;
  for (const char* extension : {"txt", "jsonl"}) {
    SCOPED_TRACE(extension);
    std::vector<std::string> files;
    for (int i = 0; i < 20; ++i) {
      const std::string text = numbered_words(450'000, " ", i * 50'000);
      files.push_back(write(folder / fmt::format("{}.{}", i, extension),
                            extension == std::string("txt") ? text : nlohmann::json{{"text", text}}.dump()));
    }
    expect_even(sample_lines(files, {}, 2'000'000, 4000), 2'000'000, 1'000'000, 0.12);
  }
}

TEST(Text, SamplesOfTextWithoutSpacesAreWholeCharacters) {
  TempFolder folder;
  std::string solid;
  for (int i = 0; i < 100'000; ++i) solid += "日é\U0001F600";
  const std::string file = write(folder / "a.txt", solid);
  size_t bytes = 0;
  for (const std::string& line : sample_lines({file}, {.strict = true}, 100'000, 1000)) {
    EXPECT_EQ(utf8_first_invalid(line), line.size());
    bytes += line.size();
  }
  EXPECT_GT(bytes, 95'000u);
}

}  // namespace
}  // namespace trainer::data
