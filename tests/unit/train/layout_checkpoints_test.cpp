// Every ordered pair of layouts: a run that was saved in one layout and is resumed in the other continues as if it had
// not stopped. ctest runs each pair of layouts with one of the combinations of replicas, ZeRO and offload on both
// sides, and each combination at least once. LAYOUT_PAIRS=all runs all of them, and prints a table.
#include <cstdlib>

#include "config/sharding_spec.h"
#include "rigs/layout_cases.h"
#include "rigs/layout_checks.h"
#include "rigs/offload.h"

namespace trainer::tests {
namespace {

using config::Config;

constexpr int64_t kSavedStep = 2, kLastStep = 5;
constexpr int kOptions = 8;  // combinations of replicas, ZeRO and offload

/// The specs of Optimus-2D with schedule = "ring": SUMMA block by block.
Config streamed_specs() {
  Config c = configure(Square{2});
  config::set_tables(c, config::sharding_of(c));
  return c;
}

struct Named {
  const char* name;
  Config config;
};
const std::vector<Named>& layouts() {
  static const std::vector<Named> all{
      {"OneRank", on_one_rank(configure(Square{1}))},
      {"Megatron1D", configure(MegatronLayout{.tensor = 2, .sequence_parallel = false})},
      {"Megatron1DSequenceParallel", configure(MegatronLayout{.tensor = 2})},
      {"OptimusRing", configure(Square{2})},
      {"OptimusGather", configure(Square{.q = 2, .panels = config::Panels::gather})},
      {"Optimus25D", configure(Square{2, 2})},
      {"Axonn", configure(AxonnGrid{2, 1, 2})},
      {"Specs", mixed_specs(config::Arch::gpt2).config},
      {"StreamedSpecs", streamed_specs()}};
  return all;
}

/// The layout on one or two replicas, with and without ZeRO and offload, for one small model and batch.
Config configured(size_t layout, int options) {
  Config c = layouts()[layout].config;
  c.model = configure(Square{2}).model;
  c.model.n_head = c.model.n_kv_head = 8;
  c.model.d_model = 32;
  c.model.d_ff = 48;
  c.train.micro_batch = 4;
  c.train.global_batch = 8;
  c.parallel.data = 1 + options % 2;
  c.parallel.zero_stage = options / 2 % 2;
  if (options >= 4) c.offload = kOffloadPlans[1];
  c.offload.subgroup = 128;
  return c;
}

/// The end of a run: its tensors at the step that is saved, and what the further steps compute.
struct Leg {
  Tensors saved, end;
  std::vector<double> losses, norms;
};

/// A rank of a run.
class Rank {
 public:
  Rank(comm::World& world, const Config& c) : world_(world), run_(&world, c, DType::f64, 1) {}

  void train_and_save(const std::filesystem::path& folder, Leg& leg) {
    for (int64_t n = 1; n <= kSavedStep; ++n) run_.step(n);
    checkpoint::CheckpointStore files(folder, {}, checkpoint::fast_calls(), &world_);
    checkpoint::Snapshot snapshot;
    snapshot.state.step = kSavedStep;
    snapshot.tensors = checkpoint::slices_to_save(store(), true);
    files.save(snapshot);
    finish(leg);
  }
  /// Resumes; the rank's earlier state is overwritten with NaN first.
  void resume(const std::filesystem::path& folder, Leg& leg) {
    const std::vector<checkpoint::TensorSlice> slices = checkpoint::slices_to_fill(store(), true);
    for (const checkpoint::TensorSlice& slice : slices)
      for (const mesh::Run& run : slice.runs)
        for (int64_t i = 0; i < run.length; ++i) slice.local.as<double>()[run.local + i * run.stride] = NAN;
    checkpoint::Reader(folder).load(slices, {});
    store().refresh_compute();
    finish(leg);
  }

 private:
  params::ParamStore& store() { return run_.trainer.store(); }
  void finish(Leg& leg) {
    collect_all(leg.saved);
    for (int64_t n = kSavedStep + 1; n <= kLastStep; ++n) {
      const auto outcome = run_.step(n);
      if (!world_.first()) continue;
      leg.losses.push_back(outcome.loss);
      leg.norms.push_back(outcome.norm.norm);
    }
    collect_all(leg.end);
  }
  void collect_all(Tensors& tensors) {
    static std::mutex mutex;
    const std::vector<checkpoint::TensorSlice> slices = checkpoint::slices_to_save(store(), true);
    const std::lock_guard lock(mutex);
    for (const checkpoint::TensorSlice& slice : slices) collect(tensors, slice);
  }

  comm::World& world_;
  Tiny run_;
};

void on_ranks(const Config& c, const std::function<void(Rank&)>& body) {
  comm::run_on_threads(ranks_of(c), {.timeout_s = 60}, [&](comm::World& world) {
    Rank rank(world, c);
    body(rank);
  });
}

/// Returns the largest |a - b| / b.
double worst(const std::vector<double>& a, const std::vector<double>& b) {
  double error = a.size() == b.size() && !a.empty() ? 0 : INFINITY;
  for (size_t i = 0; i < b.size() && error < INFINITY; ++i) {
    const double difference = std::abs(a[i] - b[i]) / b[i];
    error = difference <= error ? error : difference;  // a NaN stays
  }
  return error;
}

void compare(const Leg& resumed, const Leg& source, bool same_layout) {
  EXPECT_TRUE(resumed.saved == source.saved) << "loaded tensors";
  EXPECT_LE(worst(resumed.losses, source.losses), 1e-10);
  EXPECT_LE(worst(resumed.norms, source.norms), 1e-9);
  for (const auto& [name, values] : source.end)
    if (name.find('#') == std::string::npos && !is_key_bias(name)) {
      EXPECT_LE(distance(resumed.end.at(name), values), 1e-9) << name;
    }
  if (same_layout) {
    EXPECT_TRUE(resumed.end == source.end) << "ZeRO and offload change no bits";
  }
}

class Resumes : public testing::TestWithParam<size_t> {};

TEST_P(Resumes, InEveryLayoutAsIfItHadNotStopped) {
  const char* requested = std::getenv("LAYOUT_PAIRS");
  const bool all = requested != nullptr && std::string_view(requested) == "all";
  const size_t from = GetParam();
  const auto runs = [&](size_t to, int before, int after) {
    // Each of the 81 pairs has one of the 64 combinations.
    const size_t pair = from * layouts().size() + to, options = pair * 37 % (kOptions * kOptions);
    return all || options == static_cast<size_t>(before * kOptions + after);
  };
  const checkpoint::TempFolder folder;
  const auto saved_by = [&](int before) { return folder / format("{}", before); };
  std::map<int, Leg> sources;
  std::vector<double> loss_errors(layouts().size());
  int64_t pairs = 0;
  for (size_t to = 0; to < layouts().size(); ++to)
    for (int after = 0; after < kOptions; ++after) {
      std::map<int, Leg> resumed;  // one set of ranks resumes them all, one after the other
      for (int before = 0; before < kOptions; ++before) {
        if (!runs(to, before, after)) continue;
        resumed[before];
        if (sources.contains(before)) continue;
        Leg& leg = sources[before];
        on_ranks(configured(from, before), [&](Rank& rank) { rank.train_and_save(saved_by(before), leg); });
      }
      if (resumed.empty()) continue;
      on_ranks(configured(to, after), [&](Rank& rank) {
        for (auto& [before, leg] : resumed) rank.resume(saved_by(before), leg);
      });
      for (const auto& [before, leg] : resumed) {
        SCOPED_TRACE(format("saved by {} with options {}, resumed by {} with options {}", layouts()[from].name, before,
                            layouts()[to].name, after));
        compare(leg, sources.at(before), to == from && after % 2 == before % 2);
        loss_errors[to] = std::max(loss_errors[to], worst(leg.losses, sources.at(before).losses));
        ++pairs;
      }
      if (HasFailure()) return;
    }
  if (!all) return;
  std::printf("| %s |", layouts()[from].name);
  for (const double error : loss_errors) std::printf(" %.0e |", error);
  std::printf(" %ld pairs\n", pairs);
}
INSTANTIATE_TEST_SUITE_P(From, Resumes, testing::Range(size_t{0}, size_t{9}),
                         [](const testing::TestParamInfo<size_t>& one) {
                           return std::string(layouts()[one.param].name);
                         });

}  // namespace
}  // namespace trainer::tests
