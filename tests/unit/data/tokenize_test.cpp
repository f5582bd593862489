#include "data/tokenize.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/name_lock.h"
#include "base/utf8.h"
#include "data/input_key.h"
#include "data/token_file.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;
using config::Document;

/// Returns the contents of the finished files.
std::string output_bytes(const fs::path& output) {
  return read_file(output) + read_file(fs::path(output).replace_extension(".docs"));
}

std::vector<int32_t> tokens_of(const fs::path& output) {
  const TokenStream stream({output.string()});
  std::vector<int32_t> ids(stream.tokens());
  stream.copy(0, ids);
  return ids;
}

/// Writes three files of random text and returns their paths.
std::vector<std::string> corpus(const TempFolder& folder, uint64_t seed, int64_t bytes) {
  Random random(seed);
  std::vector<std::string> files;
  for (int i = 0; i < 3; ++i)
    files.push_back(write(folder / fmt::format("in{}.txt", i), random_text(random, 1 + pick(random, bytes))));
  return files;
}

TEST(Tokenize, DecodesToTheFilesWithEosAfterEach) {
  const Tokenizer& t = small_tokenizer();
  for (uint64_t seed = 0; seed < 10; ++seed) {
    TempFolder folder;
    const auto files = corpus(folder, seed, 5000);
    const TokenizeResult result = tokenize_files(files, t, folder / "out.bin", {.piece_bytes = 500});
    EXPECT_TRUE(result.finished);
    EXPECT_FALSE(result.reused);
    EXPECT_EQ(result.documents, 3);
    std::vector<int32_t> expected;
    for (const std::string& file : files) {
      for (const int32_t id : t.encode(read_file(file))) expected.push_back(id);
      expected.push_back(t.eos());
    }
    ASSERT_EQ(tokens_of(folder / "out.bin"), expected) << "seed " << seed;
    EXPECT_EQ(result.tokens, static_cast<int64_t>(expected.size()));
    const TokenStream stream({result.tokens_file.string()});
    EXPECT_EQ(stream.info().tokenizer_hash, t.hash());
    EXPECT_EQ(stream.info().vocab_size, t.vocab_size());
    EXPECT_EQ(stream.info().eos, t.eos());
    EXPECT_FALSE(fs::exists(folder / "out.work"));
  }
}

TEST(Tokenize, NamesTheTextOfADocumentWhereTheManifestTells) {
  TempFolder folder;
  const auto files = corpus(folder, 1, 500);
  const TextOptions whole, lines{.document = config::Document::line};
  tokenize_files(files, small_tokenizer(), folder / "all.bin", {});
  tokenize_files({files[1]}, small_tokenizer(), folder / "one.bin", {.text = lines});
  tokenize_files(files, small_tokenizer(), folder / "lines.bin", {.text = lines});
  for (size_t i = 0; i < files.size(); ++i)
    EXPECT_EQ(text_of_document(folder / "all.bin", static_cast<int64_t>(i), whole), files[i]);
  EXPECT_EQ(text_of_document(folder / "all.bin", 3, whole), "");
  EXPECT_EQ(text_of_document(folder / "all.bin", -1, whole), "");
  EXPECT_EQ(text_of_document(folder / "one.bin", 7, lines), files[1]);
  EXPECT_EQ(text_of_document(folder / "lines.bin", 1, lines), "");
  EXPECT_EQ(text_of_document(folder / "lines.bin", 1, whole), "") << "there are more documents than files";
  write(folder / "broken.json", R"({"inputs": [1, 2], "done": 3})");
  EXPECT_EQ(text_of_document(folder / "broken.bin", 0, whole), "");
}

TEST(Tokenize, DoesNotDependOnThreadsOrPieces) {
  TempFolder folder;
  const auto files = corpus(folder, 5, 200'000);
  for (const Document what : {Document::file, Document::line, Document::block}) {
    TokenizeOptions options{.text = {.document = what}};
    tokenize_files(files, small_tokenizer(), folder / "one.bin", options);
    for (const int threads : {1, 2, 5}) {
      options.threads = threads;
      options.piece_bytes = 2000 + 777 * threads;
      tokenize_files(files, small_tokenizer(), folder / "many.bin", options);
      ASSERT_EQ(output_bytes(folder / "one.bin"), output_bytes(folder / "many.bin")) << threads << " threads";
      fs::remove(folder / "many.json");
    }
    fs::remove(folder / "one.json");
  }
}

TEST(Tokenize, BeginsEachDocumentWithTheBosTokenInUse) {
  TempFolder folder;
  const auto files = corpus(folder, 8, 50'000);
  Tokenizer with = small_tokenizer();
  with.use_bos(config::Bos::automatic, "x");
  EXPECT_EQ(with.bos(), -1) << "a tokenizer trained here adds none";
  with.use_bos(config::Bos::on, "x");
  ASSERT_EQ(with.name_of(with.bos()), "<s>");
  for (const Document what : {Document::file, Document::line, Document::block}) {
    TokenizeOptions options{.text = {.document = what}};
    tokenize_files(files, small_tokenizer(), folder / "without.bin", options);
    std::vector<int32_t> expected = {with.bos()};
    for (const int32_t id : tokens_of(folder / "without.bin")) {
      expected.push_back(id);
      if (id == with.eos()) expected.push_back(with.bos());
    }
    expected.pop_back();
    for (const int threads : {1, 3}) {
      options.threads = threads;
      options.piece_bytes = 700 * threads;  // documents cross pieces
      tokenize_files(files, with, folder / "with.bin", options);
      ASSERT_EQ(tokens_of(folder / "with.bin"), expected) << threads << " threads";
      const TokenStream stream({(folder / "with.bin").string()});
      EXPECT_EQ(stream.info().bos, with.bos());
      std::vector<int64_t> starts, found;
      for (size_t i = 0; i < expected.size(); ++i)
        if (expected[i] == with.bos()) starts.push_back(static_cast<int64_t>(i));
      stream.append_starts(0, expected, 0, found);
      EXPECT_EQ(found, starts);
      fs::remove(folder / "with.json");
    }
    fs::remove(folder / "without.json");
  }
}

TEST(InputKey, TakesAMovedFileOnlyIfItsNameIsUnique) {
  TempFolder folder;
  const std::string a = write(folder / "a/x.txt", "one"), b = write(folder / "b/x.txt", "two"),
                    moved = (folder / "c/x.txt").string();
  std::vector<std::string> gone;
  nlohmann::json known = describe_inputs({a, b}, {}, nullptr, gone);
  EXPECT_EQ(describe_inputs({b, a}, {}, known, gone), (nlohmann::json{known[1], known[0]}));
  EXPECT_TRUE(gone.empty());
  for (const std::string& file : {a, b}) fs::remove(file);
  EXPECT_EQ(describe_inputs({b}, {}, known, gone), nlohmann::json::array({known[1]}));
  EXPECT_EQ(gone, std::vector{b});
  expect_error(Code::data, {moved}, [&] { describe_inputs({moved}, {}, known, gone); });
  known.erase(0);
  EXPECT_EQ(describe_inputs({moved}, {}, known, gone), known);
  EXPECT_EQ(gone, (std::vector{b, moved}));
}

// The key and the tokens are those of commit e80ed7d, which had no BOS tokens.
TEST(Tokenize, AnotherBosTokenMakesOtherTokens) {
  TempFolder folder;
  Tokenizer gpt2 = Tokenizer::load(std::string(TRAINER_SOURCE_DIR) + "/data/gpt2");
  const TextOptions text{.document = Document::line};
  const std::vector<std::string> files = {write(folder / "a.txt", "She had never\nseen it.\n")};
  const fs::path output = folder / "out.bin";
  const auto key = [&] {
    tokenize_files(files, gpt2, output, {.text = text});
    return nlohmann::json::parse(read_file(folder / "out.json"))["key"].get<std::string>();
  };
  gpt2.use_bos(config::Bos::automatic, "x");
  const std::string before = key();
  EXPECT_EQ(hash_file(output), "8e285dfbb359875d5eb7786de3de19ae");
  EXPECT_TRUE(find_tokens(files, gpt2, output, text));
  gpt2.use_bos(50256);
  EXPECT_FALSE(find_tokens(files, gpt2, output, text));
  EXPECT_NE(key(), before);
  EXPECT_EQ(tokens_of(output), (std::vector<int32_t>{50256, 3347, 550, 1239, 50256, 50256, 15898, 340, 13, 50256}));
  expect_error(Code::data, {"token 50257"}, [&] { gpt2.use_bos(50257); });
}

TEST(Tokenize, GoesOnAfterInterruptionsWithTheSameBytes) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Random random(seed);
    TempFolder folder;
    const auto files = corpus(folder, seed, 60'000);
    TokenizeOptions options{.text = {.document = static_cast<Document>(seed % 3)}, .piece_bytes = 1500};
    tokenize_files(files, small_tokenizer(), folder / "whole.bin", options);
    int interruptions = 0;
    options.threads = 2;
    options.sync_bytes = 30'000;
    for (bool finished = false; !finished; ++interruptions) {
      int64_t left = 1 + pick(random, 10);
      options.progress = [&](const TokenizeProgress&) { --left; };
      options.stop = [&] { return left <= 0; };
      finished = tokenize_files(files, small_tokenizer(), folder / "parts.bin", options).finished;
      EXPECT_EQ(fs::exists(folder / "parts.bin"), finished);
    }
    EXPECT_GE(interruptions, 2) << "seed " << seed;
    ASSERT_EQ(output_bytes(folder / "whole.bin"), output_bytes(folder / "parts.bin")) << "seed " << seed;
  }
}

TEST(Tokenize, GoesOnFromTheLastSyncWhenKilled) {
  TempFolder folder;
  const auto files = corpus(folder, 2, 60'000);
  TokenizeOptions options{.piece_bytes = 1000, .sync_bytes = 10'000};
  tokenize_files(files, small_tokenizer(), folder / "whole.bin", options);
  // An exception from the progress callback acts like a crash: nothing is saved after the last sync.
  int64_t calls = 0, first_seen = 0;
  options.progress = [&](const TokenizeProgress&) {
    if (++calls == 35) throw std::runtime_error("crash");
  };
  EXPECT_THROW(tokenize_files(files, small_tokenizer(), folder / "parts.bin", options), std::runtime_error);
  std::ofstream(folder / "parts.work" / "tokens", std::ios::app) << "what the crash left half written";
  options.progress = [&](const TokenizeProgress& p) {
    if (first_seen == 0) first_seen = p.bytes;
  };
  tokenize_files(files, small_tokenizer(), folder / "parts.bin", options);
  EXPECT_GT(first_seen, 15'000);  // it did not start over
  EXPECT_EQ(output_bytes(folder / "whole.bin"), output_bytes(folder / "parts.bin"));
}

TEST(Tokenize, StartsOverWhenWorkIsDamagedOrOfOtherInput) {
  TempFolder folder;
  const auto files = corpus(folder, 2, 60'000);
  TokenizeOptions options{.piece_bytes = 1000};
  tokenize_files(files, small_tokenizer(), folder / "whole.bin", options);
  TokenizeOptions stopping = options;
  int64_t left = 0;
  stopping.progress = [&](const TokenizeProgress&) { --left; };
  stopping.stop = [&] { return left <= 0; };
  const fs::path work = folder / "parts.work";
  const std::vector<std::function<void()>> damages = {
      [&] { fs::resize_file(work / "tokens", 1500); },
      [&] { fs::remove(work / "documents"); },
      [&] { write(work / "progress.json", "{\"key\": 1"); },
      [&] { write(work / "progress.json", "{\"key\": \"other\", \"done\": {}}"); },
  };
  for (const auto& damage : damages) {
    left = 10;
    ASSERT_FALSE(tokenize_files(files, small_tokenizer(), folder / "parts.bin", stopping).finished);
    damage();
    ASSERT_TRUE(tokenize_files(files, small_tokenizer(), folder / "parts.bin", options).finished);
    ASSERT_EQ(output_bytes(folder / "whole.bin"), output_bytes(folder / "parts.bin"));
    fs::remove(folder / "parts.json");
    fs::remove(folder / "parts.bin");
  }
}

TEST(Tokenize, ReusesFinishedOutputOnlyForTheSameInput) {
  TempFolder folder;
  auto files = corpus(folder, 3, 5000);
  const Tokenizer& t = small_tokenizer();
  const fs::path output = folder / "out.bin";
  TokenizeOptions options;
  int begun = 0;
  bool was_there = true;
  options.begin = [&] { ++begun, was_there = fs::exists(output); };
  const TokenizeResult first = tokenize_files(files, t, output, options);
  EXPECT_EQ(begun, 1);
  EXPECT_FALSE(was_there);
  const TokenizeResult second = tokenize_files(files, t, output, options);
  EXPECT_TRUE(second.reused);
  EXPECT_EQ(begun, 1);
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_EQ(second.text_bytes, first.text_bytes);
  EXPECT_EQ(second.documents, first.documents);

  const std::string copy = write(folder / "copy.txt", read_file(files[1]));  // the same text under another name
  files[1] = copy;
  EXPECT_TRUE(tokenize_files(files, t, output, options).reused);
  fs::last_write_time(copy, fs::file_time_type::clock::now() + std::chrono::hours(1));  // touched
  EXPECT_TRUE(tokenize_files(files, t, output, options).reused);

  std::string changed = read_file(copy);
  changed[0] = changed[0] == 'x' ? 'y' : 'x';
  write(copy, changed);
  fs::last_write_time(copy, fs::file_time_type::clock::now() + std::chrono::hours(2));
  EXPECT_FALSE(tokenize_files(files, t, output, options).reused);
  options.text.document = Document::line;
  EXPECT_FALSE(tokenize_files(files, t, output, options).reused);
  const Tokenizer other = Tokenizer::train({files[0], copy}, 500 + 260);
  EXPECT_FALSE(tokenize_files(files, other, output, options).reused);
  EXPECT_TRUE(tokenize_files(files, other, output, options).reused);
  fs::resize_file(output, 1200);  // damaged after it was finished
  EXPECT_FALSE(tokenize_files(files, other, output, options).reused);
  EXPECT_TRUE(tokenize_files(files, other, output, options).reused);
}

TEST(Tokenize, CountsReplacedBytesAndReportsWhereTheFirstIs) {
  TempFolder folder;
  const std::string a = write(folder / "a.txt", "fine\n"), b = write(folder / "b.txt",
                                                                     "fine\nfine\nb\xFF\xFE"
                                                                     "d\nfine\nfine\n");
  const TokenizeResult result = tokenize_files({a, b}, small_tokenizer(), folder / "o.bin", {.piece_bytes = 5});
  EXPECT_EQ(result.replaced, 2);
  EXPECT_EQ(result.first_replaced, b + ": offset 11");
  TokenizeOptions strict{.text = {.strict = true}, .threads = 3, .piece_bytes = 5};
  expect_error(Code::data, {b, "offset 11", "UTF-8"}, [&] {
    tokenize_files({a, b}, small_tokenizer(), folder / "o.bin", strict);
  });
}

TEST(Tokenize, ReportsTheFirstMistakeWhateverTheThreads) {
  TempFolder folder;
  std::string lines;
  for (int i = 0; i < 1000; ++i) lines += i == 400 || i == 700 ? "broken\n" : "{\"text\": \"a fine line\"}\n";
  const std::string file = write(folder / "a.jsonl", lines);
  const size_t offset = lines.find("broken");
  for (const int threads : {1, 2, 8}) {
    expect_error(Code::data, {file, fmt::format("offset {} (line 401):", offset)}, [&] {
      tokenize_files({file}, small_tokenizer(), folder / "o.bin", {.threads = threads, .piece_bytes = 500});
    });
    EXPECT_FALSE(fs::exists(folder / "o.bin"));
  }
}

TEST(Tokenize, RejectsInputWithoutText) {
  TempFolder folder;
  const std::string empty = write(folder / "empty.txt", ""), blank = write(folder / "blank.txt", "\n \n\n");
  const auto run = [&](const std::string& file) {
    tokenize_files({file}, small_tokenizer(), folder / "o.bin", {.text = {.document = Document::line}});
  };
  expect_error(Code::data, {empty, "the file is empty"}, [&] { run(empty); });
  expect_error(Code::data, {blank, "no text"}, [&] { run(blank); });
  expect_error(Code::data, {"missing.txt", "cannot open"}, [&] { run((folder / "missing.txt").string()); });
}

TEST(Tokenize, ReportsOutputThatCannotBeWritten) {
  TempFolder folder;
  const auto files = corpus(folder, 1, 1000);
  write(folder / "plain", "a file, not a folder");
  expect_error(Code::io, {"plain"}, [&] { tokenize_files(files, small_tokenizer(), folder / "plain/out.bin", {}); });
}

TEST(Tokenize, OneProcessAtATimeWritesAnOutput) {
  TempFolder folder;
  const auto files = corpus(folder, 1, 1000);
  fs::create_directories(folder / "out.work");
  const std::optional<NameLock> lock = NameLock::take(folder / "out.work" / "lock");
  ASSERT_TRUE(lock);
  expect_error(Code::io, {"out.work", "another process"},
               [&] { tokenize_files(files, small_tokenizer(), folder / "out.bin", {}); });
}

TEST(Tokenize, ProgressEndsAtTheWholeInput) {
  TempFolder folder;
  const auto files = corpus(folder, 4, 20'000);
  TokenizeProgress last;
  int64_t total = 0;
  for (const std::string& file : files) total += static_cast<int64_t>(fs::file_size(file));
  const auto result = tokenize_files(files, small_tokenizer(), folder / "o.bin",
                                     {.piece_bytes = 1000, .progress = [&](const TokenizeProgress& p) {
                                        EXPECT_GT(p.bytes, last.bytes);
                                        last = p;
                                      }});
  EXPECT_EQ(last.bytes, total);
  EXPECT_EQ(last.total_bytes, total);
  EXPECT_EQ(last.tokens, result.tokens);
}

}  // namespace
}  // namespace trainer::data
