// The contents of events in metrics.jsonl, and that they are read back unchanged.
#include <limits>

#include "unit/report/run_history.h"

namespace trainer::report {
namespace {

template <typename T>
std::string again(const std::string& line) {
  return json_text(to_json(from_json<T>(Json::parse(line))));
}

// Lines in the format of version 0.1: keys, their order and numbers must not change.
constexpr const char* kStep =
    R"({"event":"step","step":7,"tokens":57344,"loss":0.30000000000000004,"lr":0.3333333333333333,"grad_norm":5e-324,)"
    R"("skipped":false,"step_ms":12.5,"tokens_per_s":655360.0,"tflops_per_device":0.559,"mfu":0.41,"mfu_causal":0.39,)"
    R"("hfu":0.39000000000000007,"peak_tflops":null,"phase_ms":{"data":0.25,"forward":4.0,"backward":7.5,)"
    R"("optimizer":0.5,"comm_exposed":0.125},"comm_bytes":{"tensor":{"all_reduce":9007199254740993}},)"
    R"("comm_wait_ms":{"tensor":{"all_reduce":0.125}},"memory_bytes":{"activations":12,"weights":1152921504606846977},)"
    R"("data_position":112,"epoch":0.5)";
constexpr const char* kOffload =
    R"(,"offload":{"gpu_fraction":"1/2","parameters":{"host":300,"streamed":200,"resident":100},"bytes":{"load":2400},)"
    R"("exposed_ms":0.25,"busy_ms":{"host":1.5},"update_ms":2.5,"plan":{"subgroups":7,"largest":128,"resident":1,)"
    R"("slots":3,"host_memory":"pinned"},)";
constexpr const char* kEnd =
    R"({"event":"end","step":100,"tokens":9,"outcome":"finished","wall_s":12.0,"predicted":{"step_ms":80.0,)"
    R"("wait_ms":null,"memory_bytes":1000,"comm_bytes":{"data":{"all_reduce":50}}},"measured":{"step_ms":100.0,)"
    R"("wait_ms":1.0,"memory_bytes":1250,"comm_bytes":{"data":{"all_reduce":50}}},"ratio":{"step_ms":1.25,)"
    R"("memory_bytes":1.25,"comm_bytes":{"data":{"all_reduce":1.0}}},"peak":{"tflops":0.5,"origin":"measured",)"
    R"("unit":"AVX2 fma","windows":48,"median_tflops":0.25,"lowest_tflops":0.125,"raised_by":"step 3"}})";

TEST(Events, AreWrittenAsTheyWereRead) {
  for (const std::string& more :
       {std::string("}"), std::string(R"(,"gpu":{"watts":612.5,"sm_mhz":1755.0,"celsius":61.0}})"),
        kOffload +
            std::string(R"("predicted_ms":2.25,"parameters_per_s":null,"overlapped":0.875,"memory_share":0.5}})"),
        kOffload + std::string(R"("emulated":{"update_ms":40.0,"predicted_ms":2.25}}})")})
    EXPECT_EQ(again<StepReport>(kStep + more), kStep + more);
  const std::string experts =
      kStep + std::string(R"(,"balance_loss":1.25,"router_z_loss":4.5,"experts":{"load_max":1.5,"load_layer":3,)"
                          R"("idle":2,"entropy":1.0,"rounds":0}})");
  EXPECT_EQ(again<StepReport>(experts), experts);
  EXPECT_EQ(again<EndReport>(kEnd), kEnd);
  const std::string choices =
      std::string(kEnd).substr(0, std::string(kEnd).size() - 1) + R"(,"choices":[[5,3],[8,0]]})";
  EXPECT_EQ(again<EndReport>(choices), choices);
  for (const char* bits : {"1.1", "null"}) {
    const std::string eval = format(
        R"({{"event":"eval","step":50,"loss":1.5,"perplexity":4.5,"bits_per_byte":{},"tokens":4096,"data":"1f"}})",
        bits);
    EXPECT_EQ(again<EvalReport>(eval), eval);
    EXPECT_EQ(from_json<EvalReport>(Json::parse(eval)).bits_per_byte.has_value(), bits != std::string("null"));
  }
  const std::string named =
      R"({"event":"eval","step":50,"loss":1.5,"perplexity":4.5,"bits_per_byte":null,"tokens":4096,"data":"1f",)"
      R"("set":"web","sets":)"
      R"({"web":{"loss":1.5,"perplexity":4.5,"bits_per_byte":null,"tokens":4096,"data":"1f"},)"
      R"("code":{"loss":2.5,"perplexity":12.25,"bits_per_byte":1.25,"tokens":64,"data":"2e"}}})";
  EXPECT_EQ(again<EvalReport>(named), named);
  const auto eval = from_json<EvalReport>(Json::parse(named));
  EXPECT_EQ(eval.loss_of("web"), 1.5);
  EXPECT_EQ(eval.loss_of("code"), 2.5);
  EXPECT_FALSE(eval.loss_of(""));
  const std::string saved =
      R"({"event":"checkpoint","step":6,"path":"checkpoints/step-00000006","bytes":99,"seconds":0.5,"wait_seconds":0.25,)"
      R"("best":true})";
  EXPECT_EQ(again<CheckpointReport>(saved), saved);
  EXPECT_EQ(json_text(to_json(WarningReport{.step = 61, .message = "a \xff\" line\n"})),
            "{\"event\":\"warning\",\"step\":61,\"message\":\"a \xEF\xBF\xBD\\\" line\\n\"}");
}

TEST(Events, StartHoldsTheConfigAsJsonAndTheDefinitionOfFlops) {
  StartReport start = example_start();
  start.config_toml = "[optim]\nlr = 3e-4\nschedule = \"wsd\"\n[data]\ntrain = [\"a.txt\", \"b.txt\"]\n";
  const Json json = to_json(start);
  std::string keys;
  for (const auto& [key, value] : json.items()) keys += key + " ";
  EXPECT_EQ(keys,
            "event format step name time model compute parameters total_steps global_batch micro_batch accumulation "
            "data_replicas train_tokens val_tokens windows unigram_entropy flops_per_token peak predicted environment "
            "config ");
  EXPECT_EQ(json["config"]["optim"]["lr"], 3e-4);
  EXPECT_EQ(json["config"]["data"]["train"][1], "b.txt");
  EXPECT_EQ(json["flops_per_token"]["full"], 7.5e7);
  EXPECT_EQ(json["flops_per_token"]["causal"], 7.15e7);
  expect_texts(json["flops_per_token"]["definition"], "6 * N_matmul");
  Json back = to_json(from_json<StartReport>(json));
  EXPECT_EQ(back["config"], Json::object()) << "the run's config.toml has it";
  back["config"] = json["config"];
  EXPECT_EQ(json_text(back), json_text(json));
}

TEST(Events, WhatIsNotFiniteBecomesNullAndComesBackAsNaN) {
  StepReport step{.step = 3, .loss = std::nan(""), .grad_norm = std::numeric_limits<double>::infinity()};
  step.skipped = true;
  step.bad_tensor = "blocks.3.mlp.up.weight";
  const Json json = Json::parse(json_text(to_json(step)));
  for (const char* key : {"loss", "grad_norm", "mfu"}) EXPECT_TRUE(json[key].is_null()) << key;
  EXPECT_EQ(json["comm_bytes"], Json::object());
  const auto back = from_json<StepReport>(json);
  EXPECT_TRUE(std::isnan(back.loss) && std::isnan(back.grad_norm) && std::isnan(back.mfu));
  EXPECT_EQ(back.bad_tensor, step.bad_tensor);
}

TEST(Events, MayHaveUnknownValuesAndLackThoseOfUnusedFeatures) {
  const auto start = from_json<StartReport>(Json::parse(R"({"new": [1], "name": "x"})"));
  EXPECT_EQ(start.name, "x");
  EXPECT_EQ(start.environment.ranks, 1) << "what is missing keeps its default";
  EXPECT_EQ(to_json(setup::PeakReport{.flops = 2e12, .origin = "user"}),
            Json::parse(R"({"tflops": 2.0, "origin": "user"})"));
  EXPECT_THROW(from_json<StepReport>(Json::parse(R"({"loss": "low"})")), Json::exception);
  EXPECT_THROW(from_json<WarningReport>(Json::parse(R"({"message": 3})")), Json::exception);
}

TEST(Events, RatiosOfWhatWasNotPredictedAreNull) {
  const Json json = to_json(EndReport{.measured = {.step_ms = 100, .memory_bytes = 1100}});
  EXPECT_EQ(json_text(json["ratio"]), R"({"step_ms":null,"memory_bytes":null,"comm_bytes":{}})");
  EXPECT_TRUE(json["predicted"]["memory_bytes"].is_null());
}

TEST(UtcNow, IsIso8601) {
  std::string now = utc_now();
  for (char& c : now) c = std::isdigit(c) ? '9' : c;
  EXPECT_EQ(now, "9999-99-99T99:99:99Z");
}

}  // namespace
}  // namespace trainer::report
