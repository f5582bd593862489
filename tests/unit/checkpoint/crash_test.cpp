// A save is killed at each of its system calls in turn, or that call fails.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include "fixture.h"

namespace trainer::checkpoint {
namespace {

using Fault = FaultyCalls::Fault;

struct Scene {
  const char* name;
  std::vector<int64_t> before;  // steps saved before
  int64_t step;                 // whose save is killed or fails
  Retention retention;
  bool without_exchange = false;
};

const Scene kScenes[] = {
    {"first", {}, 100, {}},
    {"second", {100}, 200, {}},
    {"same step", {50, 100}, 100, {}},
    {"same step, no exchange", {50, 100}, 100, {}, true},
    {"only step again, no exchange", {100}, 100, {}, true},
    {"retention", {50, 100, 150}, 200, {.keep = 1}},
};

/// The folder before the save, made once and copied for each attempt.
class Stage {
 public:
  explicit Stage(const Scene& scene) {
    fs::create_directory(folder());
    for (const int64_t step : scene.before) save_step(folder(), step);
  }
  void copy_to(const fs::path& target) const { fs::copy(folder(), target, fs::copy_options::recursive); }

 private:
  fs::path folder() const { return parent_.path() / "c"; }
  TempFolder parent_;
};

/// Expects a usable checkpoint: the last one before the save, or the new one, bit for bit.
void expect_usable(const fs::path& folder, const Scene& scene) {
  Warnings warnings;
  if (scene.before.empty()) {
    if (!complete_checkpoints(folder).empty()) {
      EXPECT_EQ(load_newest(folder, small_model()), scene.step);
    }
    return;
  }
  const int64_t step = load_newest(folder, small_model());
  EXPECT_TRUE(step == scene.step || step == scene.before.back()) << step;
}

void expect_next_save_succeeds(const fs::path& folder, const Scene& scene) {
  Warnings warnings;
  save_step(folder, scene.step, {}, fast_calls(), scene.retention);
  EXPECT_EQ(load_newest(folder, small_model()), scene.step);
  EXPECT_TRUE(hidden_names(folder).empty());
  EXPECT_TRUE(warnings.lines.empty()) << warnings.lines.front();
}

TEST(Crash, AKillAtAnyCallLeavesAUsableCheckpoint) {
  for (const Scene& scene : kScenes) {
    const Stage stage(scene);
    for (const Fault fault : {Fault::kill, Fault::torn_kill}) {
      int64_t kills = 0;
      for (bool killed = true; killed; ++kills) {
        SCOPED_TRACE(format("{}: kill at call {}", scene.name, kills));
        TempFolder folder;
        stage.copy_to(folder / "c");
        const pid_t child = ::fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
          log::set_sink([](log::Level, const std::string&) {});
          FaultyCalls calls(fault, kills);
          calls.without_exchange = scene.without_exchange;
          try {
            save_step(folder / "c", scene.step, {}, calls, scene.retention);
          } catch (...) {
            ::_exit(2);
          }
          ::_exit(1);
        }
        int status = 0;
        ASSERT_EQ(::waitpid(child, &status, 0), child);
        ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) < 2) << status;
        killed = WEXITSTATUS(status) == 0;
        expect_usable(folder / "c", scene);
        expect_next_save_succeeds(folder / "c", scene);
        if (HasFailure()) return;
      }
      EXPECT_GT(kills, 20) << scene.name;
    }
  }
}

TEST(Crash, AFailureOfAnyCallIsOneClearErrorAndHarmsNothing) {
  struct Kind {
    Fault fault;
    int error;
    const char* says;  // null: the save must succeed
    bool background = false;
  };
  const Kind kinds[] = {{Fault::error, EIO, "dmesg"},
                        {Fault::error, ENOSPC, "the disk is full"},
                        {Fault::error_from_here, ENOSPC, "the disk is full"},
                        {Fault::error, EINTR, nullptr},
                        {Fault::short_write, 0, nullptr},
                        {Fault::error, EIO, "dmesg", true},
                        {Fault::error, ENOSPC, "the disk is full", true},
                        {Fault::error_from_here, ENOSPC, "the disk is full", true},
                        {Fault::short_write, 0, nullptr, true}};
  for (const Scene& scene : kScenes) {
    const Stage stage(scene);
    for (const Kind& kind : kinds) {
      int64_t at = 0, errors = 0;
      for (bool reached = true; reached; ++at) {
        SCOPED_TRACE(format("{}: errno {} at call {}", scene.name, kind.error, at));
        TempFolder folder;
        stage.copy_to(folder / "c");
        FaultyCalls calls(kind.fault, at, kind.error);
        calls.without_exchange = scene.without_exchange;
        {
          Warnings warnings;
          bool failed = false;
          const int64_t before = scene.before.empty() ? 0 : list_checkpoints(folder / "c").complete.front().sequence;
          const auto saved = [&] {  // even if it is named as an earlier save was
            const std::vector<Entry> all = list_checkpoints(folder / "c").complete;
            return !all.empty() && all.front().sequence > before;
          };
          try {
            save_step(folder / "c", scene.step, {}, calls, scene.retention, kind.background);
          } catch (const Error& error) {
            failed = true;
            ++errors;
            EXPECT_EQ(error.code(), Code::io) << error.what();
            expect_parts(error.what(), {folder.path().string(), kind.says != nullptr ? kind.says : "no error"});
          }
          EXPECT_NE(failed, saved()) << calls.victim();
          EXPECT_TRUE(kind.says != nullptr || warnings.lines.empty()) << warnings.lines.front();
        }
        reached = calls.calls() > at;
        // A folder that retention cannot remove causes a warning, and is removed at the next start.
        EXPECT_TRUE(scene.retention.keep > 0 || hidden_names(folder / "c").empty()) << calls.victim();
        expect_usable(folder / "c", scene);
        expect_next_save_succeeds(folder / "c", scene);
        if (HasFailure()) return;
      }
      EXPECT_GT(at, 20) << scene.name;
      EXPECT_TRUE(kind.says == nullptr || errors > 5) << scene.name;
    }
  }
}

}  // namespace
}  // namespace trainer::checkpoint
