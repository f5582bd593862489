#pragma once
// A made-up run, and a folder for its files.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>

#include "base/error.h"
#include "base/log.h"
#include "report/events_json.h"
#include "report/history.h"
#include "report/metrics.h"

namespace trainer::report {

namespace fs = std::filesystem;

class RunFolder : public testing::Test {
 protected:
  RunFolder() {
    fs::create_directories(folder_);
    previous_ = log::set_sink([this](log::Level, const std::string& line) { logged_ += line + "\n"; });
  }
  ~RunFolder() override {
    log::set_sink(previous_);
    fs::remove_all(folder_);
  }
  static std::string read(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void put(const fs::path& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  /// Returns what check_report.py finds wrong; empty if the page is well-formed, self-contained and accessible.
  std::string faults(const std::string& page) const {
    put("page.html", page);
    const std::string command = "python3 '" TRAINER_SOURCE_DIR "/tests/unit/report/check_report.py' '" +
                                (folder_ / "page.html").string() + "' > '" + (folder_ / "faults").string() + "' 2>&1";
    return std::system(command.c_str()) == 0 ? "" : "faults: " + read(folder_ / "faults");
  }

  const fs::path folder_ = fs::path(testing::TempDir()) / ("report_test_" + std::to_string(getpid()));
  const fs::path file_ = folder_ / "metrics.jsonl";
  std::string logged_;
  log::Sink previous_;
};

template <typename... Parts>
void expect_texts(const std::string& text, const Parts&... parts) {
  for (const std::string& part : {std::string(parts)...})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin " << text;
}

template <typename F>
void expect_error(Code code, const std::string& part, F&& act) {
  try {
    act();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    expect_texts(error.what(), part);
  }
}

inline StartReport example_start() {
  return from_json<StartReport>(Json::parse(R"({"name": "tiny <run>", "time": "2030-01-31T12:34:56Z", "compute": "fp32",
    "model": {"arch": "gpt2", "n_layer": 6, "n_head": 6, "n_kv_head": 2, "d_model": 384, "d_ff": 1536, "seq_len": 256,
              "vocab_size": 2039},
    "parameters": 11504641, "total_steps": 40, "global_batch": 24, "micro_batch": 12, "accumulation": 2,
    "train_tokens": 412345, "val_tokens": 40123, "unigram_entropy": 6.3125,
    "flops_per_token": {"matmul": 6.8e7, "attention": 7e6, "recomputed": 0},
    "peak": {"tflops": 0.19, "origin": "measured", "unit": "AVX2 fma", "windows": 60, "median_tflops": 0.17,
             "lowest_tflops": 0.09},
    "predicted": {"memory_bytes": 419430400},
    "environment": {"version": "0.1.0", "commit": "1a2b3c4d", "device": "cpu", "isa": "avx2",
                    "product_path": "own kernels & fp32", "ranks": 1, "threads": 2}})"));
}

/// Returns steps 1 … n: loss 8 − step/10, 100 ms + step, 1000 + step tokens/s.
inline History example_history(int64_t n) {
  History history;
  history.start = example_start();
  for (int64_t step = 1; step <= n; ++step) {
    const auto at = static_cast<double>(step);
    StepReport report{.step = step, .tokens = step * 6144, .loss = 8 - at / 10, .lr = 1e-3, .grad_norm = 1 / at};
    report.step_ms = 100 + at;
    report.tokens_per_s = 1000 + at;
    report.tflops_per_device = 0.1;
    report.mfu = 0.5;
    report.mfu_causal = 0.45;
    report.hfu = 0.48;
    report.phase_ms = {.data = 1, .forward = 30, .backward = 60, .optimizer = 5};
    history.steps.push_back(report);
  }
  history.memory_bytes = {{"weights", 44 << 20}, {"activations", 190 << 20}};
  return history;
}

/// Returns a run that was evaluated twice, skipped step 61, and ended.
inline History full_history() {
  History history = example_history(120);
  history.steps[60].loss = std::nan("");
  history.steps[60].skipped = true;
  history.steps[61].grad_norm = std::numeric_limits<double>::infinity();
  history.evals = {{.step = 60, .loss = 2.375, .perplexity = 13.804, .bits_per_byte = 1.75, .tokens = 4096},
                   {.step = 120, .loss = 2.5, .perplexity = 12.182, .bits_per_byte = 1.625, .tokens = 4096}};
  history.warnings.push_back({61, "step 61 <skipped>"});
  EndReport end{.step = 120, .tokens = 120 * 6144, .outcome = "finished", .wall_s = 75};
  end.predicted.memory_bytes = 400 << 20;
  end.measured.memory_bytes = 410 << 20;
  history.ends.push_back(end);
  return history;
}

}  // namespace trainer::report
