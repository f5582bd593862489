#include "config/load.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>

#include "config/foreign_names.h"
#include "config/keys.h"
#include "config/layouts.h"
#include "config/resolve.h"
#include "config/text.h"
#include "rigs/files.h"
#include "rigs/messages.h"

namespace trainer::config {
namespace {

using tests::error_of;
using tests::expect_parts;
using tests::Warnings;

const LoadOptions kNoFiles{.files = false};

TEST(Load, TakesAnyNameThatIsNotPartOfAPath) {
  const std::string lengthy(300, 'x');
  for (const std::string& name : {std::string("a/b"), std::string(".."), lengthy}) {
    EXPECT_EQ(load_text("", "f.toml", {"run.dir=out/mine", "run.name=" + name}, kNoFiles).run.name, name);
    tests::expect_error(Code::config, {"run.name"}, [&] { load_text("", "f.toml", {"run.name=" + name}, kNoFiles); });
  }
}

TEST(Load, ReadsEveryTypeFromAFileAndRemembersWhere) {
  const Config config = load_text(
      "[model]\narch = \"llama\"\nn_layer = 3\ndropout = 0.25\nbias = true\n\n[data]\ntrain = [\"a.txt\", \"b.txt\"]\n"
      "[train]\ntokens = 1_000_000\n",
      "dir/x.toml", {}, kNoFiles);
  EXPECT_EQ(config.model.arch, Arch::llama);
  EXPECT_EQ(config.model.n_layer, 3);
  EXPECT_EQ(config.model.dropout, 0.25);
  EXPECT_EQ(config.model.bias, true);
  EXPECT_EQ(config.data.train, (StringList{"a.txt", "b.txt"}));
  EXPECT_EQ(config.train.tokens, 1'000'000);
  EXPECT_EQ(config.run.name, "x");
  ASSERT_TRUE(config.origins.contains("model.dropout"));
  EXPECT_EQ(config.origins.at("model.dropout").line, 4);
  EXPECT_EQ(config.origins.at("model.dropout").column, 11);
  EXPECT_FALSE(config.origins.contains("model.d_model"));
}

TEST(Load, TakesWholeNumbersForIntegersIntegersForNumbersAndAStringForAList) {
  const Config config =
      load_text("[train]\ntokens = 1e9\n[optim]\nlr = 1\nmin_lr = 0\n[data]\ntrain = \"a.txt\"\n", "x", {}, kNoFiles);
  EXPECT_EQ(config.train.tokens, 1'000'000'000);
  EXPECT_EQ(config.optim.lr, 1.0);
  EXPECT_EQ(config.data.train, StringList{"a.txt"});
}

TEST(Load, LetsSetOverrideTheFileTheLastOneWinning) {
  const Config config =
      load_text("[model]\nn_layer = 3\n", "x.toml", {"model.n_layer=4", "model.n_layer = 5"}, kNoFiles);
  EXPECT_EQ(config.model.n_layer, 5);
  EXPECT_EQ(config.origins.at("model.n_layer").set, "--set model.n_layer = 5");
}

TEST(Load, ReadsSetValuesAsTomlAndBareWordsAsStrings) {
  const Config config = load_text("", "x",
                                  {"model.arch=llama", "data.train=[\"a b.txt\", 'c.txt']", "run.name=2024",
                                   "run.dir=\"a = b\"", "data.val=data/v=1.txt", "train.sample_prompt=Once upon",
                                   "optim.lr=1e-3", "log.jsonl=false", "model.rope_theta=5"},
                                  kNoFiles);
  EXPECT_EQ(config.model.arch, Arch::llama);
  EXPECT_EQ(config.data.train, (StringList{"a b.txt", "c.txt"}));
  EXPECT_EQ(config.run.name, "2024");
  EXPECT_EQ(config.run.dir, "a = b");
  EXPECT_EQ(config.data.val, StringList{"data/v=1.txt"});
  EXPECT_EQ(config.train.sample_prompt, "Once upon");
  EXPECT_EQ(config.optim.lr, 1e-3);
  EXPECT_FALSE(config.log.jsonl);
  EXPECT_EQ(config.model.rope_theta, 5.0);
}

TEST(Load, TablesOfFilesHaveNamesThatSetKnows) {
  const std::string text =
      "[data]\ntext_key = \"body\"\n[[data.validation]]\nname = \"web\"\nfiles = \"a.txt\"\n[[data.validation]]\n"
      "name = \"code\"\nfiles = [\"b.jsonl\", \"c.jsonl\"]\ndocument = \"line\"\nstrict = true\n";
  const Config config =
      load_text(text, "x.toml", {"data.validation.web.files=d.txt", "data.validation.web.format=text"}, kNoFiles);
  ASSERT_EQ(config.data.validation.size(), 2u);
  const Data web = data_of(config.data, config.data.validation[0]),
             code = data_of(config.data, config.data.validation[1]);
  EXPECT_EQ(web.train, StringList{"d.txt"});
  EXPECT_EQ(web.format, DataFormat::text);
  EXPECT_EQ(web.document, Document::file);
  EXPECT_EQ(web.text_key, "body");
  EXPECT_EQ(code.train, (StringList{"b.jsonl", "c.jsonl"}));
  EXPECT_EQ(code.format, DataFormat::automatic);
  EXPECT_EQ(code.document, Document::line);
  EXPECT_TRUE(code.strict);
  EXPECT_EQ(config.data.val_fraction, 0);
  EXPECT_EQ(followed_set(config), 0u);
  EXPECT_EQ(followed_set(load_text(text, "x.toml", {"checkpoint.best=code"}, kNoFiles)), 1u);
  const std::string whole = to_toml(config);
  EXPECT_NE(whole.find("{ name = \"code\", files = [\"b.jsonl\", \"c.jsonl\"], document = \"line\", strict = true }"),
            std::string::npos)
      << whole;
  EXPECT_EQ(to_toml(load_text(whole, "x.toml", {}, kNoFiles)), whole);
}

TEST(Load, WeightsGiveTheKeysThatNobodySets) {
  LoadOptions options = kNoFiles;
  std::string requested;
  options.settings_of = [&](const std::string& folder) {
    requested = folder;
    return StringList{"model.arch=llama", "model.n_head=8", "model.d_model=64"};
  };
  const std::string text = "[model]\ninit_from = \"hf\"\nn_layer = 3\n";
  const Config config = load_text(text, "x.toml", {"model.d_model=32"}, options);
  EXPECT_EQ(requested, "hf");
  EXPECT_EQ(config.model.arch, Arch::llama);
  EXPECT_EQ(config.model.n_head, 8);
  EXPECT_EQ(config.model.d_model, 32);
  EXPECT_EQ(config.model.n_layer, 3);
  EXPECT_NE(show(config).find("# hf\n"), std::string::npos) << show(config);
  load_text("[model]\ninit_from = \"models/{name}\"\n", "x.toml", {}, options);
  EXPECT_EQ(requested, "models/x");
  requested.clear();
  load_text("[model]\nn_layer = 3\n", "x.toml", {}, options);
  EXPECT_EQ(requested, "");
  tests::expect_error(Code::config, {"model.init_from = \"hf\"", "model.n_head"}, [&] {
    options.settings_of = [](const std::string&) { return StringList{"model.n_head=none"}; };
    load_text(text, "x.toml", {}, options);
  });
}

TEST(Load, SourcesHaveWeightsThatSetAndPhasesChange) {
  const std::string text =
      "[[data.source]]\nname = \"web\"\nfiles = [\"a.txt\"]\nweight = 0.7\nmax_epochs = 4\n[[data.source]]\n"
      "name = \"math\"\nfiles = [\"b.txt\"]\nweight = 1\n[[data.phase]]\nfrom_tokens = 8_000_000_000\n"
      "weights = { web = 0.4, math = 1 }\n";
  const Config config = load_text(text, "x.toml", {"data.source.web.weight=0.5"}, kNoFiles);
  ASSERT_EQ(config.data.source.size(), 2u);
  EXPECT_EQ(config.data.source[0].weight, 0.5);
  EXPECT_EQ(config.data.source[0].max_epochs, 4);
  EXPECT_EQ(config.data.source[1].weight, 1.0);
  ASSERT_EQ(config.data.phase.size(), 1u);
  EXPECT_EQ(config.data.phase[0].from_tokens, 8'000'000'000);
  EXPECT_EQ(config.data.phase[0].weights, (std::map<std::string, double>{{"math", 1.0}, {"web", 0.4}}));
  EXPECT_EQ(validation_names(config.data), (StringList{"web", "math"}));
  const std::string whole = to_toml(config);
  EXPECT_NE(whole.find("phase = [{ from_tokens = 8000000000, weights = { math = 1.0, web = 0.4 } }]"),
            std::string::npos)
      << whole;
  EXPECT_EQ(to_toml(load_text(whole, "x.toml", {}, kNoFiles)), whole);
}

TEST(Load, WarnsOnceOfKeysThatHaveNoEffect) {
  Warnings warnings;
  load_text(
      "[parallel]\ngrid = [2, 1, 2]\nmesh = [2, 2]\noverlap = { all_gather = false }\nsequence_parallel = true\n"
      "timeout = 60\n[offload]\nslots = 2\n",
      "x.toml", {"parallel.order=xyzd"}, kNoFiles);
  ASSERT_EQ(warnings.lines.size(), 1u);
  expect_parts(
      warnings.lines[0],
      {"parallel.grid (needs parallel.strategy: axonn-4d)", "parallel.mesh (needs parallel.strategy: optimus-2d)",
       "offload.slots (needs offload.optimizer)", "parallel.order", "parallel.strategy = \"megatron-1d\"",
       "offload.optimizer = \"none\"", "remove the keys"});
  EXPECT_EQ(warnings.lines[0].find("sequence_parallel"), std::string::npos);
  load_text("[model]\narch = 'mixtral'\nn_expert = 8\nd_expert = 64\n[parallel]\nstrategy = 'axonn-4d'\nexperts = 2",
            "x.toml", {}, kNoFiles);
  ASSERT_EQ(warnings.lines.size(), 2u);
  expect_parts(warnings.lines[1],
               {"parallel.experts (needs parallel.strategy: megatron-1d, fsdp, or sharding specs", "\"autoddl\""});
}

TEST(Load, KeysOfCommunicationBelongToTheStrategiesInWhichTheyAct) {
  for (const char* strategy : {"fsdp", "optimus-2d", "axonn-4d", "megatron-1d"}) {
    Warnings warnings;
    const Config c =
        load_text("", "x.toml",
                  {format("parallel.strategy={}", strategy), "parallel.overlap.reduce_scatter=false",
                   "parallel.overlap.all_gather=false", "parallel.rs_dtype=bf16", "parallel.overlap.all_reduce=false"},
                  kNoFiles);
    EXPECT_FALSE(sharding_of(c).overlap) << strategy;
    EXPECT_EQ(warnings.lines, std::vector<std::string>{}) << strategy;
  }
}

TEST(Load, FsdpShardsOverAllRanksOfAReplica) {
  const auto load_for = [](std::vector<std::string> sets, std::optional<int64_t> world) {
    sets.insert(sets.end(), {"parallel.strategy=fsdp", "train.micro_batch=8", "train.global_batch=16"});
    return load_text("", "x.toml", sets, {.world = world, .files = false}).parallel;
  };
  EXPECT_EQ(load_for({}, 8).shards, 8);
  EXPECT_EQ(load_for({}, 8).data, 1);
  EXPECT_EQ(load_for({"parallel.data=2"}, 8).shards, 4) << "hybrid sharding";
  EXPECT_EQ(load_for({"parallel.shards=4"}, 8).data, 2);
  EXPECT_EQ(load_for({"parallel.context=4"}, {}).shards, 4);
  EXPECT_EQ(load_for({"parallel.context=4"}, 8).shards, 8);
  EXPECT_EQ(load_text("", "x.toml", {}, {.world = 8, .files = false}).parallel.shards, 0) << "another strategy";
}

TEST(Load, KeysOfOffloadHaveTheirEffectWithIt) {
  Warnings warnings;
  const Config config = load_text(
      "[offload]\noptimizer = \"interleaved\"\ngpu_fraction = 0.25\nslots = 2\n"
      "grad_transport = \"fp32\"\npinned = true\n",
      "x.toml", {"offload.resident=4"}, kNoFiles);
  EXPECT_TRUE(warnings.lines.empty());
  EXPECT_EQ(config.offload.optimizer, OffloadOptimizer::interleaved);
  EXPECT_EQ(config.offload.gpu_fraction, "0.25");
  EXPECT_EQ(config.offload.slots, 2);
  EXPECT_EQ(config.offload.resident, 4);
  for (const char* text : {"offload.gpu_fraction=3/8", "offload.gpu_fraction=auto", "offload.gpu_fraction=1"})
    EXPECT_EQ(load_text("", "x.toml", {text}, kNoFiles).offload.gpu_fraction, std::string(text).substr(21));
}

TEST(Load, FractionsAreReadExactly) {
  const auto is = [](std::string_view text, int64_t num, int64_t den) {
    EXPECT_EQ(fraction_of(text), (Fraction{num, den})) << text;
  };
  is("1/2", 1, 2);
  is("6/8", 3, 4);
  is("0.35", 7, 20);
  is(".5", 1, 2);
  is("0", 0, 1);
  is("1", 1, 1);
  is("1.0", 1, 1);
  for (const char* text : {"", "auto", "3/2", "1/0", "-1/2", "0.5/2", "1.5", "1e-1", "0.12345678901234567890", "1/2/3"})
    EXPECT_FALSE(fraction_of(text)) << text;
}

TEST(Load, RatesOfAnEmulatedDevice) {
  EXPECT_EQ(emulated_rates("h100")->memory, 87.5);
  EXPECT_EQ(emulated_rates("a100")->to_host, 24);
  EXPECT_EQ(emulated_rates("host=1.5,memory=40")->host, 1.5);
  EXPECT_EQ(emulated_rates("host=1.5,memory=40")->memory, 40);
  EXPECT_EQ(emulated_rates("host=1.5,memory=40")->to_device, 55);
  for (const char* text : {"", "h200", "host", "host=0", "host=-1", "host=inf", "host=1,", "host=1;memory=2", "cpu=3"})
    EXPECT_FALSE(emulated_rates(text)) << text;
}

TEST(Load, WarnsOfValuesThatAnotherKeySwitchesOff) {
  const std::string data =
      "[data]\ntrain = \"" TRAINER_SOURCE_DIR "/README.md\"\ntokenizer = \"train\"\nvocab_size = 300\n";
  const std::string text =
      data + "[model]\nrope_theta = 5e5\n[optim]\ndecay_fraction = 0.1\n[train]\neval_batches = 16\n";
  Warnings warnings;
  load_text(text, "x.toml", {"data.val_fraction=0", "train.eval_interval=10"});
  ASSERT_EQ(warnings.lines.size(), 3u) << "eval_batches has its default";
  expect_parts(warnings.lines[0], {"x.toml:6:14: model.rope_theta: ", "model.arch = \"gpt2\""});
  expect_parts(warnings.lines[1], {"x.toml:8:18: optim.decay_fraction: ", "optim.schedule = \"wsd\""});
  expect_parts(warnings.lines[2], {"--set train.eval_interval=10: ", "data.val, data.val_fraction"});
  warnings.lines.clear();
  load_text(data + "[optim]\nschedule = 'wsd'\ndecay_fraction = 0.1\ndecay_steps = 3\n[train]\nsteps = 100\n", "x.toml",
            {});
  ASSERT_EQ(warnings.lines.size(), 1u);
  expect_parts(warnings.lines[0], {"optim.decay_fraction: ", "optim.decay_steps is set"});
  warnings.lines.clear();
  const tests::TempFolder folder;
  const std::string tokens = "[data]\ntrain = \"" + tests::write(folder / "tokens.bin", std::string(4096, '\1')) +
                             "\"\nvocab_size = 300\n";  // without a tokenizer there is no text to generate
  load_text(tokens, "x.toml", {"train.sample_interval=5"});
  ASSERT_EQ(warnings.lines.size(), 1u);
  expect_parts(warnings.lines[0], {"--set train.sample_interval=5: ", "data.tokenizer"});
  warnings.lines.clear();
  load_text(tokens, "x.toml", {"train.sample_interval=0", "parallel.rs_dtype=bf16", "parallel.context_kv=ring"});
  load_text(tokens, "x.toml",
            {"train.sample_interval=0", "parallel.strategy=fsdp", "parallel.context=2", "parallel.context_heads=2",
             "parallel.context_kv=ring", "train.micro_batch=1"});
  ASSERT_EQ(warnings.lines.size(), 3u);
  expect_parts(warnings.lines[0], {"--set parallel.rs_dtype=bf16: ", "parallel.context above 1"});
  expect_parts(warnings.lines[1], {"--set parallel.context_kv=ring: ", "parallel.context = 1"});
  expect_parts(warnings.lines[2], {"--set parallel.context_kv=ring: ", "split heads, not tokens"});
  warnings.lines.clear();
  load_text(tokens, "x.toml", {"train.sample_interval=0", "parallel.rs_dtype=bf16", "parallel.context=2"});
  load_text(tokens, "x.toml", {"train.sample_interval=0"});
  load_text(text, "x.toml", {"model.arch=llama", "optim.schedule=wsd"});
  load_text(text, "x.toml", {}, kNoFiles);  // a checkpoint's own copy
  EXPECT_EQ(warnings.lines, std::vector<std::string>{});
}

TEST(Load, ReportsAllMistakesTogetherInOrderOfPosition) {
  const Error error = error_of([] {
    load_text("[train]\nsteps = 0\n[model]\nn_heads = 4\nd_model = \"x\"\n", "f.toml", {"optim.lr=-1"}, kNoFiles);
  });
  EXPECT_EQ(error.code(), Code::config);
  std::istringstream lines(error.what());
  std::string line;
  for (const char* place : {"f.toml:2:9: train.steps: ", "f.toml:4:1: model.n_heads: ", "f.toml:5:11: model.d_model: ",
                            "--set optim.lr=-1: "}) {
    std::getline(lines, line);
    EXPECT_TRUE(line.starts_with(place)) << line;
  }
  EXPECT_FALSE(std::getline(lines, line)) << line;
}

TEST(Load, DoesNotBlameCombinationsOnValuesThatAreMistakesThemselves) {
  // 7 heads would not divide d_model: a second error, which must not be reported
  const Error error = error_of([] { load_text("[model]\nn_heads = 7\n", "f.toml", {}, kNoFiles); });
  EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
}

TEST(Load, GivesMissingFilesTheirOwnCodeUnlessOtherThingsAreWrongToo) {
  const auto code_of = [&](const std::vector<std::string>& sets) {
    return error_of([&] { load_text("[data]\ntrain = [\"no/such/file.bin\"]\n", "f.toml", sets); }).code();
  };
  EXPECT_EQ(code_of({}), Code::data);
  EXPECT_EQ(code_of({"model.n_layer=0"}), Code::config);
  EXPECT_EQ(code_of({"checkpoint.resume=no/such/run"}), Code::config);
}

TEST(Load, ChecksTheWorldOnlyWhenThereIsOne) {
  const std::string text = "[parallel]\ntensor = 2\n[train]\nmicro_batch = 2\nglobal_batch = 12\n";
  EXPECT_NO_THROW(load_text(text, "f", {}, {.files = false}));
  EXPECT_NO_THROW(load_text(text, "f", {}, {.world = 2, .files = false}));
  EXPECT_NO_THROW(load_text(text, "f", {}, {.world = 6, .files = false}));
  EXPECT_THROW(load_text(text, "f", {}, {.world = 1, .files = false}), Error);
  EXPECT_THROW(load_text(text, "f", {}, {.world = 8, .files = false}), Error) << "12 sequences on 4 replicas of 2";
}

TEST(Load, RejectsAMissingFileAFolderAndReadsAnEmptyFile) {
  EXPECT_THROW(load("no/such.toml"), Error);
  EXPECT_THROW(load("/tmp"), Error);
  const tests::TempFolder folder;
  EXPECT_EQ(load(tests::write(folder / "empty.toml", ""), {}, kNoFiles).model.n_layer, 12);
}

TEST(ToToml, ReadsBackToTheSameBits) {
  const uint64_t seed = 20240611;
  std::mt19937_64 random(seed);
  for (int round = 0; round < 200; ++round) {
    // Some numbers have an effect only with experts.
    Config config = load_text("[model]\narch = 'mixtral'\nn_expert = 8\nd_expert = 64", "name.toml", {}, kNoFiles);
    for (const Key& key : keys()) {
      if (key.type != Type::number) continue;
      double value;
      do {
        const uint64_t bits = random();
        std::memcpy(&value, &bits, sizeof value);
      } while (!key.range.contains(value) || !std::isfinite(value));
      key.set(config, value);
    }
    config.parallel.expert_buffer = 1.5;  // other values need ranks that divide the experts
    config.model.window_rope_theta = 0;   // other values need a window
    config.optim.min_lr = config.optim.lr / 3;
    config.train.sample_prompt = "tab\t \"quote\" back\\slash\nnewline \x01 \x7f ünïcode";
    config.data.train = {"a\"b", "", "c\\d"};
    const std::string text = to_toml(config);
    const Config again = load_text(text, "name.toml", {}, kNoFiles);
    for (const Key& key : keys()) {
      EXPECT_EQ(key.get(again), key.get(config)) << key.path() << ", seed " << seed << ", round " << round;
      if (key.type == Type::number) {
        EXPECT_EQ(std::bit_cast<uint64_t>(std::get<double>(key.get(again))),
                  std::bit_cast<uint64_t>(std::get<double>(key.get(config))))
            << key.path();
      }
    }
    EXPECT_EQ(to_toml(again), text);
  }
}

TEST(ToToml, KeepsARunGivenInTokensAsTokens) {
  const Config config = load_text("[train]\ntokens = 1000000\n", "x.toml", {}, kNoFiles);
  const std::string text = to_toml(config);
  EXPECT_EQ(text.substr(0, text.find("[optim]")).find("\nsteps"), std::string::npos);
  EXPECT_EQ(load_text(text, "x.toml", {}, kNoFiles).train.tokens, 1'000'000);
}

TEST(Show, ReportsWhereEachValueCameFrom) {
  const Config config =
      load_text("[model]\nn_layer = 3\n\n[optim]\nlr = 1e-3\n", "x.toml", {"train.steps=40"}, kNoFiles);
  const std::string text = show(config);
  const auto has_line = [&](const std::string& start, const std::string& end) {
    const size_t at = text.find("\n" + start);
    if (at == std::string::npos) return false;
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    return line.ends_with("  # " + end);
  };
  EXPECT_TRUE(has_line("n_layer ", "x.toml:2")) << text;
  EXPECT_TRUE(has_line("lr ", "x.toml:5")) << text;
  EXPECT_TRUE(has_line("steps ", "--set")) << text;
  EXPECT_TRUE(has_line("n_head ", "default")) << text;
  EXPECT_TRUE(has_line("min_lr ", "derived: lr / 10")) << text;
  EXPECT_EQ(to_toml(load_text(text, "x.toml", {}, kNoFiles)), to_toml(config)) << "what show prints is a configuration";
}

TEST(Reference, IsTheFileInConfigs) {
  EXPECT_EQ(tests::content_of(TRAINER_SOURCE_DIR "/configs/reference.toml"), reference())
      << "renew it: trainer config reference > configs/reference.toml";
}

TEST(Reference, HoldsTheDefaultsAndNamesEveryKey) {
  const std::string text = reference();
  Config expected = load_text("", "reference.toml", {}, kNoFiles);
  const Config config = load_text(text, "reference.toml", {}, kNoFiles);
  for (const Key& key : keys()) {
    EXPECT_NE(text.find(key.name), std::string::npos) << key.path();
    EXPECT_EQ(key.get(config), key.example == Value() ? key.get(expected) : key.example) << key.path();
  }
}

}  // namespace
}  // namespace trainer::config
