#include "data/text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "data/json_lines.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;
using config::Document;

/// Returns the documents of the files, joined from pieces of this size.
std::vector<std::string> documents(const std::vector<std::string>& files, const TextOptions& options,
                                   int64_t piece_bytes) {
  std::vector<std::string> result;
  std::string open;
  bool inside = false;
  PieceReader reader(files, options, piece_bytes);
  while (auto piece = reader.next()) {
    EXPECT_EQ(piece->at.inside_document && inside, inside);
    split_documents(files[piece->at.file], std::move(*piece), options,
                    [&](std::string_view part, bool starts, bool ends) {
                      if (starts) {
                        EXPECT_FALSE(inside);
                      }
                      open += part;
                      inside = !ends;
                      if (!ends) return;
                      result.push_back(open);
                      open.clear();
                    });
  }
  EXPECT_FALSE(inside);
  return result;
}

bool blank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

/// Splits a text into documents in the simplest way.
std::vector<std::string> by_hand(const std::string& text, Document what) {
  if (what == Document::file) return {text};
  std::vector<std::string> lines, result;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  std::string block;
  lines.emplace_back();
  const auto emit = [&](std::string document) {
    if (document.ends_with('\r')) document.pop_back();
    if (!document.empty()) result.push_back(document);
  };
  for (const std::string& line : lines) {
    if (what == Document::line && !blank(line)) emit(line);
    if (what == Document::line) continue;
    if (blank(line)) {
      emit(block);
      block.clear();
    } else {
      block += (block.empty() ? "" : "\n") + line;
    }
  }
  return result;
}

TEST(Text, ADocumentIsAFileALineOrABlock) {
  TempFolder folder;
  const std::string text = "one\ntwo\r\n\n \t\nthree  \n\n\nfour\nfive";
  const std::string file = write(folder / "a.txt", text);
  using List = std::vector<std::string>;
  EXPECT_EQ(documents({file}, {.document = Document::file}, 1 << 20), List{text});
  EXPECT_EQ(documents({file}, {.document = Document::line}, 1 << 20), (List{"one", "two", "three  ", "four", "five"}));
  EXPECT_EQ(documents({file}, {.document = Document::block}, 1 << 20), (List{"one\ntwo", "three  ", "four\nfive"}));
}

TEST(Text, DocumentsDoNotDependOnThePieceSize) {
  TempFolder folder;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Random random(seed);
    std::string text;
    while (static_cast<int64_t>(text.size()) < 3000) {
      text += random_text(random, pick(random, 80));
      const int64_t kind = pick(random, 6);
      text += kind == 0 ? "\n\n" : kind == 1 ? "\n \t\r\n" : kind == 2 ? "\r\n" : "\n";
    }
    const std::string file = write(folder / "a.txt", text);
    for (const Document what : {Document::file, Document::line, Document::block}) {
      const auto expected = by_hand(text, what);
      // Pieces hold at least one line: in smaller pieces, the blank first half of a line may look like a document.
      for (const int64_t bytes : {400, 700, 1024, 1 << 20}) {
        ASSERT_EQ(documents({file}, {.document = what}, bytes), expected) << "seed " << seed << " pieces of " << bytes;
      }
    }
  }
}

TEST(Text, LinesLongerThanAPieceStayWhole) {
  TempFolder folder;
  Random random(3);
  std::string words, solid;
  for (int i = 0; i < 500; ++i) words += fmt::format("word{} ", i);
  for (int i = 0; i < 1000; ++i) solid += "日é\U0001F600";
  const std::string text = words + "\n" + solid + "\r\n" + words + "\n\nend";
  const std::string file = write(folder / "a.txt", text);
  for (const Document what : {Document::file, Document::line, Document::block}) {
    for (const int64_t bytes : {16, 17, 64, 1000}) {
      ASSERT_EQ(documents({file}, {.document = what}, bytes), by_hand(text, what)) << bytes;
    }
  }
}

TEST(Text, AnyBytesAreReadInAnyPieces) {
  TempFolder folder;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Random random(seed);
    // The text begins with ASCII, because a file that is mostly not UTF-8 is rejected.
    std::string bytes = std::string(6000, 'w') + random_bytes(random, 1 + pick(random, 500)) +
                        std::string(pick(random, 50), ' ') + std::string(pick(random, 5), '\n') +
                        random_bytes(random, 50);
    const std::string file = write(folder / "a.txt", bytes);
    for (const Document what : {Document::file, Document::line, Document::block})
      documents({file}, {.document = what}, 16);
    std::string repaired = bytes;
    utf8_repair(repaired);
    ASSERT_EQ(documents({file}, {}, 1 << 20), std::vector{repaired});
  }
}

TEST(Text, ReadsTheTextOfJsonLines) {
  TempFolder folder;
  const std::string file = write(
      folder / "a.jsonl",
      "{\"text\": \"one\\n\\ntwo \\u00e9\", \"n\": 1}\n\n  \n{\"text\": \"\"}\n{\"n\": [2], \"text\": \"three\"}");
  for (const int64_t bytes : {1, 20, 1 << 20}) {
    EXPECT_EQ(documents({file}, {}, bytes), (std::vector<std::string>{"one\n\ntwo é", "three"}));
  }
}

TEST(Text, NamesFileAndOffsetOfBadJsonLines) {
  TempFolder folder;
  const auto refused = [&](const std::string& line, std::vector<std::string> parts) {
    const std::string file = write(folder / "a.jsonl", "{\"text\": \"fine\"}\n" + line);
    parts.insert(parts.end(), {file, "offset 17"});
    for (const int64_t bytes : {20, 1 << 20}) {
      expect_error(Code::data, parts, [&] { documents({file}, {}, bytes); });
    }
  };
  refused("{\"text\": \"open", {"JSON object"});
  refused("[1, 2]", {"JSON object"});
  refused("plain words", {"JSON object"});
  refused("{\"text\": 5}", {"\"text\" is a number", "expected a string"});
  refused("{\"text\": [null]}", {"\"text\" is an array", "expected a string"});
}

TEST(Text, SkipsAndCountsLinesWithoutATextUnlessStrict) {
  TempFolder folder;
  const std::string lines =
      "{\"text\": null}\n{\"text\": \"one\"}\n{\"id\": 1}\n\n{\"text\": \"two\"}\n{\"text\":null,\"n\":1e999}";
  const std::string file = write(folder / "a.jsonl", lines);
  for (const int64_t bytes : {1, 20, 1 << 20}) {
    EXPECT_EQ(documents({file}, {}, bytes), (std::vector<std::string>{"one", "two"}));
    expect_error(Code::data, {file, "offset 0", "null", "data.strict"},
                 [&] { documents({file}, {.strict = true}, bytes); });
  }
  PieceReader reader({file}, {});
  const TextFlaws flaws = split_documents(file, *reader.next(), {}, [](std::string_view, bool, bool) {});
  EXPECT_EQ(flaws.without_text, 3);
  EXPECT_EQ(flaws.first_without, 0);
  EXPECT_EQ(flaws.replaced, 0);
  // The first line shows whether the key is the right one.
  for (const char* start : {"", "\xEF\xBB\xBF"}) {
    const std::string wrong =
        write(folder / "b.jsonl", std::string(start) + "{\"body\": \"x\"}\n{\"text\": \"one\"}\n");
    for (const int64_t bytes : {1, 20, 1 << 20})
      expect_error(Code::data, {wrong, "no member \"text\"", "data.text_key", "(line 1)"},
                   [&] { documents({wrong}, {}, bytes); });
  }
}

TEST(Text, OfAnEmptyFileIsNoDocumentAndAnErrorWhenStrict) {
  TempFolder folder;
  const std::string empty = write(folder / "a.txt", ""), mark = write(folder / "b.txt", "\xEF\xBB\xBF"),
                    lines = write(folder / "c.jsonl", ""), full = write(folder / "d.txt", "one\n");
  const std::vector<std::string> files = {empty, full, mark, lines, full};
  for (const Document document : {Document::file, Document::line, Document::block}) {
    const TextOptions options{.document = document}, strict{.document = document, .strict = true};
    for (const int64_t bytes : {3, 1 << 20})
      EXPECT_EQ(documents(files, options, bytes), documents({full, full}, options, bytes));
    expect_error(Code::data, {empty, "the file is empty"}, [&] { documents(files, strict, 100); });
    expect_error(Code::data, {mark, "the file is empty"}, [&] { documents({full, mark}, strict, 100); });
  }
}

TEST(Text, DoesNotDependOnNumbersThatNoDoubleHolds) {
  TempFolder folder;
  const std::string file =
      write(folder / "a.jsonl",
            "{\"n\": 1e999, \"text\": \"1e999\", \"m\": [-1E+400, {\"k\": 123456789012345678901234567890}]}\n"
            "{\"text\": \"a \\\"-9e999\\\" \\\\\", \"n\": 1e-999}\n");
  EXPECT_EQ(documents({file}, {}, 1 << 20), (std::vector<std::string>{"1e999", "a \"-9e999\" \\"}));
  EXPECT_EQ(without_overflow("[1e999,-1e400 , 2, \"1e999\", 1e308, 1e-999]"),
            "[null,null , 2, \"1e999\", 1e308, 1e-999]");
  EXPECT_EQ(without_overflow("{\"a\\\"1e999\": 1e999}"), "{\"a\\\"1e999\": null}");
  EXPECT_EQ(without_overflow("\"1e999"), "\"1e999");  // not JSON
}

TEST(Text, MembersOfAnObjectAreReplacedOrAddedAndTheOthersKeepTheirText) {
  const auto with = [](const char* object, const char* members) {
    return with_members(object, nlohmann::ordered_json::parse(members));
  };
  EXPECT_EQ(with("{}", "{}"), "{}");
  EXPECT_EQ(with(" { } ", R"({"a":1})"), R"({"a":1})");
  EXPECT_EQ(with(R"({"x" : 18446744073709551617 ,"a":[1.10,{"a":2}], "b":"\\\"}"})", R"({"c":3,"a":null})"),
            R"({"x":18446744073709551617,"a":null,"b":"\\\"}","c":3})");
  EXPECT_EQ(with(R"({"\u0061":1, "a":2, "t": true})", R"({"a":3})"), R"({"\u0061":3,"t":true})");
  EXPECT_EQ(with(R"({"n":{"a":[]},"e":1E5})", R"({"a":"x"})"), R"({"n":{"a":[]},"e":1E5,"a":"x"})");
}

TEST(Text, ReplacesOrRejectsBadUtf8) {
  TempFolder folder;
  const std::string plain = write(folder / "a.txt",
                                  "fine\nb\xFF"
                                  "d\nfine\n"),
                    lines = write(folder / "a.jsonl", "\n{\"text\": \"b\xC3\"}");
  for (const auto& [file, offset] : {std::pair{plain, 6}, {lines, 12}}) {
    PieceReader reader({file}, {});
    const TextFlaws count = split_documents(file, *reader.next(), {}, [](std::string_view, bool, bool) {});
    EXPECT_EQ(count.replaced, 1);
    EXPECT_EQ(count.first_offset, offset);
    expect_error(Code::data, {file, fmt::format("offset {}", offset), "UTF-8"},
                 [&] { documents({file}, {.strict = true}, 1 << 20); });
  }
}

TEST(Text, LeavesOutAByteOrderMark) {
  TempFolder folder;
  const std::string mark = "\xEF\xBB\xBF", text = "one\ntwo \xEF\xBB\xBF three\n\nfour";
  const std::string plain = write(folder / "a.txt", text), marked = write(folder / "b.txt", mark + text),
                    lines = write(folder / "c.jsonl", mark + "{\"text\": \"one\"}\n");
  for (const Document document : {Document::file, Document::line, Document::block}) {
    for (const int64_t bytes : {4, 5, 7, 16, 1 << 20}) {  // at least one character fits
      const TextOptions options{.document = document};
      EXPECT_EQ(documents({marked, plain, marked}, options, bytes), documents({plain, plain, plain}, options, bytes));
    }
  }
  EXPECT_EQ(documents({lines}, {}, 5), std::vector<std::string>{"one"});
}

TEST(Text, RejectsWhatDoesNotBeginAsText) {
  TempFolder folder;
  using namespace std::string_literals;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"\x1F\x8B\x08\0\0"s, "gzip"},
      {"\x28\xB5\x2F\xFD..."s, "Zstandard"},
      {"\xFD\x37zXZ\0.."s, "xz"},
      {"BZh91AY&SY.."s, "bzip2"},
      {"version https://git-lfs.github.com/spec/v1\noid"s, "Git LFS"},
      {"PK\x03\x04.."s, "ZIP"},
      {"PAR1...."s, "Parquet"},
      {"\xFF\xFE\x61\0"s, "UTF-16"},
      {"\xFE\xFF\0a"s, "UTF-16"}};
  for (const auto& [bytes, what] : cases) {
    const std::string file = write(folder / "a.txt", bytes);
    const std::vector<std::string> parts = {file, "offset 0: expected text, found", what};
    expect_error(Code::data, parts, [&] { documents({file}, {}, 100); });
    const auto insisted = [&] { return documents({file}, {.format = config::DataFormat::text}, 100); };
    if (utf8_first_invalid(bytes) < 4) {
      expect_error(Code::data, parts, insisted);
    } else {
      EXPECT_EQ(insisted().size(), 1u) << what;
    }
  }
  for (const char* name : {"a.txt.gz", "a.jsonl.zst"})
    expect_error(Code::data, {name, "a pointer of Git LFS", "git lfs pull"}, [&] {
      documents({write(folder / name, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n")}, {},
                100);
    });
  for (const char* text : {"BZh is a word", "PK", "P"})
    EXPECT_EQ(documents({write(folder / "a.txt", text)}, {}, 100).size(), 1u) << text;
}

TEST(Text, RejectsOtherEncodingsUnderAnyFormat) {
  TempFolder folder;
  const std::string line = "abcdefghi\n";
  for (const auto format : {config::DataFormat::automatic, config::DataFormat::text, config::DataFormat::jsonl}) {
    const std::string latin = write(folder / "a.txt", line + "\xE9\xE8\xE0");  // 3 of 13 bytes are not UTF-8
    expect_error(Code::data, {latin, "offset 10", "3 of the first 13 bytes", "UTF-8", "iconv"},
                 [&] { documents({latin}, {.format = format}, 5); });
  }
  EXPECT_EQ(documents({write(folder / "a.txt", line + line + "\xE9\xE8")}, {}, 5).size(), 1u) << "2 of 22";
  // Only the first MiB is checked.
  std::string late(size_t{1} << 20, 'a');
  late += std::string(late.size(), '\xE9');
  EXPECT_EQ(documents({write(folder / "a.txt", late)}, {}, 1 << 22).size(), 1u);
}

TEST(JsonLines, AreMendedWhereJsonForbidsWhatPythonWrites) {
  const auto mended = [](std::string line) {
    const JsonRepair repair = mend_json(line);
    return std::pair(line, repair.surrogates);
  };
  using Mended = std::pair<std::string, int64_t>;
  EXPECT_EQ(mended(R"({"a": "x\ud83d y"})"), Mended(R"({"a": "x\ufffd y"})", 1));
  EXPECT_EQ(mended(R"({"a": "\ude00\ud83d\ude00\uD83D"})"), Mended(R"({"a": "\ufffd\ud83d\ude00\ufffd"})", 2));
  EXPECT_EQ(mended(R"({"a": "\ud83d\ud83d\ude00"})"), Mended(R"({"a": "\ufffd\ud83d\ude00"})", 1));
  EXPECT_EQ(mended(R"({"a": NaN, "b": [-Infinity, Infinity], "c": "NaN \" Infinity"})"),
            Mended(R"({"a": null, "b": [null, null], "c": "NaN \" Infinity"})", 0));
  EXPECT_EQ(mended("{\"a\": \"x\ty\\\\\"}\t"), Mended("{\"a\": \"x\\u0009y\\\\\"}\t", 0));
  for (const char* same :
       {R"({"a": "\\ud83d", "b": "\u00e9"})", R"({"a": "\ud8)", R"({"a": "\)", "", "\"", R"({"a": N})"})
    EXPECT_EQ(mended(same), Mended(same, 0));
}

TEST(JsonLines, ReportWhereTheyAreNotJson) {
  expect_parts(json_fault(R"({"a": 1, })"), {"column 10"});
  expect_parts(json_fault(R"({"a": 1e999})"), {"1e999"});
}

TEST(JsonLines, CountHalvesOfPairsAsReplaced) {
  const TempFolder folder;
  const std::string lines = R"({"text": "one", "score": NaN})"
                            "\n"
                            R"({"text": "t\ud83dwo"})"
                            "\n";
  const std::string file = write(folder / "a.jsonl", lines);
  EXPECT_EQ(documents({file}, {}, 1 << 20), (std::vector<std::string>{"one", "t\xEF\xBF\xBDwo"}));
}

}  // namespace
}  // namespace trainer::data
