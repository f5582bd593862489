#pragma once
// A folder for a metrics.jsonl, with what was logged meanwhile; and a step that has every field.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "report/events_json.h"
#include "report/history.h"
#include "report/metrics.h"

namespace trainer::report {

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

inline StepReport full_step() {
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

}  // namespace trainer::report
