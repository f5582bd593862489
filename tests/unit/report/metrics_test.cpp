// What events hold in metrics.jsonl, and that they come back.
#include <limits>

#include "unit/report/metrics_fixture.h"

namespace trainer::report {
namespace {

TEST_F(Metrics, AStepHasEveryFieldOfTheContract) {
  { MetricsLog(file_).write(full_step()); }
  const Json json = events().at(0);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{
                      "event",      "step",         "tokens",       "loss",          "lr",
                      "grad_norm",  "skipped",      "step_ms",      "tokens_per_s",  "tflops_per_device",
                      "mfu",        "mfu_causal",   "hfu",          "peak_tflops",   "phase_ms",
                      "comm_bytes", "comm_wait_ms", "memory_bytes", "data_position", "epoch"}));
  EXPECT_EQ(json["event"], "step");
  EXPECT_EQ(json["phase_ms"].size(), 5);
  EXPECT_EQ(json["phase_ms"]["comm_exposed"], 0.125);
  EXPECT_EQ(json["comm_bytes"]["tensor"]["all_reduce"].get<int64_t>(), 9007199254740992);
  EXPECT_EQ(json["memory_bytes"]["weights"].get<int64_t>(), 1152921504606846977);
}

TEST_F(Metrics, DoublesSurviveTheRoundTrip) {
  const StepReport step = full_step();
  { MetricsLog(file_).write(step); }
  const StepReport back = step_from(events().at(0));
  EXPECT_EQ(back.loss, step.loss);
  EXPECT_EQ(back.lr, step.lr);
  EXPECT_EQ(back.grad_norm, step.grad_norm);
  EXPECT_EQ(back.hfu, step.hfu);
  EXPECT_EQ(back.phase_ms.backward, step.phase_ms.backward);
  EXPECT_EQ(back.comm_bytes, step.comm_bytes);
  EXPECT_EQ(back.memory_bytes, step.memory_bytes);
  EXPECT_EQ(back.data_position, step.data_position);
  EXPECT_FALSE(back.gpu.has_value());
}

TEST_F(Metrics, AStepOnAGpuTellsItsPowerClockAndTemperature) {
  StepReport step = full_step();
  step.gpu = {.watts = 612.5, .sm_mhz = 1755, .celsius = 61};
  { MetricsLog(file_).write(step); }
  const StepReport back = step_from(events().at(0));
  ASSERT_TRUE(back.gpu.has_value());
  EXPECT_EQ(back.gpu->watts, 612.5);
  EXPECT_EQ(back.gpu->sm_mhz, 1755);
  EXPECT_EQ(back.gpu->celsius, 61);
}

TEST_F(Metrics, WhatOptimizerOffloadDidComesBackAndAnEmulatedDeviceHasNoRates) {
  StepReport step = full_step();
  step.offload = OffloadReport{.device_share = "1/2",
                               .host = 300,
                               .streamed = 200,
                               .resident = 100,
                               .bytes = {{"gradient", 1200}, {"load", 2400}},
                               .exposed_ms = 0.25,
                               .busy_ms = {{"host", 1.5}, {"to_host", 0.5}},
                               .update_ms = 2.5,
                               .predicted_ms = 2.25,
                               .parameters_per_s = 1e9,
                               .overlapped = 0.875,
                               .memory_share = 0.9375,
                               .subgroups = 7,
                               .largest_subgroup = 128,
                               .resident_subgroups = 1,
                               .slots = 3,
                               .host_memory = "pinned"};
  { MetricsLog(file_).write(step); }
  const Json json = events().at(0)["offload"];
  EXPECT_EQ(json["parameters"], Json::parse(R"({"host": 300, "streamed": 200, "resident": 100})"));
  EXPECT_EQ(json["plan"], Json::parse(R"({"subgroups": 7, "largest": 128, "resident": 1, "slots": 3,
                                          "host_memory": "pinned"})"));
  const StepReport back = step_from(events().at(0));
  ASSERT_TRUE(back.offload.has_value());
  EXPECT_EQ(to_json(*back.offload), json);
  EXPECT_EQ(back.offload->predicted_ms, 2.25);
  EXPECT_EQ(back.offload->overlapped, 0.875);
  EXPECT_EQ(back.offload->memory_share, 0.9375);
  step.offload->emulated_ms = 40;
  const Json emulated = to_json(*step.offload);
  EXPECT_EQ(emulated["emulated"], Json::parse(R"({"update_ms": 40.0, "predicted_ms": 2.25})"));
  for (const char* rate : {"parameters_per_s", "overlapped", "memory_share"}) EXPECT_FALSE(emulated.contains(rate));
  EXPECT_EQ(offload_from(emulated).predicted_ms, 2.25);
}

TEST_F(Metrics, WhatIsNotFiniteBecomesNullAndComesBackAsNaN) {
  StepReport step;
  step.step = 3;
  step.loss = std::nan("");
  step.grad_norm = std::numeric_limits<double>::infinity();
  step.skipped = true;
  step.bad_tensor = "blocks.3.mlp.up.weight";
  { MetricsLog(file_).write(step); }
  const Json json = events().at(0);
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_TRUE(json["mfu"].is_null());
  EXPECT_EQ(json["comm_bytes"], Json::object());
  EXPECT_EQ(json["skipped"], true);
  EXPECT_EQ(json["bad_tensor"], "blocks.3.mlp.up.weight");
  const StepReport back = step_from(json);
  EXPECT_TRUE(std::isnan(back.loss) && std::isnan(back.grad_norm) && std::isnan(back.mfu));
  EXPECT_EQ(back.bad_tensor, step.bad_tensor);
}

TEST_F(Metrics, StartHoldsTheConfigAsJsonAndTheDefinitionOfFlops) {
  StartReport start;
  start.name = "tiny";
  start.arch = "gpt2";
  start.parameters = 124'000'000;
  start.flops = {.matmul = 600, .attention = 120, .recomputed = 50};
  start.peak = {.flops = 0.5e12,
                .origin = "measured",
                .unit = "AVX-512 fma",
                .windows = 48,
                .median_flops = 0.25e12,
                .lowest_flops = 0.125e12,
                .raised_by = "the products of step 3"};
  start.unigram_entropy = 5.25;
  start.predicted = {.step_ms = 80, .memory_bytes = 1000, .comm_bytes = {}};
  start.environment = {"0.1.0", "abc", "cpu", "avx2", "own, f32", 1, 2};
  start.config_toml = "[optim]\nlr = 3e-4\nschedule = \"wsd\"\n[data]\ntrain = [\"a.txt\", \"b.txt\"]\n";
  { MetricsLog(file_).write(start); }
  const Json json = events().at(0);
  EXPECT_EQ(json["config"]["optim"]["lr"], 3e-4);
  EXPECT_EQ(json["config"]["data"]["train"][1], "b.txt");
  EXPECT_EQ(json["flops_per_token"]["full"], 720);
  EXPECT_EQ(json["flops_per_token"]["causal"], 660);
  EXPECT_EQ(json["flops_per_token"]["hardware"], 710);
  EXPECT_NE(json["flops_per_token"]["definition"].get<std::string>().find("6 * N_matmul"), std::string::npos);
  EXPECT_EQ(json["predicted"]["memory_bytes"], 1000);
  EXPECT_EQ(json["peak"], Json::parse(R"({"tflops": 0.5, "origin": "measured", "unit": "AVX-512 fma", "windows": 48,
      "median_tflops": 0.25, "lowest_tflops": 0.125, "raised_by": "the products of step 3"})"));
  const StartReport back = start_from(json);
  EXPECT_EQ(back.peak.flops, 0.5e12);
  EXPECT_EQ(back.peak.unit, "AVX-512 fma");
  EXPECT_EQ(back.peak.windows, 48);
  EXPECT_EQ(back.peak.lowest_flops, 0.125e12);
  EXPECT_EQ(back.peak.raised_by, "the products of step 3");
  EXPECT_EQ(back.name, "tiny");
  EXPECT_EQ(back.flops.recomputed, 50);
  EXPECT_EQ(back.unigram_entropy, 5.25);
  EXPECT_EQ(back.environment.product_path, "own, f32");
  EXPECT_EQ(back.environment.threads, 2);
}

TEST_F(Metrics, APeakThatIsGivenHasNoWindowsAndOneOfAnOlderLogIsRead) {
  StartReport start;
  start.peak = {.flops = 2e12, .origin = "user"};
  { MetricsLog(file_).write(start); }
  EXPECT_EQ(events().at(0)["peak"], Json::parse(R"({"tflops": 2.0, "origin": "user"})"));
  const measure::PeakReport older = start_from(Json::parse(R"({"peak_flops": 3e11, "peak_origin": "measured"})")).peak;
  EXPECT_EQ(older.flops, 3e11);
  EXPECT_EQ(older.origin, "measured");
  EXPECT_EQ(older.windows, 0);
}

TEST_F(Metrics, EndComparesThePredictionWithTheMeasurement) {
  EndReport end;
  end.step = 100;
  end.outcome = "finished";
  end.wall_s = 12;
  end.predicted = {.step_ms = 80, .memory_bytes = 1000, .comm_bytes = {{"data", {{"all_reduce", 50}}}}};
  end.measured = {.step_ms = 100, .memory_bytes = 1100, .comm_bytes = {{"data", {{"all_reduce", 50}}}}};
  {
    MetricsLog log(file_);
    log.write(end);
    end.predicted = {};
    log.write(end);
  }
  const auto all = events();
  EXPECT_DOUBLE_EQ(all[0]["ratio"]["step_ms"].get<double>(), 1.25);
  EXPECT_DOUBLE_EQ(all[0]["ratio"]["memory_bytes"].get<double>(), 1.1);
  EXPECT_EQ(all[0]["ratio"]["comm_bytes"]["data"]["all_reduce"], 1);
  EXPECT_TRUE(all[1]["ratio"]["step_ms"].is_null());
  EXPECT_TRUE(all[1]["predicted"]["memory_bytes"].is_null());
  EXPECT_EQ(end_from(all[0]).measured.memory_bytes, 1100);
}

TEST_F(Metrics, TheOtherEventsComeBackToo) {
  {
    MetricsLog log(file_);
    log.write(EvalReport{.step = 50, .loss = 1.5, .perplexity = std::exp(1.5), .bits_per_byte = 1.1, .tokens = 4096});
    log.write(EvalReport{.step = 60, .loss = 1.4, .perplexity = std::exp(1.4), .bits_per_byte = {}, .tokens = 4096});
    log.write(
        CheckpointReport{.step = 60, .path = "checkpoints/step-00000060", .bytes = 99, .seconds = .5, .best = true});
    log.write(WarningReport{.step = 61, .message = "a \xff\" line\n"});
  }
  const History history = read_history(file_);
  EXPECT_EQ(history.unreadable_lines, 0);
  ASSERT_EQ(history.evals.size(), 2);
  EXPECT_EQ(history.evals[0].bits_per_byte, 1.1);
  EXPECT_FALSE(history.evals[1].bits_per_byte.has_value());
  EXPECT_EQ(history.evals[1].loss, 1.4);
  EXPECT_TRUE(history.checkpoints.at(0).best);
  EXPECT_EQ(history.warnings.at(0).message, "a \xEF\xBF\xBD\" line\n");
}

TEST(UtcNow, IsIso8601) {
  const std::string now = utc_now();
  ASSERT_EQ(now.size(), 20);
  EXPECT_EQ(now[4], '-');
  EXPECT_EQ(now[10], 'T');
  EXPECT_EQ(now.back(), 'Z');
}

}  // namespace
}  // namespace trainer::report
