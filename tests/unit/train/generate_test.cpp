#include "train/generate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>

#include "rigs/tiny.h"
#include "unit/data/fixtures.h"

namespace trainer::tests {
namespace {

using train::Sampling;
using train::TokenSampler;

Tensor logits_of(std::vector<float>& values) {
  return {reinterpret_cast<std::byte*>(values.data()), {1, static_cast<int64_t>(values.size())}, DType::f32, 0};
}

TEST(TokenSampler, TemperatureZeroTakesTheLikeliestAndTheSmallerIdOfATie) {
  std::vector<float> values = {1, 5, 5, 2, 99};  // the last one is padding
  TokenSampler sampler({.temperature = 0}, 4);
  EXPECT_EQ(sampler.choose(logits_of(values), 0), 1);
}

TEST(TokenSampler, FrequenciesFollowTheSoftmax) {
  std::vector<float> values = {0, std::log(2.0f), std::log(5.0f)};
  TokenSampler sampler({.temperature = 1, .seed = 11}, 3);
  int counts[3] = {};
  for (int i = 0; i < 40000; ++i) ++counts[sampler.choose(logits_of(values), i)];
  EXPECT_NEAR(counts[0] / 40000.0, 1 / 8.0, 0.01);
  EXPECT_NEAR(counts[1] / 40000.0, 2 / 8.0, 0.01);
  EXPECT_NEAR(counts[2] / 40000.0, 5 / 8.0, 0.01);
}

TEST(TokenSampler, TopKAndTopPLeaveTheTailOut) {
  std::vector<float> values = {0, std::log(2.0f), std::log(5.0f)};
  TokenSampler two({.top_k = 2}, 3), half({.top_p = 0.6}, 3), most({.top_p = 0.8}, 3);
  bool second = false;
  for (int i = 0; i < 2000; ++i) {
    EXPECT_NE(two.choose(logits_of(values), i), 0);
    EXPECT_EQ(half.choose(logits_of(values), i), 2);  // 5/8 by itself reaches 0.6
    const int32_t id = most.choose(logits_of(values), i);
    EXPECT_NE(id, 0);
    second |= id == 1;
  }
  EXPECT_TRUE(second);
}

TEST(TokenSampler, TopPDrawsLikeTopKWithTheSameTokens) {
  std::vector<float> values(5000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 7919 % 4999) % 1250);  // with ties
  for (const double temperature : {1.0, 60.0, 900.0})
    for (const double p : {0.05, 0.6, 0.95}) {
      std::vector<double> weights;
      for (const float value : values) weights.push_back(std::exp((value - 1249) / temperature));
      std::ranges::sort(weights, std::greater<>());
      const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
      int64_t k = 0;
      for (double sum = 0; sum < p * all; ++k) sum += weights[static_cast<size_t>(k)];
      SCOPED_TRACE(format("temperature {}, p {}: {} tokens", temperature, p, k));
      TokenSampler by_p({.temperature = temperature, .top_p = p, .seed = 4}, 5000);
      TokenSampler by_k({.temperature = temperature, .top_k = k, .seed = 4}, 5000);
      for (int i = 0; i < 50; ++i) ASSERT_EQ(by_p.choose(logits_of(values), i), by_k.choose(logits_of(values), i));
    }
}

TEST(TokenSampler, DrawsAmongTheAllowedOnly) {
  std::vector<float> values = {9, std::log(1.0f), 8, std::log(3.0f), 9};
  const std::vector<bool> allowed = {false, true, false, true, false};
  EXPECT_EQ(TokenSampler({.temperature = 0}, 5).choose(logits_of(values), 0, allowed), 3);
  for (const Sampling& sampling : {Sampling{.seed = 2}, Sampling{.top_k = 4, .seed = 2},
                                   Sampling{.top_p = 0.9, .seed = 2}, Sampling{.top_k = 3, .top_p = 0.9, .seed = 2}}) {
    TokenSampler sampler(sampling, 5);
    int counts[5] = {};
    for (int i = 0; i < 20000; ++i) ++counts[sampler.choose(logits_of(values), i, allowed)];
    EXPECT_EQ(counts[0] + counts[2] + counts[4], 0);
    EXPECT_NEAR(counts[3] / 20000.0, 0.75, 0.01);
  }
  std::vector<float> rows = {1, 2, 3, 9, 9};  // the last two without tokens
  EXPECT_EQ(TokenSampler({.temperature = 0}, 5).choose(logits_of(rows), 0, std::vector<bool>(3, true)), 2);
}

TEST(TokenSampler, ReportsLogitsThatAreNotFinite) {
  for (const float bad : {NAN, HUGE_VALF, -HUGE_VALF}) {
    std::vector<float> values = {1, bad, 2, NAN};  // the last one is padding
    for (const double temperature : {0.0, 1.0})
      EXPECT_EQ(TokenSampler({.temperature = temperature}, 3).choose(logits_of(values), 0, {true, false, true}), -1);
    values[1] = 3;
    EXPECT_EQ(TokenSampler({.temperature = 0}, 3).choose(logits_of(values), 0), 1);
  }
}

TEST(TokenSampler, ReadsFp64) {
  double values[] = {1, 1 + 1e-12, 1, 9};  // equal in fp32; the last one is padding
  const Tensor logits{reinterpret_cast<std::byte*>(values), {1, 4}, DType::f64, 0};
  EXPECT_EQ(TokenSampler({.temperature = 0}, 3).choose(logits, 0), 1);
  EXPECT_EQ(TokenSampler({.top_p = 0.1}, 3).choose(logits, 0), 1);
}

TEST(TokenSampler, RejectsValuesOutOfRange) {
  EXPECT_THROW(train::validate({.temperature = -1}), Error);
  EXPECT_THROW(train::validate({.temperature = NAN}), Error);
  EXPECT_THROW(train::validate({.top_k = -1}), Error);
  EXPECT_THROW(train::validate({.top_p = 0}), Error);
  EXPECT_THROW(train::validate({.top_p = 1.5}), Error);
}

train::TokenRequests each_of(const std::vector<train::TokenRequest>& requests) {
  return [&, at = size_t{0}]() mutable { return at == requests.size() ? std::nullopt : std::optional(requests[at++]); };
}

/// Returns the tokens that follow one prompt.
std::vector<int32_t> continued(train::Generator& generator, const std::vector<int32_t>& prompt, int64_t tokens,
                               const Sampling& sampling, const std::vector<int32_t>& stops = {}) {
  std::vector<int32_t> out;
  const auto emit = [&](int32_t id) {
    out.push_back(id);
    return true;
  };
  EXPECT_TRUE(generator.run(each_of({{prompt, tokens, sampling, stops, emit}})));
  return out;
}

// Returns the likeliest continuation; for every token it runs the whole prefix through the cache again.
std::vector<int32_t> greedy(train::ModelRunner& trainer, const std::vector<int32_t>& prompt, int64_t tokens) {
  std::vector<int32_t> out;
  train::Generator generator(trainer);
  std::vector<int32_t> text = prompt;
  for (int64_t i = 0; i < tokens; ++i) {
    out.push_back(continued(generator, text, 1, {.temperature = 0}).front());
    text.push_back(out.back());
  }
  return out;
}

TEST(Generator, TheCacheGivesWhatTheWholePrefixGives) {
  for (const auto arch : {config::Arch::gpt2, config::Arch::llama}) {
    config::Config c = tiny_config(arch);
    Tiny run(c, DType::f64, 2);
    for (int64_t n = 1; n <= 10; ++n) run.step(n, 1e-2);
    const std::vector<int32_t> prompt = {3, 17, 4};
    train::Generator generator(run.trainer);
    EXPECT_EQ(continued(generator, prompt, 7, {.temperature = 0}), greedy(run.trainer, prompt, 7));
  }
}

// A prompt of 90 tokens is read in passes of 64, 16, 8 and 2 rows; prefixes that greedy() reads end in other passes.
TEST(Generator, ReadsLongPromptsInSeveralPasses) {
  for (const auto arch : {config::Arch::gpt2, config::Arch::llama})
    for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
      config::Config c = tiny_config(arch);
      c.model.seq_len = 100;
      Tiny run(c, compute, 2);
      for (int64_t n = 1; n <= 10; ++n) run.step(n, 1e-2);
      std::vector<int32_t> prompt;
      for (int32_t i = 0; i < 90; ++i) prompt.push_back(i * i % kTinyVocab);
      train::Generator generator(run.trainer);
      EXPECT_EQ(continued(generator, prompt, 7, {.temperature = 0}), greedy(run.trainer, prompt, 7))
          << name_of(compute);
    }
}

TEST(Generator, GoesOnPastTheModelsLengthAndTrainingIsUndisturbed) {
  for (const int64_t micro_batches : {2, 1}) {  // gradients in their own memory; in the arena
    config::Config c = tiny_config();
    c.train.micro_batch = c.train.global_batch / micro_batches;
    Tiny run(c, DType::f32, 2), other(c, DType::f32, 2);
    run.step(1);
    other.step(1);
    train::Generator generator(run.trainer);
    const std::vector<int32_t> text = continued(generator, {1, 2}, 40, {.temperature = 1, .seed = 3});
    EXPECT_EQ(text.size(), 40);
    for (const int32_t id : text) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, kTinyVocab);
    }
    EXPECT_EQ(run.step(2).loss, other.step(2).loss);
    EXPECT_EQ(run.state(), other.state());
  }
}

// Texts of different lengths start and end at different times; one exceeds the context window, one meets a stop token.
TEST(Generator, TextsDoNotDependOnHowManyAreDecodedTogether) {
  for (const auto arch : {config::Arch::gpt2, config::Arch::llama})
    for (const DType compute : {DType::f64, DType::f32, DType::bf16}) {
      Tiny run(tiny_config(arch), compute, 2);
      for (int64_t n = 1; n <= 5; ++n) run.step(n, 1e-2);
      train::Generator one(run.trainer);
      std::vector<std::vector<int32_t>> expected, texts(11);
      std::vector<train::TokenRequest> requests;
      std::vector<int> ended(texts.size());
      for (size_t i = 0; i < texts.size(); ++i) {
        std::vector<int32_t> prompt;
        for (size_t k = 0; k < i; ++k) prompt.push_back(static_cast<int32_t>((3 * i + k) % kTinyVocab));
        const Sampling sampling{.temperature = i % 3 == 0 ? 0.0 : 1.0, .seed = i};
        const auto tokens = static_cast<int64_t>(i == 4 ? 40 : 3 + i % 5);
        const std::vector<int32_t> stops = {static_cast<int32_t>(i)};
        expected.push_back(continued(one, prompt, tokens, sampling, stops));
        const auto emit = [&texts, i](int32_t id) {
          texts[i].push_back(id);
          return true;
        };
        requests.push_back(
            {prompt, tokens, sampling, stops, emit, [&ended, i](bool stopped) { ended[i] += stopped ? 100 : 1; }});
      }
      device::CpuDevice device(2, device::detect_isa());
      train::ModelRunner constant(device, *run.solo, run.trainer.config(), kTinyVocab, compute);
      constant.plan();
      for (params::SlotId slot = 0; slot < constant.store().slots(); ++slot) {
        const Tensor from = run.trainer.store().stored_weight(slot), to = constant.store().stored_weight(slot);
        std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
      }
      constant.store().refresh_compute();  // packs the weights
      for (const int64_t together : {2, 3, 8}) {
        texts.assign(texts.size(), {});
        ended.assign(texts.size(), 0);
        train::Generator several(together == 8 ? constant : static_cast<train::ModelRunner&>(run.trainer), together);
        EXPECT_TRUE(several.run(each_of(requests)));
        EXPECT_EQ(texts, expected) << name_of(compute) << ", " << together << " together";
        EXPECT_EQ(ended, std::vector<int>(texts.size(), 1));
      }
    }
}

TEST(Generator, StopEndsTextsInProgressAndStartsNoOthers) {
  Tiny run(tiny_config(), DType::f32, 1);
  train::Generator generator(run.trainer, 2);
  std::vector<int> emitted(5), ended(5);
  std::vector<train::TokenRequest> requests;
  for (size_t i = 0; i < emitted.size(); ++i)
    requests.push_back({{1},
                        9,
                        {.seed = i},
                        {},
                        [&, i](int32_t) { return ++emitted[i] > 0; },
                        [&, i](bool stopped) { ended[i] += stopped ? 10 : 1; }});
  static int steps;
  steps = 0;
  EXPECT_FALSE(generator.run(each_of(requests), [] { return ++steps == 16; }));
  EXPECT_EQ(emitted, (std::vector<int>{9, 9, 3, 3, 0}));
  EXPECT_EQ(ended, (std::vector<int>{1, 1, 10, 10, 0}));
}

/// A tiny model with initial weights and any number of rows in its vocabulary.
struct Untrained {
  explicit Untrained(int64_t vocab) : trainer(device, *world, tiny_config(), vocab, DType::f32) {
    trainer.plan();
    trainer.store().initialize(1);
  }
  device::CpuDevice device{1, device::detect_isa()};
  std::unique_ptr<comm::World> world = comm::solo_world();
  train::ModelRunner trainer;
};

TEST(Generator, LeavesASpaceAtThePromptsEndToTheFirstToken) {
  const data::Tokenizer& tokenizer = data::testing::small_tokenizer();
  Untrained model(tokenizer.vocab_size());
  train::Generator generator(model.trainer);
  std::set<std::string> words;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id)
    if (const std::string piece(tokenizer.piece(id)); piece.starts_with(' ')) words.insert(piece.substr(1));
  int64_t free = 0;
  for (uint64_t seed = 0; seed < 30; ++seed) {
    EXPECT_TRUE(words.contains(generator.complete(tokenizer, "She had ", 1, {.seed = seed})));
    EXPECT_TRUE(words.contains(generator.complete(tokenizer, " ", 1, {.seed = seed})));
    EXPECT_EQ(generator.complete(tokenizer, "She had", 9, {.seed = seed}, [] { return true; }),
              generator.complete(tokenizer, "She had", 1, {.seed = seed}))
        << "a request to stop waits for no further token";
    free += generator.complete(tokenizer, "She had", 1, {.seed = seed}).starts_with(' ') ? 0 : 1;
  }
  EXPECT_GT(free, 0) << "without the space any token may follow";
  // The text after the first token is the same whether the space is in the prompt or in the token.
  const std::string word = generator.complete(tokenizer, "She had ", 1, {.temperature = 0});
  const std::string more = generator.complete(tokenizer, "She had ", 3, {.temperature = 0});
  EXPECT_EQ(more, word + generator.complete(tokenizer, "She had " + word, 2, {.temperature = 0}));
}

// "e" with an accent is two bytes, of which the prompt has the first: the text continues with the bytes after it.
TEST(Generator, DoesNotRepeatThePromptsPartOfACharacter) {
  const data::Tokenizer& tokenizer = data::testing::small_tokenizer();
  Untrained model(tokenizer.vocab_size());
  train::Generator generator(model.trainer);
  for (const std::string prompt : {"caf\xc3", "\xe2\x82", "caf\xc3 "})
    for (uint64_t seed = 0; seed < 10; ++seed)
      for (const int64_t tokens : {0, 1, 4}) {
        const bool spaced = prompt.ends_with(' ');
        const Sampling sampling{.temperature = 1, .seed = seed};
        std::vector<int32_t> ids = tokenizer.encode(prompt);
        const std::string whole = prompt + generator.complete(tokenizer, prompt, tokens, sampling);
        if (spaced) {  // the first token begins with the space
          EXPECT_EQ(whole.find(prompt.substr(3), 3), 3u) << whole;
          EXPECT_NE(whole.substr(5, 1), "\xc3") << whole;
          continue;
        }
        for (const int32_t id : continued(generator, ids, tokens, sampling, {tokenizer.eos()})) ids.push_back(id);
        EXPECT_EQ(whole, tokenizer.decode(ids));
      }
}

TEST(Generator, BeginsPromptsWithTheBosTokenInUse) {
  data::Tokenizer tokenizer = data::testing::small_tokenizer();
  tokenizer.use_bos(config::Bos::on, "x");
  Untrained model(tokenizer.vocab_size());
  train::Generator generator(model.trainer);
  for (const std::string prompt : {"She had", ""}) {
    std::vector<int32_t> ids = {1};  // <s>
    for (const int32_t id : tokenizer.encode(prompt)) ids.push_back(id);
    const Sampling sampling{.temperature = 1, .seed = 3};
    const std::string expected = tokenizer.decode(continued(generator, ids, 8, sampling, {tokenizer.eos()}));
    EXPECT_EQ(generator.complete(tokenizer, prompt, 8, sampling), expected);
    tokenizer.use_bos(-1);
    EXPECT_NE(generator.complete(tokenizer, prompt, 8, sampling), expected);
    tokenizer.use_bos(1);
  }
}

TEST(Generator, StopsAtAnyEosAndNeverChoosesARowWithoutAToken) {
  data::Tokenizer tokenizer = data::testing::small_tokenizer();
  Untrained model(tokenizer.vocab_size() * 4);  // most of the probability is on rows without tokens
  train::Generator generator(model.trainer);
  const auto write = [&] {
    int64_t calls = 0;
    int64_t written = -1;
    std::optional<train::TextRequest> text{{.prompt = "She ",
                                            .tokens = 40,
                                            .sampling = {.temperature = 1, .seed = 3},
                                            .emit = [&](const std::string&) { return ++calls > 0; },
                                            .ended = [&](int64_t tokens, bool) { written = tokens; }}};
    EXPECT_TRUE(generator.write(tokenizer, [&] { return std::exchange(text, std::nullopt); }));
    EXPECT_GE(calls, written);
    return written;
  };
  const int64_t all = write();  // throws for an id that the tokenizer does not have
  EXPECT_GT(all, 5);
  std::vector<int32_t> every(static_cast<size_t>(tokenizer.vocab_size()));
  for (size_t id = 0; id < every.size(); ++id) every[id] = static_cast<int32_t>(id);
  tokenizer.use_special({.eos = every});
  EXPECT_EQ(write(), 0);
}

TEST(Generator, ContinuesTokensAsTheirText) {
  const data::Tokenizer& tokenizer = data::testing::small_tokenizer();
  Untrained model(tokenizer.vocab_size());
  train::Generator generator(model.trainer);
  const train::Sampling sampling{.temperature = 1, .seed = 3};
  const std::string text = generator.complete(tokenizer, "She had", 20, sampling);
  EXPECT_FALSE(text.empty());
  EXPECT_EQ(generator.complete(tokenizer, tokenizer.encode("She had"), 20, sampling), text);
}

TEST(Generator, RejectsTokensOutsideTheVocabulary) {
  Tiny run(tiny_config(), DType::f32, 1);
  train::Generator generator(run.trainer);
  EXPECT_THROW(continued(generator, {99}, 1, {}), Error);
}

}  // namespace
}  // namespace trainer::tests
