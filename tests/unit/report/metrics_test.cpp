#include "report/metrics.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "report/events_json.h"
#include "report/history.h"

namespace trainer::report {
namespace {

namespace fs = std::filesystem;

class Metrics : public testing::Test {
 protected:
  Metrics() {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    previous_ = log::set_sink([this](log::Level, const std::string& line) { logged_.push_back(line); });
  }
  ~Metrics() override {
    log::set_sink(previous_);
    fs::remove_all(folder_);
  }

  std::string text() const {
    std::ifstream in(file_);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::vector<Json> events() const {
    std::vector<Json> all;
    std::ifstream in(file_);
    for (std::string line; std::getline(in, line);) all.push_back(Json::parse(line));
    return all;
  }
  void put(const std::string& content) const { std::ofstream(file_, std::ios::binary) << content; }

  const fs::path folder_ = fs::path(testing::TempDir()) / ("metrics_test_" + std::to_string(getpid()));
  const fs::path file_ = folder_ / "metrics.jsonl";
  std::vector<std::string> logged_;
  log::Sink previous_;
};

StepReport full_step() {
  StepReport step;
  step.step = 7;
  step.tokens = 7 * 8192;
  step.loss = 0.1 + 0.2;  // 0.30000000000000004
  step.lr = 1.0 / 3.0;
  step.grad_norm = 5e-324;  // the smallest double
  step.step_ms = 12.5;
  step.tokens_per_s = 655360.0;
  step.tflops_per_device = 0.559;
  step.mfu = 0.41;
  step.mfu_causal = 0.39;
  step.hfu = std::nextafter(0.39, 1.0);
  step.phase_ms = {.data = 0.25, .forward = 4, .backward = 7.5, .optimizer = 0.5, .comm_exposed = 0.125};
  step.comm_bytes["tensor"]["all_reduce"] = int64_t{1} << 53;
  step.memory_bytes = {{"weights", (int64_t{1} << 60) + 1}, {"activations", 12}};
  step.data_position = 112;
  return step;
}

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
                               .order = "zigzag",
                               .host_memory = "pinned"};
  { MetricsLog(file_).write(step); }
  const Json json = events().at(0)["offload"];
  EXPECT_EQ(json["parameters"], Json::parse(R"({"host": 300, "streamed": 200, "resident": 100})"));
  EXPECT_EQ(json["plan"], Json::parse(R"({"subgroups": 7, "largest": 128, "resident": 1, "slots": 3, "order": "zigzag",
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

/// A step whose utilisation is written as a share of `peak_tflops`, which it does not tell when that is unknown.
StepReport step_at(int64_t step, double mfu_causal, double hfu, double peak_tflops) {
  StepReport report;
  report.step = step;
  report.mfu_causal = mfu_causal;
  report.mfu = 1.125 * mfu_causal;
  report.hfu = hfu;
  report.peak_tflops = peak_tflops;
  return report;
}

TEST_F(Metrics, HistoryGivesStepsAsSharesOfTheBestPeakThatTheirProcessKnew) {
  StartReport start;
  start.peak = {.flops = 0.5e12, .origin = "measured", .unit = "AVX2 fma", .windows = 48};
  EndReport end;
  end.step = 2;
  end.peak = {.flops = 1e12, .origin = "measured", .unit = "AVX2 fma", .windows = 60};
  {
    MetricsLog log(file_);
    log.write(start);
    log.write(step_at(1, 0.75, 1, 0.5));
    log.write(step_at(2, 0.5, 0.5, 0.75));
    log.write(end);
    start.peak.flops = 2e12;  // on another machine, and killed
    log.write(start);
    log.write(step_at(3, 0.5, 0.5, 2));
    log.write(step_at(4, 0.25, 0.5, 4));
  }
  const History history = read_history(file_);
  const auto shares = [&](size_t i) {
    const StepReport& step = history.steps.at(i);
    return std::vector<double>{step.mfu, step.mfu_causal, step.hfu, step.peak_tflops};
  };
  EXPECT_EQ(shares(0), (std::vector<double>{0.421875, 0.375, 0.5, 1}));
  EXPECT_EQ(shares(1), (std::vector<double>{0.421875, 0.375, 0.375, 1}));
  EXPECT_EQ(shares(2), (std::vector<double>{0.28125, 0.25, 0.25, 4}));
  EXPECT_EQ(shares(3), (std::vector<double>{0.28125, 0.25, 0.5, 4}));
  EXPECT_EQ(history.peak.flops, 4e12);
  EXPECT_EQ(history.peak.unit, "AVX2 fma");
}

TEST_F(Metrics, HistoryOfALogAboveItsMeasuredPeakStaysBelowOneAndAGivenPeakIsLeftAlone) {
  for (const auto& [origin, first, second] : {std::tuple{"measured", 0.5, 1.0}, {"user", 0.625, 1.25}}) {
    std::ofstream(file_) << R"({"event": "start", "step": 0, "peak_flops": 1e12, "peak_origin": ")" << origin << "\"}\n"
                         << R"({"event": "step", "step": 1, "mfu": 0.75, "mfu_causal": 0.625, "hfu": 0.625})"
                         << "\n"
                         << R"({"event": "step", "step": 2, "mfu": 1.5, "mfu_causal": 1.25, "hfu": 1.25})"
                         << "\n";
    const History history = read_history(file_);
    EXPECT_EQ(history.steps.at(0).mfu_causal, first) << origin;
    EXPECT_EQ(history.steps.at(1).mfu_causal, second) << origin;
    EXPECT_EQ(history.steps.at(1).hfu, second) << origin;
    EXPECT_EQ(history.peak.flops, std::string(origin) == "user" ? 1e12 : 1.25e12);
  }
  std::ofstream(file_) << R"({"event": "step", "step": 1, "mfu": 0.75, "mfu_causal": 0.625, "hfu": 0.625})"
                       << "\n";
  EXPECT_EQ(read_history(file_).steps.at(0).mfu, 0.75) << "of a log without a start";
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

TEST_F(Metrics, AppendsAndEndsATornLineFirst) {
  put("{\"event\":\"step\",\"step\":1}\n{\"event\":\"step\",\"st");
  { MetricsLog(file_).write(EvalReport{.step = 1}); }
  const History history = read_history(file_);
  EXPECT_EQ(history.steps.size(), 1);
  EXPECT_EQ(history.evals.size(), 1);
  EXPECT_EQ(history.unreadable_lines, 1);
}

TEST_F(Metrics, TruncatesToTheResumedStepAndKeepsTheRestByteForByte) {
  const std::string kept =
      "{\"event\":\"start\",\"step\":0}\n{\"event\": \"step\",  \"step\":4, "
      "\"loss\":1.50}\n{\"event\":\"eval\",\"step\":5}\n"
      "{\"event\":\"warning\",\"message\":\"no step\"}\n";
  put(kept + "{\"event\":\"step\",\"step\":6}\n{\"event\":\"end\",\"step\":7}\n" +
      "{\"event\":\"checkpoint\",\"step\":5}\n{\"event\":\"step\",\"step\":5");
  truncate_after_step(file_, 5);
  EXPECT_EQ(text(), kept + "{\"event\":\"checkpoint\",\"step\":5}\n");
  truncate_after_step(file_, 5);
  EXPECT_EQ(text(), kept + "{\"event\":\"checkpoint\",\"step\":5}\n");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 1) << "no temporary file stays";
}

TEST_F(Metrics, TruncatingAMissingFileIsFine) {
  truncate_after_step(file_, 5);
  EXPECT_FALSE(fs::exists(file_));
  EXPECT_TRUE(read_history(file_).steps.empty());
}

TEST_F(Metrics, AFullDiskIsWarnedAboutOnceAndDoesNotStop) {
  MetricsLog log("/dev/full");
  for (int i = 0; i < 3; ++i) log.write(full_step());
  EXPECT_EQ(log.lost(), 3);
  ASSERT_EQ(logged_.size(), 1);
  EXPECT_NE(logged_[0].find("/dev/full"), std::string::npos);
  EXPECT_NE(logged_[0].find("No space left"), std::string::npos);
}

TEST_F(Metrics, GoesOnAfterAShortWrite) {
  const pid_t child = fork();
  if (child == 0) {  // a file-size limit stands for a disk that is full for a while
    signal(SIGXFSZ, SIG_IGN);
    rlimit limit = {100, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &limit);
    MetricsLog log(file_);
    log.write(full_step());
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    log.write(EvalReport{.step = 7});
    _exit(log.lost() == 1 ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const History history = read_history(file_);
  EXPECT_EQ(history.evals.size(), 1);
  EXPECT_EQ(history.unreadable_lines, 1);
}

TEST_F(Metrics, AnUnwritableFileIsAnErrorThatNamesIt) {
  try {
    MetricsLog log(folder_ / "missing" / "metrics.jsonl");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::io);
    EXPECT_NE(std::string(error.what()).find("missing/metrics.jsonl"), std::string::npos);
  }
}

TEST_F(Metrics, HistoryKeepsTheLargestMemoryAndPassesOverNonsense) {
  {
    MetricsLog log(file_);
    StepReport step = full_step();
    log.write(step);
    step.memory_bytes = {{"weights", 5}, {"activations", 20}, {"late", 1}};
    log.write(step);
  }
  std::ofstream(file_, std::ios::app)
      << "[1]\n{\"event\":3}\n{\"event\":\"step\",\"step\":\"x\"}\n\n\x01\n{\"event\":\"new\"}\n";
  const History history = read_history(file_);
  EXPECT_EQ(history.steps.size(), 2);
  EXPECT_TRUE(history.steps[0].memory_bytes.empty());
  EXPECT_EQ(history.memory_bytes,
            (measure::BytesByCategory{{"weights", (int64_t{1} << 60) + 1}, {"activations", 20}, {"late", 1}}));
  EXPECT_EQ(history.unreadable_lines, 5);
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
