#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/philox.h"
#include "config/faults.h"
#include "config/layouts.h"
#include "config/load.h"
#include "config/resolve.h"
#include "config/sharding_spec.h"
#include "config/strategies.h"
#include "verify/compare.h"
#include "verify/context.h"
#include "verify/shrink.h"

namespace trainer::verify {
namespace {

config::Config configure(const std::vector<std::string>& sets, const std::string& d_ff = "d_ff = 5760\n",
                         bool plans = true) {
  return config::load_text("[model]\nn_layer = 6\nn_head = 24\nd_model = 1536\nseq_len = 512\n" + d_ff +
                               "[train]\nglobal_batch = 384\nmicro_batch = 48\n",
                           "verify.toml", sets, {.files = false, .plans = plans});
}

TEST(Shrink, KeepsTheLayoutOf200RandomLayouts) {
  const PhiloxKey key = philox_key(11, "shrink");
  uint64_t next = 0;
  for (int tried = 0; tried < 200;) {
    config::Config trial =
        configure({philox_at(key, next++) % 2 == 0 ? "model.arch=gpt2" : "model.arch=llama",
                   philox_at(key, next++) % 2 == 0 ? "model.n_kv_head=24" : "model.n_kv_head=4", "parallel.data=2"});
    const std::span all = config::strategies();
    const config::NamedStrategy& strategy = *all[philox_at(key, next++) % (all.size() - 1)];
    trial.parallel.strategy = strategy.id;
    std::vector<config::Parallel> settings;
    strategy.each(trial, int64_t{1} << philox_at(key, next++) % 5,
                  [&](const config::Parallel& p) { settings.push_back(p); });
    if (settings.empty()) continue;
    trial.parallel = settings[philox_at(key, next++) % settings.size()];
    if (!config::layout_fits(trial)) continue;
    ++tried;
    const int64_t world = config::ranks_of_replica(trial) * 2;
    const Small small = shrink(trial, world);
    SCOPED_TRACE(config::layout_text(trial));
    EXPECT_TRUE(config::broken_rules(small.config).empty());
    EXPECT_EQ(config::layout_text(small.config), config::layout_text(trial));
    EXPECT_EQ(config::sharding_on(small.config, world).axes, config::sharding_on(trial, world).axes);
    EXPECT_EQ(small.config.model.n_layer, 2);
    EXPECT_LE(small.config.model.d_model, 768);
    EXPECT_EQ(small.config.model.n_head % small.config.model.n_kv_head, 0);
    EXPECT_EQ(small.config.train.global_batch, 4 * small.config.train.micro_batch);
    // Every rank holds real tokens of the vocabulary.
    EXPECT_GT(small.vocab, small.config.model.vocab_multiple);
  }
}

TEST(Shrink, KeepsPeriodsOfLayers) {
  const Small small =
      shrink(configure({"model.arch=llama", "model.window=128", "model.window_full_every=3", "model.nope_every=2"}), 1);
  EXPECT_EQ(small.config.model.n_layer, 6);
  EXPECT_LT(small.config.model.window, small.config.model.seq_len);
}

TEST(Shrink, KeepsStagesWithTwoLayersPerChunk) {
  const auto shrunk = [](int64_t stages, std::vector<int64_t> layers, int64_t batch) {
    config::Config trial = configure({"parallel.data=2"});
    trial.parallel.stages = stages;
    trial.model.n_layer = std::accumulate(layers.begin(), layers.end(), int64_t{0});
    trial.parallel.chunks = std::ssize(layers) / trial.parallel.stages;
    trial.parallel.stage_layers = std::move(layers);
    trial.train.micro_batch = 1;
    trial.train.global_batch = batch;
    const int64_t world = 2 * config::ranks_of_replica(trial);
    const config::Config small = shrink(trial, world).config;
    EXPECT_TRUE(config::broken_rules(small).empty());
    EXPECT_EQ(config::layout_text(small), config::layout_text(trial));
    EXPECT_EQ(small.model.n_layer,
              std::accumulate(small.parallel.stage_layers.begin(), small.parallel.stage_layers.end(), int64_t{0}));
    return std::pair(small.parallel.stage_layers, small.train.global_batch / small.train.micro_batch / 2);
  };
  using Expected = std::pair<std::vector<int64_t>, int64_t>;
  EXPECT_EQ(shrunk(2, {7, 5}, 384), Expected({2, 2}, 4));
  EXPECT_EQ(shrunk(2, {2, 1}, 6), Expected({1, 2}, 3)) << "no more than there are";
  EXPECT_EQ(shrunk(3, {4, 3, 0}, 8), Expected({2, 2, 0}, 4)) << "only the head on the last stage";
  EXPECT_EQ(shrunk(2, {3, 3, 3, 2}, 12), Expected({2, 2, 2, 2}, 4)) << "micro-batches: 6 of 2 stages";
}

TEST(Shrink, KeepsOddNumbersOfReplicas) {
  for (const int64_t world : {1, 3, 5, 7}) {
    const Small small = shrink(configure({format("parallel.data={}", world), "train.global_batch=5040"}), world);
    EXPECT_TRUE(config::broken_rules(small.config).empty());
    EXPECT_EQ(small.config.parallel.data, world);
    EXPECT_EQ(small.config.train.global_batch, 2 * world * small.config.train.micro_batch);
  }
}

TEST(Shrink, CutsSubgroupsOfOffloadedStates) {
  const Small small = shrink(configure({"offload.optimizer=interleaved"}), 1);
  const int64_t d = small.config.model.d_model;
  EXPECT_GE(small.config.offload.subgroup, 64);
  EXPECT_LT(small.config.offload.subgroup, 4 * d * d);  // less than a layer's attention
}

TEST(Shrink, KeepsTheStructureOfExperts) {
  const auto experts = [](std::vector<std::string> sets) {
    for (const char* set : {"model.arch=qwen2_moe", "model.d_expert=704", "train.global_batch=384", "parallel.data=1"})
      sets.push_back(set);
    return configure(sets, "", /*plans=*/false);
  };
  const auto shrunk = [&](const config::Config& trial, int64_t world) {
    const config::Config small = shrink(trial, world).config;
    EXPECT_TRUE(config::broken_rules(small).empty());
    EXPECT_EQ(config::layout_text(small), config::layout_text(trial));
    const config::Model& m = small.model;
    return std::vector{m.n_layer, m.n_expert, m.experts_per_token, m.d_expert, m.d_shared, m.d_ff};
  };
  using Sizes = std::vector<int64_t>;
  const std::string fsdp = "parallel.strategy=fsdp";
  const std::vector<std::string> many = {"model.n_expert=60", "model.experts_per_token=4", "model.d_shared=5632"};
  EXPECT_EQ(shrunk(experts(many), 1), Sizes({2, 4, 2, 32, 32, 0}));
  std::vector<std::string> divided = many;
  divided.insert(divided.end(), {fsdp, "parallel.shards=6", "parallel.experts=6"});
  EXPECT_EQ(shrunk(experts(divided), 6), Sizes({2, 12, 2, 32, 32, 0}));
  EXPECT_EQ(shrunk(experts({"model.n_expert=8", "parallel.tensor=2", "parallel.experts=4"}), 8),
            Sizes({2, 8, 2, 32, 0, 0}));
  EXPECT_EQ(
      shrunk(experts({"model.moe_every=3", "model.n_expert=3", "model.experts_per_token=2", "model.d_ff=5760"}), 1),
      Sizes({3, 3, 2, 32, 0, 32}));
  // Each sharding spec has layers of both kinds, as before: 0 to 2 and 3 on.
  config::Config tables = experts(
      {"model.moe_every=2", "model.n_expert=8", "model.d_ff=5760", fsdp, "parallel.shards=2", "parallel.experts=2"});
  config::set_tables(tables, config::sharding_of(tables));
  tables.parallel.layer.push_back(tables.parallel.layer.front());
  tables.parallel.layer.front().layers = 3;
  const config::Config small = shrink(tables, 2).config;
  EXPECT_EQ(small.model.n_layer, 5);
  EXPECT_EQ(small.parallel.layer.front().layers, 3);
  EXPECT_FALSE(shrink(experts({"model.n_expert=8", "debug.balanced_routing=true"}), 1).config.debug.balanced_routing);
}

TEST(GivenChoices, AreDistinctAndUnevenAndDependOnTheRow) {
  config::Model model;
  model.n_layer = 4;
  model.moe_every = 2;
  model.n_expert = 8;
  model.experts_per_token = 3;
  const std::vector<int32_t> all = given_choices(model, 0, 64), half = given_choices(model, 32, 32);
  ASSERT_EQ(all.size(), 2 * 64 * 3);
  EXPECT_TRUE(std::equal(half.begin(), half.begin() + 32 * 3, all.begin() + 32 * 3));
  EXPECT_FALSE(std::equal(all.begin(), all.begin() + 64 * 3, all.begin() + 64 * 3)) << "layers differ";
  int64_t below = 0;
  for (size_t i = 0; i < all.size(); i += 3) {
    const std::set<int32_t> row(all.begin() + i, all.begin() + i + 3);
    EXPECT_EQ(row.size(), 3);
    EXPECT_TRUE(*row.begin() >= 0 && *row.rbegin() < 8);
    below += std::ranges::count_if(row, [](int32_t expert) { return expert < 4; });
  }
  EXPECT_GT(below, std::ssize(all) * 0.55);
}

TEST(OneRank, HasTheSamplesOfAllReplicasInAMicroStep) {
  const config::Config one = on_one_rank(shrink(configure({"parallel.data=4"}), 4).config);
  EXPECT_EQ(one.train.global_batch, 2 * one.train.micro_batch);
  EXPECT_EQ(config::ranks_of_replica(one), 1);
}

/// A tensor of one rank as a part of a layout of one rank.
Parts parts_of(std::vector<double>& values) {
  const auto n = static_cast<int64_t>(values.size());
  const checkpoint::TensorSlice slice{
      "w", {n}, Tensor{reinterpret_cast<std::byte*>(values.data()), {n}, DType::f64}, {{0, 0, n}}, nullptr};
  return {{slice}, {slice}};
}

TEST(Compare, DetectsErrorsOf1e12InOneElement) {
  std::vector<double> f64(1000), f32(1000);
  for (size_t i = 0; i < f64.size(); ++i) {
    f64[i] = std::sin(static_cast<double>(i));
    f32[i] = f64[i] * (1 + 4 * 0x1p-24);  // C = 4
  }
  const Tensors whole{{"w", f64}};
  const Bounds bounds = rounding_bounds(whole, {{"w", f32}});
  EXPECT_NEAR(bounds.at("w").norm, 16 * 4 * 0x1p-53 * std::sqrt(500.0), 1e-15);
  const std::unique_ptr<comm::World> solo = comm::solo_world();
  std::vector<double> layout = f64;
  for (double& each : layout) each *= 1 + 8 * 0x1p-53;
  EXPECT_TRUE(compare(*solo, parts_of(layout), whole, bounds).passed());
  layout[7] += 1e-12;
  const Comparison found = compare(*solo, parts_of(layout), whole, bounds);
  EXPECT_FALSE(found.passed());
  EXPECT_EQ(found.where, "w");
  EXPECT_EQ(found.ranks, std::vector<int>{0});
  layout[7] = NAN;
  EXPECT_FALSE(compare(*solo, parts_of(layout), whole, bounds).passed());
  // In f32 an error of a thousandth of rounding is not detected.
  layout = f32;
  layout[7] *= 1 + 1e-3 * 0x1p-24;
  EXPECT_TRUE(compare(*solo, parts_of(layout), whole, typed_bounds(whole, {{"w", f32}}, 0x1p-24)).passed());
}

TEST(Compare, RequiresTensorsThatAreZeroToBeExactlyZero) {
  const Tensors whole{{"w", {0, 0, 0}}};
  std::vector<double> layout = {0, 0, 0};
  const std::unique_ptr<comm::World> solo = comm::solo_world();
  EXPECT_TRUE(compare(*solo, parts_of(layout), whole, rounding_bounds(whole, whole)).passed());
  layout[1] = 1e-300;
  EXPECT_FALSE(compare(*solo, parts_of(layout), whole, rounding_bounds(whole, whole)).passed());
}

TEST(Compare, FailsIfAnyTensorOrBoundIsNotFinite) {
  const std::unique_ptr<comm::World> solo = comm::solo_world();
  std::vector<double> layout = {1, 2, 3};
  const auto found = [&](const Tensors& whole, const Bounds& bounds) {
    Parts parts = parts_of(layout);
    for (std::vector<checkpoint::TensorSlice>* list : {&parts.owned, &parts.held}) {
      list->push_back(list->front());
      list->back().name = "x";
    }
    return compare(*solo, parts, whole, bounds);
  };
  const Tensors whole{{"w", layout}, {"x", layout}};
  EXPECT_TRUE(found(whole, rounding_bounds(whole, whole)).passed());
  for (const double bad : {double{NAN}, double{INFINITY}}) {
    Tensors wrong = whole;
    wrong["w"][1] = bad;
    for (const Bounds& bounds : {typed_bounds(whole, wrong, 0x1p-24), rounding_bounds(whole, wrong),
                                 rounding_bounds(wrong, whole), Bounds{{"w", {bad, 1}}, {"x", {1, 1}}}}) {
      const Comparison comparison = found(whole, bounds);
      EXPECT_FALSE(comparison.passed());
      EXPECT_EQ(comparison.where, "w");
    }
    EXPECT_FALSE(found(wrong, rounding_bounds(whole, whole)).passed());
    EXPECT_FALSE(std::isfinite(exact_bound(1, bad)));
    EXPECT_FALSE(std::isfinite(exact_bound(bad, 1)));
  }
}

TEST(Compare, JudgesADeviceByTheRoundingOfAnother) {
  const Tensors whole{{"w", {1, 2, 3}}}, f32{{"w", {1 + 4 * 0x1p-24, 2, 3}}};
  std::vector<double> wrong = {1.3, 2.6, 3.9};  // by 30 %, on one rank and in the layout
  const std::unique_ptr<comm::World> solo = comm::solo_world();
  EXPECT_TRUE(compare(*solo, parts_of(wrong), whole, typed_bounds(whole, {{"w", wrong}}, 0x1p-8)).passed());
  for (const double u : {0x1p-8, 0x1p-24})
    EXPECT_FALSE(compare(*solo, parts_of(wrong), whole, rounding_bounds(whole, f32, u)).passed());
}

TEST(Compare, IsNotJudgedByTheBoundsOfABrokenRank) {
  for (const int broken : {0, 1})
    for (const bool wrong_layout : {false, true})
      comm::run_on_threads(2, {}, [&](comm::World& world) {
        const Tensors whole{{"w", {1, 2, 3}}};
        std::vector<double> layout = {1, 2, wrong_layout ? 3.1 : 3}, one = {1, 2, world.rank() == broken ? 4.0 : 3};
        Parts parts = parts_of(layout);
        if (!world.first()) parts.owned.clear();
        const Comparison found = compare(world, parts, whole, typed_bounds(whole, {{"w", one}}, 0x1p-24));
        EXPECT_EQ(found.passed(), !wrong_layout);
        EXPECT_EQ(found.on_all_ranks, wrong_layout);
      });
}

TEST(Compare, NamesTheRankWhoseReferenceIsWrong) {
  comm::run_on_threads(3, {}, [&](comm::World& world) {
    const Tensors whole{{"w", {1, 2, world.rank() == 1 ? 3.1 : 3}}};
    std::vector<double> layout = {1, 2, 3};
    Parts parts = parts_of(layout);
    if (!world.first()) parts.owned.clear();
    const Comparison found = compare(world, parts, whole, rounding_bounds(whole, whole));
    EXPECT_FALSE(found.passed());
    EXPECT_EQ(found.ranks, std::vector<int>{1});
  });
}

TEST(Compare, NamesATensorWithAnElementThatIsOwnedTwice) {
  const Tensors whole{{"w", {1, 1, 1}}};
  std::vector<double> layout = {1, 1, 1};
  Parts parts = parts_of(layout);
  parts.owned[0].runs = {{0, 0, 2}, {1, 1, 1}};  // and the last one by no rank
  const std::unique_ptr<comm::World> solo = comm::solo_world();
  EXPECT_EQ(compare(*solo, parts, whole, rounding_bounds(whole, whole)).missing, "w");
}

Report report_of(std::vector<std::pair<std::string, Result>> results) {
  Report report{.hosts = {"a"}};
  for (auto& [check, result] : results) report.findings.push_back({.check = check, .result = result});
  return report;
}

TEST(Verdict, ClaimsNoMoreThanWhatPassed) {
  const auto claims = [](const Report& report) {
    return to_text(report).find("this layout computes what one rank computes") != std::string::npos;
  };
  EXPECT_FALSE(claims(report_of({{"links", Result::pass}})));
  EXPECT_FALSE(claims(report_of({{"links", Result::pass}, {"gradients", Result::skipped}, {"norm", Result::skipped}})));
  EXPECT_FALSE(claims(report_of({{"gradients", Result::pass}, {"norm", Result::pass}, {"update", Result::error}})));
  const Report all = report_of({{"gradients", Result::pass}, {"norm", Result::pass}, {"update", Result::pass}});
  EXPECT_TRUE(claims(all));
  EXPECT_NE(to_text(all).find("; not checked: environment, links, device, bytes"), std::string::npos);
  EXPECT_FALSE(claims(report_of(
      {{"gradients", Result::pass}, {"norm", Result::pass}, {"update", Result::pass}, {"resume", Result::failure}})));
}

TEST(Verdict, IsSuccessOnlyIfACheckPassed) {
  EXPECT_EQ(exit_status_of(report_of({{"transport", Result::skipped}})), kNothingChecked);
  EXPECT_EQ(exit_status_of(report_of({{"links", Result::pass}, {"transport", Result::skipped}})), 0);
  Report report = report_of({{"links", Result::pass}, {"resume", Result::error}});
  report.error = 5;
  EXPECT_EQ(exit_status_of(report), 5);
  report.findings.push_back({.check = "norm", .result = Result::failure});
  EXPECT_EQ(exit_status_of(report), exit_status(Code::difference));
}

TEST(Verify, KeepsItsFindingsIfALaterCheckEndsWithAnError) {
  const std::unique_ptr<comm::World> solo = comm::solo_world();
  config::Config config = configure({"data.tokenizer=train", "data.vocab_size=500", "run.device=cpu", "run.threads=1"});
  config.checkpoint.dir = "/proc/none";
  const Report report = verify(*solo, config, {.only = {"derivative", "resume"}});
  EXPECT_TRUE(report.passed("derivative"));
  EXPECT_EQ(report.findings.front().result, Result::error) << report.findings.front().text;
  EXPECT_EQ(exit_status_of(report), exit_status(Code::io));
}

TEST(Compare, NamesATensorWithAnElementThatNoRankOwns) {
  const Tensors whole{{"w", {1, 2, 3}}};
  std::vector<double> layout = {1, 2, 3};
  Parts parts = parts_of(layout);
  parts.owned[0].runs[0].length = 2;
  const std::unique_ptr<comm::World> solo = comm::solo_world();
  EXPECT_EQ(compare(*solo, parts, whole, rounding_bounds(whole, whole)).missing, "w");
}

TEST(Bytes, MustBeThoseThatWerePredicted) {
  const CommBytes bytes{{"data", {{"all_reduce", 4096}}}};
  CommBytes more = bytes;
  more["tensor"]["all_gather"] = 8;
  EXPECT_EQ(wrong_bytes(bytes, bytes, bytes), "");
  EXPECT_NE(wrong_bytes(more, bytes, bytes).find("tensor all_gather"), std::string::npos);
  EXPECT_NE(wrong_bytes(bytes, bytes, more), "");
}

TEST(Samples, AreDrawnByOneReplicaEach) {
  EXPECT_EQ(wrong_samples({{0, 2}, {0, 2}, {1, 3}, {1, 3}}, 4, 2), "");
  EXPECT_EQ(wrong_samples({{0, 2}, {0, 3}}, 4, 2), "sample 0 was drawn by 2 replicas");
  EXPECT_EQ(wrong_samples({{0, 2}, {0, 2}}, 4, 1), "sample 1 was drawn by 0 replicas");
  EXPECT_EQ(wrong_samples({{0, 4}, {1, 2}}, 4, 2), "sample 4 is not of these steps");
  EXPECT_EQ(wrong_samples({{0, 1}, {0, 1}}, 2, 2), "2 replicas drew 1 different lists of samples");
}

TEST(Samples, HaveTheSharesOfTheirSources) {
  EXPECT_EQ(wrong_shares({{"a", 75}, {"b", 25}}, {{"a", 3}, {"b", 1}}), "");
  EXPECT_EQ(wrong_shares({{"a", 100}}, {{"a", 1000}, {"b", 1}}), "");  // less than a sample is missing
  EXPECT_EQ(wrong_shares({{"a", 73}, {"b", 27}}, {{"a", 3}, {"b", 1}}),
            "73 of 100 samples are from \"a\", whose share is 75.0");
  EXPECT_NE(wrong_shares({{"a", 100}}, {{"a", 3}, {"b", 1}}), "");
}

TEST(Pairs, ConnectEachHostWithAnotherInEveryRound) {
  for (int hosts = 2; hosts <= 33; ++hosts) {
    std::vector<std::set<int>> met(static_cast<size_t>(hosts));
    for (int round = 0; round < hosts - 1 + hosts % 2; ++round)
      for (int host = 0; host < hosts; ++host) {
        const int other = partner_of(host, round, hosts);
        if (other == hosts) continue;  // pauses
        EXPECT_EQ(partner_of(other, round, hosts), host);
        EXPECT_NE(other, host);
        EXPECT_TRUE(met[static_cast<size_t>(host)].insert(other).second);
      }
    for (const std::set<int>& all : met) EXPECT_EQ(std::ssize(all), hosts - 1);
  }
}

TEST(Pairs, ShowWhichHostIsSlow) {
  const std::vector<HostPair> four = {{0, 3, 9.8}, {1, 2, 1.1}, {0, 2, 1.0}, {1, 3, 10.2}, {0, 1, 10}, {2, 3, 1.2}};
  EXPECT_EQ(usual_rate(four), 10.2);
  EXPECT_EQ(slow_hosts(four, usual_rate(four) / 2), std::vector<int>{2});
  const std::vector<HostPair> three = {{0, 1, 1}, {1, 2, 1}, {0, 2, 10}};
  EXPECT_EQ(slow_hosts(three, usual_rate(three) / 2), std::vector<int>{1});
  EXPECT_TRUE(slow_hosts({{0, 1, 1}}, usual_rate({{0, 1, 1}}) / 2).empty());
}

TEST(Json, HasNullForAnErrorThatIsInfiniteOrUnknown) {
  Report report = report_of({{"gradients", Result::failure}, {"repeat", Result::pass}});
  report.findings[0].worst = INFINITY;
  report.findings[0].bound = 1e-15;
  const nlohmann::json document = nlohmann::json::parse(to_json(report).dump());
  EXPECT_TRUE(document["checks"][0]["worst"].is_null());
  EXPECT_EQ(document["checks"][0]["bound"], 1e-15);
  EXPECT_TRUE(document["checks"][1]["worst"].is_null());
}

TEST(Verify, SkipsWhatWouldBeginAfterTheTimeLimit) {
  const std::unique_ptr<comm::World> solo = comm::solo_world();
  const Report report = verify(*solo, configure({"data.tokenizer=train", "data.vocab_size=500"}), {.seconds = 0});
  EXPECT_EQ(report.findings.size(), checks().size());
  for (const Finding& finding : report.findings) {
    EXPECT_EQ(finding.result, Result::skipped);
    EXPECT_EQ(finding.text, "the time limit of 0 s");
  }
  EXPECT_NE(to_text(report).find("verdict: nothing was checked. "), std::string::npos);
  EXPECT_EQ(exit_status_of(report), kNothingChecked);
}

TEST(Verify, RepeatsTheChecksOfTheMachineUntilTheTimeIsOver) {
  const std::unique_ptr<comm::World> solo = comm::solo_world();
  const config::Config config =
      configure({"data.tokenizer=train", "data.vocab_size=500", "run.device=cpu", "run.threads=1"});
  const Report report = verify(*solo, config, {.only = {"device"}, .seconds = 3, .burn_in = true});
  EXPECT_EQ(report.findings.size(), 2);  // a line for all rounds
  EXPECT_GE(report.seconds, 3);
  EXPECT_FALSE(report.has(Result::failure));
}

TEST(Faults, AreParsed) {
  const auto fault = config::planted_fault("weight:3:blocks.0.mlp.up.weight:17:51");
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->rank, 3);
  EXPECT_EQ(fault->tensor, "blocks.0.mlp.up.weight");
  EXPECT_EQ(fault->at, 17);
  EXPECT_EQ(fault->bit, 51);
  EXPECT_EQ(config::planted_fault("file:1:40")->at, 40);
  EXPECT_EQ(config::planted_fault("link:1:40")->kind, config::Fault::Kind::link);
  for (const char* text : {"", "file", "file:1", "file:x:1", "file:1:2:3", "weight:1:wte:0", "weight:1::0:1",
                           "weight:1:wte:0:64", "weight:-1:wte:0:6", "link:1:2:3", "delay:1"})
    EXPECT_FALSE(config::planted_fault(text)) << text;
}

}  // namespace
}  // namespace trainer::verify
