#include "data/token_file.h"

#include <gtest/gtest.h>

#include "data/positions.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

std::vector<int32_t> numbers(int count, int limit, uint64_t seed = 1) {
  Random random(seed);
  std::vector<int32_t> out(count);
  for (int32_t& value : out) value = static_cast<int32_t>(pick(random, limit));
  return out;
}

/// Returns llm.c's header: three words, the rest 0.
std::string llm_c_header(uint32_t magic, uint32_t version, uint32_t count) {
  std::vector<uint32_t> words(256);
  words[0] = magic;
  words[1] = version;
  words[2] = count;
  return packed<uint32_t>(words);
}

std::vector<int32_t> all_of(const TokenStream& stream) {
  std::vector<int32_t> out(stream.tokens());
  stream.copy(0, out);
  return out;
}

std::string open_and_read(const std::string& file) {
  const TokenStream stream({file});
  all_of(stream);
  return stream.fingerprint();
}

/// Returns Megatron's index of documents that have one sequence each.
std::string megatron_index(const std::vector<int32_t>& lengths, uint8_t code, int width) {
  std::string bytes("MMIDIDX\0\0", 9);
  std::vector<int64_t> pointers, marks{0};
  int64_t at = 0;
  for (const int32_t length : lengths) {
    pointers.push_back(at);
    at += length * width;
    marks.push_back(static_cast<int64_t>(pointers.size()));
  }
  bytes += packed<uint64_t>(std::vector{1}) + static_cast<char>(code);
  bytes += packed<uint64_t>(std::vector{lengths.size(), marks.size()});
  return bytes + packed<int32_t>(lengths) + packed<int64_t>(pointers) + packed<int64_t>(marks);
}

TEST(TokenFile, ReadsLlmCFilesOfBothWidths) {
  TempFolder folder;
  const auto ids = numbers(1000, 50257);
  const TokenStream narrow({write(folder / "a.bin", llm_c_header(20240520, 1, 1000) + packed<uint16_t>(ids))});
  EXPECT_EQ(all_of(narrow), ids);
  EXPECT_EQ(narrow.info().vocab_size, 50257);
  EXPECT_EQ(narrow.info().eos, 50256);
  EXPECT_EQ(narrow.info().tokenizer_hash, "");
  const auto large = numbers(1000, 128256);
  const TokenStream wide({write(folder / "b.bin", llm_c_header(20240801, 7, 1000) + packed<uint32_t>(large))});
  EXPECT_EQ(all_of(wide), large);
  EXPECT_EQ(wide.info().vocab_size, 0);
  EXPECT_EQ(wide.info().eos, -1);
}

TEST(TokenFile, ReadsHeaderlessFiles) {
  TempFolder folder;
  const auto ids = numbers(1001, 50257);
  const TokenStream stream({write(folder / "a.bin", packed<uint16_t>(ids))});
  EXPECT_EQ(all_of(stream), ids);
  EXPECT_EQ(stream.info().vocab_size, 0);
  const TokenStream one({write(folder / "one.bin", packed<uint16_t>(std::vector{7}))});
  EXPECT_EQ(all_of(one), std::vector<int32_t>{7});
}

std::string from_hex(std::string_view digits) {
  std::string bytes;
  for (size_t i = 0; i < digits.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(digits.substr(i, 2)), nullptr, 16));
  return bytes;
}

// The bytes are those that Megatron-LM's own IndexedDatasetBuilder (megatron-core 0.16) writes for three documents of
// two, one and two sequences, as uint16 and as int32.
TEST(TokenFile, ReadsWhatMegatronWrites) {
  const std::string start = "4d4d4944494458000001000000000000000";
  const std::string counts = "05000000000000000400000000000000", lengths = "0200000004000000030000000200000002000000";
  const std::string marks = "0000000000000000020000000000000003000000000000000500000000000000";
  const std::vector<int32_t> ids{5, 6, 7, 8, 9, 0, 300, 1, 0, 11, 12, 13, 0};
  struct Case {
    const char *code, *pointers, *tokens;
  };
  for (const auto& [code, pointers, tokens] :
       {Case{"8", "000000000000000004000000000000000c0000000000000012000000000000001600000000000000",
             "0500060007000800090000002c01010000000b000c000d000000"},
        Case{"4",
             "0000000000000000080000000000000018000000000000002400000000000000"
             "2c00000000000000",
             "0500000006000000070000000800000009000000000000002c01000001000000000000000b0000000c0000000d0000000000000"
             "0"}}) {
    TempFolder folder;
    write(folder / "m_text_document.idx", from_hex(start + code + counts + lengths + pointers + marks));
    const TokenStream stream({write(folder / "m_text_document.bin", from_hex(tokens))});
    EXPECT_EQ(all_of(stream), ids);
    EXPECT_EQ(stream.document_end_near(5, 1), 6);
    EXPECT_EQ(stream.document_end_near(8, 1), 9);
    EXPECT_EQ(stream.document_end_near(11, 1), std::nullopt);
    EXPECT_EQ(stream.document_end_near(10, 1), 9);
  }
}

TEST(TokenFile, ReadsWhatItWrites) {
  TempFolder folder;
  const std::string hash = "00112233445566778899aabbccddeeff";
  for (const int64_t vocab : {300, 65536, 65537, 200000}) {
    const auto ids = numbers(500, static_cast<int>(vocab));
    const std::string header = token_header({500, vocab, 2, hash});
    EXPECT_EQ(static_cast<int64_t>(header.size()), kTokenHeaderBytes);
    const std::string tokens = token_width(vocab) == 2 ? packed<uint16_t>(ids) : packed<uint32_t>(ids);
    EXPECT_EQ(token_width(vocab), vocab <= 65536 ? 2 : 4);
    const TokenStream stream({write(folder / "w.bin", header + tokens)});
    EXPECT_EQ(all_of(stream), ids);
    EXPECT_EQ(stream.info().vocab_size, vocab);
    EXPECT_EQ(stream.info().eos, 2);
    EXPECT_EQ(stream.info().tokenizer_hash, hash);
  }
}

TEST(TokenFile, RecordsTheTokenThatBeginsDocuments) {
  TempFolder folder;
  const std::string tokens = packed<uint16_t>(numbers(8, 300));
  const auto file = [&](const std::string& name, int32_t bos) {
    const std::string header = token_header({8, 300, 2, "", bos});
    uint32_t word;
    std::memcpy(&word, header.data() + 40, sizeof word);
    EXPECT_EQ(word, static_cast<uint32_t>(bos + 1));
    return write(folder / name, header + tokens);
  };
  EXPECT_EQ(token_header({8, 300, 2, "", -1}), token_header({8, 300, 2, ""}));
  const std::string none = file("none.bin", -1), zero = file("zero.bin", 0), one = file("one.bin", 1);
  EXPECT_EQ(TokenStream({none, none}).info().bos, -1);
  EXPECT_EQ(TokenStream({zero}).info().bos, 0);
  EXPECT_EQ(TokenStream({one, one}).info().bos, 1);
  expect_error(Code::data, {"one.bin: offset 40", "token 1", "none.bin with no BOS token", "data.bos"}, [&] {
    TokenStream({none, one});
  });
}

TEST(TokenFile, HoldsMoreTokensThan32BitsCount) {
  const int64_t count = (int64_t{5} << 32) + 77;
  const std::string header = token_header({count, 1000, 2, ""});
  uint32_t words[4];
  std::memcpy(words, header.data(), sizeof words);
  EXPECT_EQ(words[2], 77u);
  EXPECT_EQ(words[3], 5u);
  TempFolder folder;  // a sparse file: only its size exists
  const std::string file = write(folder / "huge.bin", token_header({int64_t{3} << 30, 1000, 2, ""}));
  fs::resize_file(file, static_cast<uintmax_t>(kTokenHeaderBytes + (int64_t{6} << 30)));
  const TokenStream stream({file});
  EXPECT_EQ(stream.tokens(), int64_t{3} << 30);
  std::vector<int32_t> last(3, 1);
  stream.copy(stream.tokens() - 3, last);
  EXPECT_EQ(last, std::vector<int32_t>(3, 0));
}

TEST(TokenFile, JoinsFilesIntoOneStream) {
  TempFolder folder;
  std::vector<int32_t> expected;
  std::vector<std::string> files;
  for (const int size : {5, 1, 17, 100}) {
    const auto ids = numbers(size, 60000, static_cast<uint64_t>(size));
    expected.insert(expected.end(), ids.begin(), ids.end());
    files.push_back(write(folder / fmt::format("{}.bin", size), packed<uint16_t>(ids)));
  }
  const TokenStream stream(files);
  EXPECT_EQ(all_of(stream), expected);
  for (int64_t begin = 0; begin < 123; ++begin) {
    std::vector<int32_t> part(std::min<int64_t>(20, 123 - begin));
    stream.copy(begin, part);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), expected.begin() + begin));
  }
  EXPECT_EQ(stream.document_end_near(7, 5), 6);  // the end of a file
  std::vector<int64_t> counts(60000), again(60000);
  stream.count(3, 120, counts);
  for (int64_t i = 3; i < 120; ++i) ++again[expected[i]];
  EXPECT_EQ(counts, again);
}

TEST(TokenFile, DoesNotJoinDifferentTokenizers) {
  TempFolder folder;
  const std::string a =
      write(folder / "a.bin", token_header({2, 300, 2, std::string(32, '1')}) + packed<uint16_t>(std::vector{1, 2}));
  const std::string b =
      write(folder / "b.bin", token_header({2, 300, 2, std::string(32, '2')}) + packed<uint16_t>(std::vector{1, 2}));
  expect_error(Code::data, {"b.bin", "a.bin", "same tokenizer"}, [&] { TokenStream({a, b}); });
}

TEST(TokenFile, FindsDocumentEndsByTheEndOfTextToken) {
  TempFolder folder;
  std::vector<int> ids(100, 5);
  ids[29] = ids[69] = 2;
  const TokenStream stream({write(folder / "a.bin", token_header({100, 10, 2, ""}) + packed<uint16_t>(ids))});
  EXPECT_EQ(stream.document_end_near(52, 25), 70);
  EXPECT_EQ(stream.document_end_near(45, 25), 30);
  EXPECT_EQ(stream.document_end_near(50, 10), std::nullopt);
  EXPECT_EQ(stream.document_end_near(99, 5), std::nullopt);  // the end of the last file is not a split
}

TEST(TokenFile, FindsWhereDocumentsStart) {
  TempFolder folder;
  const std::string info = token_header({8, 300, 2, ""});
  const auto ended = [&](const std::string& name, const std::vector<int>& ids) {
    return write(folder / name, info + packed<uint16_t>(ids));
  };
  const auto indexed = [&](const std::string& name, const std::vector<int64_t>& positions) {
    write(folder / (name + ".docs"),
          positions_header(kDocuments, static_cast<int64_t>(positions.size()) - 1) + packed<int64_t>(positions));
    return ended(name + ".bin", {9, 2, 9, 9, 2, 9, 9, 9});  // the index is used, not the end-of-text tokens
  };
  write(folder / "m.idx", megatron_index({2, 0, 4, 3, 2, 2, 0}, 8, 2));  // two documents are empty
  const std::string megatron = write(folder / "m.bin", packed<uint16_t>(numbers(13, 300)));
  const std::vector<int> tokens = {9, 9, 2, 2, 9, 9, 2, 9};
  const std::vector<std::pair<std::vector<std::string>, std::vector<int64_t>>> cases = {
      {{ended("a.bin", tokens)}, {0, 3, 4, 7}},
      {{indexed("b", {0, 3, 4, 8})}, {0, 3, 4}},
      {{megatron}, {0, 2, 6, 9, 11}},
      {{write(folder / "n.bin", packed<uint16_t>(numbers(8, 300)))}, {0}},  // neither an index nor an end-of-text token
      {{write(folder / "plain.bin", packed<uint16_t>(tokens))}, {0, 3, 4, 7}},
      {{ended("c.bin", tokens), indexed("d", {0, 3, 3, 8}), ended("e.bin", {2, 9, 9, 9, 9, 9, 9, 2}),
        indexed("f", {0, 8})},
       {0, 3, 4, 7, 8, 11, 16, 17, 24}},
  };
  for (const auto& [files, starts] : cases) {
    TokenStream stream(files);
    const std::vector<int32_t> ids = all_of(stream);
    const bool plain = files.front().ends_with("plain.bin");
    EXPECT_EQ(stream.has_documents(), !plain && !files.front().ends_with("/n.bin"));
    if (plain || stream.has_documents()) stream.end_documents_with(plain ? 2 : 9);  // only for files without a header
    EXPECT_EQ(stream.has_documents(), !files.front().ends_with("/n.bin"));
    for (int64_t begin = 0; begin < stream.tokens(); ++begin)
      for (int64_t end = begin; end <= stream.tokens(); ++end) {
        std::vector<int64_t> found = {-1}, expected = found;  // appended to
        stream.append_starts(begin, std::span(ids).subspan(begin, end - begin), 100, found);
        for (const int64_t start : starts)
          if (start >= begin && start < end) expected.push_back(start - begin + 100);
        ASSERT_EQ(found, expected) << files.front() << " [" << begin << ", " << end << ")";
      }
  }
}

TEST(TokenFile, FindsFilesAndDocumentsOfTokens) {
  TempFolder folder;
  const std::vector<int64_t> ends = {0, 3, 3, 8};  // the second document is empty
  write(folder / "a.docs", positions_header(kDocuments, 3) + packed<int64_t>(ends));
  const std::string a = write(folder / "a.bin", token_header({8, 300, 2, ""}) + packed<uint16_t>(numbers(8, 300)));
  const std::string b = write(folder / "b.bin", token_header({5, 300, 2, ""}) + packed<uint16_t>(numbers(5, 300)));
  const TokenStream stream({a, b, a});
  using Row = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t>;
  const auto found = [&](int64_t begin, int64_t end) {
    std::vector<Row> rows;
    for (const FileSpan& span : stream.files_of(begin, end))
      rows.emplace_back(span.file, span.begin, span.end, span.first_document, span.last_document);
    return rows;
  };
  EXPECT_EQ(found(0, 3), (std::vector<Row>{{a, 0, 3, 0, 0}}));
  EXPECT_EQ(found(2, 4), (std::vector<Row>{{a, 2, 4, 0, 2}}));
  EXPECT_EQ(found(3, 8), (std::vector<Row>{{a, 3, 8, 2, 2}}));
  EXPECT_EQ(found(7, 15), (std::vector<Row>{{a, 7, 8, 2, 2}, {b, 0, 5, -1, -1}, {a, 0, 2, 0, 0}}));
  EXPECT_EQ(found(20, 21), (std::vector<Row>{{a, 7, 8, 2, 2}}));
  EXPECT_TRUE(found(4, 4).empty());
}

TEST(TokenFile, ReadsWhichTokensAreCounted) {
  TempFolder folder;
  const auto tokens = [&](const std::string& name, int64_t count, bool spans) {
    const TokenFileInfo info{.tokens = count, .vocab_size = 300, .spans = spans};
    const fs::path documents = positions_path(folder / name, kDocuments);
    if (spans) write(documents, positions_header(kDocuments, 1) + packed<int64_t>(std::vector<int64_t>{0, count}));
    return write(folder / name, token_header(info) + packed<uint16_t>(numbers(count, 300)));
  };
  const auto spans = [&](const std::string& name, const std::vector<int64_t>& bounds) {
    write(folder / name, positions_header(kSpans, std::ssize(bounds) / 2) + packed<int64_t>(bounds));
  };
  spans("a.spans", {1, 3, 5, 6, 9, 12});
  spans("b.spans", {0, 5});
  spans("c.spans", {});
  spans("d.spans", {0, 4});
  const std::string a = tokens("a.bin", 12, true), b = tokens("b.bin", 5, true), c = tokens("c.bin", 3, true);
  const TokenStream stream({a, b, c, tokens("d.bin", 4, true)});
  const std::string expected =
      "-XX--X---XXX"
      "XXXXX"
      "---"
      "XXXX";
  EXPECT_TRUE(stream.has_spans());
  for (int64_t begin = 0; begin <= stream.tokens(); ++begin)
    for (int64_t end = begin; end <= stream.tokens(); ++end) {
      std::vector<TokenRange> runs;
      stream.append_spans(begin, end, runs);
      std::string found(expected.size(), '-');
      for (const auto& [from, stop] : runs) std::fill(found.begin() + from, found.begin() + stop, 'X');
      std::string part(expected.size(), '-');
      part.replace(begin, end - begin, expected, begin, end - begin);
      ASSERT_EQ(found, part) << "[" << begin << ", " << end << ")";
      ASSERT_EQ(stream.counted(begin, end), std::ranges::count(part, 'X'));
    }
  const std::string e = tokens("e.bin", 5, false);
  const TokenStream text({e});
  EXPECT_FALSE(text.has_spans());
  EXPECT_EQ(text.counted(1, 4), 3);
  expect_error(Code::data, {"e.bin", "offset 44", "no loss spans", "a.bin"}, [&] { TokenStream({a, e}); });

  const std::string before = TokenStream({a}).fingerprint();
  spans("a.spans", {1, 3, 5, 6, 9, 11});
  EXPECT_NE(before, TokenStream({a}).fingerprint());
  const auto refused = [&](const std::string& contents, const std::vector<std::string>& parts) {
    write(folder / "a.spans", contents);
    expect_error(Code::data, parts, [&] { TokenStream({a}).counted(0, 12); });
  };
  const std::vector<int64_t> odd = {1, 2, 3}, beyond = {1, 13}, descending = {5, 3};
  refused("trndocs1", {"a.spans", "offset 0", "trnspan1", "tokenize again"});
  refused(positions_header(kSpans, 1) + packed<int64_t>(odd), {"a.spans", "offset 40", "truncated", "1 spans"});
  refused(positions_header(kSpans, 1) + packed<int64_t>(beyond), {"a.spans", "offset 24", "token 13 of 12"});
  refused(positions_header(kSpans, 1) + packed<int64_t>(descending), {"a.spans", "offset 16", "[5, 3)"});
  fs::remove(folder / "a.spans");
  expect_error(Code::data, {"a.bin", "loss spans", "a.spans is missing", "tokenize again"}, [&] { TokenStream({a}); });
  fs::remove(folder / "b.docs");
  expect_error(Code::data, {"b.bin", "loss spans", "b.docs is missing", "tokenize again"}, [&] { TokenStream({b}); });
}

TEST(TokenFile, NamesFileAndOffsetOfTokensOutsideTheVocabulary) {
  TempFolder folder;
  std::vector<int32_t> ids = numbers(3'000'000, 1000);
  ids[2'500'000] = 1000;
  ids[2'500'007] = 60000;
  TokenStream stream({write(folder / "a.bin", token_header({3'000'000, 1000, 2, ""}) + packed<uint16_t>(ids))});
  for (const int threads : {1, 2, 5}) {
    expect_error(Code::data, {"a.bin", "offset 5001024", "token 1000 ", "number 2500000", "vocabulary of 1000"},
                 [&] { stream.check_vocabulary(1000, threads); });
    stream.check_vocabulary(60001, threads);
  }
  std::vector<int32_t> window(10);
  stream.copy(2'500'000, window);
  stream.limit_vocabulary(1000);
  stream.copy(2'400'000, window);
  expect_error(Code::data, {"a.bin", "offset 5001024"}, [&] { stream.copy(2'499'995, window); });
}

TEST(TokenFile, RejectsDamagedFilesNamingFileAndOffset) {
  TempFolder folder;
  const std::string ids = packed<uint16_t>(numbers(100, 300));
  const std::string good = token_header({100, 300, 2, ""}) + ids;
  int number = 0;
  const auto refused = [&](const std::string& bytes, std::vector<std::string> parts) {
    const std::string file = write(folder / fmt::format("d{}.bin", number++), bytes);
    parts.push_back(file);
    expect_error(Code::data, parts, [&] { open_and_read(file); });
  };
  refused("", {"offset 0", "empty"});
  refused("abc", {"offset 2", "truncated"});
  refused(good.substr(0, 500), {"offset 500", "truncated"});
  refused(good.substr(0, 1024), {"offset 1024", "truncated"});
  refused(good.substr(0, good.size() - 1), {"offset 1223", "truncated", "100 tokens"});
  refused(good + "xx", {"offset 1226", "too long"});
  refused(llm_c_header(20240520, 2, 100) + ids, {"offset 4", "version 2", "expected 1"});
  refused(llm_c_header(20240801, 1, 50) + ids, {"offset 4", "version 1", "expected 7"});
  refused(llm_c_header(20240520, 1, 0), {"offset 1024", "0 tokens"});
  refused(llm_c_header(20240520, 1, 0xFFFFFFFF) + ids, {"truncated"});
  refused(token_header({int64_t{1} << 62, 300, 2, ""}) + ids, {"offset 1224", "truncated", "room for 100"});
  expect_error(Code::data, {"none.bin", "cannot open"}, [&] { TokenStream({(folder / "none.bin").string()}); });
  expect_error(Code::data, {folder.path().string(), "not a regular file"},
               [&] { TokenStream({folder.path().string()}); });
}

TEST(TokenFile, RejectsDamagedIndexes) {
  TempFolder folder;
  const std::string ids = packed<uint16_t>(numbers(60, 300));
  const std::string good = megatron_index({10, 20, 30}, 8, 2);
  write(folder / "m.bin", ids);
  const auto refused = [&](const std::string& index, const std::vector<std::string>& parts) {
    write(folder / "m.idx", index);
    expect_error(Code::data, parts, [&] { open_and_read((folder / "m.bin").string()); });
  };
  const auto changed = [&](size_t at, char byte) {
    std::string other = good;
    other[at] = byte;
    return other;
  };
  refused(changed(9, 2), {"m.idx", "offset 9", "version 2"});
  refused(changed(17, 6), {"m.idx", "offset 17", "token type 6"});
  refused(changed(25, '\x7f'), {"m.idx", "truncated"});
  refused(good.substr(0, 20), {"m.idx", "offset 20", "truncated"});
  refused(good.substr(0, good.size() - 5), {"m.idx", "truncated"});
  refused(megatron_index({10, 20, 40}, 8, 2), {"m.bin", "offset 120", "truncated"});

  const auto own = [&](const std::string& documents, const std::vector<std::string>& parts) {
    write(folder / "o.bin", token_header({60, 300, 2, ""}) + ids);
    write(folder / "o.docs", documents);
    expect_error(Code::data, parts, [&] { open_and_read((folder / "o.bin").string()); });
  };
  own("", {"o.docs", "offset 0"});
  own("something else", {"o.docs", "offset 0", "not a document index"});
  own(positions_header(kDocuments, 2) + packed<int64_t>(std::vector{0, 30}), {"o.docs", "offset 32", "truncated"});
  expect_error(Code::data, {"p.docs", "offset 24", "ends at token -9"}, [&] {
    write(folder / "p.docs", positions_header(kDocuments, 2) + packed<int64_t>(std::vector{0, -9, 60}));
    const TokenStream stream({write(folder / "p.bin", token_header({60, 300, 2, ""}) + ids)});
    stream.document_end_near(30, 20);
  });
  own(positions_header(kDocuments, 2) + packed<int64_t>(std::vector{0, 30, 61}),
      {"o.docs", "offset 32", "ends at token 61"});
}

TEST(TokenFile, SurvivesRandomDamage) {
  TempFolder folder;
  const std::string ids = packed<uint16_t>(numbers(60, 300));
  const std::string index = megatron_index({10, 20, 30}, 8, 2), header = token_header({60, 300, 2, ""}),
                    documents = positions_header(kDocuments, 2) + packed<int64_t>(std::vector{0, 30, 60});
  const auto damaged = [](std::string bytes, Random& random, int64_t within) {
    bytes[pick(random, std::min<int64_t>(within, bytes.size()))] = static_cast<char>(random());
    if (pick(random, 3) == 0) bytes.resize(pick(random, bytes.size()));
    return bytes;
  };
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    write(folder / "m.bin", ids);
    write(folder / "m.idx", damaged(index, random, 200));
    write(folder / "o.bin", damaged(header + ids, random, 40));
    write(folder / "o.docs", damaged(documents, random, 40));
    for (const std::string name : {"m.bin", "o.bin"}) {
      try {
        const TokenStream stream({(folder / name).string()});
        stream.document_end_near(stream.tokens() / 2, stream.tokens());
        all_of(stream);
      } catch (const Error& error) {
        ASSERT_EQ(error.code(), Code::data) << "seed " << seed << ": " << error.what();
      }
    }
  }
}

TEST(TokenFile, FingerprintTellsFilesApart) {
  TempFolder folder;
  auto ids = numbers(100'000, 300);
  const std::string before = open_and_read(write(folder / "a.bin", packed<uint16_t>(ids)));
  EXPECT_EQ(before, open_and_read(write(folder / "same.bin", packed<uint16_t>(ids))));
  ids.back() += 1;
  EXPECT_NE(before, open_and_read(write(folder / "b.bin", packed<uint16_t>(ids))));
  ids.pop_back();
  EXPECT_NE(before, open_and_read(write(folder / "c.bin", packed<uint16_t>(ids))));
}

}  // namespace
}  // namespace trainer::data
