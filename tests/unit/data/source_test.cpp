#include "data/source.h"
#include "config/config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "data/chat_formats.h"
#include "data/file_list.h"
#include "data/statistics.h"
#include "unit/data/fixtures.h"

namespace trainer::data {
namespace {

using namespace testing;

class Source : public ::testing::Test {
 protected:
  Source() {
    config_.run.dir = (folder_ / "run").string();
    config_.run.seed = 3;
    config_.model.seq_len = 32;
    config_.data.text_key = "text";
    config_.data.val_fraction = 0.1;
  }

  Datasets open(const OpenOptions& options = {.threads = 2}) { return open_data(config_, options); }
  void use_text(const std::string& text, int64_t vocab) {
    config_.data.train = {write(folder_ / "train.txt", text)};
    config_.data.tokenizer = "train";
    config_.data.vocab_size = vocab;
  }

  TempFolder folder_;
  config::Config config_;
  tests::Warnings logged_;
};

TEST_F(Source, TrainsATokenizerAndTokenizesOnce) {
  use_text(novel().substr(0, 80'000), 500);
  const Datasets first = open();
  ASSERT_TRUE(first.train && first.val.size() == 1 && first.tokenizer);
  EXPECT_EQ(first.vocab, 500);
  EXPECT_EQ(first.train->sources().front().dataset.begin(), 0);
  EXPECT_EQ(first.train->sources().front().dataset.end(), first.val.front().dataset.begin());
  EXPECT_EQ(first.val.front().dataset.end(), first.val.front().dataset.stream().tokens());
  EXPECT_NEAR(static_cast<double>(first.val.front().dataset.tokens()),
              0.1 * static_cast<double>(first.val.front().dataset.stream().tokens()), 1);
  EXPECT_EQ(logged_.lines.size(), 2u);
  const Datasets second = open();
  EXPECT_EQ(logged_.lines.size(), 2u) << "nothing is made again: " << logged_.lines.back();
  EXPECT_EQ(first.data_hash, second.data_hash);
  EXPECT_EQ(first.tokenizer->hash(), second.tokenizer->hash());
  config_.data.val_fraction = 0.2;
  EXPECT_NE(first.data_hash, open().data_hash);
}

TEST_F(Source, OpensTrainedDataWithoutWriting) {
  use_text(novel().substr(0, 80'000), 500);
  const Datasets run = open();
  const auto before = fs::last_write_time(folder_ / "run/tokens");
  const TrainingData data = open_trained_data(config_, folder_ / "run/tokens");
  const TokenDataset &expected = run.train->sources().front().dataset, &found = data.sources().front().dataset;
  EXPECT_EQ(found.end(), expected.end());
  for (int64_t sample = 0; sample < 2 * expected.windows(); ++sample)
    ASSERT_EQ(found.window_of(sample), expected.window_of(sample));
  EXPECT_EQ(fs::last_write_time(folder_ / "run/tokens"), before);
  fs::remove(folder_ / "run/tokens/train.bin");
  expect_error(Code::data, {"tokens/train.bin", "train.txt", "resume the run"},
               [&] { open_trained_data(config_, folder_ / "run/tokens"); });
}

TEST_F(Source, PacksTokensThatOnlyTheTokenizerSeparates) {
  const Tokenizer& tokenizer = small_tokenizer();
  std::vector<int> ids;
  for (int i = 0; i < 3000; ++i) ids.push_back(i % 17 == 0 || i % 41 == 0 ? tokenizer.eos() : 300 + i % 250);
  config_.data.train = {write(folder_ / "plain.bin", packed<uint16_t>(ids))};
  config_.data.tokenizer = write(folder_ / "tokenizer.model", tokenizer.bytes());
  config_.data.packing = config::Windows::best_fit;
  const Datasets run = open();
  const TokenDataset& expected = run.train->sources().front().dataset;
  for (int times = 0; times < 2; ++times) {
    const TrainingData data = open_trained_data(config_, folder_ / "run/tokens");
    const TokenDataset& found = data.sources().front().dataset;
    ASSERT_EQ(found.windows(), expected.windows());
    for (int64_t window = 0; window < found.windows(); ++window)
      ASSERT_EQ(found.excerpts(window), expected.excerpts(window));
    fs::remove(folder_ / "run/tokens/train.pack");  // then it is made again elsewhere
  }
  EXPECT_FALSE(fs::exists(folder_ / "run/tokens/train.pack"));
}

TEST_F(Source, TrainsOnTokensOfConversationsInTheirFormat) {
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += fmt::format(R"({{"messages": [{{"role": "user", "content": "{}"}}, {{"role": "assistant", "content": )"
                         R"("yes {}"}}]}})"
                         "\n",
                         i, i * i);
  const std::string text = write(folder_ / "chats.jsonl", lines);
  const Tokenizer& tokenizer = small_tokenizer();
  tokenize_files({text}, tokenizer, folder_ / "chats.bin",
                 {.text = {.document = config::Document::chat, .chat = find_chat_format("olmo2")}});
  config_.data.train = {(folder_ / "chats.bin").string()};
  config_.data.tokenizer = write(folder_ / "tokenizer.model", tokenizer.bytes());
  config_.data.packing = config::Windows::best_fit;
  config_.data.chat_format = "auto";
  const Datasets data = open();
  EXPECT_EQ(data.special.chat_format, "olmo2");
  EXPECT_EQ(data.special.bos, tokenizer.bos_token());
  EXPECT_EQ(data.special.eos, std::vector<int32_t>{tokenizer.eos()});
  EXPECT_LT(data.train->sources().front().dataset.packing()->counted(0, 1), 30);
  config_.data.chat_format = "plain";
  expect_error(Code::config, {"data.chat_format", "plain", "chats.bin", "olmo2"}, [&] { open(); });
  config_.data.chat_format = "auto";
  fs::remove(folder_ / "chats.json");
  expect_error(Code::config, {"data.chat_format", "chats.bin", "not recorded"}, [&] { open(); });
}

TEST_F(Source, ValidationStartsAtADocument) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += novel().substr(i * 300, 250) + "\n\n";
  use_text(text, 500);
  config_.data.document = config::Document::block;
  const Datasets data = open();
  std::vector<int32_t> before(1);
  data.train->sources().front().dataset.stream().copy(data.val.front().dataset.begin() - 1, before);
  EXPECT_EQ(before[0], data.tokenizer->eos());
  EXPECT_NEAR(static_cast<double>(data.val.front().dataset.tokens()),
              0.1 * static_cast<double>(data.val.front().dataset.stream().tokens()),
              0.01 * static_cast<double>(data.val.front().dataset.stream().tokens()));
}

TEST_F(Source, TakesValidationFilesOfTheirOwn) {
  use_text(novel().substr(0, 80'000), 500);
  config_.data.val = {write(folder_ / "val.txt", novel().substr(300'000, 20'000))};
  config_.data.val_fraction = 0;
  const Datasets data = open();
  EXPECT_EQ(data.train->sources().front().dataset.end(), data.train->sources().front().dataset.stream().tokens());
  EXPECT_EQ(data.val.front().dataset.begin(), 0);
  EXPECT_NE(&data.val.front().dataset.stream(), &data.train->sources().front().dataset.stream());
  config_.data.val = {write(folder_ / "tiny.txt", "too short")};
  expect_error(Code::data, {"val.bin", "fewer than one window", "33"}, [&] { open(); });
}

TEST_F(Source, OpensEachValidationSetWithItsOwnSettings) {
  use_text(novel().substr(0, 80'000), 500);
  config_.data.val_fraction = 0;
  const std::string web = novel().substr(300'000, 20'000), lines = R"({"body": "She had never."})"
                                                                   "\n";
  std::string code;
  for (int i = 0; i < 60; ++i) code += lines;
  config_.data.validation = {{.name = "web", .files = {write(folder_ / "web.txt", web)}},
                             {.name = "code", .files = {write(folder_ / "code.jsonl", code)}, .text_key = "body"}};
  config_.checkpoint.best = "code";
  const Datasets data = open();
  ASSERT_EQ(data.val.size(), 2u);
  EXPECT_EQ(data.val[0].name, "web");
  EXPECT_EQ(data.followed, 1u);
  std::vector<int32_t> ids(data.val[0].dataset.tokens());
  data.val[0].dataset.stream().copy(0, ids);
  EXPECT_EQ(data.tokenizer->decode(ids), web);
  ids.resize(data.val[1].dataset.tokens());
  data.val[1].dataset.stream().copy(0, ids);
  EXPECT_EQ(data.tokenizer->decode(ids).substr(0, 14), "She had never.");
  EXPECT_EQ(std::ranges::count(ids, data.tokenizer->eos()), 60);
  EXPECT_TRUE(fs::exists(folder_ / "run/tokens/web.val.bin") && fs::exists(folder_ / "run/tokens/code.val.json"));
  const double entropy = unigram_entropy(*data.train, data.val[1].dataset, 500, 1);
  EXPECT_EQ(data.unigram_entropy, entropy);

  const EvalData own = open_eval_data(config_, {}, &*data.tokenizer, data.vocab, {});
  ASSERT_EQ(own.sets.size(), 2u);
  EXPECT_EQ(own.sets[1].name, "code");
  EXPECT_EQ(own.hash, data.val_hash);
  config_.data.validation[0].name = "net";
  EXPECT_NE(open().val_hash, data.val_hash);
  config_.data.validation[1].files = {write(folder_ / "tiny.txt", "too short")};
  expect_error(Code::data, {"data.validation \"code\"", "fewer than one window", "33"}, [&] { open(); });
}

TEST_F(Source, OpensTheSourcesOfAMixture) {
  const auto source = [&](const std::string& name, size_t at, double weight) {
    return config::FileSet{
        .name = name, .files = {write(folder_ / (name + ".txt"), novel().substr(at, 40'000))}, .weight = weight};
  };
  config_.data.source = {source("web", 0, 0.75), source("math", 200'000, 0.25)};
  config_.data.document = config::Document::block;
  config_.data.tokenizer = "train";
  config_.data.vocab_size = 500;
  const Datasets data = open();
  ASSERT_TRUE(data.train && data.train->is_mixed());
  ASSERT_EQ(data.train->sources().size(), 2u);
  EXPECT_EQ(data.train->sources()[0].name, "math") << "in the order of names";
  EXPECT_EQ(data.val[0].name, "web") << "in the order of the configuration";
  EXPECT_EQ(data.train->mixture()->phases().at(0).slots, (SlotsByName{{"math", 25'000}, {"web", 75'000}}));
  EXPECT_TRUE(fs::exists(folder_ / "run/tokens/web.bin") && fs::exists(folder_ / "run/tokens/math.bin"));

  const TokenDataset &math = data.train->sources()[0].dataset, &web = data.train->sources()[1].dataset;
  TokenBatch batch, expected;
  data.train->train_batch(0, 8, batch);
  std::vector<int64_t> starts;
  for (int64_t row = 0, web_seen = 0, math_seen = 0; row < 8; ++row) {
    expected.resize(1, 32);
    const bool is_math = data.train->mixture()->names()[data.train->mixture()->at(row).source] == "math";
    is_math ? math.train_batch(math_seen++, 1, expected) : web.train_batch(web_seen++, 1, expected);
    EXPECT_TRUE(std::equal(expected.ids.begin(), expected.ids.end(), batch.ids.begin() + row * 32)) << row;
    EXPECT_TRUE(std::equal(expected.targets.begin(), expected.targets.end(), batch.targets.begin() + row * 32)) << row;
    for (const int64_t start : expected.starts) starts.push_back(row * 32 + start);
  }
  EXPECT_FALSE(starts.empty());
  EXPECT_EQ(batch.starts, starts);
  const FeistelPermutation permutation(static_cast<uint64_t>(web.windows()), 3, 0, "data.permutation/web");
  EXPECT_EQ(web.window_of(5), static_cast<int64_t>(permutation(5)));

  std::map<int32_t, double> frequency;  // in the mixture (3/4 web, 1/4 math), with one added to each count
  for (const auto& [set, share] : {std::pair(&math, 0.25), {&web, 0.75}}) {
    std::vector<int32_t> ids(set->tokens());
    set->stream().copy(0, ids);
    for (int32_t token = 0; token < 500; ++token)
      frequency[token] += share * static_cast<double>(std::count(ids.begin(), ids.end(), token) + 1) /
                          static_cast<double>(ids.size() + 500);
  }
  const TokenDataset& val = data.val[0].dataset;
  std::vector<int32_t> ids(val.windows() * 32);
  val.stream().copy(val.begin() + 1, ids);
  double nats = 0;
  for (const int32_t id : ids) nats -= std::log(frequency[id]);
  EXPECT_NEAR(data.unigram_entropy, nats / static_cast<double>(ids.size()), 1e-9);

  const std::string hash = data.data_hash;
  std::swap(config_.data.source[0], config_.data.source[1]);
  EXPECT_EQ(open().data_hash, hash) << "the order of the file does not count";
  for (config::FileSet& set : config_.data.source) set.weight.reset();
  const Datasets even = open();
  EXPECT_EQ(even.data_hash, hash) << "weights are no data";
  const SlotsByName& slots = even.train->mixture()->phases().at(0).slots;
  EXPECT_NEAR(static_cast<double>(slots.at("web")) / static_cast<double>(web.windows()),
              static_cast<double>(slots.at("math")) / static_cast<double>(math.windows()), 1);
}

TEST_F(Source, DecidesWhatDocumentsBeginWith) {
  const std::string text = write(folder_ / "a.txt", novel().substr(0, 20'000)), none = (folder_ / "none.bin").string(),
                    some = (folder_ / "some.bin").string(),
                    model = write(folder_ / "my.model", small_tokenizer().bytes());
  Tokenizer with = small_tokenizer();
  tokenize_files({text}, with, none, {});
  with.use_bos(1);
  tokenize_files({text}, with, some, {});
  config_.data.tokenizer = model;
  const auto bos = [&](const std::string& files, config::Bos choice, const OpenOptions& options = {}) {
    config_.data.train = {files};
    config_.data.bos = choice;
    const Datasets data = open_data(config_, options);
    const TokenStream& stream = data.train->sources().front().dataset.stream();
    std::vector<int32_t> first(1);
    stream.copy(0, first);
    EXPECT_EQ(first[0] == 1, data.bos == 1);
    EXPECT_EQ(stream.info().bos, data.bos);
    if (data.tokenizer) {
      EXPECT_EQ(data.tokenizer->bos(), data.bos);
    }
    return data.bos;
  };
  using config::Bos;
  EXPECT_EQ(bos(text, Bos::automatic), -1) << "a tokenizer trained here says nothing";
  EXPECT_EQ(bos(text, Bos::on), 1);
  EXPECT_EQ(bos(text, Bos::off), -1);
  EXPECT_EQ(bos(text, Bos::automatic, {.bos = 1}), 1) << "a resumed run goes on as it began";
  EXPECT_EQ(bos(text, Bos::automatic, {.bos = 1, .bos_of = with.hash()}), 1);
  EXPECT_EQ(bos(text, Bos::automatic, {.bos = 1, .bos_of = "another's"}), -1);
  write(folder_ / "tokenizer_config.json", R"({"bos_token": "<s>", "add_bos_token": true})");
  EXPECT_EQ(bos(text, Bos::automatic), 1) << "from the tokenizer's files";
  EXPECT_EQ(bos(text, Bos::off), -1);
  EXPECT_EQ(bos(none, Bos::automatic), -1) << "token files take precedence";
  EXPECT_EQ(bos(some, Bos::automatic), 1);
  expect_error(Code::data, {"none.bin: offset 40", "no BOS token", "token 1", "data.bos", "--bos on"},
               [&] { bos(none, Bos::on); });
  expect_error(Code::data, {"some.bin: offset 40", "token 1", "no BOS token", "--bos off"},
               [&] { bos(some, Bos::off); });
  fs::remove(folder_ / "tokenizer_config.json");
  EXPECT_EQ(bos(some, Bos::automatic), 1);

  config_.data.val_fraction = 0;
  config_.data.val = {none};
  expect_error(Code::data, {"none.bin: offset 40"}, [&] { bos(some, Bos::automatic); });
  config_.data.tokenizer = "";  // the headers of the token files have their BOS token
  expect_error(Code::data, {"none.bin: offset 40"}, [&] { bos(some, Bos::automatic); });
  config_.data.val = {some};
  EXPECT_EQ(bos(some, Bos::automatic), 1);
  EXPECT_EQ(bos(some, Bos::on), 1);
  expect_error(Code::config, {"data.bos", "\"off\"", "some.bin", "token 1"}, [&] { bos(some, Bos::off); });

  config_.data.val.clear();
  config_.data.train.clear();
  config_.data.source = {{.name = "web", .files = {none}}, {.name = "math", .files = {some}}};
  config_.data.bos = Bos::automatic;
  expect_error(Code::data, {"data.source \"math\"", "some.bin", "token 1", "data.source \"web\"", "no BOS token"},
               [&] { open(); });
  config_.data.tokenizer = model;
  config_.data.source[0].files = {text};  // text gets the BOS token of the token files
  config_.data.train.clear();
  EXPECT_EQ(open().bos, 1);
  EXPECT_EQ(TokenStream({(folder_ / "run/tokens/web.bin").string()}).info().bos, 1);
}

TEST_F(Source, SkipsValidationOnRequest) {
  use_text(novel().substr(0, 40'000), 400);
  config_.data.val_fraction = 0;
  const Datasets data = open();
  EXPECT_TRUE(data.val.empty());
  EXPECT_TRUE(std::isnan(data.unigram_entropy));
}

TEST_F(Source, OpensTokenFilesWithoutATokenizer) {
  std::vector<int> ids(5000);
  for (int i = 0; i < 5000; ++i) ids[i] = i * 7 % 900;
  const std::string plain = write(folder_ / "plain.bin", packed<uint16_t>(ids));
  config_.data.train = {plain};
  expect_error(Code::config, {"data.vocab_size", "plain.bin"}, [&] { open(); });
  expect_error(Code::config, {"data.vocab_size"}, [&] { planned_vocab(config_); });
  config_.data.vocab_size = 800;
  expect_error(Code::data, {"plain.bin", "offset 230", "token 805", "vocabulary of 800"}, [&] { open(); });
  config_.data.vocab_size = 900;
  const Datasets data = open();
  EXPECT_EQ(data.vocab, 900);
  EXPECT_EQ(planned_vocab(config_), 900);
  EXPECT_FALSE(data.tokenizer);
  EXPECT_NEAR(data.unigram_entropy, std::log(900), 0.1);

  std::vector<uint32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 5000;
  config_.data = {.train = {write(folder_ / "gpt2.bin", packed<uint32_t>(header) + packed<uint16_t>(ids))}};
  EXPECT_EQ(open().vocab, kGpt2Vocabulary);
  config_.data.vocab_size = 50304;  // more rows than tokens
  EXPECT_EQ(open().vocab, 50304);
  EXPECT_EQ(planned_vocab(config_), 50304);
  config_.data.vocab_size = 50000;
  config_.path = "x.toml";
  config_.origins["data.vocab_size"] = {"x.toml", 3, 14, {}};
  for (const auto& look : {std::function<void()>([&] { open(); }), {[&] { planned_vocab(config_); }}})
    expect_error(Code::config, {"x.toml:3:14: data.vocab_size: 50000", "gpt2.bin has a vocabulary of 50257"}, look);
}

TEST_F(Source, RejectsAVocabularySmallerThanTheTokenizers) {
  const std::string model = write(folder_ / "my.model", small_tokenizer().bytes());
  config_.data.train = {write(folder_ / "a.txt", novel().substr(0, 20'000))};
  config_.data.tokenizer = model;
  config_.data.vocab_size = small_tokenizer().vocab_size();
  EXPECT_EQ(open().vocab, small_tokenizer().vocab_size());
  config_.data.vocab_size += 7;  // as in an imported model with more rows than tokens
  EXPECT_EQ(open().vocab, small_tokenizer().vocab_size() + 7);
  EXPECT_EQ(planned_vocab(config_), small_tokenizer().vocab_size() + 7);
  config_.data.vocab_size = small_tokenizer().vocab_size() - 1;
  for (const auto& look : {std::function<void()>([&] { open(); }), {[&] { planned_vocab(config_); }}})
    expect_error(Code::config, {"data.vocab_size", "my.model has a vocabulary of", "at least"}, look);
  config_.origins["data.vocab_size"] = {"models/hf", 0, 0, {}};  // the value is that of model.init_from
  expect_error(Code::config,
               {"models/hf: vocab_size: 599", "my.model has a vocabulary of 600", "model's own tokenizer"},
               [&] { open(); });
}

TEST_F(Source, RejectsTokensOfAnotherTokenizer) {
  const std::string text = write(folder_ / "a.txt", novel().substr(0, 20'000));
  tokenize_files({text}, small_tokenizer(), folder_ / "a.bin", {});
  const Tokenizer other = Tokenizer::train({text}, 500);
  config_.data.train = {(folder_ / "a.bin").string()};
  config_.data.tokenizer = write(folder_ / "other.model", other.bytes());
  expect_error(Code::data, {"a.bin", other.hash(), small_tokenizer().hash()}, [&] { open(); });
  config_.data.tokenizer = write(folder_ / "right.model", small_tokenizer().bytes());
  EXPECT_EQ(open().vocab, 600);
  config_.data.tokenizer = "";  // the file's header has the vocabulary size
  EXPECT_EQ(open().vocab, 600);
}

TEST_F(Source, RejectsCombinationsThatMakeNoSense) {
  const std::string text = write(folder_ / "a.txt", novel().substr(0, 20'000)),
                    tokens = write(folder_ / "a.bin", "abcdefgh");
  config_.data.train = {text};
  expect_error(Code::config, {"data.tokenizer", "a.txt"}, [&] { open(); });
  config_.data.tokenizer = "train";
  config_.data.vocab_size = 400;
  config_.data.train = {tokens};
  expect_error(Code::config, {"data.tokenizer", "a.bin"}, [&] { open(); });
  config_.data.train = {text, tokens};
  expect_error(Code::data, {"cannot be mixed", "a.txt", "a.bin"}, [&] { open(); });
  config_.data.train = {(folder_ / "*.none").string()};
  expect_error(Code::data, {"*.none", "no file matches"}, [&] { open(); });
}

TEST_F(Source, ExpandsGlobsInOrder) {
  for (const std::string name : {"b.txt", "a.txt", "c.md", "d[1].txt"}) write(folder_ / name, "x");
  EXPECT_EQ(expand_files({(folder_ / "c.md").string(), (folder_ / "?.txt").string()}),
            (std::vector{(folder_ / "c.md").string(), (folder_ / "a.txt").string(), (folder_ / "b.txt").string()}));
  EXPECT_EQ(expand_files({(folder_ / "d[1].txt").string()}).size(), 1u);
}

TEST_F(Source, StopsWhileTokenizingAndGoesOn) {
  use_text(novel(), 500);
  bool stop = true;
  const Datasets stopped = open({.threads = 1, .stop = [&] { return stop; }});
  EXPECT_FALSE(stopped.train);
  stop = false;
  EXPECT_TRUE(open({.threads = 1, .stop = [&] { return stop; }}).train);
}

TEST_F(Source, CountsTheBytesThatEvaluationPredicts) {
  use_text(novel().substr(0, 80'000) + "日本", 500);
  const Datasets data = open();
  const int64_t windows = data.val.front().dataset.windows();
  TokenBatch batch;
  data.val.front().dataset.eval_batch(0, windows + 2, batch);
  const std::vector<int32_t> targets(batch.targets.begin(), batch.targets.begin() + windows * 32);
  EXPECT_EQ(evaluated_bytes(*data.tokenizer, batch), static_cast<int64_t>(data.tokenizer->decode(targets).size()));
}

TEST_F(Source, UnigramEntropyIsThatOfTheSmoothedCounts) {
  use_text(novel().substr(0, 80'000), 500);
  const Datasets data = open();
  std::map<int32_t, double> counts;
  std::vector<int32_t> train(data.train->tokens()), val(data.val.front().dataset.windows() * 32);
  data.train->sources().front().dataset.stream().copy(0, train);
  data.val.front().dataset.stream().copy(data.val.front().dataset.begin() + 1, val);
  for (const int32_t id : train) ++counts[id];
  double nats = 0;
  for (const int32_t id : val) nats -= std::log((counts[id] + 1) / (static_cast<double>(train.size()) + 500));
  nats /= static_cast<double>(val.size());
  EXPECT_NEAR(data.unigram_entropy, nats, 1e-12 * static_cast<double>(val.size()));
  EXPECT_EQ(unigram_entropy(*data.train, data.val.front().dataset, 500, 1),
            unigram_entropy(*data.train, data.val.front().dataset, 500, 3));
}

TEST_F(Source, EvaluatesOnTheRunsOwnDataOrOnOtherFiles) {
  use_text(novel().substr(0, 80'000), 500);
  const Datasets data = open();
  const EvalData own = open_eval_data(config_, {}, &*data.tokenizer, data.vocab, {});
  EXPECT_EQ(own.sets.front().dataset.begin(), data.val.front().dataset.begin());
  EXPECT_EQ(own.sets.front().dataset.windows(), data.val.front().dataset.windows());
  const std::string other = write(folder_ / "other.txt", novel().substr(500'000, 10'000));
  const EvalData given = open_eval_data(config_, {other}, &*data.tokenizer, data.vocab, {});
  EXPECT_EQ(given.sets.front().dataset.begin(), 0);
  std::vector<int32_t> ids(given.sets.front().dataset.tokens());
  given.sets.front().dataset.stream().copy(0, ids);
  EXPECT_EQ(data.tokenizer->decode(ids), read_file(other));
  fs::remove_all(config_.run.dir);  // the checkpoint was moved away from its run: the text is tokenized again
  EXPECT_EQ(open_eval_data(config_, {}, &*data.tokenizer, data.vocab, {}).sets.front().dataset.begin(),
            data.val.front().dataset.begin());
  EXPECT_FALSE(fs::exists(config_.run.dir));
  expect_error(Code::config, {"other.txt", "tokenizer"},
               [&] { open_eval_data(config_, {other}, nullptr, data.vocab, {}); });
}

}  // namespace
}  // namespace trainer::data
