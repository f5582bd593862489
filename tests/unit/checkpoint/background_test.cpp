// Background saves: training continues while threads write, the files equal those of save(), and after a failure on any
// rank the last checkpoint is still there.
#include <gtest/gtest.h>

#include <atomic>

#include "checkpoint/shard.h"
#include "fixture.h"

namespace trainer::checkpoint {
namespace {

/// Blocks every write until open_gate().
class GatedCalls : public FastCalls {
 public:
  void open_gate() {
    open_ = true;
    open_.notify_all();
  }
  ssize_t write(int fd, const void* data, size_t bytes) override {
    open_.wait(false);
    return SystemCalls::write(fd, data, bytes);
  }

 private:
  std::atomic<bool> open_ = false;
};

/// Tensors in random layouts, and a snapshot with copies of them.
struct Copied {
  explicit Copied(int64_t step, int64_t rank = 0, int64_t ranks = 1) : tensors(small_model(), random, rank, ranks) {
    tensors.fill(static_cast<uint64_t>(step));
    snapshot = snapshot_of(tensors, step);
    device::ThreadPool pool(3);
    snapshot.tensors = copy_to_host(pool, snapshot.tensors, memory);
  }
  Random random{5};
  Tensors tensors;
  std::vector<std::byte> memory;
  Snapshot snapshot;
};

std::string without_sequence(std::string manifest) {
  const size_t begin = manifest.find("\"sequence\"");
  return manifest.erase(begin, manifest.find(',', begin) - begin);
}

TEST(BackgroundSave, LeavesTheTensorsToTrainingWhileAThreadWrites) {
  TempFolder run;
  save_step(run / "c", 100);
  Copied copied(200);
  GatedCalls calls;
  CheckpointStore store(run / "c", {}, calls);
  EXPECT_FALSE(store.is_saving());
  store.begin(copied.snapshot, true);
  copied.tensors.fill(201);
  EXPECT_TRUE(store.is_saving());
  EXPECT_TRUE(store.is_writing());
  EXPECT_EQ(content_of(run / "c/latest"), "step-00000100\n");
  calls.open_gate();
  EXPECT_FALSE(store.proceed());
  EXPECT_TRUE(store.is_saving());
  EXPECT_TRUE(store.proceed());
  EXPECT_FALSE(store.is_saving());
  EXPECT_FALSE(store.is_writing());
  EXPECT_EQ(content_of(run / "c/latest"), "step-00000200\n");
  EXPECT_EQ(load_newest(run / "c", small_model()), 200);
  EXPECT_EQ(copied.tensors.difference(201), "");
}

TEST(BackgroundSave, WritesTheFilesOfASaveBetweenSteps) {
  TempFolder run;
  Copied copied(200);
  Snapshot live = copied.snapshot;
  live.tensors = copied.tensors.slices;
  const fs::path between = CheckpointStore(run / "between", {}, fast_calls()).save(live);
  CheckpointStore store(run / "background", {}, fast_calls());
  store.begin(copied.snapshot, true);
  while (!store.proceed()) {
  }
  const fs::path background = run / "background/step-00000200";
  EXPECT_EQ(names_in(background), names_in(between));
  for (const char* name : {"rank-00000.shard", "config.toml", "tokenizer.model"})
    EXPECT_EQ(content_of(background / name), content_of(between / name)) << name;
  EXPECT_EQ(without_sequence(content_of(background / "manifest.json")),
            without_sequence(content_of(between / "manifest.json")));
}

TEST(BackgroundSave, CopiesTakeTheBytesThatArePlanned) {
  Copied copied(1);
  int64_t runs = 0;
  for (const TensorSlice& slice : copied.tensors.slices) runs += static_cast<int64_t>(slice.runs.size());
  // fp32: wte with both moments, a matrix, a vector; one tensor in 16 bits, one in fp64.
  const int64_t bytes = 4 * (3 * 13 * 6 + 6 * 6 + 7) + 2 * 3 * 5 + 8 * 2 * 3 * 2;
  EXPECT_EQ(copied.memory.size(), bytes);
  EXPECT_EQ(bytes_of_copies(copied.tensors.slices), bytes + runs * static_cast<int64_t>(sizeof(mesh::Run)));
}

TEST(BackgroundSave, RetentionWaitsForThePublication) {
  TempFolder run;
  for (const int64_t step : {100, 200}) save_step(run / "c", step);
  Copied copied(300);
  copied.snapshot.state.proven_step = 100;
  CheckpointStore store(run / "c", {.keep = 1}, fast_calls());
  store.begin(copied.snapshot, true);
  store.remove_old(300);  // a training step has already proven this checkpoint
  EXPECT_EQ(content_of(run / "c/latest"), "step-00000200\n");
  EXPECT_TRUE(fs::exists(run / "c/step-00000100"));
  while (!store.proceed()) {
  }
  EXPECT_EQ(names_in(run / "c"), (std::vector<std::string>{"latest", "step-00000300"}));
}

TEST(BackgroundSave, OneThatIsAbandonedIsALeftOver) {
  TempFolder run;
  save_step(run / "c", 100);
  Copied copied(200);
  {
    CheckpointStore store(run / "c", {}, fast_calls());
    store.begin(copied.snapshot, true);
  }
  EXPECT_EQ(hidden_names(run / "c").size(), 1);
  EXPECT_EQ(load_newest(run / "c", small_model()), 100);
  CheckpointStore next(run / "c", {}, fast_calls());
  EXPECT_TRUE(hidden_names(run / "c").empty());
}

TEST(BackgroundSave, AFailureOnARankEndsItOnAllAndItCanBeRepeated) {
  for (const int error : {ENOSPC, EIO}) {
    TempFolder run;
    comm::run_on_threads(3, {.timeout_s = 60}, [&](comm::World& world) {
      Copied first(100, world.rank(), 3), second(200, world.rank(), 3);
      CheckpointStore(run / "c", {}, fast_calls(), &world).save(first.snapshot);
      FaultyCalls calls(world.rank() == 2 ? FaultyCalls::Fault::error : FaultyCalls::Fault::none, 1, error);
      CheckpointStore store(run / "c", {}, calls, &world);
      const Error failure = error_of([&] {
        store.begin(second.snapshot, true);
        while (!store.proceed()) {
        }
      });
      EXPECT_EQ(failure.code(), Code::io);
      EXPECT_EQ(failure.scope(), Scope::all_ranks);
      expect_parts(failure.what(), {"saving the checkpoint of step 200", "rank 2", "rank-00002.shard", "cannot write"});
      EXPECT_FALSE(store.is_saving());
      if (world.first()) {
        EXPECT_EQ(names_in(run / "c"), (std::vector<std::string>{"latest", "step-00000100"}));
        EXPECT_EQ(load_newest(run / "c", small_model()), 100);
      }
      store.save(second.snapshot);
    });
    EXPECT_EQ(load_newest(run / "c", small_model()), 200);
  }
}

}  // namespace
}  // namespace trainer::checkpoint
